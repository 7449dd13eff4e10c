// chapter 2
// %% pinned-header
// Pinned host memory: what the device can copy from and to while the host goes on.
#pragma once

#if COOKBOOK_CHAPTER < 4
#include <c10/core/Allocator.h>
#else
#include <ATen/core/CachingHostAllocator.h>
#endif

namespace cookbook {

// Serves `Tensor.pin_memory`, `pin_memory=True` and DataLoader. Its tensors are CPU tensors.
#if COOKBOOK_CHAPTER < 4
c10::Allocator& pinned_allocator();
#else
// `record_event(pointer, context, stream)` keeps a block that is freed out of use until `stream` has run what is
// queued.
at::HostAllocator& pinned_allocator();
#endif

}  // namespace cookbook
