// chapter 4
// %% block-cache-nodes
#include "runtime/block_cache.h"

namespace cookbook {

// A program has a handful of streams, and mostly asks for the one of its last request.
BlockPool& BlockCache::pool_of(const Request& request) {
  const auto matches = [&request](const BlockPool& pool) {
    return pool.stream == request.stream && pool.id == request.id && pool.large == request.large();
  };
  BlockPool*& recent = recent_[request.large()];
  if (recent != nullptr && matches(*recent)) [[likely]]
    return *recent;
  for (const std::unique_ptr<BlockPool>& pool : pools_) {
    if (matches(*pool)) return *(recent = pool.get());
  }
  pools_.push_back(
      std::make_unique<BlockPool>(BlockPool{device_, request.stream, request.id, request.large(), FreeBlocks()}));
  return *(recent = pools_.back().get());
}

// Host memory is asked for only until the cache has as many blocks as it ever needs.
Block* BlockCache::new_block() {
  Block* block = unused_;
  if (block == nullptr) return &blocks_.emplace_back();
  unused_ = block->next;
  *block = Block{};
  return block;
}

// %% block-cache-free
void BlockCache::add_free(Block* block) noexcept {
  block->state = Block::State::Free;
  if (block->is_split()) stats_.fragment_added(block->pool->large, block->bytes);
  block->pool->free.insert(block);
}

void BlockCache::remove_free(Block* block) noexcept {
  block->pool->free.erase(block);
  if (block->is_split()) stats_.fragment_removed(block->pool->large, block->bytes);
}

void BlockCache::absorb_next(Block* block) noexcept {
  Block* next = block->after;
  block->bytes += next->bytes;
  block->after = next->after;
  if (block->after != nullptr) block->after->before = block;
  next->next = std::exchange(unused_, next);
}

// %% block-cache-take
Block* BlockCache::take(const Request& request) {
  BlockPool& pool = pool_of(request);
  size_t below = SIZE_MAX;
  if (pool.large && request.max_split != SIZE_MAX) {
    below = request.oversize() ? request.bytes + request.max_rounding : request.max_split;
  }
  Block* block = pool.free.find(request.bytes, below);
  if (block == nullptr) return nullptr;
  // The rest of a large block is worth keeping apart only if another large request fits in.
  const size_t rest = block->bytes - request.bytes;
  Block* cut = nullptr;
  if (pool.large ? rest > kSmallLimit && !request.oversize() : rest >= kGranule) cut = new_block();
  remove_free(block);
  if (cut != nullptr) {
    cut->address = block->address + request.bytes;
    cut->bytes = rest;
    cut->pool = &pool;
    cut->before = block;
    cut->after = block->after;
    cut->freed_at = block->freed_at;
    if (cut->after != nullptr) cut->after->before = cut;
    block->after = cut;
    block->bytes = request.bytes;
    add_free(cut);
  }
  block->state = Block::State::Live;
  block->requested = request.requested;
  block->oversize = pool.large && request.oversize();
  stats_.allocated(pool.large, block->bytes, block->requested, block->oversize);
  return block;
}

// %% block-cache-give
void BlockCache::retire(Block* block) noexcept {
  block->state = Block::State::Pending;
  stats_.freed(block->pool->large, block->bytes, block->requested, block->oversize);
}

void BlockCache::give(Block* block) noexcept {
  stats_.retired(block->pool->large, block->bytes);
  if (Block* after = block->after; after != nullptr && after->state == Block::State::Free) {
    remove_free(after);
    absorb_next(block);
  }
  if (Block* before = block->before; before != nullptr && before->state == Block::State::Free) {
    remove_free(before);
    absorb_next(before);
    block = before;
  }
  block->freed_at = ++frees_;
  add_free(block);
}

// %% block-cache-segments
void BlockCache::add(const Request& request, uintptr_t address, size_t bytes) {
  BlockPool& pool = pool_of(request);
  Block* block = new_block();
  block->address = address;
  block->bytes = bytes;
  block->pool = &pool;
  block->freed_at = ++frees_;
  const bool oversize = pool.large && bytes >= request.max_split;
  try {
    segments_.emplace(address, Segment{address, bytes, &pool, block, oversize});
    stats_.segment_added(pool.large, bytes, pool.id, oversize);
  } catch (...) {
    segments_.erase(address);
    block->next = std::exchange(unused_, block);
    throw;
  }
  add_free(block);
}

Block* BlockCache::find(uintptr_t address) const noexcept {
  auto at = segments_.upper_bound(address);
  if (at == segments_.begin()) return nullptr;
  const Segment& segment = std::prev(at)->second;
  if (address - segment.address >= segment.bytes) return nullptr;
  Block* block = segment.first;
  while (address - block->address >= block->bytes) block = block->after;
  return block;
}

}  // namespace cookbook
