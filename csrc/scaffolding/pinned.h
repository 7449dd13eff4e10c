// chapter 2
// %% pinned-header
// Pinned host memory: what the device can copy from and to while the host goes on.
#pragma once

#include <c10/core/Allocator.h>

namespace cookbook {

// Serves `Tensor.pin_memory`, `pin_memory=True` and DataLoader. Its tensors are CPU tensors.
c10::Allocator& pinned_allocator();

}  // namespace cookbook
