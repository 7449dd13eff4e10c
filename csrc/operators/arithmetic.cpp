// chapter 2
// %% arithmetic
// Arithmetic on two and three tensors: PyTorch's meta functions broadcast and promote, the chip's kernels compute. An
// operator is a line; a number (`x + 2`) comes as a CPU tensor without dimensions, so no operator needs a Scalar form.
#include <ATen/ScalarOps.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/add_meta.h>
#include <ATen/ops/addcdiv_cpu_dispatch.h>
#include <ATen/ops/addcdiv_meta.h>
#include <ATen/ops/addcmul_cpu_dispatch.h>
#include <ATen/ops/addcmul_meta.h>
#include <ATen/ops/atan2_cpu_dispatch.h>
#include <ATen/ops/atan2_meta.h>
#include <ATen/ops/div_cpu_dispatch.h>
#include <ATen/ops/div_meta.h>
#include <ATen/ops/fmod_cpu_dispatch.h>
#include <ATen/ops/fmod_meta.h>
#include <ATen/ops/lerp_cpu_dispatch.h>
#include <ATen/ops/lerp_meta.h>
#include <ATen/ops/maximum_cpu_dispatch.h>
#include <ATen/ops/maximum_meta.h>
#include <ATen/ops/minimum_cpu_dispatch.h>
#include <ATen/ops/minimum_meta.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/mul_meta.h>
#include <ATen/ops/pow_cpu_dispatch.h>
#include <ATen/ops/pow_meta.h>
#include <ATen/ops/remainder_cpu_dispatch.h>
#include <ATen/ops/remainder_meta.h>
#include <ATen/ops/sub_cpu_dispatch.h>
#include <ATen/ops/sub_meta.h>
#include <ATen/ops/xlogy_cpu_dispatch.h>
#include <ATen/ops/xlogy_meta.h>
#include <torch/library.h>

#include "operators/pointwise.h"

namespace cookbook {
namespace {

// %% arithmetic-small
// What PyTorch's kernels compute for one element. Its kernel for add computes a + alpha * b in one rounding; with alpha
// 1 or -1 the product is exact, so this is the same.
struct SmallAdd {
  static bool takes(const at::Scalar& alpha) { return alpha.equal(1); }
  template <class T>
  static T apply(T a, T b) {
    return a + b;
  }
};
struct SmallSub : SmallAdd {
  template <class T>
  static T apply(T a, T b) {
    return a - b;
  }
};
struct SmallMul {
  static bool takes() { return true; }
  template <class T>
  static T apply(T a, T b) {
    return a * b;
  }
};
struct SmallDiv : SmallMul {
  template <class T>
  static T apply(T a, T b) {
    return a / b;
  }
};

// %% arithmetic-binary
// Names a function among those of its name by its parameters.
using Binary = at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Tensor&);

constexpr ResultIs kSame = ResultIs::Operand;
using Add = Pointwise<"add", &at::meta::structured_add_Tensor::meta, &at::cpu::add_out, kSame, SmallAdd>;
using Sub = Pointwise<"sub", &at::meta::structured_sub_Tensor::meta, &at::cpu::sub_out, kSame, SmallSub>;
using Mul = Pointwise<"mul", &at::meta::structured_mul_Tensor::meta, &at::cpu::mul_out, kSame, SmallMul>;
using Div =
    Pointwise<"div", &at::meta::structured_div_Tensor::meta, static_cast<Binary>(&at::cpu::div_out), kSame, SmallDiv>;
using Maximum = Pointwise<"maximum", &at::meta::structured_maximum::meta, &at::cpu::maximum_out>;
using Minimum = Pointwise<"minimum", &at::meta::structured_minimum::meta, &at::cpu::minimum_out>;
using Atan2 = Pointwise<"atan2", &at::meta::structured_atan2::meta, &at::cpu::atan2_out>;
using Xlogy = Pointwise<"xlogy", &at::meta::structured_xlogy_Tensor::meta, &at::cpu::xlogy_out>;
using Fmod = Pointwise<"fmod", &at::meta::structured_fmod_Tensor::meta, &at::cpu::fmod_out>;
using Remainder = Pointwise<"remainder", &at::meta::structured_remainder_Tensor::meta, &at::cpu::remainder_out>;

// %% arithmetic-division
// Rounding modes: the text travels with the launch.
using RoundedDiv = Operator<"div", &at::meta::structured_div_Tensor_mode::meta,
                            static_cast<at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                        std::optional<std::string_view>)>(&at::cpu::div_out)>;

// Not structured, and division by another name.
at::Tensor floor_divide(const at::Tensor& self, const at::Tensor& other) {
  return RoundedDiv::functional(self, other, "floor");
}
at::Tensor& floor_divide_in_place(at::Tensor& self, const at::Tensor& other) {
  return RoundedDiv::in_place(self, other, "floor");
}
at::Tensor& floor_divide_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  return RoundedDiv::out(self, other, "floor", out);
}
at::Tensor rsub(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return Sub::functional(other, self, alpha);
}
at::Tensor remainder_of_scalar(const at::Scalar& self, const at::Tensor& other) {
  return Remainder::functional(at::native::wrapped_scalar_tensor(self), other);
}

// %% arithmetic-powers
using PowTensorTensor =
    Pointwise<"pow", &at::meta::structured_pow_Tensor_Tensor::meta, static_cast<Binary>(&at::cpu::pow_out)>;
using PowTensorScalar =
    Pointwise<"pow", &at::meta::structured_pow_Tensor_Scalar::meta,
              static_cast<at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Scalar&)>(&at::cpu::pow_out)>;
using PowScalar =
    Pointwise<"pow", &at::meta::structured_pow_Scalar::meta,
              static_cast<at::Tensor& (*)(at::Tensor&, const at::Scalar&, const at::Tensor&)>(&at::cpu::pow_out)>;

// %% arithmetic-ternary
using Addcmul = Pointwise<"addcmul", &at::meta::structured_addcmul::meta, &at::cpu::addcmul_out>;
using Addcdiv = Pointwise<"addcdiv", &at::meta::structured_addcdiv::meta, &at::cpu::addcdiv_out>;
using LerpScalar =
    Pointwise<"lerp", &at::meta::structured_lerp_Scalar::meta,
              static_cast<at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Scalar&)>(
                  &at::cpu::lerp_out)>;
// Refuses to promote, so a number among its operands is an error that only the meta function knows.
using LerpTensor =
    Operator<"lerp", &at::meta::structured_lerp_Tensor::meta,
             static_cast<at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
                 &at::cpu::lerp_out)>;

// %% arithmetic-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  implement<Add>(m, "add.Tensor", "add_.Tensor", "add.out");
  implement<Sub>(m, "sub.Tensor", "sub_.Tensor", "sub.out");
  implement<Mul>(m, "mul.Tensor", "mul_.Tensor", "mul.out");
  implement<Div>(m, "div.Tensor", "div_.Tensor", "div.out");
  implement<RoundedDiv>(m, "div.Tensor_mode", "div_.Tensor_mode", "div.out_mode");
  implement<Maximum>(m, "maximum", nullptr, "maximum.out");
  implement<Minimum>(m, "minimum", nullptr, "minimum.out");
  implement<Atan2>(m, "atan2");
  implement<Xlogy>(m, "xlogy.Tensor", "xlogy_.Tensor", "xlogy.OutTensor");
  implement<Fmod>(m, "fmod.Tensor", "fmod_.Tensor", "fmod.Tensor_out");
  implement<Remainder>(m, "remainder.Tensor", "remainder_.Tensor", "remainder.Tensor_out");
  implement<PowTensorTensor>(m, "pow.Tensor_Tensor", "pow_.Tensor", "pow.Tensor_Tensor_out");
  implement<PowTensorScalar>(m, "pow.Tensor_Scalar", "pow_.Scalar", "pow.Tensor_Scalar_out");
  m.impl("pow.Scalar", &PowScalar::functional);
  m.impl("pow.Scalar_out", &PowScalar::out);
  implement<Addcmul>(m, "addcmul");
  implement<Addcdiv>(m, "addcdiv");
  implement<LerpScalar>(m, "lerp.Scalar", "lerp_.Scalar", "lerp.Scalar_out");
  implement<LerpTensor>(m, "lerp.Tensor", "lerp_.Tensor", "lerp.Tensor_out");
  m.impl("floor_divide", &floor_divide);
  m.impl("floor_divide_.Tensor", &floor_divide_in_place);
  m.impl("floor_divide.out", &floor_divide_out);
  m.impl("rsub.Tensor", &rsub);
  m.impl("remainder.Scalar_Tensor", &remainder_of_scalar);
}

}  // namespace
}  // namespace cookbook
