// chapter 2
// %% comparison
// Comparisons, and the operators on bits. A comparison computes in the promoted dtype and answers in bool; with `out=`
// and in place it may answer in any dtype.
#include <ATen/ops/bitwise_and_cpu_dispatch.h>
#include <ATen/ops/bitwise_and_meta.h>
#include <ATen/ops/bitwise_left_shift_cpu_dispatch.h>
#include <ATen/ops/bitwise_left_shift_meta.h>
#include <ATen/ops/bitwise_not_cpu_dispatch.h>
#include <ATen/ops/bitwise_not_meta.h>
#include <ATen/ops/bitwise_or_cpu_dispatch.h>
#include <ATen/ops/bitwise_or_meta.h>
#include <ATen/ops/bitwise_right_shift_cpu_dispatch.h>
#include <ATen/ops/bitwise_right_shift_meta.h>
#include <ATen/ops/bitwise_xor_cpu_dispatch.h>
#include <ATen/ops/bitwise_xor_meta.h>
#include <ATen/ops/eq_cpu_dispatch.h>
#include <ATen/ops/eq_meta.h>
#include <ATen/ops/ge_cpu_dispatch.h>
#include <ATen/ops/ge_meta.h>
#include <ATen/ops/gt_cpu_dispatch.h>
#include <ATen/ops/gt_meta.h>
#include <ATen/ops/isnan_native.h>
#include <ATen/ops/le_cpu_dispatch.h>
#include <ATen/ops/le_meta.h>
#include <ATen/ops/lt_cpu_dispatch.h>
#include <ATen/ops/lt_meta.h>
#include <ATen/ops/ne_cpu_dispatch.h>
#include <ATen/ops/ne_meta.h>
#include <torch/library.h>

#include "operators/pointwise.h"

namespace cookbook {
namespace {

using Binary = at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Tensor&);
using WithScalar = at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Scalar&);

template <Name name, auto MetaFunction, auto Kernel>
using Compare = Pointwise<name, MetaFunction, Kernel, ResultIs::Bool>;

// %% comparison-tensors
using Eq = Compare<"eq", &at::meta::structured_eq_Tensor::meta, static_cast<Binary>(&at::cpu::eq_out)>;
using Ne = Compare<"ne", &at::meta::structured_ne_Tensor::meta, static_cast<Binary>(&at::cpu::ne_out)>;
using Lt = Compare<"lt", &at::meta::structured_lt_Tensor::meta, static_cast<Binary>(&at::cpu::lt_out)>;
using Le = Compare<"le", &at::meta::structured_le_Tensor::meta, static_cast<Binary>(&at::cpu::le_out)>;
using Gt = Compare<"gt", &at::meta::structured_gt_Tensor::meta, static_cast<Binary>(&at::cpu::gt_out)>;
using Ge = Compare<"ge", &at::meta::structured_ge_Tensor::meta, static_cast<Binary>(&at::cpu::ge_out)>;

// %% comparison-scalars
using EqScalar = Compare<"eq", &at::meta::structured_eq_Scalar::meta, static_cast<WithScalar>(&at::cpu::eq_out)>;
using NeScalar = Compare<"ne", &at::meta::structured_ne_Scalar::meta, static_cast<WithScalar>(&at::cpu::ne_out)>;
using LtScalar = Compare<"lt", &at::meta::structured_lt_Scalar::meta, static_cast<WithScalar>(&at::cpu::lt_out)>;
using LeScalar = Compare<"le", &at::meta::structured_le_Scalar::meta, static_cast<WithScalar>(&at::cpu::le_out)>;
using GtScalar = Compare<"gt", &at::meta::structured_gt_Scalar::meta, static_cast<WithScalar>(&at::cpu::gt_out)>;
using GeScalar = Compare<"ge", &at::meta::structured_ge_Scalar::meta, static_cast<WithScalar>(&at::cpu::ge_out)>;

// %% comparison-bits
using BitwiseAnd = Operator<"bitwise_and", &at::meta::structured_bitwise_and_Tensor::meta, &at::cpu::bitwise_and_out>;
using BitwiseOr = Operator<"bitwise_or", &at::meta::structured_bitwise_or_Tensor::meta, &at::cpu::bitwise_or_out>;
using BitwiseXor = Operator<"bitwise_xor", &at::meta::structured_bitwise_xor_Tensor::meta, &at::cpu::bitwise_xor_out>;
using BitwiseLeftShift = Operator<"bitwise_left_shift", &at::meta::structured_bitwise_left_shift_Tensor::meta,
                                  &at::cpu::bitwise_left_shift_out>;
using BitwiseRightShift = Operator<"bitwise_right_shift", &at::meta::structured_bitwise_right_shift_Tensor::meta,
                                   &at::cpu::bitwise_right_shift_out>;
using BitwiseNot = Operator<"bitwise_not", &at::meta::structured_bitwise_not::meta, &at::cpu::bitwise_not_out>;

// %% comparison-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  implement<Eq>(m, "eq.Tensor", "eq_.Tensor", "eq.Tensor_out");
  implement<Ne>(m, "ne.Tensor", "ne_.Tensor", "ne.Tensor_out");
  implement<Lt>(m, "lt.Tensor", "lt_.Tensor", "lt.Tensor_out");
  implement<Le>(m, "le.Tensor", "le_.Tensor", "le.Tensor_out");
  implement<Gt>(m, "gt.Tensor", "gt_.Tensor", "gt.Tensor_out");
  implement<Ge>(m, "ge.Tensor", "ge_.Tensor", "ge.Tensor_out");
  implement<EqScalar>(m, "eq.Scalar", "eq_.Scalar", "eq.Scalar_out");
  implement<NeScalar>(m, "ne.Scalar", "ne_.Scalar", "ne.Scalar_out");
  implement<LtScalar>(m, "lt.Scalar", "lt_.Scalar", "lt.Scalar_out");
  implement<LeScalar>(m, "le.Scalar", "le_.Scalar", "le.Scalar_out");
  implement<GtScalar>(m, "gt.Scalar", "gt_.Scalar", "gt.Scalar_out");
  implement<GeScalar>(m, "ge.Scalar", "ge_.Scalar", "ge.Scalar_out");
  implement<BitwiseAnd>(m, "bitwise_and.Tensor", "bitwise_and_.Tensor", "bitwise_and.Tensor_out");
  implement<BitwiseOr>(m, "bitwise_or.Tensor", "bitwise_or_.Tensor", "bitwise_or.Tensor_out");
  implement<BitwiseXor>(m, "bitwise_xor.Tensor", "bitwise_xor_.Tensor", "bitwise_xor.Tensor_out");
  implement<BitwiseLeftShift>(m, "bitwise_left_shift.Tensor", "bitwise_left_shift_.Tensor",
                              "bitwise_left_shift.Tensor_out");
  implement<BitwiseRightShift>(m, "bitwise_right_shift.Tensor", "bitwise_right_shift_.Tensor",
                               "bitwise_right_shift.Tensor_out");
  implement<BitwiseNot>(m, "bitwise_not");
  m.impl("isnan", &at::native::isnan);  // x != x
}

}  // namespace
}  // namespace cookbook
