// chapter 4
// %% bind-random-header
// The module's bindings for random numbers.
#pragma once

#include <pybind11/pybind11.h>

namespace cookbook {

void bind_random(pybind11::module_& m);

}  // namespace cookbook
