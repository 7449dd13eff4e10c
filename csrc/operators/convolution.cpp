// chapter 2
// %% convolution-format
// Convolutions of one to three dimensions, transposed or not. Core checks shapes, turns one dimension into two and then
// calls `convolution_overrideable`: an operator with a kernel for every backend, whose only act is to raise. So no
// fallback is ever asked for it, and a backend has to register it and its backward.
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution_backward_native.h>
#include <ATen/ops/convolution_native.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/empty.h"
#include "operators/on_device.h"

namespace cookbook {
namespace {

using c10::IntArrayRef;

// The results are laid out as input or weight are: the CPU's libraries know channels_last for images in every dtype,
// for volumes in float32.
c10::MemoryFormat result_format(const at::Tensor& input, const at::Tensor& weight) {
  if (weight.dim() == 5 && weight.scalar_type() != c10::kFloat) return c10::MemoryFormat::Contiguous;
  return at::native::_conv_suggest_memory_format_impl(input, weight, /*enabled=*/true);
}

// %% convolution-check
// Core has checked the shapes. The dtype decides here, as on the CPU, by the kernel that would be chosen.
void check_types(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, IntArrayRef dilation,
                 bool transposed) {
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "Input type (", input.toString(), ") and weight type (",
              weight.toString(), ") should be the same");
  TORCH_CHECK(!bias.defined() || bias.scalar_type() == input.scalar_type(), "Input type (", input.toString(),
              ") and bias type (", bias.defined() ? bias.toString() : "", ") should be the same");
  constexpr Dtypes kFloatingOrLong = kFloating | Dtypes{c10::kLong};
  const bool flat = weight.dim() == 4;
  const bool dilated = std::any_of(dilation.begin(), dilation.end(), [](int64_t d) { return d != 1; });
  if (transposed) {
    check_dtype(flat ? "slow_conv_transpose2d_out_cpu" : "slow_conv_transpose3d_out_cpu", input.scalar_type(),
                kFloatingOrLong);
  } else if (dilated) {
    check_dtype("slow_conv_dilated<>", input.scalar_type(), kFloatingOrLong);
  } else {
    check_dtype(flat ? "slow_conv2d_cpu" : "compute_columns3d", input.scalar_type(), kReal);
  }
}

// %% convolution
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                       IntArrayRef output_padding, int64_t groups) {
  check_types(input, weight, bias.value_or(at::Tensor()), dilation, transposed);
  const OnDevice guard(input.device());
  const std::vector<int64_t> sizes =
      transposed ? at::native::conv_input_size(input.sizes(), weight.sizes(), padding, output_padding, stride, dilation,
                                               groups)
                 : at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  const at::Tensor out = empty(sizes, input.scalar_type(), result_format(input, weight));
  if (out.numel() == 0) return out;
  // The chip's library chooses among its kernels (oneDNN, im2col, ...) and gives back a tensor of its own.
  launch<"convolution", [](at::Tensor& out, const at::Tensor& input, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, IntArrayRef stride, IntArrayRef padding,
                           IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups) {
    out.copy_(
        at::native::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups));
  }>(out, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
  return out;
}

// %% convolution-backward
std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& grad, const at::Tensor& input,
                                                                    const at::Tensor& weight, IntArrayRef stride,
                                                                    IntArrayRef padding, IntArrayRef dilation,
                                                                    bool transposed, IntArrayRef output_padding,
                                                                    int64_t groups, std::array<bool, 3> wanted) {
  check_types(input, weight, grad, dilation, transposed);
  const OnDevice guard(grad.device());
  const c10::MemoryFormat format = result_format(input, weight);
  const auto dtype = input.scalar_type();
  at::Tensor grad_input, grad_weight, grad_bias;
  if (wanted[0]) grad_input = empty(input.sizes(), dtype, format);
  if (wanted[1]) grad_weight = empty(weight.sizes(), dtype, format);
  if (wanted[2]) grad_bias = empty({grad.size(1)}, dtype);
  launch<"convolution_backward",
         [](at::Tensor& grad_input, at::Tensor& grad_weight, at::Tensor& grad_bias, const at::Tensor& grad,
            const at::Tensor& input, const at::Tensor& weight, IntArrayRef stride, IntArrayRef padding,
            IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups,
            std::array<bool, 3> wanted) {
           const int64_t channels = grad.size(1);
           const auto [for_input, for_weight, for_bias] =
               at::native::convolution_backward(grad, input, weight, IntArrayRef(channels), stride, padding, dilation,
                                                transposed, output_padding, groups, wanted);
           if (wanted[0]) grad_input.copy_(for_input);
           if (wanted[1]) grad_weight.copy_(for_weight);
           if (wanted[2]) grad_bias.copy_(for_bias);
         }>(grad_input, grad_weight, grad_bias, grad, input, weight, stride, padding, dilation, transposed,
            output_padding, groups, wanted);
  return {grad_input, grad_weight, grad_bias};
}

// %% convolution-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

}  // namespace
}  // namespace cookbook
