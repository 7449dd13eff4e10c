// chapter 4
// %% columns-block
// The device side of random numbers: hands each element of a tensor its own column of the seed's table (philox.h).
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "runtime/philox.h"

namespace cookbook {

// 32 columns side by side. A row of them is eight calls of the function, written as loops over the eight, which the
// compiler turns into vector instructions. It is made when the first column asks for it.
class ColumnBlock {
 public:
  static constexpr size_t kCalls = 8;
  static constexpr size_t kColumns = kCalls * kPhiloxBlock;

  // The columns from `first` on, a multiple of kPhiloxBlock.
  ColumnBlock(const PhiloxArguments& random, uint64_t first)
      : key_{static_cast<uint32_t>(random.seed), static_cast<uint32_t>(random.seed >> 32)},
        call_((random.offset + first) / kPhiloxBlock) {}

  uint32_t word(uint64_t row, size_t column) {
    if (row >= rows_.size()) [[unlikely]] {
      make(row, spare_);
      return spare_[column % kPhiloxBlock][column / kPhiloxBlock];
    }
    for (; made_ <= row; ++made_) make(made_, rows_[made_]);
    return rows_[row][column % kPhiloxBlock][column / kPhiloxBlock];
  }

 private:
  // %% columns-row
  // By word of the call first: the loops below run over the calls.
  using Row = std::array<std::array<uint32_t, kCalls>, kPhiloxBlock>;

  void make(uint64_t row, Row& c) const {
    for (size_t i = 0; i < kCalls; ++i) {
      c[0][i] = static_cast<uint32_t>(call_ + i);
      c[1][i] = static_cast<uint32_t>((call_ + i) >> 32);
      c[2][i] = static_cast<uint32_t>(row);
      c[3][i] = static_cast<uint32_t>(row >> 32);
    }
    PhiloxKey key = key_;
    for (int round = 0; round < 10; ++round, key = next_key(key)) {
      for (size_t i = 0; i < kCalls; ++i) philox_round(c[0][i], c[1][i], c[2][i], c[3][i], key);
    }
  }

  PhiloxKey key_;
  uint64_t call_;
  uint64_t made_ = 0;
  std::array<Row, 8> rows_;  // most elements need one to four words
  Row spare_;
};

// %% columns-column
// One element's words. `random` and `random64` are what PyTorch's distributions ask of a generator
// (ATen/core/DistributionsHelper.h), so they can draw from a column.
class Column {
 public:
  Column(ColumnBlock& block, size_t place, int64_t element) : element(element), block_(block), place_(place) {}

  const int64_t element;  // whose it is: the element's index in its tensor

  uint32_t random() { return block_.word(row_++, place_); }
  uint64_t random64() {
    const uint64_t low = random();
    return low | uint64_t{random()} << 32;
  }
  // In [0, range). The high half of a product in place of a remainder: no division, and no number is more likely than
  // another by more than range / 2^64.
  uint64_t below(uint64_t range) { return static_cast<uint64_t>((__uint128_t{random64()} * range) >> 64); }

  // In [0, 1), and in (0, 1) for a logarithm; multiples of 2^-53, and odd multiples of it.
  double uniform() { return static_cast<double>(random64() >> 11) * 0x1p-53; }
  double open_uniform() { return static_cast<double>(random64() >> 11 | 1) * 0x1p-53; }

  // Box and Muller's transform of two uniform numbers. It makes two normal numbers; the second would belong to another
  // column, so it is not used.
  template <class Real>
  Real normal() {
    constexpr Real two_pi = static_cast<Real>(6.283185307179586);
    Real radius = 0, angle = 0;
    if constexpr (std::is_same_v<Real, float>) {
      radius = static_cast<float>(random()) * 0x1p-32f + 0x1p-33f;
      angle = static_cast<float>(random()) * 0x1p-32f;
    } else {
      radius = open_uniform();
      angle = uniform();
    }
    return std::sqrt(-2 * std::log(radius)) * std::cos(two_pi * angle);
  }

 private:
  ColumnBlock& block_;
  size_t place_;
  uint64_t row_ = 0;
};

// %% columns-walk
// Walks N tensors of one shape in the order of their indices, whatever their strides.
template <size_t N>
class Walk {
 public:
  using Offsets = std::array<int64_t, N>;

  Walk(c10::IntArrayRef sizes, const std::array<c10::IntArrayRef, N>& strides) {
    for (const auto d : c10::irange(sizes.size())) {
      if (sizes[d] == 1) continue;
      Offsets step;
      for (const auto i : c10::irange(N)) step[i] = strides[i][d];
      // Dimensions that are one in every tensor are one dimension.
      const bool joins =
          !dims_.empty() && std::equal(step.begin(), step.end(), dims_.back().step.begin(),
                                       [&](int64_t inner, int64_t outer) { return outer == inner * sizes[d]; });
      if (joins) {
        dims_.back() = {dims_.back().size * sizes[d], step};
      } else {
        dims_.push_back({sizes[d], step});
      }
    }
  }

  // %% columns-walk-steps
  // Starts at the element with this index.
  void seek(int64_t index) {
    offsets_.fill(0);
    at_.assign(dims_.size(), 0);
    for (size_t d = dims_.size(); d-- > 0; index /= dims_[d].size) {
      at_[d] = index % dims_[d].size;
      for (const auto i : c10::irange(N)) offsets_[i] += at_[d] * dims_[d].step[i];
    }
  }
  const Offsets& offsets() const { return offsets_; }
  void next() {
    for (size_t d = dims_.size(); d-- > 0;) {
      for (const auto i : c10::irange(N)) offsets_[i] += dims_[d].step[i];
      if (++at_[d] != dims_[d].size) return;
      for (const auto i : c10::irange(N)) offsets_[i] -= dims_[d].size * dims_[d].step[i];
      at_[d] = 0;
    }
  }

 private:
  struct Dim {
    int64_t size;
    Offsets step;
  };
  c10::SmallVector<Dim, 6> dims_;
  c10::SmallVector<int64_t, 6> at_;
  Offsets offsets_{};
};

// %% columns-draw
template <class>
using TensorOf = at::Tensor;

// draw<float, int64_t>(random, function, a, b): calls function(column, float& a_i, int64_t& b_i) for each element. The
// tensors have one shape. Threads share the work; what a column gives does not depend on who asks.
template <class... T, class F>
void draw(const PhiloxArguments& random, const F& function, const TensorOf<T>&... tensors) {
  const auto& first = std::get<0>(std::tie(tensors...));
  const int64_t count = first.numel();
  const auto base = std::make_tuple(tensors.template mutable_data_ptr<T>()...);
  const Walk<sizeof...(T)> start(first.sizes(), {tensors.strides()...});
  constexpr auto kColumns = static_cast<int64_t>(ColumnBlock::kColumns);
  at::parallel_for(0, (count + kColumns - 1) / kColumns, 256, [&](int64_t begin, int64_t end) {
    Walk<sizeof...(T)> walk = start;
    walk.seek(begin * kColumns);
    for (int64_t first = begin * kColumns; first < std::min(count, end * kColumns); first += kColumns) {
      ColumnBlock block(random, static_cast<uint64_t>(first));
      const int64_t columns = std::min(kColumns, count - first);
      for (int64_t i = 0; i < columns; ++i, walk.next()) {
        Column column(block, static_cast<size_t>(i), first + i);
        [&]<size_t... I>(std::index_sequence<I...>) {
          function(column, std::get<I>(base)[walk.offsets()[I]]...);
        }(std::index_sequence_for<T...>());
      }
    }
  });
}

}  // namespace cookbook
