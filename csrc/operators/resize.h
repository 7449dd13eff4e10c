// chapter 2
// %% resize-header
// `resize_`, the operator. PyTorch asks for more room in two places: here for a tensor, and in the hook
// resizePrivateUse1Bytes for a bare storage; both end in resize_storage.
#pragma once

#include <ATen/core/Tensor.h>

namespace cookbook {

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat> format);

}  // namespace cookbook
