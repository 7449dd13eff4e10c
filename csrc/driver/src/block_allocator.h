// Cuts a device's memory into blocks and joins them again: offsets only, no addresses, no streams, no locks.
//
// Policy:
//  * Sizes are multiples of 512 bytes (a granule).
//  * The blocks tile [0, capacity) without gaps and know their neighbours, so joining needs no search.
//  * Two free neighbours never exist: give() joins them at once. So when everything is free there is one block.
//  * Free blocks are kept in bins by size, eight bins a doubling (sizes up to 15 granules have their own), with a
//    bitmap of the bins that are not empty: finding one costs two bit scans, not a walk.
//  * A bin's blocks differ by up to 1/8 in size. A search looks at the first few blocks of the request's own bin, then
//    takes any block of the next bins that has one. A thorough search walks the rest of its own bin as well, so that it
//    fails only if no free block is large enough; it is for callers that would report "out of memory" otherwise.
//  * The block that holds an address is found by the last block start at or before it, in a bitmap with summary levels.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>

#include "lazy_array.h"

namespace cookbook::driver {

constexpr size_t kGranule = 512;

struct Block {
  enum class State : uint8_t {
    kFree,  // in the allocator's bins
    kHeld,  // freed in stream order, in a stream's bins (device_memory.h)
    kLive
  };
  size_t offset = 0, bytes = 0;
  size_t requested = 0;                               // as asked for; live blocks only
  Block *before = nullptr, *after = nullptr;          // neighbours by address
  Block *bin_before = nullptr, *bin_after = nullptr;  // free and held blocks
  Block *older = nullptr, *newer = nullptr;           // held blocks, by the time of their free
  uint64_t ticket = 0;                                // held blocks: usable by others when the stream has passed it
  int holder = -1;                                    // held blocks: number of the stream
  uint32_t exported = UINT32_MAX;                     // live blocks: entry among the device's exports, or none
  State state = State::kFree;
};

// A set of blocks by size.
class Bins {
 public:
  void insert(Block* block);
  void erase(Block* block);
  // A block of at least `bytes`, nearly the smallest; leaves it in. Null means "none" only if the search is thorough.
  Block* find(size_t bytes, bool thorough) const;
  size_t largest() const;

 private:
  static constexpr int kRows = 40, kColumns = 8;
  struct Bin {
    int row, column;
  };
  static Bin bin_of(size_t granules);
  Block* first_at_or_after(Bin bin) const;

  uint64_t rows_ = 0;
  uint8_t columns_[kRows] = {};
  Block* first_[kRows][kColumns] = {};
};

// The starts of the blocks, in granules.
class StartMap {
 public:
  explicit StartMap(size_t granules);
  void insert(size_t granule);
  void erase(size_t granule);
  // The largest member at or before `granule`. Granule 0 is always a member.
  size_t last_at_or_before(size_t granule) const;

 private:
  static constexpr int kLevels = 6;  // 64^6 granules are more than any capacity
  LazyArray<uint64_t> levels_[kLevels];
};

class BlockAllocator {
 public:
  explicit BlockAllocator(size_t capacity);
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  static constexpr size_t round(size_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

  // A live block of `bytes` (a multiple of 512); null when no free block is large enough, see Bins::find().
  Block* take(size_t bytes, bool thorough = true);
  // Frees a block that is in no bins, and joins it with its free neighbours.
  void give(Block* block);
  // Shortens a block that is in no bins; returns the rest as a new block of the same state that is in no bins either,
  // null when the size is exact.
  Block* split(Block* block, size_t bytes);
  // Adds the next block, which must be in no bins, to `block`.
  void absorb_next(Block* block);
  // Removes a free block from the bins.
  void withdraw(Block* block) { free_.erase(block); }
  // The block around an offset, whatever its state. Null outside the capacity.
  Block* find(size_t offset) const;

  size_t capacity() const { return capacity_; }
  size_t largest_free() const { return free_.largest(); }

 private:
  Block* new_block(size_t offset, size_t bytes);
  void drop_block(Block* block);

  size_t capacity_;
  StartMap starts_;
  LazyArray<Block*> by_start_;  // by granule; only entries of block starts have a meaning
  Bins free_;
  std::deque<Block> storage_;
  Block* unused_ = nullptr;  // nodes for reuse, chained by `after`
};

}  // namespace cookbook::driver
