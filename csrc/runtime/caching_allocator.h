// chapter 4
// %% caching-allocator-header
// The device's allocator from chapter 4 on: c10::DeviceAllocator over one cache a device.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace cookbook {

// The one instance; `allocator()` returns it.
c10::DeviceAllocator& caching_allocator();

}  // namespace cookbook
