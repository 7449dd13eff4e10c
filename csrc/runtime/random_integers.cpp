// chapter 4
// %% integers
// Random integers: the three forms of `random_`, from which core makes `randint`. Core's functions turn what the
// program asked into one of three questions, each with a table of kernels.
#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/TransformationHelper.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/random_native.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/on_device.h"
#include "runtime/columns.h"
#include "runtime/random.h"

namespace cookbook {
namespace {

using at::Tensor;

// %% integers-kernels
// random_(): [0, the dtype's largest], for a floating dtype [0, 2^digits].
void whole_dtype(Tensor& out, const PhiloxArguments& random) {
  AT_DISPATCH_ALL_TYPES_AND3(c10::kBool, c10::kHalf, c10::kBFloat16, out.scalar_type(), "random", [&] {
    draw<scalar_t>(
        random, [](Column& column, scalar_t& x) { x = at::transformation::uniform_int<scalar_t>(column.random64()); },
        out);
  });
}

// random_(from, to): [base, base + range).
void from_to(Tensor& out, const PhiloxArguments& random, uint64_t range, int64_t base) {
  AT_DISPATCH_V2(out.scalar_type(), "random_from_to", AT_WRAP([&] {
                   draw<scalar_t>(
                       random,
                       [&](Column& column, scalar_t& x) {
                         const uint64_t number = static_cast<uint64_t>(base) + column.below(range);
                         x = static_cast<scalar_t>(static_cast<int64_t>(number));
                       },
                       out);
                 }),
                 c10::kBool, c10::kHalf, c10::kBFloat16, AT_EXPAND(AT_ALL_TYPES),
                 AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
}

// random_(-2^63, None): all 64 bits.
void all_bits(Tensor& out, const PhiloxArguments& random) {
  AT_DISPATCH_ALL_TYPES_AND(c10::kBFloat16, out.scalar_type(), "random_all_bits", [&] {
    draw<scalar_t>(
        random, [](Column& column, scalar_t& x) { x = static_cast<scalar_t>(static_cast<int64_t>(column.random64())); },
        out);
  });
}

// %% integers-queue
constexpr Dtypes kUnsigned{c10::kUInt16, c10::kUInt32, c10::kUInt64};
constexpr Dtypes kRealAndBool = kReal | Dtypes{c10::kBool};

void queue_whole_dtype(at::TensorIteratorBase& iter, MaybeGenerator generator) {
  check_dtype("random_kernel_cpu", iter.dtype(), kRealAndBool);
  const OnDevice guard(iter.device(0));
  fill<"random_", &whole_dtype>(iter.tensor(0), generator);
}

void queue_from_to(at::TensorIteratorBase& iter, uint64_t range, int64_t base, MaybeGenerator generator) {
  check_dtype("random_from_to_kernel_cpu", iter.dtype(), kRealAndBool | kUnsigned);
  const OnDevice guard(iter.device(0));
  fill<"random_from_to", &from_to>(iter.tensor(0), generator, range, base);
}

void queue_all_bits(at::TensorIteratorBase& iter, MaybeGenerator generator) {
  constexpr const char* kernel = "random_full_64_bits_range_kernel_cpu";
  check_dtype(kernel, iter.dtype(), kIntegers | Dtypes{c10::kFloat, c10::kDouble, c10::kBFloat16});
  constexpr Dtypes wide{c10::kLong, c10::kDouble, c10::kFloat, c10::kBFloat16};
  TORCH_CHECK(wide.has(iter.dtype()), kernel, " handles only int64, double, float and bfloat16");
  const OnDevice guard(iter.device(0));
  fill<"random_all_bits", &all_bits>(iter.tensor(0), generator);
}

}  // namespace
}  // namespace cookbook

// %% integers-register
namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(random_stub, &cookbook::queue_whole_dtype)
REGISTER_PRIVATEUSE1_DISPATCH(random_from_to_stub, &cookbook::queue_from_to)
REGISTER_PRIVATEUSE1_DISPATCH(random_full_64_bits_range_stub, &cookbook::queue_all_bits)
}  // namespace at::native

namespace cookbook {
namespace {

template <class... A>
constexpr auto random_of = static_cast<Tensor& (*)(Tensor&, A..., MaybeGenerator)>(&at::native::random_);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("random_", random_of<>);
  m.impl("random_.to", random_of<int64_t>);
  m.impl("random_.from", random_of<int64_t, std::optional<int64_t>>);
}

}  // namespace
}  // namespace cookbook
