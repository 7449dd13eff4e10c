// chapter 4
// %% bind-streams
#include "python/streams.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "runtime/capture.h"
#include "runtime/gate.h"
#include "runtime/streams.h"
#include "scaffolding/device.h"
#include "scaffolding/error.h"
#include "scaffolding/stream.h"

namespace py = pybind11;

namespace cookbook {
namespace {

c10::Stream external(uintptr_t handle) { return external_stream(reinterpret_cast<cookbookStream_t>(handle)); }

// For tests: a stream that this backend did not make, as another library's would be.
uintptr_t driver_stream_create(int device, int priority) {
  const c10::DeviceIndex before = exchange_device(static_cast<c10::DeviceIndex>(device));
  cookbookStream_t stream = nullptr;
  const cookbookError_t error = cookbookStreamCreate(&stream, priority);
  set_device(before);
  check(error);
  return reinterpret_cast<uintptr_t>(stream);
}
void driver_stream_destroy(uintptr_t stream) {
  check(cookbookStreamDestroy(reinterpret_cast<cookbookStream_t>(stream)));
}

}  // namespace

// %% bind-streams-module
void bind_streams(py::module_& m) {
  m.def("default_stream", torch::wrap_pybind_function([](int device) {
          const c10::Device checked(kDeviceType,
                                    resolve(c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(device))));
          return c10::Stream(c10::Stream::DEFAULT, checked);
        }));
  m.def("external_stream", torch::wrap_pybind_function(&external));
  m.def("stream_priority", torch::wrap_pybind_function(&stream_priority));
  m.def("stream_priority_range", torch::wrap_pybind_function([](int device) {
          const auto [least, greatest] =
              stream_priorities(resolve(c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(device))));
          return py::make_tuple(least, greatest);
        }));
  m.def("is_current_stream_capturing",
        torch::wrap_pybind_function([] { return capture_of(current_handle(current_device())) != 0; }));
  m.def("driver_stream_create", torch::wrap_pybind_function(&driver_stream_create));
  m.def("driver_stream_destroy", torch::wrap_pybind_function_no_gil(&driver_stream_destroy));
  // Queueing may wait for room in the queue, so the GIL is released; opening never waits.
  py::class_<Gate>(m, "Gate")
      .def(py::init<const c10::Stream&>(), py::call_guard<py::gil_scoped_release>())
      .def("open", torch::wrap_pybind_function(&Gate::open))
      .def_property_readonly("reached", &Gate::reached);
}

}  // namespace cookbook
