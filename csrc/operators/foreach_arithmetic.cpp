// chapter 2
// %% foreach-arithmetic
// Arithmetic between lists, and between a list and scalars.
#include <ATen/ScalarOps.h>
#include <ATen/ops/_foreach_add_native.h>
#include <ATen/ops/_foreach_clamp_max_native.h>
#include <ATen/ops/_foreach_clamp_min_native.h>
#include <ATen/ops/_foreach_div_native.h>
#include <ATen/ops/_foreach_maximum_native.h>
#include <ATen/ops/_foreach_minimum_native.h>
#include <ATen/ops/_foreach_mul_native.h>
#include <ATen/ops/_foreach_pow_native.h>
#include <ATen/ops/_foreach_sub_native.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/clamp_max_cpu_dispatch.h>
#include <ATen/ops/clamp_min_cpu_dispatch.h>
#include <ATen/ops/div_cpu_dispatch.h>
#include <ATen/ops/maximum_cpu_dispatch.h>
#include <ATen/ops/minimum_cpu_dispatch.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/pow_cpu_dispatch.h>
#include <ATen/ops/sub_cpu_dispatch.h>
#include <torch/library.h>

#include "operators/foreach.h"

namespace cookbook {
namespace {

using at::Scalar, at::Tensor, at::native::wrapped_scalar_tensor;

// %% foreach-one
// One tensor's part of each operator. A scalar takes part as a tensor without dimensions, as it does in `x + 2`.
template <auto Kernel>
void with_tensor(Tensor& out, const Tensor& self, const Tensor& other) {
  Kernel(out, self, other);
}
template <auto Kernel>
void with_scalar(Tensor& out, const Tensor& self, const Scalar& other) {
  Kernel(out, self, wrapped_scalar_tensor(other));
}
// Core's in-place form has its operands the other way round, and in half precision the first one is rounded before the
// product: the order decides the last bit.
void times_scalar(Tensor& out, const Tensor& self, const Scalar& other) {
  const Tensor number = wrapped_scalar_tensor(other);
  const bool in_place = out.const_data_ptr() == self.const_data_ptr();
  at::cpu::mul_out(out, in_place ? number : self, in_place ? self : number);
}
template <auto Kernel>
void with_tensor_times(Tensor& out, const Tensor& self, const Tensor& other, const Scalar& alpha) {
  Kernel(out, self, other, alpha);
}
template <auto Kernel>
void with_scalar_once(Tensor& out, const Tensor& self, const Scalar& other) {
  Kernel(out, self, wrapped_scalar_tensor(other), 1);
}

using Binary = Tensor& (*)(Tensor&, const Tensor&, const Tensor&);
constexpr auto kDiv = static_cast<Binary>(&at::cpu::div_out);
constexpr auto kPow = static_cast<Binary>(&at::cpu::pow_out);
constexpr auto kClampMin = static_cast<Binary>(&at::cpu::clamp_min_out);
constexpr auto kClampMax = static_cast<Binary>(&at::cpu::clamp_max_out);
void pow_of_scalar(Tensor& out, const Tensor& exponent, const Scalar& base) { at::cpu::pow_out(out, base, exponent); }

// %% foreach-add
using AddList =
    Foreach<"_foreach_add", &with_tensor_times<&at::cpu::add_out>, &at::native::foreach_tensor_add_list_kernel_slow,
            &at::native::foreach_tensor_add_list_kernel_slow_>;
using AddScalar =
    Foreach<"_foreach_add", &with_scalar_once<&at::cpu::add_out>, &at::native::foreach_tensor_add_scalar_kernel_slow,
            &at::native::foreach_tensor_add_scalar_kernel_slow_>;
using AddScalarList = Foreach<"_foreach_add", &with_scalar_once<&at::cpu::add_out>,
                              &at::native::foreach_tensor_add_scalarlist_kernel_slow,
                              &at::native::foreach_tensor_add_scalarlist_kernel_slow_>;
using AddTensor =
    Foreach<"_foreach_add", &with_tensor_times<&at::cpu::add_out>, &at::native::foreach_tensor_add_tensor_kernel_slow,
            &at::native::foreach_tensor_add_tensor_kernel_slow_>;

// %% foreach-sub
using SubList =
    Foreach<"_foreach_sub", &with_tensor_times<&at::cpu::sub_out>, &at::native::foreach_tensor_sub_list_kernel_slow,
            &at::native::foreach_tensor_sub_list_kernel_slow_>;
using SubScalar =
    Foreach<"_foreach_sub", &with_scalar_once<&at::cpu::sub_out>, &at::native::foreach_tensor_sub_scalar_kernel_slow,
            &at::native::foreach_tensor_sub_scalar_kernel_slow_>;
using SubScalarList = Foreach<"_foreach_sub", &with_scalar_once<&at::cpu::sub_out>,
                              &at::native::foreach_tensor_sub_scalarlist_kernel_slow,
                              &at::native::foreach_tensor_sub_scalarlist_kernel_slow_>;

// %% foreach-mul
using MulList =
    Foreach<"_foreach_mul", &with_tensor<&at::cpu::mul_out>, &at::native::foreach_tensor_mul_list_kernel_slow,
            &at::native::foreach_tensor_mul_list_kernel_slow_>;
using MulScalar = Foreach<"_foreach_mul", &times_scalar, &at::native::foreach_tensor_mul_scalar_kernel_slow,
                          &at::native::foreach_tensor_mul_scalar_kernel_slow_>;
using MulScalarList = Foreach<"_foreach_mul", &times_scalar, &at::native::foreach_tensor_mul_scalarlist_kernel_slow,
                              &at::native::foreach_tensor_mul_scalarlist_kernel_slow_>;
using MulTensor =
    Foreach<"_foreach_mul", &with_tensor<&at::cpu::mul_out>, &at::native::foreach_tensor_mul_tensor_kernel_slow,
            &at::native::foreach_tensor_mul_tensor_kernel_slow_>;

// %% foreach-div
using DivList = Foreach<"_foreach_div", &with_tensor<kDiv>, &at::native::foreach_tensor_div_list_kernel_slow,
                        &at::native::foreach_tensor_div_list_kernel_slow_>;
using DivScalar = Foreach<"_foreach_div", &with_scalar<kDiv>, &at::native::foreach_tensor_div_scalar_kernel_slow,
                          &at::native::foreach_tensor_div_scalar_kernel_slow_>;
using DivScalarList =
    Foreach<"_foreach_div", &with_scalar<kDiv>, &at::native::foreach_tensor_div_scalarlist_kernel_slow,
            &at::native::foreach_tensor_div_scalarlist_kernel_slow_>;
using DivTensor = Foreach<"_foreach_div", &with_tensor<kDiv>, &at::native::foreach_tensor_div_tensor_kernel_slow,
                          &at::native::foreach_tensor_div_tensor_kernel_slow_>;

// %% foreach-clamp-min
using ClampMinList =
    Foreach<"_foreach_clamp_min", &with_tensor<kClampMin>, &at::native::foreach_tensor_clamp_min_list_kernel_slow,
            &at::native::foreach_tensor_clamp_min_list_kernel_slow_>;
using ClampMinScalar =
    Foreach<"_foreach_clamp_min", &with_scalar<kClampMin>, &at::native::foreach_tensor_clamp_min_scalar_kernel_slow,
            &at::native::foreach_tensor_clamp_min_scalar_kernel_slow_>;
using ClampMinScalarList =
    Foreach<"_foreach_clamp_min", &with_scalar<kClampMin>, &at::native::foreach_tensor_clamp_min_scalarlist_kernel_slow,
            &at::native::foreach_tensor_clamp_min_scalarlist_kernel_slow_>;

// %% foreach-clamp-max
using ClampMaxList =
    Foreach<"_foreach_clamp_max", &with_tensor<kClampMax>, &at::native::foreach_tensor_clamp_max_list_kernel_slow,
            &at::native::foreach_tensor_clamp_max_list_kernel_slow_>;
using ClampMaxScalar =
    Foreach<"_foreach_clamp_max", &with_scalar<kClampMax>, &at::native::foreach_tensor_clamp_max_scalar_kernel_slow,
            &at::native::foreach_tensor_clamp_max_scalar_kernel_slow_>;
using ClampMaxScalarList =
    Foreach<"_foreach_clamp_max", &with_scalar<kClampMax>, &at::native::foreach_tensor_clamp_max_scalarlist_kernel_slow,
            &at::native::foreach_tensor_clamp_max_scalarlist_kernel_slow_>;

// %% foreach-pow
using PowList = Foreach<"_foreach_pow", &with_tensor<kPow>, &at::native::foreach_tensor_pow_list_kernel_slow,
                        &at::native::foreach_tensor_pow_list_kernel_slow_>;
using PowScalar = Foreach<"_foreach_pow", &with_scalar<kPow>, &at::native::foreach_tensor_pow_scalar_kernel_slow,
                          &at::native::foreach_tensor_pow_scalar_kernel_slow_>;
using PowScalarList =
    Foreach<"_foreach_pow", &with_scalar<kPow>, &at::native::foreach_tensor_pow_scalarlist_kernel_slow,
            &at::native::foreach_tensor_pow_scalarlist_kernel_slow_>;

// %% foreach-pow-of-scalar
// The base is one scalar for all, the exponents are the list. Core has no in-place form.
std::vector<Tensor> swapped_slow(at::TensorList exponents, const Scalar& base) {
  return at::native::foreach_scalar_pow_list_kernel_slow(base, exponents);
}
std::vector<Tensor> pow_of_scalar_list(const Scalar& base, at::TensorList exponents) {
  return Foreach<"_foreach_pow", &pow_of_scalar, &swapped_slow, nullptr>::functional(exponents, base);
}

// %% foreach-arithmetic-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  implement_foreach<AddList>(m, "_foreach_add", "List");
  implement_foreach<AddScalar>(m, "_foreach_add", "Scalar");
  implement_foreach<AddScalarList>(m, "_foreach_add", "ScalarList");
  implement_foreach<AddTensor>(m, "_foreach_add", "Tensor");
  implement_foreach<SubList>(m, "_foreach_sub", "List");
  implement_foreach<SubScalar>(m, "_foreach_sub", "Scalar");
  implement_foreach<SubScalarList>(m, "_foreach_sub", "ScalarList");
  implement_foreach<MulList>(m, "_foreach_mul", "List");
  implement_foreach<MulScalar>(m, "_foreach_mul", "Scalar");
  implement_foreach<MulScalarList>(m, "_foreach_mul", "ScalarList");
  implement_foreach<MulTensor>(m, "_foreach_mul", "Tensor");
  implement_foreach<DivList>(m, "_foreach_div", "List");
  implement_foreach<DivScalar>(m, "_foreach_div", "Scalar");
  implement_foreach<DivScalarList>(m, "_foreach_div", "ScalarList");
  implement_foreach<DivTensor>(m, "_foreach_div", "Tensor");
  implement_foreach<ClampMinList>(m, "_foreach_clamp_min", "List");
  implement_foreach<ClampMinScalar>(m, "_foreach_clamp_min", "Scalar");
  implement_foreach<ClampMinScalarList>(m, "_foreach_clamp_min", "ScalarList");
  implement_foreach<ClampMinList>(m, "_foreach_maximum", "List");
  implement_foreach<ClampMinScalar>(m, "_foreach_maximum", "Scalar");
  implement_foreach<ClampMinScalarList>(m, "_foreach_maximum", "ScalarList");
  implement_foreach<ClampMaxList>(m, "_foreach_clamp_max", "List");
  implement_foreach<ClampMaxScalar>(m, "_foreach_clamp_max", "Scalar");
  implement_foreach<ClampMaxScalarList>(m, "_foreach_clamp_max", "ScalarList");
  implement_foreach<ClampMaxList>(m, "_foreach_minimum", "List");
  implement_foreach<ClampMaxScalar>(m, "_foreach_minimum", "Scalar");
  implement_foreach<ClampMaxScalarList>(m, "_foreach_minimum", "ScalarList");
  implement_foreach<PowList>(m, "_foreach_pow", "List");
  implement_foreach<PowScalar>(m, "_foreach_pow", "Scalar");
  implement_foreach<PowScalarList>(m, "_foreach_pow", "ScalarList");
  m.impl("_foreach_pow.ScalarAndTensor", &pow_of_scalar_list);
}

}  // namespace
}  // namespace cookbook
