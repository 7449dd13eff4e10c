// chapter 2
// %% batch-norm-layout
// Batch norm. Not structured, so shape, dtype and strides of the results are worked out here, as core does for the CPU.
// The running statistics are inputs that the kernel writes: in stream order, so the next step reads the new ones.
#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm_backward_native.h>
#include <ATen/ops/native_batch_norm_native.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/empty.h"
#include "operators/on_device.h"
#include "operators/outputs.h"

namespace cookbook {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

c10::MemoryFormat layout_of(const at::Tensor& input) {
  if (input.is_contiguous()) return c10::MemoryFormat::Contiguous;
  if (input.is_contiguous(c10::MemoryFormat::ChannelsLast3d)) return c10::MemoryFormat::ChannelsLast3d;
  if (input.is_contiguous(c10::MemoryFormat::ChannelsLast)) return c10::MemoryFormat::ChannelsLast;
  return input.suggest_memory_format();
}

// %% batch-norm-check
// Weights and statistics are float32 beside a half precision input: that is the one mixture the kernels know. The dtype
// of the saved statistics.
c10::ScalarType check_types(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                            const OptionalTensor& mean, const OptionalTensor& variance) {
  check_dtype("batch_norm", input.scalar_type(), kFloating);
  TORCH_CHECK(input.dim() >= 2, "batch_norm: expected an input of at least 2 dimensions, got ", input.dim());
  const at::Tensor all[] = {weight.value_or(at::Tensor()), bias.value_or(at::Tensor()), mean.value_or(at::Tensor()),
                            variance.value_or(at::Tensor())};
  for (const at::Tensor& one : all) {
    TORCH_CHECK(!one.defined() || one.numel() == input.size(1), "batch_norm: expected ", input.size(1),
                " elements, one a channel, got a tensor of shape ", one.defined() ? one.sizes() : c10::IntArrayRef());
  }
  const bool mixed = at::native::is_mixed_type(input, all[0], all[1], all[2], all[3]);
  if (mixed) at::native::check_mixed_data_type(input, all[0], all[1], all[2], all[3]);
  return at::native::param_scalar_type(input, mixed);
}

// %% batch-norm-forward
void batch_norm_into(const at::Tensor& out, const at::Tensor& save_mean, const at::Tensor& save_invstd,
                     const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                     const OptionalTensor& mean, const OptionalTensor& variance, bool train, double momentum,
                     double eps) {
  launch<"batch_norm", [](at::Tensor& out, at::Tensor& save_mean, at::Tensor& save_invstd, const at::Tensor& input,
                          const OptionalTensor& weight, const OptionalTensor& bias, const OptionalTensor& mean,
                          const OptionalTensor& variance, bool train, double momentum, double eps) {
    // Core's function goes through input and output in one order. It is wrong, on the CPU too, when their formats
    // differ, and leaves `save_mean` as it was when the input has gaps.
    const c10::MemoryFormat format = layout_of(out);
    const at::Tensor dense = input.contiguous(format);
    at::Tensor written = out.is_contiguous(format) ? out : at::empty_like(dense);
    at::native::batch_norm_cpu_out(dense, weight, bias, mean, variance, train, momentum, eps, written, save_mean,
                                   save_invstd);
    if (!written.is_same(out)) out.copy_(written);
  }>(out, save_mean, save_invstd, input, weight, bias, mean, variance, train, momentum, eps);
}

Three batch_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                 const OptionalTensor& mean, const OptionalTensor& variance, bool train, double momentum, double eps) {
  const c10::ScalarType saved = check_types(input, weight, bias, mean, variance);
  const OnDevice guard(input.device());
  const int64_t channels = train ? input.size(1) : 0;
  const at::Tensor out = empty(input.sizes(), input.scalar_type(), layout_of(input));
  const at::Tensor save_mean = empty({channels}, saved), save_invstd = empty({channels}, saved);
  batch_norm_into(out, save_mean, save_invstd, input, weight, bias, mean, variance, train, momentum, eps);
  return {out, save_mean, save_invstd};
}

Three batch_norm_legit(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                       at::Tensor& mean, at::Tensor& variance, bool train, double momentum, double eps) {
  return batch_norm(input, weight, bias, mean, variance, train, momentum, eps);
}
Three batch_norm_no_stats(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias, bool train,
                          double momentum, double eps) {
  return batch_norm(input, weight, bias, {}, {}, train, momentum, eps);
}

// %% batch-norm-out
std::tuple<at::Tensor&, at::Tensor&, at::Tensor&> batch_norm_out(const at::Tensor& input, const OptionalTensor& weight,
                                                                 const OptionalTensor& bias, const OptionalTensor& mean,
                                                                 const OptionalTensor& variance, bool train,
                                                                 double momentum, double eps, at::Tensor& out,
                                                                 at::Tensor& save_mean, at::Tensor& save_invstd) {
  const c10::ScalarType saved = check_types(input, weight, bias, mean, variance);
  const OnDevice guard(input.device());
  const int64_t channels = train ? input.size(1) : 0;
  const auto options = input.options();
  prepare_output(out, input.sizes(), {}, options, /*in_place=*/false, /*exact_strides=*/false);
  prepare_output(save_mean, {channels}, {}, options.dtype(saved), false, false);
  prepare_output(save_invstd, {channels}, {}, options.dtype(saved), false, false);
  batch_norm_into(out, save_mean, save_invstd, input, weight, bias, mean, variance, train, momentum, eps);
  return {out, save_mean, save_invstd};
}

// With statistics to update, and a fourth result that only other libraries use: a reserve of no bytes.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_with_update(
    const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias, at::Tensor& mean,
    at::Tensor& variance, double momentum, double eps) {
  auto [out, save_mean, save_invstd] = batch_norm(input, weight, bias, mean, variance, true, momentum, eps);
  const OnDevice guard(input.device());
  return {out, save_mean, save_invstd, empty({0}, c10::kByte)};
}

// %% batch-norm-backward
Three batch_norm_backward(const at::Tensor& grad, const at::Tensor& input, const OptionalTensor& weight,
                          const OptionalTensor& mean, const OptionalTensor& variance, const OptionalTensor& save_mean,
                          const OptionalTensor& save_invstd, bool train, double eps, std::array<bool, 3> wanted) {
  const c10::ScalarType dtype = check_types(input, weight, {}, mean, variance);
  const OnDevice guard(grad.device());
  at::Tensor grad_input, grad_weight, grad_bias;
  if (wanted[0]) grad_input = empty(input.sizes(), input.scalar_type(), layout_of(input));
  if (wanted[1]) grad_weight = empty({input.size(1)}, dtype);
  if (wanted[2]) grad_bias = empty({input.size(1)}, dtype);
  launch<"batch_norm_backward",
         [](at::Tensor& grad_input, at::Tensor& grad_weight, at::Tensor& grad_bias, const at::Tensor& grad,
            const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& mean,
            const OptionalTensor& variance, const OptionalTensor& save_mean, const OptionalTensor& save_invstd,
            bool train, double eps, std::array<bool, 3> wanted) {
           const auto [for_input, for_weight, for_bias] = at::native::batch_norm_backward_cpu(
               grad, input, weight, mean, variance, save_mean, save_invstd, train, eps, wanted);
           if (wanted[0]) grad_input.copy_(for_input);
           if (wanted[1]) grad_weight.copy_(for_weight);
           if (wanted[2]) grad_bias.copy_(for_bias);
         }>(grad_input, grad_weight, grad_bias, grad, input, weight, mean, variance, save_mean, save_invstd, train, eps,
            wanted);
  return {grad_input, grad_weight, grad_bias};
}

Three batch_norm_backward_with_reserve(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                                       const OptionalTensor& mean, const OptionalTensor& variance,
                                       const OptionalTensor& save_mean, const OptionalTensor& save_invstd, bool update,
                                       double eps, std::array<bool, 3> wanted, const at::Tensor&) {
  return batch_norm_backward(grad, input, weight, mean, variance, save_mean, save_invstd, update, eps, wanted);
}

// %% batch-norm-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_batch_norm", &batch_norm);
  m.impl("native_batch_norm.out", &batch_norm_out);
  m.impl("_native_batch_norm_legit", &batch_norm_legit);
  m.impl("_native_batch_norm_legit.no_stats", &batch_norm_no_stats);
  m.impl("_batch_norm_with_update", &batch_norm_with_update);
  m.impl("native_batch_norm_backward", &batch_norm_backward);
  m.impl("batch_norm_backward", &batch_norm_backward_with_reserve);
}

}  // namespace
}  // namespace cookbook
