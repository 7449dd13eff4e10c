// chapter 4
// %% memory-snapshot
// A picture of a device's memory: its segments by address, and the blocks in each.
#include "runtime/device_cache.h"

namespace cookbook {

using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::SegmentInfo;

// Under the lock, so that no block changes meanwhile; other threads that allocate wait for it.
std::vector<SegmentInfo> DeviceCache::snapshot() {
  std::vector<SegmentInfo> result;
  const std::lock_guard guard(lock_);
  for (const auto& [address, segment] : blocks_.segments()) {
    SegmentInfo& info = result.emplace_back();
    info.device = index_;
    info.address = address;
    info.total_size = segment.bytes;
    info.stream = segment.pool->stream;
    info.is_large = segment.pool->large;
    info.owner_private_pool_id = segment.pool->id;
    for (const Block* block = segment.first; block != nullptr; block = block->after) {
      BlockInfo& part = info.blocks.emplace_back();
      part.size = block->bytes;
      part.allocated = block->state == Block::State::Live;
      part.active = block->state != Block::State::Free;
      part.requested_size = part.active ? block->requested : 0;
      info.requested_size += part.requested_size;
      info.allocated_size += part.allocated ? part.size : 0;
      info.active_size += part.active ? part.size : 0;
    }
  }
  return result;
}

}  // namespace cookbook
