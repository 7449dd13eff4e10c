// chapter 4
// %% bind-foreign-owner
#include "python/foreign.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "operators/on_device.h"
#include "runtime/dlpack.h"
#include "runtime/foreign.h"
#include "runtime/streams.h"
#include "scaffolding/stream.h"

namespace py = pybind11;

namespace cookbook {
namespace {

// A Python object as an owner. Its last reference may go on any thread; after the interpreter nobody is left to tell.
ForeignOwner owner_of(const py::object& object) {
  if (object.is_none()) return {nullptr, [](void*) {}};
  return {object.inc_ref().ptr(), [](void* held) {
            if (Py_IsInitialized() == 0) return;
            const py::gil_scoped_acquire gil;
            Py_DECREF(static_cast<PyObject*>(held));
          }};
}

at::Tensor from_pointer(uintptr_t address, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                        at::ScalarType dtype, const std::optional<at::Device>& device, const py::object& owner) {
  ForeignOwner held = owner_of(owner);
  const py::gil_scoped_release no_gil;
  return from_foreign(reinterpret_cast<void*>(address), sizes, strides, dtype, device, std::move(held));
}

at::Tensor adopt(const at::Tensor& imported) {
  const py::gil_scoped_release no_gil;
  return adopt_foreign(imported);
}

// %% bind-foreign-wake
// A stream's thread must not wait for the GIL: a thread that holds it may be waiting for the stream. A pending call is
// made by Python's main thread, between two instructions of the program. There is room for 32; with one more the owner
// waits for the next import.
void wake() {
  Py_AddPendingCall(
      [](void*) {
        collect_foreign();
        return 0;
      },
      nullptr);
}

// At exit: nothing wakes the interpreter from now on, and what the streams still use is waited for.
void finish_foreign() {
  set_foreign_waker(nullptr);
  if (cookbookIsForkedChild() || foreign_stats().dropped == 0) return;
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) warn(cookbookDeviceSynchronize(index));
  collect_foreign();
}

py::dict stats() {
  const ForeignStats now = foreign_stats();
  py::dict result;
  result["alive"] = now.alive;
  result["dropped"] = now.dropped;
  return result;
}

// %% bind-foreign-export
// Completes a capsule that core has made of `source`.
template <class Managed>
void complete(Managed& managed, const at::Tensor& source, const std::optional<c10::Stream>& consumer) {
  const DLTensor& tensor = managed.dl_tensor;
  if constexpr (requires { managed.flags; }) {
    // Core makes the copy and does not say so.
    const bool on_device = tensor.device.device_type == kDLExtDev;
    if (source.numel() != 0 && (!on_device || static_cast<char*>(tensor.data) + tensor.byte_offset !=
                                                  static_cast<const char*>(source.const_data_ptr()))) {
      managed.flags |= DLPACK_FLAG_BITMASK_IS_COPIED;
    }
  }
  if (consumer && tensor.device.device_type == kDLExtDev) hand_over(tensor, *consumer);
}

// `stream` is a driver handle, None for the default stream, -1 for none. It is looked at before core makes the capsule.
std::optional<c10::Stream> consumer_stream(const std::optional<int64_t>& stream, c10::Device device) {
  if (stream == -1) return std::nullopt;
  if (!stream) return c10::Stream(c10::Stream::DEFAULT, c10::Device(kDeviceType, resolve(device)));
  return external_stream(reinterpret_cast<cookbookStream_t>(*stream));
}

void complete_capsule(const py::capsule& capsule, const at::Tensor& source, const std::optional<c10::Stream>& stream) {
  const std::string_view name = capsule.name();
  if (name == "dltensor") return complete(*capsule.get_pointer<DLManagedTensor>(), source, stream);
  TORCH_CHECK_VALUE(name == "dltensor_versioned", "expected an unused DLPack capsule, got '", name, "'");
  complete(*capsule.get_pointer<DLManagedTensorVersioned>(), source, stream);
}

// %% bind-foreign-driver
// For tests and examples: memory that this backend did not allocate, as a vendor's library would make it.
uintptr_t driver_malloc(int device, size_t bytes) {
  const OnDevice guard(c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(device)));
  void* pointer = nullptr;
  check(cookbookMalloc(&pointer, bytes));
  return reinterpret_cast<uintptr_t>(pointer);
}
void driver_free(uintptr_t pointer) { check(cookbookFree(reinterpret_cast<void*>(pointer))); }

}  // namespace

// %% bind-foreign-module
void bind_foreign(py::module_& m) {
  m.def("from_pointer", torch::wrap_pybind_function(&from_pointer));
  m.def("adopt_foreign", torch::wrap_pybind_function(&adopt));
  m.def("collect_foreign", &collect_foreign);
  m.def("finish_foreign", torch::wrap_pybind_function_no_gil(&finish_foreign));
  m.def("foreign_stats", torch::wrap_pybind_function(&stats));
  m.def("consumer_stream", torch::wrap_pybind_function(&consumer_stream));
  m.def("complete_capsule", torch::wrap_pybind_function(&complete_capsule));
  m.def("driver_malloc", torch::wrap_pybind_function_no_gil(&driver_malloc));
  m.def("driver_free", torch::wrap_pybind_function_no_gil(&driver_free));
  set_foreign_waker(&wake);
}

}  // namespace cookbook
