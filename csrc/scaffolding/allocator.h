// chapter 1
// %% allocator-header
// The device's allocator: where the bytes of a tensor come from.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace cookbook {

// The one allocator of all devices. It allocates on the current device, in the order of its current stream.
c10::DeviceAllocator& allocator();

}  // namespace cookbook
