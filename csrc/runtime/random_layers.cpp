// chapter 4
// %% dropout-kernel
// Layers that draw: dropout, and rrelu with its random slopes.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/ScalarOps.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/leaky_relu_ops.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/native_dropout_backward_native.h>
#include <ATen/ops/native_dropout_native.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/iterator.h"
#include "operators/on_device.h"
#include "runtime/columns.h"
#include "runtime/random.h"

namespace cookbook {
namespace {

using at::Tensor;

// In one pass what core writes as bernoulli_, mul and mul_, with the same roundings: a dropped infinity is NaN, as
// there.
void dropout(Tensor& out, Tensor& mask, const Tensor& input, const PhiloxArguments& random, double keep) {
  const double scale = keep == 0 ? 0 : 1 / keep;
  AT_DISPATCH_FLOATING_TYPES_AND2(c10::kHalf, c10::kBFloat16, out.scalar_type(), "native_dropout", [&] {
    using Real = at::opmath_type<scalar_t>;
    draw<scalar_t, bool, scalar_t>(
        random,
        [keep, factor = static_cast<Real>(scale)](Column& column, scalar_t& y, bool& kept, scalar_t x) {
          kept = column.uniform() < keep;
          y = static_cast<scalar_t>(static_cast<Real>(x) * static_cast<Real>(kept) * factor);
        },
        out, mask, input);
  });
}

void dropout_backward(Operands& operands, double scale) {
  at::cpu::mul_out(operands[0], operands[1], operands[2]);
  // Not mul_(scale): core then has the number first, and rounds that to half too.
  at::cpu::mul_out(operands[0], operands[0], at::native::wrapped_scalar_tensor(scale));
}

// %% dropout
Tensor like(const Tensor& tensor, c10::ScalarType dtype) {
  return at::_ops::empty_like::call(tensor, dtype, {}, {}, {}, {});
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  // Core's function for the rest: nothing to draw, complex numbers, and dtypes that are an error. It calls operators,
  // so it works on any device.
  if (!train.value_or(true) || input.numel() == 0 || !kFloating.has(input.scalar_type())) {
    return at::native::native_dropout_cpu(input, p, train);
  }
  TORCH_CHECK(p >= 0 && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", 1 - p);
  const OnDevice guard(input.device());
  const Tensor out = like(input, input.scalar_type()), mask = like(input, c10::kBool);
  launch<"native_dropout", &dropout>(out, mask, input, reserve(std::nullopt, input.device(), input.numel()), 1 - p);
  return {out, mask};
}

Tensor native_dropout_backward(const Tensor& grad, const Tensor& mask, double scale) {
  // Integers become floating-point numbers on the way; core's function knows.
  if (!kFloating.has(grad.scalar_type())) return at::native::native_dropout_backward(grad, mask, scale);
  const OnDevice guard(grad.device());
  auto iter = at::TensorIteratorConfig()
                  .add_owned_output(Tensor())
                  .add_const_input(grad)
                  .add_const_input(mask)
                  .promote_inputs_to_common_dtype(true)
                  .build();
  launch_iterator<"native_dropout_backward", &dropout_backward>(iter, scale);
  return iter.output();
}

// %% rrelu
void rrelu(Tensor& out, Tensor& noise, const Tensor& input, const PhiloxArguments& random, double lower, double upper) {
  AT_DISPATCH_FLOATING_TYPES_AND2(c10::kHalf, c10::kBFloat16, out.scalar_type(), "rrelu_with_noise", [&] {
    using Real = at::opmath_type<scalar_t>;
    draw<scalar_t, scalar_t, scalar_t>(
        random,
        [&](Column& column, scalar_t& y, scalar_t& slope, scalar_t x) {
          const auto drawn = static_cast<Real>(column.uniform() * (upper - lower) + lower);
          slope = x <= 0 ? static_cast<scalar_t>(drawn) : scalar_t(1);
          y = x <= 0 ? static_cast<scalar_t>(static_cast<Real>(x) * drawn) : x;
        },
        out, noise, input);
  });
}

// %% rrelu-operators
Tensor& rrelu_out(const Tensor& self, Tensor& noise, const c10::Scalar& lower, const c10::Scalar& upper, bool training,
                  MaybeGenerator generator, Tensor& out) {
  TORCH_CHECK(self.sizes() == noise.sizes(),
              "noise tensor shape must match self tensor shape. Got self.shape = ", self.sizes(),
              " noise.shape = ", noise.sizes());
  generator_for(generator, self.device());
  const double from = lower.toDouble(), to = upper.toDouble();
  if (!training) return at::_ops::leaky_relu_out::call(self, (from + to) / 2, out);
  check_dtype("rrelu_with_noise_out_cpu", self.scalar_type(), {c10::kFloat, c10::kDouble, c10::kBFloat16});
  for (const Tensor* const other : {&std::as_const(noise), &std::as_const(out)}) {
    TORCH_CHECK(other->scalar_type() == self.scalar_type(), "expected scalar type ", self.scalar_type(), " but found ",
                other->scalar_type());
    TORCH_CHECK(other->device() == self.device(), "Expected all tensors to be on the same device, but found ",
                self.device(), " and ", other->device());
  }
  TORCH_CHECK(from <= to, "rrelu_with_noise expects lower <= upper, but got lower=", from, " > upper=", to);
  const OnDevice guard(self.device());
  at::native::resize_output(out, self.sizes());
  if (self.numel() == 0) return out;
  launch<"rrelu_with_noise", &rrelu>(out, noise, self, reserve(generator, self.device(), self.numel()), from, to);
  return out;
}
Tensor rrelu_with_noise(const Tensor& self, Tensor& noise, const c10::Scalar& lower, const c10::Scalar& upper,
                        bool training, MaybeGenerator generator) {
  Tensor out = at::_ops::empty_like::call(self, {}, {}, {}, {}, c10::MemoryFormat::Contiguous);
  return rrelu_out(self, noise, lower, upper, training, std::move(generator), out);
}
Tensor& rrelu_in_place(Tensor& self, Tensor& noise, const c10::Scalar& lower, const c10::Scalar& upper, bool training,
                       MaybeGenerator generator) {
  return rrelu_out(self, noise, lower, upper, training, std::move(generator), self);
}

// %% layers-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_dropout", &native_dropout);
  m.impl("native_dropout_backward", &native_dropout_backward);
  m.impl("rrelu_with_noise", &rrelu_with_noise);
  m.impl("rrelu_with_noise_", &rrelu_in_place);
  m.impl("rrelu_with_noise.out", &rrelu_out);
}

}  // namespace
}  // namespace cookbook
