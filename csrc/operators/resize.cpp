// chapter 2
// %% resize
#include "operators/resize.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>

#include "scaffolding/storage.h"

namespace cookbook {

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  at::native::resize_impl_cpu_(impl, sizes, std::nullopt, /*resize_storage=*/false);
  if (format) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format", *format);
    impl->empty_tensor_restride(*format);
  }
  if (impl->numel() != 0) {
    const size_t needed =
        at::detail::computeStorageNbytes(impl->sizes(), impl->strides(), impl->itemsize(), impl->storage_offset());
    c10::StorageImpl* storage = self.storage().unsafeGetStorageImpl();
    if (needed > storage->nbytes()) resize_storage(storage, needed);
  }
  return self;
}

}  // namespace cookbook
