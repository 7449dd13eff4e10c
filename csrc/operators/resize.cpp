// chapter 2
// %% resize
#include "operators/resize.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <c10/util/DimVector.h>

#include "scaffolding/storage.h"

namespace cookbook {

void make_room(const c10::TensorImpl& impl) {
  if (impl.numel() == 0) return;
  const size_t needed =
      at::detail::computeStorageNbytes(impl.sizes(), impl.strides(), impl.itemsize(), impl.storage_offset());
  const c10::Storage& storage = impl.storage();
  if (needed > storage.nbytes()) resize_storage(storage.unsafeGetStorageImpl(), needed);
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  const c10::DimVector sizes_before(impl->sizes()), strides_before(impl->strides());
  const size_t bytes_before = self.storage().nbytes();
  try {
    at::native::resize_impl_cpu_(impl, sizes, std::nullopt, /*resize_storage=*/false);
    if (format) {
      TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format", *format);
      impl->empty_tensor_restride(*format);
    }
    make_room(*impl);
  } catch (...) {
    // With the new shape the tensor would read memory that is not its own, as the CPU's does after such an error.
    impl->set_sizes_and_strides(sizes_before, strides_before);
    throw;
  }
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) {
    at::native::fill_resize_deterministic_(self, static_cast<int64_t>(bytes_before));
  }
  return self;
}

}  // namespace cookbook
