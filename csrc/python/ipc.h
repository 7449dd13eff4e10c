// chapter 4
// %% bind-ipc-header
// The module's bindings for sharing device memory between processes.
#pragma once

#include <pybind11/pybind11.h>

namespace cookbook {

void bind_ipc(pybind11::module_& m);

}  // namespace cookbook
