// chapter 4
// %% block
// A block of device memory, and sets of free ones by size.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cookbook {

struct BlockPool;
struct StreamUse;

// Every size is a multiple of it, and every address too, as with the driver's own blocks.
inline constexpr size_t kGranule = 512;

// A part of a segment. The context of a storage's DataPtr is its block, so freeing needs no search.
struct Block {
  enum class State : uint8_t {
    Free,     // in its pool
    Live,     // a storage owns it
    Pending,  // the program has freed it; a stream other than its own may still use it
  };

  uintptr_t address = 0;
  size_t bytes = 0;
  size_t requested = 0;                        // as the program asked for it; live and pending blocks
  BlockPool* pool = nullptr;                   // where it returns to
  Block *before = nullptr, *after = nullptr;   // neighbours in the segment
  Block *previous = nullptr, *next = nullptr;  // in a set of free blocks; `next` also in the queue of pending ones
  StreamUse* uses = nullptr;                   // by streams other than its own
  uint64_t freed_at = 0;                       // free blocks: a count that grows, so the least is the longest unused
  State state = State::Free;
  bool oversize = false;  // live blocks that max_split_size_mb keeps whole

  bool is_split() const { return before != nullptr || after != nullptr; }
};

// %% free-blocks-header
// A set of free blocks by size class. Sizes below 16 granules (8 KiB) have a class each, larger ones eight a doubling;
// a bitmap tells which classes have a block.
class FreeBlocks {
 public:
  void insert(Block* block) noexcept;
  void erase(Block* block) noexcept;
  // A block of at least `bytes` and less than `below` bytes, nearly the smallest; it stays in the set. Null only if
  // there is none: a program must not run out of memory because a search was short.
  Block* find(size_t bytes, size_t below) const noexcept;

 private:
  static constexpr size_t kExact = 16, kEach = 8, kWord = 64, kClasses = 5 * kWord;

  static size_t class_of(size_t bytes) noexcept;
  // The first class from `from` on that has a block, else kClasses.
  size_t next_class(size_t from) const noexcept;

  std::array<uint64_t, kClasses / kWord> filled_{};
  std::array<Block*, kClasses> first_{};
};

}  // namespace cookbook
