// chapter 2
// %% nonzero
// Operators whose output's size is data: the host has to wait for one number. They are the only ones of the pack that
// wait, beside `item()`.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/count_nonzero_native.h>
#include <ATen/ops/masked_scatter_native.h>
#include <ATen/ops/masked_select_native.h>
#include <ATen/ops/nonzero_native.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/empty.h"
#include "operators/on_device.h"
#include "operators/outputs.h"

namespace cookbook {
namespace {

constexpr Dtypes kCounted = kNumbersAndBool | Dtypes{c10::kComplexHalf};

// One kernel that counts, and one wait.
int64_t count(const at::Tensor& self) {
  const at::Tensor number = empty({}, c10::kLong);
  launch<"count_nonzero", [](at::Tensor& number, const at::Tensor& self) {
    number.copy_(at::native::count_nonzero_cpu(self, {}));
  }>(number, self);
  return number.item<int64_t>();
}

// A column a dimension, as on the CPU: the columns are contiguous.
at::Tensor nonzero(const at::Tensor& self) {
  check_dtype("nonzero_count_cpu", self.scalar_type(), kCounted);
  const OnDevice guard(self.device());
  const int64_t rows = self.numel() == 0 ? 0 : count(self);
  const at::Tensor out = empty_strided({rows, self.dim()}, {1, rows}, c10::kLong);
  if (out.numel() != 0) {
    launch<"nonzero", [](at::Tensor& out, const at::Tensor& self) { at::native::nonzero_out_cpu(self, out); }>(out,
                                                                                                               self);
  }
  return out;
}

// %% nonzero-masked-select
at::Tensor masked_select(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "masked_select: expected BoolTensor for mask");
  check_dtype("masked_select", self.scalar_type(), kCounted | Dtypes{c10::kFloat8_e4m3fn, c10::kFloat8_e5m2});
  const OnDevice guard(self.device());
  const std::vector<int64_t> sizes = at::infer_size(self.sizes(), mask.sizes());
  const at::Tensor out =
      empty({c10::multiply_integers(sizes) == 0 ? 0 : count(mask.expand(sizes))}, self.scalar_type());
  if (out.numel() != 0) {
    launch<"masked_select", [](at::Tensor& out, const at::Tensor& self, const at::Tensor& mask) {
      at::native::masked_select_out_cpu(self, mask, out);
    }>(out, self, mask);
  }
  return out;
}

// %% nonzero-out
// The result's size is not known before, so neither is whether `out` fits: made first, copied then.
at::Tensor& nonzero_out(const at::Tensor& self, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == c10::kLong,
              "nonzero: Expected out tensor to have scalar type Long but got scalar type", out.scalar_type());
  const at::Tensor found = cookbook::nonzero(self);
  prepare_output(out, found.sizes(), found.strides(), found.options(), /*in_place=*/false, /*exact_strides=*/false);
  return out.copy_(found);
}

at::Tensor& masked_select_out(const at::Tensor& self, const at::Tensor& mask, at::Tensor& out) {
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mask);
  const at::Tensor found = cookbook::masked_select(self, mask);
  prepare_output(out, found.sizes(), {}, found.options(), /*in_place=*/false, /*exact_strides=*/false);
  return out.copy_(found);
}

// %% nonzero-masked-scatter
// The other direction waits for nothing: how many elements the mask selects only decides how much of `source` is read.
at::Tensor& masked_scatter(at::Tensor& self, const at::Tensor& mask, const at::Tensor& source) {
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "masked_scatter: expected self and source to have same dtypes but got ", self.scalar_type(), " and ",
              source.scalar_type());
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "masked_scatter_ only supports boolean masks, but got mask with dtype ",
              mask.scalar_type());
  at::assert_no_internal_overlap(self);
  at::assert_no_overlap(self, source);
  const at::Tensor expanded = mask.expand(self.sizes());
  if (self.numel() != 0) {
    launch<"masked_scatter_", [](at::Tensor& self, const at::Tensor& mask, const at::Tensor& source) {
      at::native::masked_scatter__cpu(self, mask, source);
    }>(self, expanded, source);
  }
  return self;
}

// %% nonzero-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", &nonzero);
  m.impl("nonzero.out", &nonzero_out);
  m.impl("masked_scatter_", &masked_scatter);
  m.impl("masked_select", &masked_select);
  m.impl("masked_select.out", &masked_select_out);
}

}  // namespace
}  // namespace cookbook
