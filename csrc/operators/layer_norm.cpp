// chapter 2
// %% layer-norm
// Layer norm. Without a registration it works, by a composite of six smaller operators: more launches, and another
// rounding than the CPU's. The chip's kernel is reached through its DispatchStub: it writes into the outputs that it is
// given, where the functional form would make its own.
#include <ATen/core/Tensor.h>
#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/native/layer_norm.h>
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

// The kernels walk whole rows.
at::Tensor whole(const at::Tensor& tensor) { return tensor.defined() ? tensor.contiguous() : tensor; }

// %% layer-norm-forward
Three layer_norm(const at::Tensor& input, c10::IntArrayRef normalized, const OptionalTensor& weight,
                 const OptionalTensor& bias, double eps) {
  const at::Tensor gamma = weight.value_or(at::Tensor()), beta = bias.value_or(at::Tensor());
  const auto [rows, columns] = at::native::_check_layer_norm_inputs(input, normalized, gamma, beta);
  const c10::ScalarType dtype = check_types("LayerNormKernelImpl", input, gamma, beta);
  const OnDevice guard(input.device());
  // One mean a row: the input's leading sizes, then ones.
  std::vector<int64_t> sizes(input.sizes().begin(), input.sizes().end());
  std::fill(sizes.end() - static_cast<int64_t>(normalized.size()), sizes.end(), 1);
  const at::Tensor out = empty(input.sizes(), input.scalar_type());
  const at::Tensor mean = empty(sizes, dtype), rstd = empty(sizes, dtype);
  if (rows > 0) {
    launch<"layer_norm",
           [](at::Tensor& out, at::Tensor& mean, at::Tensor& rstd, const at::Tensor& input, const at::Tensor& gamma,
              const at::Tensor& beta, int64_t rows, int64_t columns, double eps) {
             at::native::LayerNormKernel(at::kCPU, whole(input), whole(gamma), whole(beta), rows, columns, eps, &out,
                                         &mean, &rstd);
           }>(out, mean, rstd, input, gamma, beta, rows, columns, eps);
  }
  return {out, mean, rstd};
}

// %% layer-norm-backward
Three layer_norm_backward(const at::Tensor& grad, const at::Tensor& input, c10::IntArrayRef normalized,
                          const at::Tensor& mean, const at::Tensor& rstd, const OptionalTensor& weight,
                          const OptionalTensor& bias, std::array<bool, 3> wanted) {
  const at::Tensor gamma = weight.value_or(at::Tensor()), beta = bias.value_or(at::Tensor());
  const auto [rows, columns] = at::native::_check_layer_norm_inputs(input, normalized, gamma, beta);
  check_types("LayerNormBackwardKernelImpl", input, gamma, beta);
  const OnDevice guard(grad.device());
  at::Tensor grad_input, grad_gamma, grad_beta;
  if (wanted[0]) grad_input = empty(input.sizes(), input.scalar_type());
  if (wanted[1]) grad_gamma = empty(normalized, gamma.defined() ? gamma.scalar_type() : input.scalar_type());
  if (wanted[2]) grad_beta = empty(normalized, beta.defined() ? beta.scalar_type() : input.scalar_type());
  launch<"layer_norm_backward", [](at::Tensor& grad_input, at::Tensor& grad_gamma, at::Tensor& grad_beta,
                                   const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean,
                                   const at::Tensor& rstd, const at::Tensor& gamma, int64_t rows, int64_t columns) {
    if (rows != 0) {
      at::native::LayerNormBackwardKernel(at::kCPU, whole(grad), whole(input), mean, rstd, whole(gamma), rows, columns,
                                          &grad_input, &grad_gamma, &grad_beta);
    } else {
      if (grad_gamma.defined()) grad_gamma.zero_();
      if (grad_beta.defined()) grad_beta.zero_();
    }
  }>(grad_input, grad_gamma, grad_beta, grad, input, mean, rstd, gamma, rows, columns);
  return {grad_input, grad_gamma, grad_beta};
}

// %% layer-norm-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_layer_norm", &layer_norm);
  m.impl("native_layer_norm_backward", &layer_norm_backward);
}

}  // namespace
}  // namespace cookbook
