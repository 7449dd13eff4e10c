// chapter 1
// %% allocator-header
// The device's allocator: where the bytes of a tensor come from.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace cookbook {

// The one allocator of all devices. It allocates on the current device, in the order of its current stream.
c10::DeviceAllocator& allocator();
#if COOKBOOK_CHAPTER >= 4

// Chapter 1's, for the default stream only: what the cache is measured against.
c10::DeviceAllocator& direct_allocator();
#endif

}  // namespace cookbook
