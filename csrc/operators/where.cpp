// chapter 2
// %% where
// A hand-built TensorIterator: the second way to give PyTorch a kernel, for an operator that is not structured. You say
// what the operands are and what they may be; broadcasting, the output and its strides, dtypes and overlap checks come
// with it.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/masked_fill_native.h>
#include <ATen/ops/result_type_native.h>
#include <ATen/ops/where_native.h>
#include <torch/library.h>

#include "operators/fill.h"
#include "operators/iterator.h"
#include "operators/on_device.h"

namespace cookbook {
namespace {

// %% where-checks
at::Tensor as_condition(const at::Tensor& condition) {
  if (condition.scalar_type() == c10::kByte) {
    TORCH_WARN_ONCE(
        "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a "
        "future version of PyTorch. Use a boolean condition instead.");
    return condition.to(c10::kBool);
  }
  TORCH_CHECK(condition.scalar_type() == c10::kBool,
              "where expected condition to be a boolean tensor, but got a tensor with dtype ", condition.scalar_type());
  return condition;
}

// A number among the operands is converted on the host, where it lives; a tensor on the device.
at::Tensor as_dtype(const at::Tensor& tensor, c10::ScalarType dtype) {
  return tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
}

// %% where-iterator
void where_kernel(Operands& operands) {
  at::native::where_self_out(operands[1], operands[2], operands[3], operands[0]);
}

at::Tensor select(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other, const at::Tensor& out) {
  const at::Tensor chosen = as_condition(condition);
  const c10::ScalarType dtype = at::native::result_type(self, other);
  TORCH_CHECK(!out.defined() || out.scalar_type() == dtype, "Expected out type to be ", dtype, " but got ",
              out.defined() ? out.scalar_type() : dtype);
  const at::Tensor if_true = as_dtype(self, dtype), if_false = as_dtype(other, dtype);
  at::TensorIterator iter = at::TensorIteratorConfig()
                                .check_all_same_dtype(false)  // the condition is bool, the others are not
                                .allow_cpu_scalars(true)
                                .declare_static_dtype(dtype)
                                .declare_static_device(device_of(condition, self, other))
                                .add_output(out)
                                .add_const_input(chosen)
                                .add_const_input(if_true)
                                .add_const_input(if_false)
                                .build();
  launch_iterator<"where", &where_kernel>(iter);
  return iter.output();
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  const OnDevice guard(device_of(condition, self, other));
  return select(condition, self, other, {});
}
at::Tensor& where_out(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  const OnDevice guard(out.device());
  select(condition, self, other, out);
  return out;
}

// %% masked-fill
// In place, so the iterator may not resize; the mask is broadcast to the tensor, never the other way.
at::TensorIterator masked(const at::Tensor& self, const at::Tensor& expanded_mask) {
  TORCH_CHECK(expanded_mask.scalar_type() == c10::kBool,
              "masked_fill_ only supports boolean masks, but got mask with dtype ", expanded_mask.scalar_type());
  if (at::has_internal_overlap(self) == at::MemOverlap::Yes) {
    TORCH_WARN(
        "Use of masked_fill_ on expanded tensors is deprecated. Please clone() the tensor before performing this "
        "operation. This also applies to advanced indexing e.g. tensor[mask] = scalar");
  }
  at::assert_no_partial_overlap(self, expanded_mask);
  return at::TensorIteratorConfig()
      .set_check_mem_overlap(false)  // an expanded tensor is deprecated here, not refused
      .check_all_same_dtype(false)
      .resize_outputs(false)
      .add_output(self)
      .add_const_input(expanded_mask)
      .build();
}

void fill_scalar(Operands& operands, const c10::Scalar& value) {
  at::native::masked_fill__cpu(operands[0], operands[1], value);
}
void fill_tensor(Operands& operands, const at::Tensor& value) {
  at::native::masked_fill__cpu(operands[0], operands[1], value);
}

at::Tensor& masked_fill_scalar(at::Tensor& self, const at::Tensor& mask, const c10::Scalar& value) {
  const auto expanded = at::expand_inplace(self, mask, "masked_fill_");
  at::TensorIterator iter = masked(self, *expanded);
  check_fits(value, self.scalar_type());
  launch_iterator<"masked_fill_", &fill_scalar>(iter, value);
  return self;
}

// %% masked-fill-tensor
// The value is read on the stream's thread: the host does not wait for it.
at::Tensor& masked_fill_tensor(at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
              value.dim(), " dimension(s).");
  if (value.is_cpu()) return masked_fill_scalar(self, mask, value.item());
  const auto expanded = at::expand_inplace(self, mask, "masked_fill_");
  at::TensorIterator iter = masked(self, *expanded);
  launch_iterator<"masked_fill_", &fill_tensor>(iter, value);
  return self;
}

// %% where-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("where.self", &where);
  m.impl("where.self_out", &where_out);
  m.impl("masked_fill_.Scalar", &masked_fill_scalar);
  m.impl("masked_fill_.Tensor", &masked_fill_tensor);
}

}  // namespace
}  // namespace cookbook
