// chapter 2
// %% empty-header
// New tensors on the device, for the operators that make their own outputs.
#pragma once

#include <ATen/core/Tensor.h>

namespace cookbook {

// On the current device. Without a memory format, contiguous.
at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype, std::optional<c10::MemoryFormat> format = std::nullopt);
at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype);

}  // namespace cookbook
