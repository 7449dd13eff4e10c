// chapter 2
// %% pooling-structured
// Pooling and resampling of images. Most are structured: the meta function finds the output's size and memory format.
#include <ATen/ops/_adaptive_avg_pool2d_backward_native.h>
#include <ATen/ops/adaptive_avg_pool2d_native.h>
#include <ATen/ops/avg_pool2d_backward_cpu_dispatch.h>
#include <ATen/ops/avg_pool2d_backward_meta.h>
#include <ATen/ops/avg_pool2d_cpu_dispatch.h>
#include <ATen/ops/avg_pool2d_meta.h>
#include <ATen/ops/max_pool2d_with_indices_backward_cpu_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_backward_meta.h>
#include <ATen/ops/max_pool2d_with_indices_cpu_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_meta.h>
#include <ATen/ops/upsample_bilinear2d_backward_cpu_dispatch.h>
#include <ATen/ops/upsample_bilinear2d_backward_meta.h>
#include <ATen/ops/upsample_bilinear2d_cpu_dispatch.h>
#include <ATen/ops/upsample_bilinear2d_meta.h>
#include <ATen/ops/upsample_nearest2d_backward_cpu_dispatch.h>
#include <ATen/ops/upsample_nearest2d_backward_meta.h>
#include <ATen/ops/upsample_nearest2d_cpu_dispatch.h>
#include <ATen/ops/upsample_nearest2d_meta.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/structured.h"

namespace cookbook {
namespace {

constexpr Dtypes kFloatingAndLong = kFloating | Dtypes{c10::kLong};
constexpr Dtypes kFloatingAndByte = kFloating | Dtypes{c10::kByte};

// %% pooling-max-and-average
using MaxPool =
    Structured<"max_pool2d", checked<"max_pool2d", kReal, &at::meta::structured_max_pool2d_with_indices::meta>,
               &at::cpu::max_pool2d_with_indices_out, 2>;
using MaxPoolBackward =
    Structured<"max_pool2d_backward",
               checked<"max_pool2d_backward", kReal, &at::meta::structured_max_pool2d_with_indices_backward::meta>,
               &at::cpu::max_pool2d_with_indices_backward_out>;
using AvgPool =
    Structured<"avg_pool2d", checked<"avg_pool2d", kFloatingAndLong, &at::meta::structured_avg_pool2d::meta>,
               &at::cpu::avg_pool2d_out>;
using AvgPoolBackward =
    Structured<"avg_pool2d_backward",
               checked<"avg_pool2d_backward", kFloatingAndLong, &at::meta::structured_avg_pool2d_backward::meta>,
               &at::cpu::avg_pool2d_backward_out>;

// %% pooling-upsample
// The scales are written down as (scales_h, scales_w): `symint` overloads of the same name exist beside these.
using Nearest = Structured<
    "upsample_nearest2d",
    checked<"upsample_nearest2d_channels_last", kFloatingAndByte, &at::meta::structured_upsample_nearest2d::meta>,
    [](at::Tensor& out, const at::Tensor& input, c10::IntArrayRef size, std::optional<double> height,
       std::optional<double> width) { at::cpu::upsample_nearest2d_out(out, input, size, height, width); }>;
using NearestBackward = Structured<
    "upsample_nearest2d_backward",
    checked<"upsample_nearest2d_backward", kFloating, &at::meta::structured_upsample_nearest2d_backward::meta>,
    [](at::Tensor& out, const at::Tensor& grad, c10::IntArrayRef size, c10::IntArrayRef input_size,
       std::optional<double> height, std::optional<double> width) {
      at::cpu::upsample_nearest2d_backward_out(out, grad, size, input_size, height, width);
    }>;
using Bilinear = Structured<
    "upsample_bilinear2d",
    checked<"upsample_bilinear2d_channels_last", kFloatingAndByte, &at::meta::structured_upsample_bilinear2d::meta>,
    [](at::Tensor& out, const at::Tensor& input, c10::IntArrayRef size, bool align, std::optional<double> height,
       std::optional<double> width) { at::cpu::upsample_bilinear2d_out(out, input, size, align, height, width); }>;
using BilinearBackward = Structured<
    "upsample_bilinear2d_backward",
    checked<"upsample_bilinear2d_backward", kFloating, &at::meta::structured_upsample_bilinear2d_backward::meta>,
    [](at::Tensor& out, const at::Tensor& grad, c10::IntArrayRef size, c10::IntArrayRef input_size, bool align,
       std::optional<double> height, std::optional<double> width) {
      at::cpu::upsample_bilinear2d_backward_out(out, grad, size, input_size, align, height, width);
    }>;

// %% pooling-adaptive
// Not structured. An output of one pixel never comes here: core takes the mean.
at::Tensor adaptive_avg_pool2d(const at::Tensor& input, c10::IntArrayRef size) {
  TORCH_CHECK(size.size() == 2, "adaptive_avg_pool2d: output_size must be 2");
  const int64_t dims = input.dim();
  TORCH_CHECK(dims == 3 || dims == 4, "adaptive_avg_pool2d(): Expected 3D or 4D tensor, but got ", input.sizes());
  for (const int64_t d : {-2, -1}) {
    TORCH_CHECK(input.size(d) > 0, "adaptive_avg_pool2d(): Expected input to have non-zero size for non-batch ",
                "dimensions, but input has sizes ", input.sizes(), " with dimension ", d + dims, " being empty");
  }
  check_dtype("adaptive_avg_pool2d", input.scalar_type(), kFloating);
  const OnDevice guard(input.device());
  std::vector<int64_t> sizes(input.sizes().begin(), input.sizes().end() - 2);
  sizes.insert(sizes.end(), size.begin(), size.end());
  const at::Tensor out =
      empty(sizes, input.scalar_type(), dims == 4 ? input.suggest_memory_format() : c10::MemoryFormat::Contiguous);
  if (out.numel() != 0) {
    launch<"adaptive_avg_pool2d", [](at::Tensor& out, const at::Tensor& input, c10::IntArrayRef size) {
      at::native::adaptive_avg_pool2d_out_cpu(input, size, out);
    }>(out, input, size);
  }
  return out;
}

at::Tensor adaptive_avg_pool2d_backward(const at::Tensor& grad, const at::Tensor& input) {
  TORCH_CHECK(grad.dim() == input.dim() && (grad.dim() == 3 || grad.dim() == 4),
              "adaptive_avg_pool2d_backward(): Expected 3D or 4D tensors, but got ", grad.sizes(), " and ",
              input.sizes());
  TORCH_CHECK(grad.scalar_type() == input.scalar_type(), "expected dtype ", grad.dtype(),
              " for `grad_output` but got dtype ", input.dtype());
  check_dtype("adaptive_avg_pool2d_backward", input.scalar_type(), kFloating);
  const OnDevice guard(grad.device());
  const at::Tensor out = empty(input.sizes(), input.scalar_type(), input.suggest_memory_format());
  if (out.numel() != 0) {
    launch<"adaptive_avg_pool2d_backward", [](at::Tensor& out, const at::Tensor& grad, const at::Tensor& input) {
      out.copy_(at::native::adaptive_avg_pool2d_backward_cpu(grad, input));
    }>(out, grad, input);
  }
  return out;
}

// %% pooling-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("max_pool2d_with_indices", &MaxPool::functional);
  m.impl("max_pool2d_with_indices.out", &MaxPool::out2);
  m.impl("max_pool2d_with_indices_backward.grad_input", &MaxPoolBackward::out);
  m.impl("avg_pool2d.out", &AvgPool::out);
  m.impl("avg_pool2d_backward.grad_input", &AvgPoolBackward::out);
  m.impl("_adaptive_avg_pool2d", &adaptive_avg_pool2d);
  m.impl("_adaptive_avg_pool2d_backward", &adaptive_avg_pool2d_backward);
  m.impl("upsample_nearest2d.out", &Nearest::out);
  m.impl("upsample_nearest2d_backward.grad_input", &NearestBackward::out);
  m.impl("upsample_bilinear2d.out", &Bilinear::out);
  m.impl("upsample_bilinear2d_backward.grad_input", &BilinearBackward::out);
}

}  // namespace
}  // namespace cookbook
