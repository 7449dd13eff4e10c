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

constexpr size_t kMaxDevices = 16;  // the driver has at most 16

// A default stream lives as long as the process, so the driver is asked once a device. Two threads that ask at the same
// time get the same answer.
cookbookStream_t default_handle(c10::DeviceIndex index) {
  static std::array<std::atomic<cookbookStream_t>, kMaxDevices> known{};
  cookbookStream_t stream = known.at(index).load(std::memory_order_relaxed);
  if (stream == nullptr) [[unlikely]] {
    check(cookbookGetDefaultStream(&stream, index));
    known.at(index).store(stream, std::memory_order_relaxed);
  }
  return stream;
}

// %% stream-current
#if COOKBOOK_CHAPTER < 4
c10::Stream default_stream(c10::DeviceIndex index) {
  return c10::Stream(c10::Stream::DEFAULT, c10::Device(kDeviceType, index));
}

}  // namespace

c10::Stream current_stream(c10::DeviceIndex index) { return default_stream(index); }

c10::Stream exchange_stream(c10::Stream stream) {
  TORCH_CHECK(stream == default_stream(stream.device_index()), "expected the default stream, got stream ", stream.id(),
              ": the device has no other streams yet");
  return stream;
}

cookbookStream_t handle(const c10::Stream& stream) { return default_handle(stream.device_index()); }
cookbookStream_t current_handle(c10::DeviceIndex index) { return default_handle(index); }
#else
// This thread's current stream of each device; 0 is the default stream, so a new thread starts on the default streams
// and pays nothing for them. Nothing in here needs a destructor: a thread that ends leaves its streams as they are.
thread_local std::array<c10::StreamId, kMaxDevices> current{};

}  // namespace

c10::Stream current_stream(c10::DeviceIndex index) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, index), current.at(index));
}

cookbookStream_t handle(const c10::Stream& stream) {
  const c10::StreamId id = stream.id();
  return id == 0 ? default_handle(stream.device_index()) : reinterpret_cast<cookbookStream_t>(id);
}

// No lock and no driver call: this runs in every launch.
cookbookStream_t current_handle(c10::DeviceIndex index) {
  const c10::StreamId id = current.at(index);
  return id == 0 ? default_handle(index) : reinterpret_cast<cookbookStream_t>(id);
}

// %% stream-exchange
c10::Stream exchange_stream(c10::Stream stream) {
  const c10::DeviceIndex index = resolve(stream.device());
  c10::StreamId& now = current.at(index);
  const c10::Stream previous(c10::Stream::UNSAFE, c10::Device(kDeviceType, index), now);
  if (stream.id() != 0 && stream.id() != now) {
    // Anybody can make a torch.Stream out of a number. Here is the last place where the mistake has a name: a launch on
    // a stream of another device would look like a wrong address in a kernel.
    int device = -1;
    check(cookbookStreamGetDevice(handle(stream), &device));
    TORCH_CHECK(device == index, "stream ", stream.id(), " belongs to cookbook:", device, ", not to ", stream.device());
  }
  now = stream.id();
  return previous;
}
#endif

// %% stream-end
}  // namespace cookbook
