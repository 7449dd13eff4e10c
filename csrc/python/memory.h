// chapter 4
// %% bind-memory-header
// The module's bindings for device memory.
#pragma once

#include <pybind11/pybind11.h>

namespace cookbook {

void bind_memory(pybind11::module_& m);

}  // namespace cookbook
