// chapter 4
// %% philox
// Philox4x32-10: random numbers as a function. A key and a counter always give the same four words, so no thread keeps
// a state, and element 1000 does not wait for the elements before it. Salmon, Moraes, Dror and Shaw, "Parallel Random
// Numbers: As Easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace cookbook {

using PhiloxWords = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

// One round, on the counter's words in place.
constexpr void philox_round(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, const PhiloxKey& key) {
  const uint64_t a = uint64_t{0xD2511F53} * c0;
  const uint64_t b = uint64_t{0xCD9E8D57} * c2;
  c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ key[0];
  c1 = static_cast<uint32_t>(b);
  c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ key[1];
  c3 = static_cast<uint32_t>(a);
}
constexpr PhiloxKey next_key(const PhiloxKey& key) { return {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85}; }

constexpr PhiloxWords philox4x32(PhiloxWords c, PhiloxKey key) {
  for (int round = 0; round < 10; ++round, key = next_key(key)) philox_round(c[0], c[1], c[2], c[3], key);
  return c;
}

// The answers that the authors publish (Random123, kat_vectors). A wrong constant does not compile.
static_assert(philox4x32({0, 0, 0, 0}, {0, 0}) == PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
              PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
static_assert(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
              PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

// %% philox-arguments
// What a kernel gets of a generator: where its random numbers lie. A seed names a table of 32-bit words:
//
//   word(row, column) = philox4x32({column / 4, row}, seed)[column % 4]      both counters are 64 bits wide
//
// An operator reserves one column for each element, and element i (in the order of the tensor's indices, wherever it
// lies in memory) reads column `offset + i`, row by row, as many rows as it needs. So a result does not depend on
// threads, chunks, strides or streams, no element can run into another one's numbers however often it rejects a draw,
// and a slice of a tensor can be drawn alone: that is what DTensor does with its shards.
struct PhiloxCell {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

// Offsets are multiples of this, as in CUDA's generator: four columns come from one call of the function.
inline constexpr uint64_t kPhiloxBlock = 4;

// A launch that is recorded in a graph runs again and again, each time with other numbers. It cannot carry them, so it
// carries the address of a cell in device memory, which each replay writes anew before its kernels run. Either way the
// kernel sees a seed and an offset: Wire<PhiloxArguments> (random.h) reads the cell on the stream's thread.
struct PhiloxArguments {
  uint64_t seed = 0;                 // unused when there is a cell
  uint64_t offset = 0;               // counted from the cell's offset when there is one
  const PhiloxCell* cell = nullptr;  // device memory; null: the values are here
};

}  // namespace cookbook
