// chapter 2
// %% unary
// Functions of one tensor, one line each: the meta function knows which of them turn integers into floats.
#include <ATen/ops/ceil_cpu_dispatch.h>
#include <ATen/ops/ceil_meta.h>
#include <ATen/ops/floor_cpu_dispatch.h>
#include <ATen/ops/floor_meta.h>
#include <ATen/ops/frac_cpu_dispatch.h>
#include <ATen/ops/frac_meta.h>
#include <ATen/ops/isneginf_cpu_dispatch.h>
#include <ATen/ops/isneginf_meta.h>
#include <ATen/ops/isposinf_cpu_dispatch.h>
#include <ATen/ops/isposinf_meta.h>
#include <ATen/ops/neg_cpu_dispatch.h>
#include <ATen/ops/neg_meta.h>
#include <ATen/ops/reciprocal_cpu_dispatch.h>
#include <ATen/ops/reciprocal_meta.h>
#include <ATen/ops/round_cpu_dispatch.h>
#include <ATen/ops/round_meta.h>
#include <ATen/ops/rsqrt_cpu_dispatch.h>
#include <ATen/ops/rsqrt_meta.h>
#include <ATen/ops/sgn_cpu_dispatch.h>
#include <ATen/ops/sgn_meta.h>
#include <ATen/ops/sign_cpu_dispatch.h>
#include <ATen/ops/sign_meta.h>
#include <ATen/ops/signbit_cpu_dispatch.h>
#include <ATen/ops/signbit_meta.h>
#include <ATen/ops/sqrt_cpu_dispatch.h>
#include <ATen/ops/sqrt_meta.h>
#include <ATen/ops/trunc_cpu_dispatch.h>
#include <ATen/ops/trunc_meta.h>

// %% unary-headers-exponentials
// Exponentials, logarithms and what is made of them.
#include <ATen/ops/digamma_cpu_dispatch.h>
#include <ATen/ops/digamma_meta.h>
#include <ATen/ops/erf_cpu_dispatch.h>
#include <ATen/ops/erf_meta.h>
#include <ATen/ops/erfc_cpu_dispatch.h>
#include <ATen/ops/erfc_meta.h>
#include <ATen/ops/erfinv_cpu_dispatch.h>
#include <ATen/ops/erfinv_meta.h>
#include <ATen/ops/exp2_cpu_dispatch.h>
#include <ATen/ops/exp2_meta.h>
#include <ATen/ops/exp_cpu_dispatch.h>
#include <ATen/ops/exp_meta.h>
#include <ATen/ops/expm1_cpu_dispatch.h>
#include <ATen/ops/expm1_meta.h>
#include <ATen/ops/lgamma_cpu_dispatch.h>
#include <ATen/ops/lgamma_meta.h>
#include <ATen/ops/log10_cpu_dispatch.h>
#include <ATen/ops/log10_meta.h>
#include <ATen/ops/log1p_cpu_dispatch.h>
#include <ATen/ops/log1p_meta.h>
#include <ATen/ops/log2_cpu_dispatch.h>
#include <ATen/ops/log2_meta.h>
#include <ATen/ops/log_cpu_dispatch.h>
#include <ATen/ops/log_meta.h>
#include <ATen/ops/sigmoid_cpu_dispatch.h>
#include <ATen/ops/sigmoid_meta.h>

// %% unary-headers-trigonometry
// Trigonometry.
#include <ATen/ops/acos_cpu_dispatch.h>
#include <ATen/ops/acos_meta.h>
#include <ATen/ops/acosh_cpu_dispatch.h>
#include <ATen/ops/acosh_meta.h>
#include <ATen/ops/asin_cpu_dispatch.h>
#include <ATen/ops/asin_meta.h>
#include <ATen/ops/asinh_cpu_dispatch.h>
#include <ATen/ops/asinh_meta.h>
#include <ATen/ops/atan_cpu_dispatch.h>
#include <ATen/ops/atan_meta.h>
#include <ATen/ops/atanh_cpu_dispatch.h>
#include <ATen/ops/atanh_meta.h>
#include <ATen/ops/cos_cpu_dispatch.h>
#include <ATen/ops/cos_meta.h>
#include <ATen/ops/cosh_cpu_dispatch.h>
#include <ATen/ops/cosh_meta.h>
#include <ATen/ops/sin_cpu_dispatch.h>
#include <ATen/ops/sin_meta.h>
#include <ATen/ops/sinh_cpu_dispatch.h>
#include <ATen/ops/sinh_meta.h>
#include <ATen/ops/tan_cpu_dispatch.h>
#include <ATen/ops/tan_meta.h>
#include <ATen/ops/tanh_cpu_dispatch.h>
#include <ATen/ops/tanh_meta.h>
#include <torch/library.h>

#include "operators/pointwise.h"

namespace cookbook {
namespace {

template <Name name, auto MetaFunction, auto Kernel>
using Unary = Pointwise<name, MetaFunction, Kernel>;

// %% unary-exact
using Neg = Unary<"neg", &at::meta::structured_neg::meta, &at::cpu::neg_out>;
using Sign = Unary<"sign", &at::meta::structured_sign::meta, &at::cpu::sign_out>;
using Sgn = Unary<"sgn", &at::meta::structured_sgn::meta, &at::cpu::sgn_out>;
using Floor = Unary<"floor", &at::meta::structured_floor::meta, &at::cpu::floor_out>;
using Ceil = Unary<"ceil", &at::meta::structured_ceil::meta, &at::cpu::ceil_out>;
using Trunc = Unary<"trunc", &at::meta::structured_trunc::meta, &at::cpu::trunc_out>;
using Frac = Unary<"frac", &at::meta::structured_frac::meta, &at::cpu::frac_out>;
using Round = Unary<"round", &at::meta::structured_round::meta,
                    static_cast<at::Tensor& (*)(at::Tensor&, const at::Tensor&)>(&at::cpu::round_out)>;
using RoundDecimals = Unary<"round", &at::meta::structured_round_decimals::meta,
                            static_cast<at::Tensor& (*)(at::Tensor&, const at::Tensor&, int64_t)>(&at::cpu::round_out)>;
using Isneginf = Pointwise<"isneginf", &at::meta::structured_isneginf::meta, &at::cpu::isneginf_out, ResultIs::Bool>;
using Isposinf = Pointwise<"isposinf", &at::meta::structured_isposinf::meta, &at::cpu::isposinf_out, ResultIs::Bool>;
using Signbit = Pointwise<"signbit", &at::meta::structured_signbit::meta, &at::cpu::signbit_out, ResultIs::Bool>;

// %% unary-functions
using Sqrt = Unary<"sqrt", &at::meta::structured_sqrt::meta, &at::cpu::sqrt_out>;
using Rsqrt = Unary<"rsqrt", &at::meta::structured_rsqrt::meta, &at::cpu::rsqrt_out>;
using Reciprocal = Unary<"reciprocal", &at::meta::structured_reciprocal::meta, &at::cpu::reciprocal_out>;
using Exp = Unary<"exp", &at::meta::structured_exp::meta, &at::cpu::exp_out>;
using Exp2 = Unary<"exp2", &at::meta::structured_exp2::meta, &at::cpu::exp2_out>;
using Expm1 = Unary<"expm1", &at::meta::structured_expm1::meta, &at::cpu::expm1_out>;
using Log = Unary<"log", &at::meta::structured_log::meta, &at::cpu::log_out>;
using Log2 = Unary<"log2", &at::meta::structured_log2::meta, &at::cpu::log2_out>;
using Log10 = Unary<"log10", &at::meta::structured_log10::meta, &at::cpu::log10_out>;
using Log1p = Unary<"log1p", &at::meta::structured_log1p::meta, &at::cpu::log1p_out>;
using Sin = Unary<"sin", &at::meta::structured_sin::meta, &at::cpu::sin_out>;
using Cos = Unary<"cos", &at::meta::structured_cos::meta, &at::cpu::cos_out>;
using Tan = Unary<"tan", &at::meta::structured_tan::meta, &at::cpu::tan_out>;
using Asin = Unary<"asin", &at::meta::structured_asin::meta, &at::cpu::asin_out>;
using Acos = Unary<"acos", &at::meta::structured_acos::meta, &at::cpu::acos_out>;
using Atan = Unary<"atan", &at::meta::structured_atan::meta, &at::cpu::atan_out>;
using Sinh = Unary<"sinh", &at::meta::structured_sinh::meta, &at::cpu::sinh_out>;
using Cosh = Unary<"cosh", &at::meta::structured_cosh::meta, &at::cpu::cosh_out>;
using Tanh = Unary<"tanh", &at::meta::structured_tanh::meta, &at::cpu::tanh_out>;
using Asinh = Unary<"asinh", &at::meta::structured_asinh::meta, &at::cpu::asinh_out>;
using Acosh = Unary<"acosh", &at::meta::structured_acosh::meta, &at::cpu::acosh_out>;
using Atanh = Unary<"atanh", &at::meta::structured_atanh::meta, &at::cpu::atanh_out>;
using Sigmoid = Unary<"sigmoid", &at::meta::structured_sigmoid::meta, &at::cpu::sigmoid_out>;
using Erf = Unary<"erf", &at::meta::structured_erf::meta, &at::cpu::erf_out>;
using Erfc = Unary<"erfc", &at::meta::structured_erfc::meta, &at::cpu::erfc_out>;
using Erfinv = Unary<"erfinv", &at::meta::structured_erfinv::meta, &at::cpu::erfinv_out>;
using Lgamma = Unary<"lgamma", &at::meta::structured_lgamma::meta, &at::cpu::lgamma_out>;
using Digamma = Unary<"digamma", &at::meta::structured_digamma::meta, &at::cpu::digamma_out>;

// %% unary-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  implement<Neg>(m, "neg");
  implement<Sign>(m, "sign");
  implement<Sgn>(m, "sgn");
  implement<Floor>(m, "floor");
  implement<Ceil>(m, "ceil");
  implement<Trunc>(m, "trunc");
  implement<Frac>(m, "frac");
  implement<Sqrt>(m, "sqrt");
  implement<Rsqrt>(m, "rsqrt");
  implement<Reciprocal>(m, "reciprocal");
  implement<Exp>(m, "exp");
  implement<Exp2>(m, "exp2");
  implement<Expm1>(m, "expm1");
  implement<Log>(m, "log");
  implement<Log2>(m, "log2");
  implement<Log10>(m, "log10");
  implement<Log1p>(m, "log1p");
  implement<Sin>(m, "sin");
  implement<Cos>(m, "cos");
  implement<Tan>(m, "tan");
  implement<Asin>(m, "asin");
  implement<Acos>(m, "acos");
  implement<Atan>(m, "atan");
  implement<Sinh>(m, "sinh");
  implement<Cosh>(m, "cosh");
  implement<Tanh>(m, "tanh");
  implement<Asinh>(m, "asinh");
  implement<Acosh>(m, "acosh");
  implement<Atanh>(m, "atanh");
  implement<Sigmoid>(m, "sigmoid");
  implement<Erf>(m, "erf");
  implement<Erfc>(m, "erfc");
  implement<Erfinv>(m, "erfinv");
  implement<Lgamma>(m, "lgamma");
  implement<Digamma>(m, "digamma");
  implement<Round>(m, "round");
  implement<RoundDecimals>(m, "round.decimals", "round_.decimals", "round.decimals_out");
  implement<Isneginf>(m, "isneginf", nullptr, "isneginf.out");
  implement<Isposinf>(m, "isposinf", nullptr, "isposinf.out");
  implement<Signbit>(m, "signbit", nullptr, "signbit.out");
}

}  // namespace
}  // namespace cookbook
