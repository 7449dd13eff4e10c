// chapter 4
// %% samples
// Random indices: permutations, and samples of a discrete distribution.
#define AT_PER_OPERATOR_HEADERS  // without it the next header includes every operator of PyTorch
#include <ATen/native/TensorFactories.h>
#include <ATen/native/UnaryOps.h>
#include <ATen/ops/multinomial_native.h>
#include <torch/library.h>

#include <cmath>
#include <numeric>

#include "operators/dtypes.h"
#include "operators/on_device.h"
#include "runtime/columns.h"
#include "runtime/random.h"

namespace cookbook {
namespace {

using at::Tensor;

// %% samples-permutation
// Fisher and Yates: step i swaps in one of the numbers that are left, and column i says which. On a chip with thousands
// of threads one would rather give each number a random key and sort.
void permutation(Tensor& out, const PhiloxArguments& random) {
  const int64_t n = out.numel();
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  constexpr auto kColumns = static_cast<int64_t>(ColumnBlock::kColumns);
  for (int64_t first = 0; first < n; first += kColumns) {
    ColumnBlock block(random, static_cast<uint64_t>(first));
    for (int64_t i = first; i < std::min(n, first + kColumns); ++i) {
      Column column(block, static_cast<size_t>(i - first), i);
      std::swap(order[i], order[i + static_cast<int64_t>(column.below(static_cast<uint64_t>(n - i)))]);
    }
  }
  AT_DISPATCH_ALL_TYPES_AND2(c10::kHalf, c10::kBFloat16, out.scalar_type(), "randperm", [&] {
    auto* const to = out.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < n; ++i) to[i * out.stride(0)] = static_cast<scalar_t>(order[i]);
  });
}

Tensor& randperm_out(int64_t n, MaybeGenerator generator, Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  generator_for(generator, out.device());
  // Whether n - 1 fits is asked of a CPU tensor: core's function would make one with the number in it.
  at::native::check_supported_max_int_with_precision(n, at::detail::empty_cpu({0}, out.scalar_type()));
  check_dtype("randperm", out.scalar_type(), kReal);
  const OnDevice guard(out.device());
  out.resize_({n});
  if (n != 0) fill<"randperm", &permutation>(out, generator);
  return out;
}

// %% samples-table
// The sums of each row of probabilities up to each category. What is wrong with a row is found here, on the device.
std::vector<double> running_sums(const Tensor& probabilities) {
  const Tensor p = probabilities.to(c10::kDouble).contiguous();
  const int64_t categories = p.size(-1);
  std::vector<double> sums(p.const_data_ptr<double>(), p.const_data_ptr<double>() + p.numel());
  for (auto row = sums.begin(); row != sums.end(); row += categories) {
    double sum = 0;
    for (auto entry = row; entry != row + categories; *entry++ = sum) {
      TORCH_CHECK(*entry >= 0, "invalid multinomial distribution (encountering probability entry < 0)");
      TORCH_CHECK(std::isfinite(*entry),
                  "invalid multinomial distribution (encountering probability entry = infinity or NaN)");
      sum += *entry;
    }
    TORCH_CHECK(sum > 0, "invalid multinomial distribution (sum of probabilities <= 0)");
  }
  return sums;
}

// %% samples-multinomial
void with_replacement(Tensor& out, const Tensor& probabilities, const PhiloxArguments& random) {
  const std::vector<double> sums = running_sums(probabilities);
  const int64_t categories = probabilities.size(-1), samples = out.size(-1);
  draw<int64_t>(
      random,
      [&](Column& column, int64_t& category) {
        const auto row = sums.begin() + column.element / samples * categories, end = row + categories;
        const double sum = *(end - 1);
        // The first sum above the number: a category of probability 0 adds nothing and is never the first.
        auto found = std::upper_bound(row, end, column.uniform() * sum);
        if (found == end) found = std::lower_bound(row, end, sum);  // the product was rounded up to the sum
        category = found - row;
      },
      out);
}

// The rest, samples without replacement, is core's: it divides by exponential numbers and takes the largest quotients.
void queue_with_replacement(Tensor& out, const Tensor& probabilities, int64_t, MaybeGenerator generator) {
  check_dtype("multinomial", probabilities.scalar_type(), kFloating);
  const OnDevice guard(out.device());
  launch<"multinomial", &with_replacement>(out, probabilities, reserve(generator, out.device(), out.numel()));
}

}  // namespace
}  // namespace cookbook

// %% samples-register
namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(multinomial_with_replacement_stub, &cookbook::queue_with_replacement)
}

namespace cookbook {
namespace {

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("randperm.generator_out", &randperm_out);
  m.impl("multinomial", &at::native::multinomial);
  m.impl("multinomial.out", &at::native::multinomial_out);
}

}  // namespace
}  // namespace cookbook
