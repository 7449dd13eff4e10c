// chapter 2
// %% on-device
// Makes a tensor's device current while an operator runs on it, and restores the one before.
#pragma once

#include <c10/core/Device.h>

#include "scaffolding/device.h"
#include "scaffolding/error.h"

namespace cookbook {

// c10::DeviceGuard finds the guard by a virtual call and sets the device twice. An operator knows its device type, and
// the device mostly is current already: then this costs a compare.
class OnDevice {
 public:
  explicit OnDevice(c10::Device device) {
    if (!device.is_privateuseone()) return;
    const c10::DeviceIndex wanted = resolve(device);
    const c10::DeviceIndex current = current_device();
    if (wanted != current) {
      set_device(wanted);
      previous_ = current;
    }
  }
  ~OnDevice() {
    if (previous_ >= 0) warn(cookbookSetDevice(previous_));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  c10::DeviceIndex previous_ = -1;
};

}  // namespace cookbook
