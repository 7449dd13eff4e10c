// The bins, the map of block starts, and the cutting and joining of blocks.
#include "block_allocator.h"

#include <algorithm>
#include <bit>

namespace cookbook::driver {

// ---- bins ----------------------------------------------------------------------------------------------------------

Bins::Bin Bins::bin_of(size_t granules) {
  if (granules < kColumns) return {0, static_cast<int>(granules)};
  const int log = std::bit_width(granules) - 1;  // at least 3
  return {log - 2, static_cast<int>(granules >> (log - 3)) & (kColumns - 1)};
}

void Bins::insert(Block* block) {
  const auto [row, column] = bin_of(block->bytes / kGranule);
  Block*& first = first_[row][column];
  block->bin_before = nullptr;
  block->bin_after = first;
  if (first) first->bin_before = block;
  first = block;
  rows_ |= uint64_t{1} << row;
  columns_[row] = static_cast<uint8_t>(columns_[row] | 1 << column);
}

void Bins::erase(Block* block) {
  if (block->bin_after) block->bin_after->bin_before = block->bin_before;
  if (block->bin_before) {
    block->bin_before->bin_after = block->bin_after;
    return;
  }
  const auto [row, column] = bin_of(block->bytes / kGranule);
  first_[row][column] = block->bin_after;
  if (block->bin_after) return;
  columns_[row] = static_cast<uint8_t>(columns_[row] & ~(1 << column));
  if (!columns_[row]) rows_ &= ~(uint64_t{1} << row);
}

Block* Bins::first_at_or_after(Bin bin) const {
  const unsigned columns = columns_[bin.row] & (~0u << bin.column);
  if (columns) return first_[bin.row][std::countr_zero(columns)];
  const uint64_t rows = rows_ & (~uint64_t{0} << (bin.row + 1));
  if (!rows) return nullptr;
  const int row = std::countr_zero(rows);
  return first_[row][std::countr_zero(static_cast<unsigned>(columns_[row]))];
}

Block* Bins::find(size_t bytes, bool thorough) const {
  if (!rows_) return nullptr;
  constexpr int kLooks = 4;
  const Bin bin = bin_of(bytes / kGranule);
  Block* own = first_[bin.row][bin.column];
  for (int i = 0; own && i < kLooks; ++i, own = own->bin_after)
    if (own->bytes >= bytes) return own;
  const Bin next = bin.column + 1 < kColumns ? Bin{bin.row, bin.column + 1} : Bin{bin.row + 1, 0};
  if (Block* block = first_at_or_after(next)) return block;
  for (; thorough && own; own = own->bin_after)
    if (own->bytes >= bytes) return own;
  return nullptr;
}

size_t Bins::largest() const {
  if (!rows_) return 0;
  const int row = std::bit_width(rows_) - 1;
  size_t bytes = 0;
  for (const Block* block = first_[row][std::bit_width(static_cast<unsigned>(columns_[row])) - 1]; block;
       block = block->bin_after)
    bytes = std::max(bytes, block->bytes);
  return bytes;
}

// ---- starts --------------------------------------------------------------------------------------------------------

StartMap::StartMap(size_t granules) {
  for (auto& level : levels_) {
    granules = granules / 64 + 1;
    level = LazyArray<uint64_t>(granules);
  }
}

void StartMap::insert(size_t granule) {
  for (auto& level : levels_) {
    uint64_t& word = level[granule / 64];
    const bool was_empty = word == 0;
    word |= uint64_t{1} << (granule % 64);
    if (!was_empty) return;  // the levels above know already
    granule /= 64;
  }
}

void StartMap::erase(size_t granule) {
  for (auto& level : levels_) {
    uint64_t& word = level[granule / 64];
    word &= ~(uint64_t{1} << (granule % 64));
    if (word) return;
    granule /= 64;
  }
}

size_t StartMap::last_at_or_before(size_t granule) const {
  // Up to the first level that has something at or before, then down along the last bits.
  uint64_t mask = ~uint64_t{0} >> (63 - granule % 64);
  for (int up = 0; up < kLevels; ++up) {
    if (const uint64_t word = levels_[up][granule / 64] & mask) {
      granule = granule / 64 * 64 + static_cast<size_t>(std::bit_width(word)) - 1;
      for (int down = up; down-- > 0;)
        granule = granule * 64 + static_cast<size_t>(std::bit_width(levels_[down][granule])) - 1;
      return granule;
    }
    granule /= 64;
    mask = (uint64_t{1} << (granule % 64)) - 1;  // strictly before, from here on
  }
  return 0;
}

// ---- blocks --------------------------------------------------------------------------------------------------------

BlockAllocator::BlockAllocator(size_t capacity)
    : capacity_(capacity / kGranule * kGranule), starts_(capacity / kGranule + 1), by_start_(capacity / kGranule + 1) {
  free_.insert(new_block(0, capacity_));
}

Block* BlockAllocator::new_block(size_t offset, size_t bytes) {
  Block* block = unused_;
  if (block) {
    unused_ = block->after;
    block->before = block->after = nullptr;  // the rest is set before it is read
    block->state = Block::State::kFree;
  } else {
    block = &storage_.emplace_back();
  }
  block->offset = offset;
  block->bytes = bytes;
  starts_.insert(offset / kGranule);
  by_start_[offset / kGranule] = block;
  return block;
}

void BlockAllocator::drop_block(Block* block) {
  starts_.erase(block->offset / kGranule);
  block->after = unused_;
  unused_ = block;
}

Block* BlockAllocator::split(Block* block, size_t bytes) {
  if (block->bytes == bytes) return nullptr;
  Block* rest = new_block(block->offset + bytes, block->bytes - bytes);  // may throw: change nothing before
  block->bytes = bytes;
  rest->state = block->state;
  rest->before = block;
  rest->after = block->after;
  if (rest->after) rest->after->before = rest;
  block->after = rest;
  return rest;
}

void BlockAllocator::absorb_next(Block* block) {
  Block* next = block->after;
  block->bytes += next->bytes;
  block->after = next->after;
  if (block->after) block->after->before = block;
  drop_block(next);
}

Block* BlockAllocator::take(size_t bytes, bool thorough) {
  Block* block = free_.find(bytes, thorough);
  if (!block) return nullptr;
  free_.erase(block);
  Block* rest = nullptr;
  try {
    rest = split(block, bytes);
  } catch (...) {
    free_.insert(block);
    throw;
  }
  if (rest) free_.insert(rest);
  block->state = Block::State::kLive;
  return block;
}

void BlockAllocator::give(Block* block) {
  block->state = Block::State::kFree;
  if (Block* next = block->after; next && next->state == Block::State::kFree) {
    free_.erase(next);
    absorb_next(block);
  }
  if (Block* previous = block->before; previous && previous->state == Block::State::kFree) {
    free_.erase(previous);
    absorb_next(previous);
    block = previous;
  }
  free_.insert(block);
}

Block* BlockAllocator::find(size_t offset) const {
  if (offset >= capacity_) return nullptr;
  return by_start_[starts_.last_at_or_before(offset / kGranule)];
}

}  // namespace cookbook::driver
