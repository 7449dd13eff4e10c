// chapter 6
// %% bind-tensors-header
// The module's bindings for tensors' metadata, and for the kernel that sleeps.
#pragma once

#include <pybind11/pybind11.h>

namespace cookbook {

void bind_tensors(pybind11::module_& m);

}  // namespace cookbook
