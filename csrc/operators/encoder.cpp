// chapter 2
// %% encoder
// A whole encoder layer in one kernel. In eval mode, and where no gradient is wanted, nn.TransformerEncoderLayer and
// nn.MultiheadAttention call these two operators, for the CPU, for CUDA and for this device type: a model that trains
// would not run its validation without them.
#include <ATen/ops/_native_multi_head_attention_native.h>
#include <ATen/ops/_transformer_encoder_layer_fwd_native.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/empty.h"
#include "operators/on_device.h"

namespace cookbook {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Kind = std::optional<int64_t>;

void check_shape(const Tensor& input, int64_t width, int64_t heads) {
  TORCH_CHECK(input.dim() == 3, "expected 3-D input, got ", input.dim(), "-D tensor");
  TORCH_CHECK(input.size(2) == width, "passed-in embed_dim ", width, " didn't match last dim of input ", input.size(2));
  TORCH_CHECK(width % heads == 0, "embed_dim must divide evenly by num_heads");
  check_dtype("transform_bias_rescale_qkv", input.scalar_type(), kFloating);
}

// %% encoder-layer
Tensor encoder_layer(const Tensor& input, int64_t width, int64_t heads, const Tensor& qkv_weight,
                     const Tensor& qkv_bias, const Tensor& proj_weight, const Tensor& proj_bias, bool use_gelu,
                     bool norm_first, double eps, const Tensor& norm_weight_1, const Tensor& norm_bias_1,
                     const Tensor& norm_weight_2, const Tensor& norm_bias_2, const Tensor& ffn_weight_1,
                     const Tensor& ffn_bias_1, const Tensor& ffn_weight_2, const Tensor& ffn_bias_2,
                     const OptionalTensor& mask, Kind mask_type) {
  check_shape(input, width, heads);
  const OnDevice guard(input.device());
  const Tensor out = empty(input.sizes(), input.scalar_type());
  launch<"transformer_encoder_layer",
         [](Tensor& out, const Tensor& input, int64_t width, int64_t heads, const Tensor& qkv_weight,
            const Tensor& qkv_bias, const Tensor& proj_weight, const Tensor& proj_bias, bool use_gelu, bool norm_first,
            double eps, const Tensor& norm_weight_1, const Tensor& norm_bias_1, const Tensor& norm_weight_2,
            const Tensor& norm_bias_2, const Tensor& ffn_weight_1, const Tensor& ffn_bias_1, const Tensor& ffn_weight_2,
            const Tensor& ffn_bias_2, const OptionalTensor& mask, Kind mask_type) {
           out.copy_(at::native::transformer_encoder_layer_forward(
               input, width, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps,
               norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2,
               ffn_bias_2, mask, mask_type));
         }>(out, input, width, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps,
            norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2,
            mask, mask_type);
  return out;
}

// %% encoder-attention
std::tuple<Tensor, Tensor> multi_head_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                                int64_t width, int64_t heads, const Tensor& qkv_weight,
                                                const Tensor& qkv_bias, const Tensor& proj_weight,
                                                const Tensor& proj_bias, const OptionalTensor& mask, bool need_weights,
                                                bool average_weights, Kind mask_type) {
  check_shape(query, width, heads);
  const OnDevice guard(query.device());
  const int64_t batch = query.size(0), length = query.size(1), keys = key.size(1);
  const Tensor out = empty(query.sizes(), query.scalar_type());
  Tensor weights;
  if (need_weights && average_weights) weights = empty({batch, length, keys}, query.scalar_type());
  if (need_weights && !average_weights) weights = empty({batch, heads, length, keys}, query.scalar_type());
  // Which arguments are one tensor decides how the library multiplies, and two addresses do not say it.
  const bool self_attention = query.is_same(key) && key.is_same(value);
  launch<"multi_head_attention",
         [](Tensor& out, Tensor& weights, const Tensor& query, const Tensor& key, const Tensor& value, int64_t width,
            int64_t heads, const Tensor& qkv_weight, const Tensor& qkv_bias, const Tensor& proj_weight,
            const Tensor& proj_bias, const OptionalTensor& mask, bool average_weights, Kind mask_type,
            bool self_attention) {
           const auto [result, attention] = at::native::native_multi_head_attention_cpu(
               query, self_attention ? query : key, self_attention ? query : value, width, heads, qkv_weight, qkv_bias,
               proj_weight, proj_bias, mask, weights.defined(), average_weights, mask_type);
           out.copy_(result);
           if (weights.defined()) weights.copy_(attention);
         }>(out, weights, query, key, value, width, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask,
            average_weights, mask_type, self_attention);
  return {out, weights};
}

// %% encoder-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_transformer_encoder_layer_fwd", &encoder_layer);
  m.impl("_native_multi_head_attention", &multi_head_attention);
}

}  // namespace
}  // namespace cookbook
