// chapter 4
// %% floats
// Random floating-point numbers: uniform, normal, exponential, Cauchy, log-normal, geometric. Core's operator functions
// check the arguments, and end in tables of kernels (DispatchStub); the entries for this device are here.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/DistributionsHelper.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/cauchy_native.h>
#include <ATen/ops/exponential_native.h>
#include <ATen/ops/geometric_native.h>
#include <ATen/ops/log_normal_native.h>
#include <ATen/ops/normal_native.h>
#include <ATen/ops/uniform_native.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/on_device.h"
#include "runtime/columns.h"
#include "runtime/random.h"

namespace cookbook {
namespace {

using at::Tensor;

// %% floats-entry
// An entry of a table: checks the dtype, so that a wrong one is an error here and not in the stream, then queues.
template <Name name, Name refusal, Dtypes known, auto Kernel>
struct Entry {
  template <class... A>
  static void queue(const at::TensorBase& self, const MaybeGenerator& generator, const A&... arguments) {
    check_dtype(refusal.text, self.scalar_type(), known);
    const OnDevice guard(self.device());
    fill<name, Kernel>(Tensor(self), generator, arguments...);
  }
  static void one(at::TensorIteratorBase& iter, double a, MaybeGenerator generator) {
    queue(iter.tensor_base(0), generator, a);
  }
  static void two(at::TensorIteratorBase& iter, double a, double b, MaybeGenerator generator) {
    queue(iter.tensor_base(0), generator, a, b);
  }
  static void two_of_tensor(const at::TensorBase& self, double a, double b, MaybeGenerator generator) {
    queue(self, generator, a, b);
  }
};

// Runs `function(column)` for each element, whose dtype is a floating one.
template <class F>
void draw_floating(Tensor& out, const PhiloxArguments& random, const F& function) {
  AT_DISPATCH_FLOATING_TYPES_AND2(c10::kHalf, c10::kBFloat16, out.scalar_type(), "random", [&] {
    draw<scalar_t>(random, [&](Column& column, scalar_t& x) { x = static_cast<scalar_t>(function(column)); }, out);
  });
}

// %% floats-uniform
// In [from, to). Rounding may hit `to`, in float already and in half often; it becomes `from`, as on the CPU.
void uniform(Tensor& out, const PhiloxArguments& random, double from, double to) {
  AT_DISPATCH_FLOATING_TYPES_AND2(c10::kHalf, c10::kBFloat16, out.scalar_type(), "uniform", [&] {
    using Real = at::opmath_type<scalar_t>;
    const at::uniform_real_distribution<Real> distribution(static_cast<Real>(from), static_cast<Real>(to));
    const auto first = static_cast<scalar_t>(from), end = static_cast<scalar_t>(to);
    draw<scalar_t>(
        random,
        [&](Column& column, scalar_t& x) {
          x = static_cast<scalar_t>(distribution(&column));
          if (x == end) x = first;
        },
        out);
  });
}

// %% floats-normal
void normal(Tensor& out, const PhiloxArguments& random, double mean, double std) {
  AT_DISPATCH_FLOATING_TYPES_AND2(c10::kHalf, c10::kBFloat16, out.scalar_type(), "normal", [&] {
    using Real = at::opmath_type<scalar_t>;
    const auto centre = static_cast<Real>(mean), width = static_cast<Real>(std);
    draw<scalar_t>(
        random, [&](Column& column, scalar_t& x) { x = static_cast<scalar_t>(column.normal<Real>() * width + centre); },
        out);
  });
}

void log_normal(Tensor& out, const PhiloxArguments& random, double mean, double std) {
  draw_floating(out, random, [&](Column& column) { return std::exp(column.normal<double>() * std + mean); });
}

// %% floats-others
void cauchy(Tensor& out, const PhiloxArguments& random, double median, double sigma) {
  at::cauchy_distribution<double> distribution(median, sigma);
  draw_floating(out, random, [&](Column& column) { return distribution(&column); });
}

// Never 0, also not by rounding: programs take its logarithm (gumbel_softmax), and half knows nothing below 6e-8.
void exponential(Tensor& out, const PhiloxArguments& random, double lambda) {
  AT_DISPATCH_FLOATING_TYPES_AND2(c10::kHalf, c10::kBFloat16, out.scalar_type(), "exponential", [&] {
    draw<scalar_t>(
        random,
        [&](Column& column, scalar_t& x) {
          const double value = -std::log(column.open_uniform()) / lambda;
          x = static_cast<scalar_t>(value);
          if (x == 0 && value > 0) x = std::numeric_limits<scalar_t>::denorm_min();
        },
        out);
  });
}

// How often one tries until the first success: 1, 2, ... What the dtype cannot hold becomes its largest number; a cast
// would be undefined.
void geometric(Tensor& out, const PhiloxArguments& random, double p) {
  AT_DISPATCH_ALL_TYPES_AND2(c10::kHalf, c10::kBFloat16, out.scalar_type(), "geometric", [&] {
    const double scale = 1 / std::log1p(-p);
    const auto largest = static_cast<double>(std::numeric_limits<scalar_t>::max());
    draw<scalar_t>(
        random,
        [&](Column& column, scalar_t& x) {
          const double tries = std::max(1.0, std::ceil(std::log(column.open_uniform()) * scale));
          x = tries < largest ? static_cast<scalar_t>(tries) : std::numeric_limits<scalar_t>::max();
        },
        out);
  });
}

// %% floats-table
using Uniform = Entry<"uniform_", "uniform_kernel_cpu", kFloating, &uniform>;
using Normal = Entry<"normal_", "normal_kernel_cpu", kFloating, &normal>;
using LogNormal = Entry<"log_normal_", "log_normal_cpu", kFloating, &log_normal>;
using Cauchy = Entry<"cauchy_", "cauchy_cpu", kFloating, &cauchy>;
using Geometric = Entry<"geometric_", "geometric_cpu", kReal, &geometric>;

struct Exponential : Entry<"exponential_", "exponential_cpu", kFloating, &exponential> {
  static void one(at::TensorIteratorBase& iter, double lambda, MaybeGenerator generator) {
    TORCH_CHECK(c10::isFloatingType(iter.dtype()),
                "Exponential distribution is a continuous probability distribution. dtype must be a floating point "
                "but you specified ",
                iter.dtype());
    Entry::one(iter, lambda, std::move(generator));
  }
};

}  // namespace
}  // namespace cookbook

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(uniform_stub, &cookbook::Uniform::two)
REGISTER_PRIVATEUSE1_DISPATCH(normal_stub, &cookbook::Normal::two_of_tensor)
REGISTER_PRIVATEUSE1_DISPATCH(log_normal_stub, &cookbook::LogNormal::two)
REGISTER_PRIVATEUSE1_DISPATCH(cauchy_stub, &cookbook::Cauchy::two)
REGISTER_PRIVATEUSE1_DISPATCH(exponential_stub, &cookbook::Exponential::one)
REGISTER_PRIVATEUSE1_DISPATCH(geometric_stub, &cookbook::Geometric::one)
}  // namespace at::native

// %% floats-register
namespace cookbook {
namespace {

template <class... A>
constexpr auto normal_of = static_cast<Tensor (*)(A..., MaybeGenerator)>(&at::native::normal);
template <class... A>
constexpr auto normal_into = static_cast<Tensor& (*)(A..., MaybeGenerator, Tensor&)>(&at::native::normal_out);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("uniform_", &at::native::uniform_);
  m.impl("log_normal_", &at::native::log_normal_);
  m.impl("cauchy_", &at::native::cauchy_);
  m.impl("exponential_", &at::native::exponential_);
  m.impl("geometric_", &at::native::geometric_);
  m.impl("normal_", &at::native::normal_);
  // Means or deviations that are tensors: core draws with normal_, then multiplies and adds. It asks for the smallest
  // deviation, so these wait for the device, as on CUDA.
  m.impl("normal.Tensor_float", normal_of<const Tensor&, double>);
  m.impl("normal.float_Tensor", normal_of<double, const Tensor&>);
  m.impl("normal.Tensor_Tensor", normal_of<const Tensor&, const Tensor&>);
  m.impl("normal.Tensor_float_out", normal_into<const Tensor&, double>);
  m.impl("normal.float_Tensor_out", normal_into<double, const Tensor&>);
  m.impl("normal.Tensor_Tensor_out", normal_into<const Tensor&, const Tensor&>);
}

}  // namespace
}  // namespace cookbook
