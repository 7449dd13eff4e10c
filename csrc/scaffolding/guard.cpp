// chapter 1
// %% guard-devices
// The device guard: how PyTorch's device-independent code asks for and changes the current device and stream.
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#if COOKBOOK_CHAPTER >= 4
#include "runtime/capture.h"
#include "runtime/events.h"
#include "runtime/streams.h"
#include "scaffolding/allocator.h"
#endif
#include "scaffolding/device.h"
#include "scaffolding/error.h"
#include "scaffolding/stream.h"

namespace cookbook {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDeviceType; }

  Device exchangeDevice(Device device) const override {
    return Device(kDeviceType, device.has_index() ? exchange_device(device.index()) : current_device());
  }
  Device getDevice() const override { return Device(kDeviceType, current_device()); }
  void setDevice(Device device) const override { set_device(device.index()); }
  // Called by destructors, also while an exception is on its way: it must not throw, so it warns.
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) warn(cookbookSetDevice(device.index()));
  }
  DeviceIndex deviceCount() const noexcept override { return device_count(); }

  // %% guard-streams
  Stream getStream(Device device) const override { return current_stream(resolve(device)); }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::DEFAULT, Device(kDeviceType, resolve(device)));
  }
  Stream exchangeStream(Stream stream) const override { return exchange_stream(stream); }

#if COOKBOOK_CHAPTER >= 4
  // %% guard-new-streams
  // torch.Stream(device, priority=...). Who gets it may copy it and forget it: a pooled stream has no owner.
  Stream getNewStream(Device device, int priority) const override { return new_stream(resolve(device), priority); }
  // Where c10d and futures run what they do behind the program's back.
  Stream getStreamFromGlobalPool(Device device, bool high_priority) const override {
    const DeviceIndex index = resolve(device);
    return new_stream(index, high_priority ? stream_priorities(index).greatest : 0);
  }
  void* getStreamNativeHandle(const Stream stream) const override { return handle(stream); }
  // Core's default says no: torch.Stream.is_capturing() and whoever must not wait during a capture ask here.
  bool isStreamCapturing(const Stream& stream) const override { return capture_of(handle(stream)) != 0; }

  // %% guard-events
  void record(void** event, const Stream& stream, DeviceIndex index, c10::EventFlag flag) const override {
    record_event(event, stream, index, flag);
  }
  void block(void* event, const Stream& stream) const override { block_stream(event, stream); }
  bool queryEvent(void* event) const override { return query_event(event); }
  void synchronizeEvent(void* event) const override { synchronize_event(event); }
  double elapsedTime(void* begin, void* end, DeviceIndex) const override { return elapsed_time(begin, end); }
  void destroyEvent(void* event, DeviceIndex) const noexcept override { destroy_event(event); }
  // Core's default does nothing, without a word: a block that a side stream still reads would be handed out again.
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    allocator().recordStream(data, stream);
  }
#endif

  // %% guard-waits
  bool queryStream(const Stream& stream) const override {
    const cookbookError_t error = cookbookStreamQuery(handle(stream));
    if (error == cookbookErrorNotReady) return false;
    check(error);
    return true;
  }
  void synchronizeStream(const Stream& stream) const override { check(cookbookStreamSynchronize(handle(stream))); }
  // The device that was asked for, not the current one.
  void synchronizeDevice(DeviceIndex index) const override {
    check(cookbookDeviceSynchronize(resolve(Device(kDeviceType, index))));
  }

  // %% guard-capability
  // Every dtype can be stored and moved; core's default of this method raises.
  c10::DeviceCapability getDeviceCapability(Device device) const override {
    resolve(device);
    return {};
  }
};

// %% guard-register
// Static on purpose: the guard must be there before the first Python line runs, and registering one cannot fail. A
// second guard for the same device type would replace this one without a word.
C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl)

}  // namespace
}  // namespace cookbook
