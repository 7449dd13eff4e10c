// chapter 4
// %% bind-foreign-header
// The module's bindings for memory that comes from others or goes to them without a copy.
#pragma once

#include <pybind11/pybind11.h>

namespace cookbook {

void bind_foreign(pybind11::module_& m);

}  // namespace cookbook
