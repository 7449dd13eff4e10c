// chapter 1
// %% stream-default
#include "scaffolding/stream.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>

#include "scaffolding/device.h"
#include "scaffolding/error.h"

namespace cookbook {
namespace {

c10::Stream default_stream(c10::DeviceIndex index) {
  return c10::Stream(c10::Stream::DEFAULT, c10::Device(kDeviceType, index));
}

}  // namespace

// %% stream-current
c10::Stream current_stream(c10::DeviceIndex index) { return default_stream(index); }

c10::Stream exchange_stream(c10::Stream stream) {
  TORCH_CHECK(stream == default_stream(stream.device_index()), "expected the default stream, got stream ", stream.id(),
              ": the device has no other streams yet");
  return stream;
}

cookbookStream_t handle(const c10::Stream& stream) { return current_handle(stream.device_index()); }

// A default stream lives as long as the process, so the driver is asked once a device. Two threads that ask at the same
// time get the same answer.
cookbookStream_t current_handle(c10::DeviceIndex index) {
  static std::array<std::atomic<cookbookStream_t>, 16> known{};  // the driver has at most 16 devices
  cookbookStream_t stream = known.at(index).load(std::memory_order_relaxed);
  if (stream == nullptr) [[unlikely]] {
    check(cookbookGetDefaultStream(&stream, index));
    known.at(index).store(stream, std::memory_order_relaxed);
  }
  return stream;
}

}  // namespace cookbook
