// chapter 2
// %% views
// Operators that make another tensor of the same storage, or give a tensor another storage. They touch no element, so
// core's own functions serve: what a backend adds is the registration. Each of these must be native. The CPU fallback
// would copy, and a write through the view would be lost.
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/util/DimVector.h>
#include <torch/library.h>

#include "operators/empty.h"
#include "operators/on_device.h"
#include "operators/resize.h"

namespace cookbook {
namespace {

// %% views-set
// Core's set_storage_cpu_, which grows a storage that has no room for the sizes as host memory, with another end.
at::Tensor& set_storage(at::Tensor& self, c10::Storage source, int64_t offset, c10::IntArrayRef sizes,
                        c10::IntArrayRef strides) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  const c10::Storage storage_before = self.storage();
  const int64_t offset_before = impl->storage_offset();
  const c10::DimVector sizes_before(impl->sizes()), strides_before(impl->strides());
  try {
    at::native::checkSetStorage(self, std::move(source), offset, sizes, strides);
    impl->set_storage_offset(offset);
    const auto given = strides.data() != nullptr ? at::OptionalIntArrayRef(strides) : std::nullopt;
    at::native::resize_impl_cpu_(impl, sizes, given, /*resize_storage=*/false);
    make_room(*impl);
  } catch (...) {
    impl->set_storage_keep_dtype(storage_before);
    impl->set_sizes_and_strides(sizes_before, strides_before, offset_before);
    throw;
  }
  return self;
}
at::Tensor& set_whole_storage(at::Tensor& self, c10::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {elements}, {});
}
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}
// Empties a tensor: a new storage of no bytes.
at::Tensor& set_nothing(at::Tensor& self) {
  const OnDevice guard(self.device());
  const at::Tensor nothing = empty({0}, self.scalar_type());
  return set_tensor(self, nothing);
}

// %% views-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_nothing);
  m.impl("resize_", &resize);
}

}  // namespace
}  // namespace cookbook
