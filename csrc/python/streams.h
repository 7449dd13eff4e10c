// chapter 4
// %% bind-streams-header
// The module's bindings for streams.
#pragma once

#include <pybind11/pybind11.h>

namespace cookbook {

void bind_streams(pybind11::module_& m);

}  // namespace cookbook
