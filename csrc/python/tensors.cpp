// chapter 6
// %% bind-tensors
#include "python/tensors.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "runtime/metadata.h"
#include "runtime/sleep.h"

namespace cookbook {

void bind_tensors(pybind11::module_& m) {
  m.def("metadata", torch::wrap_pybind_function(&metadata_of));
  m.def("set_metadata", torch::wrap_pybind_function(&set_metadata));
  m.def("register_serialization", torch::wrap_pybind_function(&register_serialization));
  // The queue may be full: wait without the GIL.
  m.def("sleep", torch::wrap_pybind_function_no_gil(&sleep));
}

}  // namespace cookbook
