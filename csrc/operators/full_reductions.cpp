// chapter 2
// %% full-reductions
// Reductions that are not structured: max, min and prod of a whole tensor, variance and standard deviation. The shapes
// and dtypes that core decides inside its CPU functions are decided here, before the launch.
#include <ATen/core/Tensor.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/ops/max_native.h>
#include <ATen/ops/min_native.h>
#include <ATen/ops/prod_native.h>
#include <ATen/ops/std_mean_native.h>
#include <ATen/ops/std_native.h>
#include <ATen/ops/var_mean_native.h>
#include <ATen/ops/var_native.h>
#include <torch/library.h>

#include "operators/trial.h"

namespace cookbook {
namespace {

// Refuses, on the host, a dtype that the kernel does not take; then queues the kernel.
template <Name name, auto Kernel, class... A>
void try_and_launch(const A&... arguments) {
  Trial<Kernel>::check(arguments...);
  launch<name, Kernel>(arguments...);
}

// %% full-extrema
void check_not_empty(const char* name, const at::Tensor& self) {
  TORCH_CHECK(self.numel() > 0, name, "(): Expected reduction dim to be specified for input.numel() == 0. Specify the ",
              "reduction dim with the 'dim' argument.");
}

void max_kernel(at::Tensor& out, const at::Tensor& self) { out.copy_(at::native::max(self)); }
void min_kernel(at::Tensor& out, const at::Tensor& self) { out.copy_(at::native::min(self)); }

template <Name name, void (*kernel)(at::Tensor&, const at::Tensor&)>
at::Tensor extremum(const at::Tensor& self) {
  check_not_empty(name.text, self);
  const OnDevice guard(self.device());
  const at::Tensor out = empty({}, self.scalar_type());
  try_and_launch<name, kernel>(out, self);
  return out;
}

template <Name name, void (*kernel)(at::Tensor&, const at::Tensor&)>
at::Tensor& extremum_out(const at::Tensor& self, at::Tensor& out) {
  check_not_empty(name.text, self);
  TORCH_CHECK(self.device() == out.device(), "Expected all tensors to be on the same device, but found at least two ",
              "devices, ", self.device(), " and ", out.device(), "!");
  TORCH_CHECK(c10::canCast(self.scalar_type(), out.scalar_type()), "result type ", self.scalar_type(),
              " can't be cast to the desired output type ", out.scalar_type());
  const OnDevice guard(self.device());
  at::native::resize_output(out, {});
  try_and_launch<name, kernel>(out, self);
  return out;
}

// %% full-prod
void prod_kernel(at::Tensor& out, const at::Tensor& self, std::optional<c10::ScalarType> dtype) {
  out.copy_(at::native::prod(self, dtype));
}

at::Tensor prod(const at::Tensor& self, std::optional<c10::ScalarType> dtype) {
  const c10::ScalarType result = at::native::get_dtype_from_self(self, dtype, /*promote_integers=*/true);
  const OnDevice guard(self.device());
  const at::Tensor out = empty({}, result);
  try_and_launch<"prod", &prod_kernel>(out, self, dtype);
  return out;
}

// %% variance-checks
using Correction = std::optional<at::Scalar>;

// The kernel divides by max(0, elements - correction): a real number.
void check_variance(const char* name, const at::Tensor& self) {
  TORCH_CHECK(c10::isFloatingType(self.scalar_type()) || c10::isComplexType(self.scalar_type()), name,
              " only support floating point and complex dtypes");
}

// Core warns inside its kernel; here that would be another thread, so the host warns and the kernel is quiet.
void warn_about_freedom(const char* name, const at::Tensor& self, const at::Tensor& out, const Correction& correction) {
  const double elements = out.numel() == 0 ? 0 : static_cast<double>(self.numel()) / static_cast<double>(out.numel());
  if (elements <= correction.value_or(1).toDouble()) {
    TORCH_WARN(name, "(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor ",
               "(input numel divided by output numel).");
  }
}

at::Tensor variance_output(const char* name, const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                           c10::ScalarType dtype) {
  check_variance(name, self);
  return empty(at::meta::get_reduction_shape(self, dim.value_or(c10::IntArrayRef()), keepdim), dtype);
}

c10::ScalarType real_dtype(const at::Tensor& self) { return c10::toRealValueType(self.scalar_type()); }

// %% variance
template <bool take_sqrt>
void variance_kernel(at::Tensor& out, const at::Tensor& self, at::OptionalIntArrayRef dim, const Correction& correction,
                     bool keepdim) {
  const QuietWarnings quiet;
  if constexpr (take_sqrt) {
    at::native::std_out(self, dim, correction, keepdim, out);
  } else {
    at::native::var_out(self, dim, correction, keepdim, out);
  }
}

template <bool take_sqrt>
at::Tensor variance(const at::Tensor& self, at::OptionalIntArrayRef dim, const Correction& correction, bool keepdim) {
  const OnDevice guard(self.device());
  const at::Tensor out = variance_output("std and var", self, dim, keepdim, real_dtype(self));
  warn_about_freedom(take_sqrt ? "std" : "var", self, out, correction);
  if (out.numel() != 0) {
    try_and_launch<"var", &variance_kernel<take_sqrt>>(out, self, dim, correction, keepdim);
  }
  return out;
}

template <bool take_sqrt>
at::Tensor& variance_out(const at::Tensor& self, at::OptionalIntArrayRef dim, const Correction& correction,
                         bool keepdim, at::Tensor& out) {
  check_variance("std and var", self);
  TORCH_CHECK(c10::canCast(real_dtype(self), out.scalar_type()), "result type ", real_dtype(self),
              " can't be cast to the desired output type ", out.scalar_type());
  const at::Tensor result = variance<take_sqrt>(self, dim, correction, keepdim);
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

// %% variance-and-mean
template <bool take_sqrt>
void variance_and_mean_kernel(at::Tensor& spread, at::Tensor& mean, const at::Tensor& self, at::OptionalIntArrayRef dim,
                              const Correction& correction, bool keepdim) {
  const QuietWarnings quiet;
  const auto both = take_sqrt ? at::native::std_mean(self, dim, correction, keepdim)
                              : at::native::var_mean(self, dim, correction, keepdim);
  spread.copy_(std::get<0>(both));
  mean.copy_(std::get<1>(both));
}

template <bool take_sqrt>
std::tuple<at::Tensor, at::Tensor> variance_and_mean(const at::Tensor& self, at::OptionalIntArrayRef dim,
                                                     const Correction& correction, bool keepdim) {
  const char* name = take_sqrt ? "std_mean" : "var_mean";
  const OnDevice guard(self.device());
  const at::Tensor spread = variance_output(name, self, dim, keepdim, real_dtype(self));
  const at::Tensor mean = variance_output(name, self, dim, keepdim, self.scalar_type());
  warn_about_freedom(name, self, spread, correction);
  if (spread.numel() != 0) {
    try_and_launch<"var_mean", &variance_and_mean_kernel<take_sqrt>>(spread, mean, self, dim, correction, keepdim);
  }
  return {spread, mean};
}

// %% full-reductions-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("max", &extremum<"max", &max_kernel>);
  m.impl("max.unary_out", &extremum_out<"max", &max_kernel>);
  m.impl("min", &extremum<"min", &min_kernel>);
  m.impl("min.unary_out", &extremum_out<"min", &min_kernel>);
  m.impl("prod", &prod);
  m.impl("var.correction", &variance<false>);
  m.impl("std.correction", &variance<true>);
  m.impl("var.correction_out", &variance_out<false>);
  m.impl("std.correction_out", &variance_out<true>);
  m.impl("var_mean.correction", &variance_and_mean<false>);
  m.impl("std_mean.correction", &variance_and_mean<true>);
}

}  // namespace
}  // namespace cookbook
