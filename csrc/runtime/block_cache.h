// chapter 4
// %% block-cache-sizes
// Cuts segments of one device's memory into blocks and joins them again: addresses, sizes and counts; no driver, no
// lock, no thread.
//
// Policy:
//  * A segment is what the driver gave at once. Its blocks tile it and know their neighbours.
//  * A segment belongs to one stream, so its blocks are used in that stream's order: one that the program has freed can
//    be handed out at once, for work queued later on the same stream. Never for another stream: that gets memory only
//    after the segment has been back to the driver.
//  * Small requests (up to 1 MiB) and large ones have segments of their own, or small blocks that live for long would
//    keep large segments from ever being whole again.
//  * A private pool has segments of its own, too.
//  * Two free neighbours never exist: a segment that nobody uses is one free block, and can go back to the driver.
#pragma once

#include <cookbook_driver.h>

#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/free_blocks.h"
#include "runtime/memory_stats.h"

namespace cookbook {

inline constexpr size_t kMiB = size_t{1} << 20;
inline constexpr size_t kSmallLimit = kMiB;        // larger requests are large
inline constexpr size_t kSmallSegment = 2 * kMiB;  // what small requests are cut from
inline constexpr size_t kLargeStep = 2 * kMiB;     // segments of large requests are multiples of it

constexpr size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

// %% block-cache-pools
// The free blocks of one stream, of one kind, of one private pool ({0, 0}: of none). Lives as long as the process.
struct BlockPool {
  c10::DeviceIndex device;
  cookbookStream_t stream;
  c10::MempoolId_t id;
  bool large;
  FreeBlocks free;
};

struct Segment {
  uintptr_t address;
  size_t bytes;
  BlockPool* pool;
  Block* first;  // always the same one: joining keeps the lower block
  bool oversize;
};

// What the caller wants of a block. `bytes` is rounded to granules, `requested` is not.
struct Request {
  size_t requested;
  size_t bytes;
  cookbookStream_t stream;
  c10::MempoolId_t id;
  // PYTORCH_ALLOC_CONF: blocks of max_split bytes and more are "oversize". They are not cut, serve oversize requests
  // only, and only such that leave at most max_rounding of them unused.
  size_t max_split = SIZE_MAX, max_rounding = SIZE_MAX;

  bool large() const { return bytes > kSmallLimit; }
  bool oversize() const { return bytes >= max_split; }
};

// %% block-cache-header
class BlockCache {
 public:
  explicit BlockCache(c10::DeviceIndex device) : device_(device) {}

  // A block of the request's stream and pool; null when none is free. May throw (host memory); then nothing changed.
  Block* take(const Request& request);
  // Adds a segment from the driver, as one free block in the pool that the request looks in.
  void add(const Request& request, uintptr_t address, size_t bytes);
  // The program gave a block back; it may still be pending. Then give(): nobody uses it any more.
  void retire(Block* block) noexcept;
  void give(Block* block) noexcept;
  // Removes the segments that are one free block and for which `wanted(segment)` is true; the caller gives them to the
  // driver.
  template <class Wanted>
  std::vector<Segment> take_out(Wanted wanted);
  // The block around an address, whatever its state. Null when no segment holds it.
  Block* find(uintptr_t address) const noexcept;

  const std::map<uintptr_t, Segment>& segments() const { return segments_; }
  MemoryStats& stats() { return stats_; }
  const MemoryStats& stats() const { return stats_; }

 private:
  BlockPool& pool_of(const Request& request);
  Block* new_block();
  void add_free(Block* block) noexcept;
  void remove_free(Block* block) noexcept;
  void absorb_next(Block* block) noexcept;

  c10::DeviceIndex device_;
  std::vector<std::unique_ptr<BlockPool>> pools_;
  BlockPool* recent_[2] = {};  // the last one used, small and large: mostly the next one too
  std::map<uintptr_t, Segment> segments_;
  std::deque<Block> blocks_;  // blocks never move
  Block* unused_ = nullptr;   // for new_block(), chained by `next`
  uint64_t frees_ = 0;
  MemoryStats stats_;
};

// %% block-cache-take-out
template <class Wanted>
std::vector<Segment> BlockCache::take_out(Wanted wanted) {
  std::vector<Segment> out;
  for (auto at = segments_.begin(); at != segments_.end();) {
    const Segment& segment = at->second;
    if (segment.first->state != Block::State::Free || segment.first->is_split() || !wanted(segment)) {
      ++at;
      continue;
    }
    out.push_back(segment);  // may throw: before anything changes
    remove_free(segment.first);
    segment.first->next = std::exchange(unused_, segment.first);
    stats_.segment_removed(segment.pool->large, segment.bytes, segment.pool->id, segment.oversize);
    at = segments_.erase(at);
  }
  return out;
}

}  // namespace cookbook
