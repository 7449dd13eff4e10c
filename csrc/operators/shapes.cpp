// chapter 2
// %% shapes-structured
// Operators that move elements without looking at them, and those that count: concatenation, triangles, flips, ranges.
// `stack`, `repeat`, `pad` and the backward of `select` and `slice` are composite: core makes them from these, from
// copies and from views.
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/native/RangeUtils.h>
#include <ATen/ops/arange_native.h>
#include <ATen/ops/cat_cpu_dispatch.h>
#include <ATen/ops/cat_meta.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/eye_native.h>
#include <ATen/ops/flip_native.h>
#include <ATen/ops/linspace_native.h>
#include <ATen/ops/roll_native.h>
#include <ATen/ops/tril_cpu_dispatch.h>
#include <ATen/ops/tril_meta.h>
#include <ATen/ops/triu_cpu_dispatch.h>
#include <ATen/ops/triu_meta.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/structured.h"

namespace cookbook {
namespace {

constexpr Dtypes kTriangular = kNumbersAndBool | Dtypes{c10::kComplexHalf};

using Cat = Structured<"cat", &at::meta::structured_cat::meta, &at::cpu::cat_out>;
using Triu = Structured<"triu", checked<"triu", kTriangular, &at::meta::structured_triu::meta>,
                        [](at::Tensor& out, const at::Tensor& self, int64_t k) { at::cpu::triu_out(out, self, k); }>;
using Tril = Structured<"tril", checked<"tril", kTriangular, &at::meta::structured_tril::meta>,
                        [](at::Tensor& out, const at::Tensor& self, int64_t k) { at::cpu::tril_out(out, self, k); }>;

// %% shapes-moves
at::Tensor flip(const at::Tensor& self, c10::IntArrayRef dims) {
  at::dim_list_to_bitset(dims, self.dim());  // raises for a dimension out of range or given twice
  // One dimension is moved as bytes, several are walked by dtype.
  if (dims.size() > 1) check_dtype("flip_cpu", self.scalar_type(), kNumbersAndBool);
  const OnDevice guard(self.device());
  const at::Tensor out = at::native::empty_like(self, {}, {}, {}, {}, c10::MemoryFormat::Preserve);
  if (out.numel() != 0) {
    launch<"flip", [](at::Tensor& out, const at::Tensor& self, c10::IntArrayRef dims) {
      out.copy_(at::native::flip(self, dims));
    }>(out, self, dims);
  }
  return out;
}

at::Tensor roll(const at::Tensor& self, c10::IntArrayRef shifts, c10::IntArrayRef dims) {
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  if (dims.empty() && shifts.size() == 1) {
    return roll(self.contiguous().view(self.numel()), shifts, int64_t{0}).view(self.sizes());
  }
  TORCH_CHECK(shifts.size() == dims.size(), "shifts and dimensions must align. shifts: ", shifts.size(),
              ", dims:", dims.size());
  for (const int64_t dim : dims) c10::maybe_wrap_dim(dim, self.dim(), /*wrap_scalar=*/false);
  const OnDevice guard(self.device());
  const at::Tensor out = empty(self.sizes(), self.scalar_type());
  if (out.numel() != 0) {
    launch<"roll", [](at::Tensor& out, const at::Tensor& self, c10::IntArrayRef shifts, c10::IntArrayRef dims) {
      out.copy_(at::native::roll(self, shifts, dims));
    }>(out, self, shifts, dims);
  }
  return out;
}

// %% shapes-ranges
// How many numbers an `arange` has depends on the dtype: integers are counted exactly, the rest in double precision.
at::Tensor& arange_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  check_dtype("arange_cpu", out.scalar_type(), kReal);
  const int64_t count = out.scalar_type() == c10::kLong ? at::native::compute_arange_size<int64_t>(start, end, step)
                                                        : at::native::compute_arange_size<double>(start, end, step);
  const OnDevice guard(out.device());
  if (out.numel() != count) {
    if (out.numel() != 0) {
      TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " is ", out.numel(),
                 " which does not match the computed number of elements ", count,
                 ". Note that this may occur as a result of rounding error. The out tensor will be resized to a tensor "
                 "of shape (",
                 count, ",).");
    }
    out.resize_({count});
  }
  if (count != 0) {
    launch<"arange", [](at::Tensor& out, const at::Scalar& start, const at::Scalar& end, const at::Scalar& step) {
      at::native::arange_out(start, end, step, out);
    }>(out, start, end, step);
  }
  return out;
}

at::Tensor& linspace_out(const at::Scalar& start, const at::Scalar& end, int64_t steps, at::Tensor& out) {
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  check_dtype("linspace_cpu", out.scalar_type(), kNumbers);
  const OnDevice guard(out.device());
  if (out.numel() != steps) out.resize_({steps});
  if (steps != 0) {
    launch<"linspace", [](at::Tensor& out, const at::Scalar& start, const at::Scalar& end, int64_t steps) {
      at::native::linspace_out(start, end, steps, out);
    }>(out, start, end, steps);
  }
  return out;
}

// %% shapes-eye
at::Tensor& eye_out(int64_t rows, int64_t columns, at::Tensor& out) {
  TORCH_CHECK(rows >= 0, "n must be greater or equal to 0, got ", rows);
  TORCH_CHECK(columns >= 0, "m must be greater or equal to 0, got ", columns);
  check_dtype("eye", out.scalar_type(),
              kNumbersAndBool | Dtypes{c10::kComplexHalf, c10::kFloat8_e4m3fn, c10::kFloat8_e5m2, c10::kFloat8_e4m3fnuz,
                                       c10::kFloat8_e5m2fnuz});
  const OnDevice guard(out.device());
  out.resize_({rows, columns});
  if (out.numel() != 0) {
    launch<"eye", [](at::Tensor& out) { at::native::eye_out_cpu(out.size(0), out.size(1), out); }>(out);
  }
  return out;
}
at::Tensor& eye_square_out(int64_t rows, at::Tensor& out) { return eye_out(rows, rows, out); }

// %% shapes-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("cat", &Cat::functional);
  m.impl("cat.out", &Cat::out);
  m.impl("triu.out", &Triu::out);
  m.impl("tril.out", &Tril::out);
  m.impl("flip", &flip);
  m.impl("roll", &roll);
  m.impl("arange.start_out", &arange_out);
  m.impl("linspace.out", &linspace_out);
  m.impl("eye.out", &eye_square_out);
  m.impl("eye.m_out", &eye_out);
}

}  // namespace
}  // namespace cookbook
