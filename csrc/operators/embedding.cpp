// chapter 2
// %% embedding
// The gradient of an embedding table. The lookup itself is composite: core makes it from `index_select`.
#include <ATen/ops/embedding_dense_backward_native.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/empty.h"
#include "operators/on_device.h"

namespace cookbook {
namespace {

// One row of the gradient for each index; rows of one token add up, in the order of the indices, as on the CPU.
at::Tensor embedding_dense_backward(const at::Tensor& grad, const at::Tensor& indices, int64_t rows,
                                    int64_t padding_row, bool scale_by_frequency) {
  TORCH_CHECK(
      indices.scalar_type() == c10::kLong || indices.scalar_type() == c10::kInt,
      "Expected tensor for argument #2 'indices' to have one of the following scalar types: Long, Int; but got ",
      indices.toString(), " instead (while checking arguments for embedding_backward)");
  TORCH_CHECK(grad.dim() >= 1, "embedding_backward: expected a gradient of at least 1 dimension, got ", grad.dim());
  check_dtype("embedding_dense_backward_cpu", grad.scalar_type(), kFloating);
  const OnDevice guard(grad.device());
  const at::Tensor out = empty({rows, grad.size(-1)}, grad.scalar_type());
  if (out.numel() != 0) {
    launch<"embedding_backward", [](at::Tensor& out, const at::Tensor& grad, const at::Tensor& indices,
                                    int64_t padding_row, bool scale_by_frequency) {
      out.copy_(at::native::embedding_dense_backward_cpu(grad, indices, out.size(0), padding_row, scale_by_frequency));
    }>(out, grad, indices, padding_row, scale_by_frequency);
  }
  return out;
}

// %% embedding-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("embedding_dense_backward", &embedding_dense_backward); }

}  // namespace
}  // namespace cookbook
