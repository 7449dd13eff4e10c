// chapter 1
// %% device-header
// The device functions: how many, which one is current. The driver's thread-local current device is the only one; a
// second copy here would sooner or later disagree with it.
#pragma once

#include <c10/core/Device.h>

namespace cookbook {

inline constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;

// Never throws: 0 when the driver fails, with a warning once.
c10::DeviceIndex device_count() noexcept;

c10::DeviceIndex current_device();
// Throws when there is no such device; a negative index changes nothing.
void set_device(c10::DeviceIndex index);
// Returns the device that was current. `exchange_device` throws for an index that does not exist.
c10::DeviceIndex exchange_device(c10::DeviceIndex index);
// As exchange_device, but a negative index changes nothing and returns -1: what `with device_index(None)` wants.
c10::DeviceIndex maybe_exchange_device(c10::DeviceIndex index);

// The index that a device without one means: the current one. Throws when there is no such device.
c10::DeviceIndex resolve(c10::Device device);

}  // namespace cookbook
