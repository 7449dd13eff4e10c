// chapter 2
// %% foreach-pointwise
// Functions of each tensor of a list, and the fused updates that optimizers are made of.
#include <ATen/ops/_foreach_abs_native.h>
#include <ATen/ops/_foreach_addcdiv_native.h>
#include <ATen/ops/_foreach_addcmul_native.h>
#include <ATen/ops/_foreach_ceil_native.h>
#include <ATen/ops/_foreach_copy_native.h>
#include <ATen/ops/_foreach_cos_native.h>
#include <ATen/ops/_foreach_erf_native.h>
#include <ATen/ops/_foreach_exp_native.h>
#include <ATen/ops/_foreach_expm1_native.h>
#include <ATen/ops/_foreach_floor_native.h>
#include <ATen/ops/_foreach_lerp_native.h>
#include <ATen/ops/_foreach_log1p_native.h>
#include <ATen/ops/_foreach_log_native.h>
#include <ATen/ops/_foreach_neg_native.h>
#include <ATen/ops/_foreach_reciprocal_native.h>
#include <ATen/ops/_foreach_round_native.h>
#include <ATen/ops/_foreach_rsqrt_native.h>
#include <ATen/ops/_foreach_sigmoid_native.h>
#include <ATen/ops/_foreach_sign_native.h>
#include <ATen/ops/_foreach_sin_native.h>
#include <ATen/ops/_foreach_sqrt_native.h>
#include <ATen/ops/_foreach_tanh_native.h>
#include <ATen/ops/_foreach_trunc_native.h>
#include <ATen/ops/_foreach_zero_native.h>

// %% foreach-pointwise-headers
// One tensor's part.
#include <ATen/ops/abs_native.h>
#include <ATen/ops/addcdiv_cpu_dispatch.h>
#include <ATen/ops/addcmul_cpu_dispatch.h>
#include <ATen/ops/ceil_cpu_dispatch.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/cos_cpu_dispatch.h>
#include <ATen/ops/erf_cpu_dispatch.h>
#include <ATen/ops/exp_cpu_dispatch.h>
#include <ATen/ops/expm1_cpu_dispatch.h>
#include <ATen/ops/floor_cpu_dispatch.h>
#include <ATen/ops/lerp_cpu_dispatch.h>
#include <ATen/ops/log1p_cpu_dispatch.h>
#include <ATen/ops/log_cpu_dispatch.h>
#include <ATen/ops/neg_cpu_dispatch.h>
#include <ATen/ops/reciprocal_cpu_dispatch.h>
#include <ATen/ops/round_cpu_dispatch.h>
#include <ATen/ops/rsqrt_cpu_dispatch.h>
#include <ATen/ops/sigmoid_cpu_dispatch.h>
#include <ATen/ops/sign_cpu_dispatch.h>
#include <ATen/ops/sin_cpu_dispatch.h>
#include <ATen/ops/sqrt_cpu_dispatch.h>
#include <ATen/ops/tanh_cpu_dispatch.h>
#include <ATen/ops/trunc_cpu_dispatch.h>
#include <ATen/ops/zero_native.h>
#include <torch/library.h>

#include "operators/foreach.h"

namespace cookbook {
namespace {

using at::Scalar, at::Tensor;

template <auto Kernel>
void one(Tensor& out, const Tensor& self) {
  Kernel(out, self);
}
constexpr auto kRound = static_cast<Tensor& (*)(Tensor&, const Tensor&)>(&at::cpu::round_out);
void abs_one(Tensor& out, const Tensor& self) { at::native::abs_out(self, out); }

// %% foreach-functions
using Neg = Foreach<"_foreach_neg", &one<&at::cpu::neg_out>, &at::native::foreach_tensor_neg_slow,
                    &at::native::foreach_tensor_neg_slow_>;
using Sqrt = Foreach<"_foreach_sqrt", &one<&at::cpu::sqrt_out>, &at::native::foreach_tensor_sqrt_slow,
                     &at::native::foreach_tensor_sqrt_slow_>;
using Rsqrt = Foreach<"_foreach_rsqrt", &one<&at::cpu::rsqrt_out>, &at::native::foreach_tensor_rsqrt_slow,
                      &at::native::foreach_tensor_rsqrt_slow_>;
using Reciprocal = Foreach<"_foreach_reciprocal", &one<&at::cpu::reciprocal_out>,
                           &at::native::foreach_tensor_reciprocal_slow, &at::native::foreach_tensor_reciprocal_slow_>;
using Exp = Foreach<"_foreach_exp", &one<&at::cpu::exp_out>, &at::native::foreach_tensor_exp_slow,
                    &at::native::foreach_tensor_exp_slow_>;
using Expm1 = Foreach<"_foreach_expm1", &one<&at::cpu::expm1_out>, &at::native::foreach_tensor_expm1_slow,
                      &at::native::foreach_tensor_expm1_slow_>;
using Log = Foreach<"_foreach_log", &one<&at::cpu::log_out>, &at::native::foreach_tensor_log_slow,
                    &at::native::foreach_tensor_log_slow_>;
using Log1p = Foreach<"_foreach_log1p", &one<&at::cpu::log1p_out>, &at::native::foreach_tensor_log1p_slow,
                      &at::native::foreach_tensor_log1p_slow_>;
using Sin = Foreach<"_foreach_sin", &one<&at::cpu::sin_out>, &at::native::foreach_tensor_sin_slow,
                    &at::native::foreach_tensor_sin_slow_>;
using Cos = Foreach<"_foreach_cos", &one<&at::cpu::cos_out>, &at::native::foreach_tensor_cos_slow,
                    &at::native::foreach_tensor_cos_slow_>;
using Tanh = Foreach<"_foreach_tanh", &one<&at::cpu::tanh_out>, &at::native::foreach_tensor_tanh_slow,
                     &at::native::foreach_tensor_tanh_slow_>;
using Sigmoid = Foreach<"_foreach_sigmoid", &one<&at::cpu::sigmoid_out>, &at::native::foreach_tensor_sigmoid_slow,
                        &at::native::foreach_tensor_sigmoid_slow_>;
using Sign = Foreach<"_foreach_sign", &one<&at::cpu::sign_out>, &at::native::foreach_tensor_sign_slow,
                     &at::native::foreach_tensor_sign_slow_>;
using Floor = Foreach<"_foreach_floor", &one<&at::cpu::floor_out>, &at::native::foreach_tensor_floor_slow,
                      &at::native::foreach_tensor_floor_slow_>;
using Ceil = Foreach<"_foreach_ceil", &one<&at::cpu::ceil_out>, &at::native::foreach_tensor_ceil_slow,
                     &at::native::foreach_tensor_ceil_slow_>;
using Trunc = Foreach<"_foreach_trunc", &one<&at::cpu::trunc_out>, &at::native::foreach_tensor_trunc_slow,
                      &at::native::foreach_tensor_trunc_slow_>;
using Erf = Foreach<"_foreach_erf", &one<&at::cpu::erf_out>, &at::native::foreach_tensor_erf_slow,
                    &at::native::foreach_tensor_erf_slow_>;
using Round = Foreach<"_foreach_round", &one<kRound>, &at::native::foreach_tensor_round_slow,
                      &at::native::foreach_tensor_round_slow_>;
using Abs =
    Foreach<"_foreach_abs", &abs_one, &at::native::foreach_tensor_abs_slow, &at::native::foreach_tensor_abs_slow_>;

// %% foreach-updates
template <auto Kernel>
void update(Tensor& out, const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& value) {
  Kernel(out, self, a, b, value);
}
void lerp_scalar(Tensor& out, const Tensor& self, const Tensor& end, const Scalar& weight) {
  at::cpu::lerp_out(out, self, end, weight);
}
void lerp_tensor(Tensor& out, const Tensor& self, const Tensor& end, const Tensor& weight) {
  at::cpu::lerp_out(out, self, end, weight);
}

using AddcmulScalar =
    Foreach<"_foreach_addcmul", &update<&at::cpu::addcmul_out>, &at::native::foreach_tensor_addcmul_scalar_slow,
            &at::native::foreach_tensor_addcmul_scalar_slow_>;
using AddcmulScalarList =
    Foreach<"_foreach_addcmul", &update<&at::cpu::addcmul_out>, &at::native::foreach_tensor_addcmul_scalarlist_slow,
            &at::native::foreach_tensor_addcmul_scalarlist_slow_>;
using AddcdivScalar =
    Foreach<"_foreach_addcdiv", &update<&at::cpu::addcdiv_out>, &at::native::foreach_tensor_addcdiv_scalar_slow,
            &at::native::foreach_tensor_addcdiv_scalar_slow_>;
using AddcdivScalarList =
    Foreach<"_foreach_addcdiv", &update<&at::cpu::addcdiv_out>, &at::native::foreach_tensor_addcdiv_scalarlist_slow,
            &at::native::foreach_tensor_addcdiv_scalarlist_slow_>;
using LerpScalar = Foreach<"_foreach_lerp", &lerp_scalar, &at::native::foreach_tensor_lerp_list_kernel_slow,
                           &at::native::foreach_tensor_lerp_list_kernel_slow_>;
using LerpScalarList = Foreach<"_foreach_lerp", &lerp_scalar, &at::native::foreach_tensor_lerp_scalarlist_kernel_slow,
                               &at::native::foreach_tensor_lerp_scalarlist_kernel_slow_>;
using LerpList = Foreach<"_foreach_lerp", &lerp_tensor, &at::native::foreach_tensor_ternary_lerp_slow,
                         &at::native::foreach_tensor_ternary_lerp_slow_>;

// %% foreach-writes
// Those that only write. The functional forms are composites.
void zero_one(Tensor& out, const Tensor&) { at::native::zero_(out); }
void copy_one(Tensor& out, const Tensor&, const Tensor& src, bool) { at::native::copy_(out, src, false); }

// The signature without a result: only `in_place` is registered.
std::vector<Tensor> zeroed(at::TensorList self) { return at::native::_foreach_zero(self); }
std::vector<Tensor> copied(at::TensorList self, at::TensorList src, bool non_blocking) {
  return at::native::_foreach_copy(self, src, non_blocking);
}
using Zero = Foreach<"_foreach_zero_", &zero_one, &zeroed, &at::native::foreach_tensor_zero_slow_>;
using Copy = Foreach<"_foreach_copy_", &copy_one, &copied, &at::native::foreach_tensor_copy_list_kernel_slow_>;

// %% foreach-pointwise-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  implement_foreach<Neg>(m, "_foreach_neg");
  implement_foreach<Sqrt>(m, "_foreach_sqrt");
  implement_foreach<Rsqrt>(m, "_foreach_rsqrt");
  implement_foreach<Reciprocal>(m, "_foreach_reciprocal");
  implement_foreach<Exp>(m, "_foreach_exp");
  implement_foreach<Expm1>(m, "_foreach_expm1");
  implement_foreach<Log>(m, "_foreach_log");
  implement_foreach<Log1p>(m, "_foreach_log1p");
  implement_foreach<Sin>(m, "_foreach_sin");
  implement_foreach<Cos>(m, "_foreach_cos");
  implement_foreach<Tanh>(m, "_foreach_tanh");
  implement_foreach<Sigmoid>(m, "_foreach_sigmoid");
  implement_foreach<Sign>(m, "_foreach_sign");
  implement_foreach<Floor>(m, "_foreach_floor");
  implement_foreach<Ceil>(m, "_foreach_ceil");
  implement_foreach<Trunc>(m, "_foreach_trunc");
  implement_foreach<Erf>(m, "_foreach_erf");
  implement_foreach<Round>(m, "_foreach_round");
  implement_foreach<Abs>(m, "_foreach_abs");
  implement_foreach<AddcmulScalar>(m, "_foreach_addcmul", "Scalar");
  implement_foreach<AddcmulScalarList>(m, "_foreach_addcmul", "ScalarList");
  implement_foreach<AddcdivScalar>(m, "_foreach_addcdiv", "Scalar");
  implement_foreach<AddcdivScalarList>(m, "_foreach_addcdiv", "ScalarList");
  implement_foreach<LerpScalar>(m, "_foreach_lerp", "Scalar");
  implement_foreach<LerpScalarList>(m, "_foreach_lerp", "ScalarList");
  implement_foreach<LerpList>(m, "_foreach_lerp", "List");
  m.impl("_foreach_zero_", &Zero::in_place);
  m.impl("_foreach_copy_", &Copy::in_place);
}

}  // namespace
}  // namespace cookbook
