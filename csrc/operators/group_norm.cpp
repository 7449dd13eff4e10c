// chapter 2
// %% group-norm-check
// Group norm, which is instance norm too. The chip's kernel is reached through its DispatchStub, like layer norm's.
#include <ATen/core/Tensor.h>
#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/native/group_norm.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/empty.h"
#include "operators/on_device.h"

namespace cookbook {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// float32 weights beside a half precision input are the one mixture that the kernels know. The dtype of the statistics.
c10::ScalarType check_types(const char* kernel, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias) {
  check_dtype(kernel, input.scalar_type(), kFloating);
  const bool mixed = at::native::is_mixed_type(input, weight, bias);
  if (mixed) at::native::check_mixed_data_type(input, weight, bias);
  return at::native::param_scalar_type(input, mixed);
}

void check_groups(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, int64_t channels,
                  int64_t groups) {
  TORCH_CHECK(groups > 0, "Expected num groups to be greater than 0, got ", groups);
  TORCH_CHECK(channels % groups == 0, "Expected number of channels in input to be divisible by num_groups, but got ",
              "input of shape ", input.sizes(), " and num_groups=", groups);
  TORCH_CHECK(
      !weight.defined() || (weight.dim() == 1 && weight.numel() == channels),
      "Expected weight to be a vector of size equal to the number of channels in input, but got weight of shape ",
      weight.sizes(), " and input of shape ", input.sizes());
  TORCH_CHECK(!bias.defined() || (bias.dim() == 1 && bias.numel() == channels),
              "Expected bias to be a vector of size equal to the number of channels in input, but got bias of shape ",
              bias.sizes(), " and input of shape ", input.sizes());
  TORCH_CHECK(input.is_contiguous(input.suggest_memory_format()),
              "native_group_norm: expected an input that is contiguous in its memory format");
}

// %% group-norm
Three group_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias, int64_t batch,
                 int64_t channels, int64_t area, int64_t groups, double eps) {
  const at::Tensor gamma = weight.value_or(at::Tensor()), beta = bias.value_or(at::Tensor());
  check_groups(input, gamma, beta, channels, groups);
  const c10::ScalarType dtype = check_types("GroupNormKernelImpl", input, gamma, beta);
  const OnDevice guard(input.device());
  const at::Tensor out = empty(input.sizes(), input.scalar_type(), input.suggest_memory_format());
  const at::Tensor mean = empty({batch, groups}, dtype), rstd = empty({batch, groups}, dtype);
  launch<"group_norm", [](at::Tensor& out, at::Tensor& mean, at::Tensor& rstd, const at::Tensor& input,
                          const at::Tensor& gamma, const at::Tensor& beta, int64_t batch, int64_t channels,
                          int64_t area, int64_t groups, double eps) {
    at::native::GroupNormKernel(at::kCPU, input, gamma, beta, batch, channels, area, groups, eps, out, mean, rstd);
  }>(out, mean, rstd, input, gamma, beta, batch, channels, area, groups, eps);
  return {out, mean, rstd};
}

// %% group-norm-backward
Three group_norm_backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean,
                          const at::Tensor& rstd, const OptionalTensor& weight, int64_t batch, int64_t channels,
                          int64_t area, int64_t groups, std::array<bool, 3> wanted) {
  const at::Tensor gamma = weight.value_or(at::Tensor());
  check_groups(input, gamma, {}, channels, groups);
  const c10::ScalarType dtype = check_types("GroupNormBackwardKernelImpl", input, mean, rstd);
  TORCH_CHECK(grad.scalar_type() == input.scalar_type(), "Expected scalar type ", input.scalar_type(), " but found ",
              grad.scalar_type());
  const OnDevice guard(grad.device());
  const c10::MemoryFormat format = input.suggest_memory_format();
  at::Tensor grad_input, grad_gamma, grad_beta;
  if (wanted[0]) grad_input = empty(input.sizes(), input.scalar_type(), format);
  if (wanted[1]) grad_gamma = empty({channels}, dtype);
  if (wanted[2]) grad_beta = empty({channels}, dtype);
  launch<"group_norm_backward", [](at::Tensor& grad_input, at::Tensor& grad_gamma, at::Tensor& grad_beta,
                                   const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean,
                                   const at::Tensor& rstd, const at::Tensor& gamma, int64_t batch, int64_t channels,
                                   int64_t area, int64_t groups) {
    at::native::GroupNormBackwardKernel(at::kCPU, grad.contiguous(input.suggest_memory_format()), input, mean, rstd,
                                        gamma, batch, channels, area, groups, grad_input, grad_gamma, grad_beta);
  }>(grad_input, grad_gamma, grad_beta, grad, input, mean, rstd, gamma, batch, channels, area, groups);
  return {grad_input, grad_gamma, grad_beta};
}

// %% group-norm-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_group_norm", &group_norm);
  m.impl("native_group_norm_backward", &group_norm_backward);
}

}  // namespace
}  // namespace cookbook
