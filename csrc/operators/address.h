// chapter 2
// %% address
// The address that travels to a kernel.
#pragma once

#include <ATen/core/Tensor.h>

namespace cookbook {

// 0 for a tensor without elements. A kernel that met a null address would end the stream's thread, so a tensor whose
// storage was freed is refused on the host, where the program's line is known. A kernel may write to what it is given,
// so a copy that is lazy (torch._lazy_clone) becomes real here, as `mutable_data` does it.
inline uint64_t address_of(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->numel() == 0) return 0;
  const void* data = impl->mutable_data();
  TORCH_CHECK(data != nullptr, "expected a tensor with memory, got one of shape ", impl->sizes(),
              " whose storage was freed: it was resized to 0 bytes");
  return reinterpret_cast<uint64_t>(data);
}

}  // namespace cookbook
