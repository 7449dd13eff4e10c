// chapter 2
// %% attention-choice
// Attention in one kernel, and when to take it. `scaled_dot_product_attention` is composite: it asks the device's entry
// in a DispatchStub, `_fused_sdp_choice_stub`, which way to go (a registered `_fused_sdp_choice` alone is never asked),
// and calls `_scaled_dot_product_fused_attention_overrideable` if the answer is `overrideable`.
#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/empty_like_native.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/empty.h"
#include "operators/on_device.h"

namespace cookbook {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// The chip's kernel takes what the CPU's flash attention takes, so that both choose alike and round alike. The rest
// goes the way of `math`: 3-dimensional inputs, dropout (it needs random numbers), a mask that wants a gradient, other
// dtypes.
int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const OptionalTensor& mask,
               double dropout, bool is_causal, std::optional<double> scale, bool grouped) {
  const sdp::sdp_params params{query, key, value, mask, dropout, is_causal, grouped};
  // The mask may have any strides, as on the CPU.
  const sdp::sdp_params unmasked{query, key, value, std::nullopt, dropout, is_causal, grouped};
  const at::Context& user = at::globalContext();
  const bool wanted = user.userEnabledOverrideableSDP() || user.userEnabledFlashSDP();
  const std::array<c10::ScalarType, 4> dtypes{c10::kFloat, c10::kDouble, c10::kBFloat16, c10::kHalf};
  const bool fused = wanted && sdp::check_nested_tensor(params, false) && sdp::check_for_dropout(params, false) &&
                     sdp::check_tensor_shapes(params, false) &&
                     sdp::check_batch_size_and_num_heads_dense</*supports_gqa=*/true>(params, false) &&
                     sdp::check_attn_mask_shape(params, false) && query.size(-1) == key.size(-1) &&
                     query.size(-1) == value.size(-1) && sdp::check_nonzero_sequence_lengths_dense(params, false) &&
                     sdp::check_last_dim_stride_equals_1_dense</*ignore_singleton_dim=*/false>(unmasked, false) &&
                     sdp::check_tensor_dtype(params, dtypes, false);
  if (fused) return static_cast<int64_t>(sdp::SDPBackend::overrideable);
  if (user.userEnabledMathSDP()) return static_cast<int64_t>(sdp::SDPBackend::math);
  return static_cast<int64_t>(sdp::SDPBackend::error);
}

// %% attention-forward
// Of the nine results, core uses the first on the way forward, and hands the rest to the backward.
using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
                           at::Tensor, at::Tensor>;

Results attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const OptionalTensor& mask,
                  double dropout, bool is_causal, bool, std::optional<double> scale) {
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4,
              "fused attention: expected (batch, heads, length, width), got ", query.sizes(), ", ", key.sizes(),
              " and ", value.sizes());
  TORCH_CHECK(dropout == 0.0, "fused attention: expected no dropout, got ", dropout);
  TORCH_CHECK(query.scalar_type() == key.scalar_type() && query.scalar_type() == value.scalar_type(),
              "fused attention: expected one dtype, got ", query.scalar_type(), ", ", key.scalar_type(), " and ",
              value.scalar_type());
  check_dtype("flash_attention", query.scalar_type(), kFloating);
  const OnDevice guard(query.device());
  const int64_t batch = query.size(0), heads = query.size(1), length = query.size(2);
  // As the query lies in memory: with its heads as a transposed view, the next linear layer reads one row.
  const at::Tensor out = at::native::empty_like(query, {}, {}, {}, {}, c10::MemoryFormat::Preserve);
  const at::Tensor logsumexp = empty({batch, length, heads}, at::toOpMathType(query.scalar_type())).transpose(1, 2);
  launch<"attention", [](at::Tensor& out, at::Tensor& logsumexp, const at::Tensor& query, const at::Tensor& key,
                         const at::Tensor& value, const OptionalTensor& mask, double dropout, bool is_causal,
                         std::optional<double> scale) {
    at::native::flash_attention_kernel(at::kCPU, out.transpose(1, 2), logsumexp.transpose(1, 2), query, key, value,
                                       dropout, is_causal, mask, scale);
  }>(out, logsumexp, query, key, value, mask, dropout, is_causal, scale);
  const at::Tensor seed = at::detail::empty_cpu({0}, c10::kLong);
  return {out, logsumexp, at::Tensor(), at::Tensor(), length, key.size(2), seed, seed, at::Tensor()};
}

// %% attention-backward
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& mask, std::array<bool, 4> wanted, const at::Tensor& out, const at::Tensor& logsumexp,
    const at::Tensor&, const at::Tensor&, int64_t, int64_t, double dropout, bool is_causal, const at::Tensor&,
    const at::Tensor&, std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(!wanted[3] || !mask.defined() || !mask.requires_grad(),
                              "fused attention: no gradient for the mask; use torch.nn.attention.SDPBackend.MATH");
  const OnDevice guard(query.device());
  const auto like = [](const at::Tensor& tensor) {
    return empty({tensor.size(0), tensor.size(2), tensor.size(1), tensor.size(3)}, tensor.scalar_type())
        .transpose(1, 2);
  };
  const at::Tensor grad_query = like(query), grad_key = like(key), grad_value = like(value);
  launch<"attention_backward", [](at::Tensor& grad_query, at::Tensor& grad_key, at::Tensor& grad_value,
                                  const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, const at::Tensor& out, const at::Tensor& logsumexp,
                                  const at::Tensor& mask, double dropout, bool is_causal, std::optional<double> scale) {
    const OptionalTensor bias = mask.defined() ? OptionalTensor(mask) : std::nullopt;
    const auto swap = [](const at::Tensor& tensor) { return tensor.transpose(1, 2); };
    // The kernel adds up.
    for (const at::Tensor& result : {grad_query, grad_key, grad_value}) result.zero_();
    at::native::flash_attention_backward_kernel(at::kCPU, swap(grad_query), swap(grad_key), swap(grad_value),
                                                swap(grad), swap(query), swap(key), swap(value), swap(out),
                                                swap(logsumexp), dropout, is_causal, bias, scale);
  }>(grad_query, grad_key, grad_value, grad, query, key, value, out, logsumexp, mask, dropout, is_causal, scale);
  return {grad_query, grad_key, grad_value, at::Tensor()};
}

// %% attention-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", &choose);
  m.impl("_scaled_dot_product_fused_attention_overrideable", &attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &attention_backward);
}

}  // namespace
}  // namespace cookbook

// The macro names things in at::native.
namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &cookbook::choose)
}
