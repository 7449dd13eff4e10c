// chapter 4
// %% bind-pinned-header
// The module's bindings for pinned host memory.
#pragma once

#include <pybind11/pybind11.h>

namespace cookbook {

void bind_pinned(pybind11::module_& m);

}  // namespace cookbook
