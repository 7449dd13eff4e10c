// chapter 2
// %% resize-header
// `resize_`, the operator. PyTorch asks for more room in three places: here for a tensor, in `set_` for sizes that the
// storage has no room for, and in the hook resizePrivateUse1Bytes for a bare storage; all end in resize_storage.
#pragma once

#include <ATen/core/Tensor.h>

namespace cookbook {

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat> format);
// Gives the tensor's storage room for its sizes, strides and offset.
void make_room(const c10::TensorImpl& impl);

}  // namespace cookbook
