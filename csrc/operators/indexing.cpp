// chapter 2
// %% indexing-list
// x[i, j], x[i, j] = y and `index_select`: the result's shape comes from the shapes of the indices, so nothing waits.
// The exception is a mask: how many elements it selects is data, and x[mask] waits for that number. x[mask] = y does
// not.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/ops/_index_put_impl_native.h>
#include <ATen/ops/index_cpu_dispatch.h>
#include <ATen/ops/index_meta.h>
#include <ATen/ops/index_select_native.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/structured.h"

namespace cookbook {
namespace {

using IndexList = c10::List<std::optional<at::Tensor>>;

bool is_mask(const at::Tensor& index) {
  return index.defined() && (index.scalar_type() == c10::kBool || index.scalar_type() == c10::kByte);
}

// %% indexing-travel
// A list travels as tensors, of which some are undefined. An index on the CPU comes to the device first, and for that
// copy the host waits.
std::vector<at::Tensor> on_device_of(const at::Tensor& self, const IndexList& indices) {
  std::vector<at::Tensor> result;
  result.reserve(indices.size());
  for (const std::optional<at::Tensor>& given : indices) {
    const at::Tensor index = given.value_or(at::Tensor());
    result.push_back(index.defined() && index.device() != self.device() && index.is_cpu() ? index.to(self.device())
                                                                                          : index);
  }
  return result;
}

IndexList as_list(at::TensorList tensors) {
  IndexList list;
  list.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) list.push_back(tensor.defined() ? std::optional(tensor) : std::nullopt);
  return list;
}

// %% indexing-index
// The meta function takes a borrowed list; expanding the masks before it runs leaves int64 indices only, so that the
// kernel gets what the host has seen.
struct IndexMeta : at::meta::structured_index_Tensor {
  void meta(const at::Tensor& self, at::TensorList indices) {
    const IndexList list = as_list(indices);
    structured_index_Tensor::meta(self, at::IOptTensorListRef(list));
  }
};
using Index =
    Structured<"index", &IndexMeta::meta, [](at::Tensor& out, const at::Tensor& self, at::TensorList indices) {
      at::cpu::index_out(out, self, as_list(indices));
    }>;

// nonzero() waits.
std::vector<at::Tensor> expand_masks(const at::Tensor& self, const IndexList& indices) {
  TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(), "too many indices for tensor of dimension ",
                    self.dim(), " (got ", indices.size(), ")");
  std::vector<at::Tensor> list = on_device_of(self, indices);
  if (std::none_of(list.begin(), list.end(), &is_mask)) return list;
  const IndexList moved = as_list(list);
  return at::native::expandTensors(self, at::IOptTensorListRef(moved));
}

at::Tensor index(const at::Tensor& self, const IndexList& indices) {
  return Index::functional(self, expand_masks(self, indices));
}
at::Tensor& index_out(const at::Tensor& self, const IndexList& indices, at::Tensor& out) {
  return Index::out(self, expand_masks(self, indices), out);
}

// %% indexing-shape
// The shape of x[indices]: the indices' common shape, in the place of the indexed dimensions if those are neighbours,
// else in front.
std::vector<int64_t> indexed_shape(const at::Tensor& self, std::vector<at::Tensor> indices) {
  indices.resize(self.dim());
  std::vector<int64_t> common;
  for (const at::Tensor& index : indices) {
    if (!index.defined()) continue;
    TORCH_CHECK_INDEX(index.scalar_type() == c10::kLong || index.scalar_type() == c10::kInt,
                      "tensors used as indices must be long, int, byte or bool tensors");
    TORCH_CHECK_INDEX(at::are_expandable(common, index.sizes()),
                      "shape mismatch: indexing tensors could not be broadcast together with shapes ",
                      c10::IntArrayRef(common), ", ", index.sizes());
    common = at::infer_size(common, index.sizes());
  }
  std::vector<int64_t> sizes;
  bool placed = !at::native::hasContiguousSubspace(indices);
  if (placed) sizes = common;
  for (const int64_t d : c10::irange(self.dim())) {
    if (!indices[d].defined()) {
      sizes.push_back(self.size(d));
    } else if (!placed) {
      sizes.insert(sizes.end(), common.begin(), common.end());
      placed = true;
    }
  }
  return sizes;
}

// %% indexing-put
constexpr Dtypes kPut = kNumbersAndBool | Dtypes{c10::kComplexHalf, c10::kFloat8_e4m3fn, c10::kFloat8_e5m2,
                                                 c10::kFloat8_e4m3fnuz, c10::kFloat8_e5m2fnuz};

// Masks stay masks here: the kernel counts them, and the host has no need of the number.
at::Tensor& index_put(at::Tensor& self, const IndexList& indices, const at::Tensor& values, bool accumulate,
                      bool unsafe) {
  TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(), "too many indices for tensor of dimension ",
                    self.dim(), " (got ", indices.size(), ")");
  TORCH_CHECK(self.scalar_type() == values.scalar_type(),
              "Index put requires the source and destination dtypes match, got ", self.scalar_type(),
              " for the destination and ", values.scalar_type(), " for the source.");
  check_dtype("index_put", self.scalar_type(), kPut);
  const OnDevice guard(self.device());
  const std::vector<at::Tensor> list = on_device_of(self, indices);
  if (std::none_of(list.begin(), list.end(), &is_mask)) {
    const std::vector<int64_t> sizes = indexed_shape(self, list);
    TORCH_CHECK(at::is_expandable_to(values.sizes(), sizes), "shape mismatch: value tensor of shape ", values.sizes(),
                " cannot be broadcast to indexing result of shape ", c10::IntArrayRef(sizes));
  }
  const at::Tensor source = values.is_cpu() && values.dim() != 0 ? values.to(self.device()) : values;
  launch<"index_put_",
         [](at::Tensor& self, at::TensorList indices, const at::Tensor& values, bool accumulate, bool unsafe) {
           at::native::_index_put_impl_(self, as_list(indices), values, accumulate, unsafe);
         }>(self, at::TensorList(list), source, accumulate, unsafe);
  return self;
}

// %% indexing-select
at::Tensor& index_select_into(const at::Tensor& self, int64_t dim, const at::Tensor& index, at::Tensor& out) {
  if (out.numel() != 0) {
    launch<"index_select", [](at::Tensor& out, const at::Tensor& self, int64_t dim, const at::Tensor& index) {
      at::native::index_select_out_cpu_(self, dim, index, out);
    }>(out, self, dim, index);
  }
  return out;
}

std::vector<int64_t> selected_shape(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  TORCH_CHECK(index.scalar_type() == c10::kLong || index.scalar_type() == c10::kInt,
              "index_select(): Expected dtype int32 or int64 for index");
  TORCH_CHECK(self.dim() != 0 || index.numel() == 1, "index_select(): Index to scalar can have only 1 value, got ",
              index.numel(), " value(s)");
  std::vector<int64_t> sizes(self.sizes().begin(), self.sizes().end());
  if (!sizes.empty()) sizes[dim] = index.numel();
  return sizes;
}

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  dim = c10::maybe_wrap_dim(dim, self.dim());
  const std::vector<int64_t> sizes = selected_shape(self, dim, index);
  const OnDevice guard(self.device());
  at::Tensor out = empty(sizes, self.scalar_type());
  return index_select_into(self, dim, index, out);
}

at::Tensor& index_select_out(const at::Tensor& self, int64_t dim, const at::Tensor& index, at::Tensor& out) {
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, index);
  dim = c10::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "index_select(): self and result must have the same scalar type");
  const std::vector<int64_t> sizes = selected_shape(self, dim, index);
  const OnDevice guard(self.device());
  prepare_output(out, sizes, {}, self.options(), /*in_place=*/false, /*exact_strides=*/false);
  return index_select_into(self, dim, index, out);
}

// %% indexing-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("index.Tensor", &index);
  m.impl("index.Tensor_out", &index_out);
  m.impl("_index_put_impl_", &index_put);
  m.impl("index_select", &index_select);
  m.impl("index_select.out", &index_select_out);
}

}  // namespace
}  // namespace cookbook
