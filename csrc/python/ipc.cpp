// chapter 4
// %% bind-ipc
#include "python/ipc.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "runtime/ipc.h"

namespace py = pybind11;

namespace cookbook {
namespace {

// Sharing and receiving may wait for the device: without the GIL. Only the bytes are made with it.
py::bytes share(const c10::Storage& storage) {
  std::string message;
  {
    const py::gil_scoped_release no_gil;
    message = share_storage(storage);
  }
  return message;
}

c10::Storage receive(const py::bytes& message) {
  const std::string text = message;
  const py::gil_scoped_release no_gil;
  return receive_storage(text);
}

py::dict stats() {
  const IpcStats now = ipc_stats();
  py::dict result;
  result["sent"] = now.sent;
  result["waiting"] = now.waiting;
  result["received"] = now.received;
  result["opened"] = now.opened;
  result["unused"] = now.unused;
  return result;
}

}  // namespace

// %% bind-ipc-module
void bind_ipc(py::module_& m) {
  m.def("share_storage", torch::wrap_pybind_function(&share));
  m.def("receive_storage", torch::wrap_pybind_function(&receive));
  m.def("acknowledge_storage",
        torch::wrap_pybind_function([](const py::bytes& message) { acknowledge_storage(std::string_view(message)); }));
  m.def("storage_key", torch::wrap_pybind_function(
                           [](const py::bytes& message) { return py::bytes(storage_key(std::string_view(message))); }));
  m.def("ipc_collect", torch::wrap_pybind_function_no_gil(&ipc_collect));
  m.def("ipc_stats", torch::wrap_pybind_function(&stats));
}

}  // namespace cookbook
