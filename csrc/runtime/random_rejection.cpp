// chapter 4
// %% rejection
// Distributions whose samplers draw until a number is accepted: gamma, Dirichlet, binomial, Poisson. How many rows of
// its column an element needs is not known beforehand, and does not have to be.
#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Distributions.h>
#include <math.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/empty.h"
#include "operators/on_device.h"
#include "runtime/columns.h"
#include "runtime/random.h"

namespace cookbook {
namespace {

using at::Tensor;

constexpr Dtypes kFloatAndDouble{c10::kFloat, c10::kDouble};

// Contiguous, as on the CPU, whatever the parameters' strides are.
template <Name name, auto Kernel>
Tensor sample_like(const Tensor& parameter, const MaybeGenerator& generator) {
  generator_for(generator, parameter.device());
  const OnDevice guard(parameter.device());
  const Tensor out = empty(parameter.sizes(), parameter.scalar_type());
  if (out.numel() == 0) return out;
  launch<name, Kernel>(out, parameter, reserve(generator, out.device(), out.numel()));
  return out;
}

// %% rejection-gamma
// Core's sampler takes numbers from anywhere. Outside of its domain it would draw for ever.
double gamma(Column& column, double alpha) {
  if (!(alpha >= 0)) return std::numeric_limits<double>::quiet_NaN();
  const auto uniform = [&] { return column.uniform(); };
  const auto normal = [&] { return column.normal<double>(); };
  BaseSampler<double, decltype(uniform)> standard_uniform(uniform);
  BaseSampler<double, decltype(normal)> standard_normal(normal);
  return sample_gamma<double, double>(alpha, standard_uniform, standard_normal);
}

void standard_gamma(Tensor& out, const Tensor& alpha, const PhiloxArguments& random) {
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "gamma", [&] {
    draw<scalar_t, scalar_t>(
        random,
        [](Column& column, scalar_t& x, scalar_t shape) {
          // A density that falls to 0 has a logarithm that programs take.
          x = static_cast<scalar_t>(gamma(column, shape));
          if (x < std::numeric_limits<scalar_t>::min()) x = std::numeric_limits<scalar_t>::min();
        },
        out, alpha);
  });
}

// %% rejection-dirichlet
// Gamma numbers divided by their sum over the last dimension, in double.
void dirichlet(Tensor& out, const Tensor& alpha, const PhiloxArguments& random) {
  const Tensor gammas = at::detail::empty_cpu(out.sizes(), c10::kDouble);
  draw<double, double>(
      random, [](Column& column, double& x, double shape) { x = gamma(column, shape); }, gammas,
      alpha.to(c10::kDouble));
  out.copy_(gammas.div_(gammas.sum(-1, /*keepdim=*/true)));
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "dirichlet",
                             [&] { out.clamp_min_(std::numeric_limits<scalar_t>::min()); });
}

// %% rejection-binomial
double binomial(Column& column, double count, double probability) {
  // Core's sampler compares with the count in its loop, which a NaN never ends.
  if (std::isnan(count) || std::isnan(probability)) return std::numeric_limits<double>::quiet_NaN();
  const auto uniform = [&] { return column.open_uniform(); };
  BaseSampler<double, decltype(uniform)> standard_uniform(uniform);
  return sample_binomial<double, double>(count, probability, standard_uniform);
}

void binomials(Tensor& out, const Tensor& count, const Tensor& probability, const PhiloxArguments& random) {
  AT_DISPATCH_FLOATING_TYPES(out.scalar_type(), "binomial", [&] {
    draw<scalar_t, scalar_t, scalar_t>(
        random,
        [](Column& column, scalar_t& x, scalar_t n, scalar_t p) { x = static_cast<scalar_t>(binomial(column, n, p)); },
        out, count, probability);
  });
}

Tensor sample_binomials(const Tensor& count, const Tensor& probability, MaybeGenerator generator) {
  TORCH_CHECK_VALUE(c10::isFloatingType(count.scalar_type()),
                    "binomial only supports floating-point dtypes for count, got: ", count.scalar_type());
  TORCH_CHECK_VALUE(c10::isFloatingType(probability.scalar_type()),
                    "binomial only supports floating-point dtypes for prob, got: ", probability.scalar_type());
  generator_for(generator, count.device());
  const OnDevice guard(count.device());
  // Only to broadcast and to check, as on the CPU, also where it warns.
  const Tensor out = empty(count.sizes(), count.scalar_type());
  at::TensorIteratorConfig().add_output(out).add_const_input(count).add_const_input(probability).build();
  check_dtype("binomial_cpu", count.scalar_type(), kFloatAndDouble);
  if (out.numel() == 0) return out;
  launch<"binomial", &binomials>(out, count.expand_as(out), probability.expand_as(out),
                                 reserve(generator, out.device(), out.numel()));
  return out;
}

// %% rejection-poisson
// W. Hörmann, "The transformed rejection method for generating Poisson random variables", 1993 (PTRS); below a rate of
// 10 the product of uniform numbers, one more than the result. The logarithm of the gamma function is the one that
// writes no global variable.
double poisson(Column& column, double rate) {
  TORCH_CHECK(rate >= 0, "invalid Poisson rate, expected rate to be non-negative");
  if (rate < 10) {
    const double least = std::exp(-rate);
    double events = 0;
    for (double product = column.open_uniform(); product > least; product *= column.open_uniform()) ++events;
    return events;
  }
  const double b = 0.931 + 2.53 * std::sqrt(rate), a = -0.059 + 0.02483 * b;
  const double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4), squeeze = 0.9277 - 3.6224 / (b - 2);
  for (;;) {
    const double u = column.uniform() - 0.5, v = column.open_uniform(), us = 0.5 - std::abs(u);
    const double k = std::floor((2 * a / us + b) * u + rate + 0.43);
    if (us >= 0.07 && v <= squeeze) return k;
    if (k < 0 || (us < 0.013 && v > us)) continue;
    int sign = 0;
    const double density = k * std::log(rate) - rate - ::lgamma_r(k + 1, &sign);
    if (std::log(v * inverse_alpha / (a / (us * us) + b)) <= density) return k;
  }
}

void poissons(Tensor& out, const Tensor& rate, const PhiloxArguments& random) {
  AT_DISPATCH_FLOATING_TYPES_AND2(c10::kHalf, c10::kBFloat16, out.scalar_type(), "poisson", [&] {
    draw<scalar_t, scalar_t>(
        random,
        [](Column& column, scalar_t& x, scalar_t mean) {
          x = static_cast<scalar_t>(poisson(column, static_cast<double>(mean)));
        },
        out, rate);
  });
}

// %% rejection-register
Tensor sample_gamma_like(const Tensor& alpha, MaybeGenerator generator) {
  check_dtype("gamma_cpu", alpha.scalar_type(), kFloatAndDouble);
  return sample_like<"standard_gamma", &standard_gamma>(alpha, generator);
}
Tensor sample_dirichlet_like(const Tensor& alpha, MaybeGenerator generator) {
  check_dtype("dirichlet", alpha.scalar_type(), kFloatAndDouble);
  return sample_like<"dirichlet", &dirichlet>(alpha, generator);
}
Tensor sample_poisson_like(const Tensor& rate, MaybeGenerator generator) {
  check_dtype("poisson_cpu", rate.scalar_type(), kFloating);
  return sample_like<"poisson", &poissons>(rate, generator);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_standard_gamma", &sample_gamma_like);
  m.impl("_sample_dirichlet", &sample_dirichlet_like);
  m.impl("binomial", &sample_binomials);
  m.impl("poisson", &sample_poisson_like);
}

}  // namespace
}  // namespace cookbook
