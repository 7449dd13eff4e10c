// chapter 2
// %% stub
// DispatchStub: the third way to give PyTorch a kernel. Core's own operator function does everything up to the
// computation and then calls a table of function pointers, one a device type. A backend fills its entry and registers
// core's function.
#include "operators/stub.h"

#include <ATen/native/Activation.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/abs_native.h>
#include <ATen/ops/angle_native.h>
#include <ATen/ops/conj_physical_native.h>
#include <ATen/ops/hardswish_backward_native.h>
#include <ATen/ops/hardswish_native.h>
#include <ATen/ops/hardtanh_backward_native.h>
#include <ATen/ops/logical_and_native.h>
#include <ATen/ops/logical_not_native.h>
#include <ATen/ops/logical_or_native.h>
#include <ATen/ops/logical_xor_native.h>
#include <ATen/ops/logit_native.h>
#include <ATen/ops/nan_to_num_native.h>
#include <torch/library.h>

// %% stub-kernels
// The chip's kernels. Core's operator functions are called, which end in the CPU's entries of the tables. The entries
// themselves can be called only with the definitions that CMakeLists.txt makes (instruction-sets): layer_norm.cpp does.
namespace cookbook {
namespace {

using at::Tensor;

template <Tensor& (*Function)(const Tensor&, Tensor&)>
void unary(Operands& operands) {
  Function(operands[1], operands[0]);
}
template <Tensor& (*Function)(const Tensor&, const Tensor&, Tensor&)>
void binary(Operands& operands) {
  Function(operands[1], operands[2], operands[0]);
}
void logit(Operands& operands, const c10::Scalar& eps) {
  // A table's function has no optional: core passes -1 for "no eps".
  const double value = eps.toDouble();
  at::native::logit_out(operands[1], value < 0 ? std::nullopt : std::optional(value), operands[0]);
}
using Maybe = std::optional<double>;
void nan_to_num(Operands& operands, Maybe nan, Maybe posinf, Maybe neginf) {
  at::native::nan_to_num_out(operands[1], nan, posinf, neginf, operands[0]);
}
void hardswish_backward(Operands& operands) {
  operands[0].copy_(at::native::hardswish_backward(operands[1], operands[2]));
}
void hardtanh_backward(Operands& operands, const c10::Scalar& min, const c10::Scalar& max) {
  at::native::hardtanh_backward_out(operands[1], operands[2], min, max, operands[0]);
}

using Abs = Stub<"abs", &unary<&at::native::abs_out>>;
using Angle = Stub<"angle", &unary<&at::native::angle_out>>;
using ConjPhysical = Stub<"conj_physical", &unary<&at::native::conj_physical_out>>;
using LogicalNot = Stub<"logical_not", &unary<&at::native::logical_not_out>>;
using LogicalAnd = Stub<"logical_and", &binary<&at::native::logical_and_out>>;
using LogicalOr = Stub<"logical_or", &binary<&at::native::logical_or_out>>;
using LogicalXor = Stub<"logical_xor", &binary<&at::native::logical_xor_out>>;
using Hardswish = Stub<"hardswish", &unary<&at::native::hardswish_out>>;
using HardswishBackward = Stub<"hardswish_backward", &hardswish_backward>;
using HardtanhBackward = Stub<"hardtanh_backward", &hardtanh_backward>;
using Logit = Stub<"logit", &logit>;
using NanToNum = Stub<"nan_to_num", &nan_to_num>;

}  // namespace
}  // namespace cookbook

// %% stub-table
// The entries live in PyTorch's library, so the registrations must stand in PyTorch's namespace.
namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(abs_stub, &cookbook::Abs::compute)
REGISTER_PRIVATEUSE1_DISPATCH(angle_stub, &cookbook::Angle::compute)
REGISTER_PRIVATEUSE1_DISPATCH(conj_physical_stub, &cookbook::ConjPhysical::compute)
REGISTER_PRIVATEUSE1_DISPATCH(logical_not_stub, &cookbook::LogicalNot::compute)
REGISTER_PRIVATEUSE1_DISPATCH(logical_and_stub, &cookbook::LogicalAnd::compute)
REGISTER_PRIVATEUSE1_DISPATCH(logical_or_stub, &cookbook::LogicalOr::compute)
REGISTER_PRIVATEUSE1_DISPATCH(logical_xor_stub, &cookbook::LogicalXor::compute)
REGISTER_PRIVATEUSE1_DISPATCH(logit_stub, &cookbook::Logit::compute)
REGISTER_PRIVATEUSE1_DISPATCH(nan_to_num_stub, &cookbook::NanToNum::compute)
REGISTER_PRIVATEUSE1_DISPATCH(hardswish_stub, &cookbook::Hardswish::compute)
REGISTER_PRIVATEUSE1_DISPATCH(hardswish_backward_stub, &cookbook::HardswishBackward::compute)
REGISTER_PRIVATEUSE1_DISPATCH(hardtanh_backward_stub, &cookbook::HardtanhBackward::compute)
}  // namespace at::native

// %% stub-register
namespace cookbook {
namespace {

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  // `abs` and `abs_` are composites that end in `abs.out`.
  m.impl("abs.out", &at::native::abs_out);
  m.impl("angle", &at::native::angle);
  m.impl("angle.out", &at::native::angle_out);
  m.impl("conj_physical.out", &at::native::conj_physical_out);
  m.impl("logical_not.out", &at::native::logical_not_out);
  m.impl("logical_and.out", &at::native::logical_and_out);
  m.impl("logical_or.out", &at::native::logical_or_out);
  m.impl("logical_xor.out", &at::native::logical_xor_out);
  m.impl("logit", &at::native::logit);
  m.impl("logit.out", &at::native::logit_out);
  m.impl("nan_to_num.out", &at::native::nan_to_num_out);
  m.impl("hardswish", &at::native::hardswish);
  m.impl("hardswish_", &at::native::hardswish_);
  m.impl("hardswish.out", &at::native::hardswish_out);
  m.impl("hardswish_backward", &at::native::hardswish_backward);
  m.impl("hardtanh_backward", &at::native::hardtanh_backward);
  m.impl("hardtanh_backward.grad_input", &at::native::hardtanh_backward_out);
}

}  // namespace
}  // namespace cookbook
