// chapter 1
// %% device-count
#include "scaffolding/device.h"

#include <c10/util/Exception.h>

#include "scaffolding/error.h"

namespace cookbook {

c10::DeviceIndex device_count() noexcept {
  static const c10::DeviceIndex count = []() noexcept {
    int n = 0;
    const cookbookError_t error = cookbookGetDeviceCount(&n);
    warn(error);
    return static_cast<c10::DeviceIndex>(error == cookbookSuccess ? n : 0);
  }();
  return count;
}

// %% device-current
c10::DeviceIndex current_device() {
  int device = 0;
  check(cookbookGetDevice(&device));
  return static_cast<c10::DeviceIndex>(device);
}

void set_device(c10::DeviceIndex index) {
  if (index >= 0) check(cookbookSetDevice(index));
}

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  const c10::DeviceIndex previous = current_device();
  if (index != previous) check(cookbookSetDevice(index));
  return previous;
}

c10::DeviceIndex maybe_exchange_device(c10::DeviceIndex index) { return index < 0 ? -1 : exchange_device(index); }

// %% device-resolve
c10::DeviceIndex resolve(c10::Device device) {
  TORCH_CHECK(device.type() == kDeviceType, "expected a ", kDeviceType, " device, got ", device);
  if (!device.has_index()) return current_device();
  TORCH_CHECK(device.index() < device_count(), "invalid device index: got ", device, ", but there ",
              device_count() == 1 ? "is 1 device" : "are " + std::to_string(device_count()) + " devices",
              " of this type (indices start at 0)");
  return device.index();
}

}  // namespace cookbook
