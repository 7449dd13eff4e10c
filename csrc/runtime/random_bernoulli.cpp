// chapter 4
// %% bernoulli
// Coins: `bernoulli_` with one probability for all elements, or with one for each.
#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/bernoulli_native.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/on_device.h"
#include "runtime/columns.h"
#include "runtime/random.h"

namespace cookbook {
namespace {

using at::Tensor;

// %% bernoulli-kernels
// One probability for all, or one for each element. The second comes from the device, so a wrong one is found here: the
// error arrives at the next synchronization.
void bernoulli(Tensor& out, const PhiloxArguments& random, double p) {
  AT_DISPATCH_ALL_TYPES_AND3(c10::kBool, c10::kHalf, c10::kBFloat16, out.scalar_type(), "bernoulli", [&] {
    draw<scalar_t>(random, [&](Column& column, scalar_t& x) { x = static_cast<scalar_t>(column.uniform() < p); }, out);
  });
}

void bernoulli_each(Tensor& out, const Tensor& probability, const PhiloxArguments& random) {
  const Tensor p = probability.to(c10::kDouble);
  AT_DISPATCH_ALL_TYPES_AND3(c10::kBool, c10::kHalf, c10::kBFloat16, out.scalar_type(), "bernoulli", [&] {
    draw<scalar_t, double>(
        random,
        [](Column& column, scalar_t& x, double chance) {
          TORCH_CHECK(chance >= 0 && chance <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", chance);
          x = static_cast<scalar_t>(column.uniform() < chance);
        },
        out, p);
  });
}

// %% bernoulli-queue
constexpr Dtypes kRealAndBool = kReal | Dtypes{c10::kBool};

void queue_bernoulli(const at::TensorBase& self, double p, MaybeGenerator generator) {
  check_dtype("bernoulli_scalar_cpu_", self.scalar_type(), kRealAndBool);
  const OnDevice guard(self.device());
  fill<"bernoulli_", &bernoulli>(Tensor(self), generator, p);
}

void queue_bernoulli_each(const at::TensorBase& self, const at::TensorBase& probability, MaybeGenerator generator) {
  check_dtype("bernoulli_tensor_cpu_self_", self.scalar_type(), kRealAndBool);
  check_dtype("bernoulli_tensor_cpu_p_", probability.scalar_type(), kFloating);
  if (probability.is_cpu() && probability.dim() == 0) {
    // A number of the program: known here, and no reason to wait for a copy.
    const double p = Tensor(probability).item<double>();
    TORCH_CHECK(p >= 0 && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
    return queue_bernoulli(self, p, std::move(generator));
  }
  const OnDevice guard(self.device());
  const Tensor out(self), here = Tensor(probability).to(self.device());
  const c10::MaybeOwned<Tensor> p = at::expand_inplace(out, here);
  launch<"bernoulli_each", &bernoulli_each>(out, *p, reserve(generator, self.device(), self.numel()));
}

}  // namespace
}  // namespace cookbook

// %% bernoulli-register
namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(bernoulli_scalar_stub, &cookbook::queue_bernoulli)
REGISTER_PRIVATEUSE1_DISPATCH(bernoulli_tensor_stub, &cookbook::queue_bernoulli_each)
}  // namespace at::native

namespace cookbook {
namespace {

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("bernoulli.out", &at::native::bernoulli_out);
  m.impl("bernoulli_.float", static_cast<Tensor& (*)(Tensor&, double, MaybeGenerator)>(&at::native::bernoulli_));
  m.impl("bernoulli_.Tensor",
         static_cast<Tensor& (*)(Tensor&, const Tensor&, MaybeGenerator)>(&at::native::bernoulli_));
}

}  // namespace
}  // namespace cookbook
