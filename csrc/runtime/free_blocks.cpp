// chapter 4
// %% free-blocks-classes
#include "runtime/free_blocks.h"

#include <algorithm>
#include <bit>
#include <climits>

namespace cookbook {

size_t FreeBlocks::class_of(size_t bytes) noexcept {
  const size_t granules = bytes / kGranule;
  if (granules < kExact) return granules;
  const auto top = static_cast<size_t>(std::bit_width(granules)) - 1;  // at least 4; the three bits below it choose
  const size_t within = (granules >> (top - 3)) % kEach;
  return std::min(kExact + (top - 4) * kEach + within, kClasses - 1);
}

size_t FreeBlocks::next_class(size_t from) const noexcept {
  if (from >= kClasses) return kClasses;
  size_t word = from / kWord;
  uint64_t bits = filled_[word] & (~uint64_t{0} << (from % kWord));
  while (bits == 0) {
    if (++word == filled_.size()) return kClasses;
    bits = filled_[word];
  }
  return word * kWord + static_cast<size_t>(std::countr_zero(bits));
}

// %% free-blocks-set
// The last one in is the first one out: its memory is the most likely to be in a cache.
void FreeBlocks::insert(Block* block) noexcept {
  const size_t c = class_of(block->bytes);
  block->previous = nullptr;
  block->next = first_[c];
  if (block->next != nullptr) block->next->previous = block;
  first_[c] = block;
  filled_[c / kWord] |= uint64_t{1} << (c % kWord);
}

void FreeBlocks::erase(Block* block) noexcept {
  const size_t c = class_of(block->bytes);
  (block->previous != nullptr ? block->previous->next : first_[c]) = block->next;
  if (block->next != nullptr) block->next->previous = block->previous;
  if (first_[c] == nullptr) filled_[c / kWord] &= ~(uint64_t{1} << (c % kWord));
}

// A class between the request's and that of the limit holds fitting blocks only. The blocks of those two differ by up
// to an eighth: a few are looked at, and all of them before the answer is "none".
Block* FreeBlocks::find(size_t bytes, size_t below) const noexcept {
  const size_t last = class_of(below - 1);
  for (const int patience : {8, INT_MAX}) {
    for (size_t c = next_class(class_of(bytes)); c <= last; c = next_class(c + 1)) {
      int left = patience;
      for (Block* block = first_[c]; block != nullptr && left-- > 0; block = block->next) {
        if (block->bytes >= bytes && block->bytes < below) return block;
      }
    }
  }
  return nullptr;
}

}  // namespace cookbook
