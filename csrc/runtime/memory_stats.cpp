// chapter 4
// %% memory-stats-events
#include "runtime/memory_stats.h"

namespace cookbook {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

Stat& all(StatArray& array) { return array[static_cast<size_t>(StatType::AGGREGATE)]; }
Stat& part(StatArray& array, bool large) {
  return array[static_cast<size_t>(large ? StatType::LARGE_POOL : StatType::SMALL_POOL)];
}
void increase(StatArray& array, bool large, size_t amount) {
  all(array).increase(amount);
  part(array, large).increase(amount);
}
void decrease(StatArray& array, bool large, size_t amount) {
  all(array).decrease(amount);
  part(array, large).decrease(amount);
}

}  // namespace

// %% memory-stats-blocks
void MemoryStats::allocated(bool large, size_t bytes, size_t requested, bool oversize) noexcept {
  increase(stats_.allocation, large, 1);
  increase(stats_.allocated_bytes, large, bytes);
  increase(stats_.requested_bytes, large, requested);
  increase(stats_.active, large, 1);
  increase(stats_.active_bytes, large, bytes);
  if (oversize) stats_.oversize_allocations.increase(1);
}
void MemoryStats::freed(bool large, size_t bytes, size_t requested, bool oversize) noexcept {
  decrease(stats_.allocation, large, 1);
  decrease(stats_.allocated_bytes, large, bytes);
  decrease(stats_.requested_bytes, large, requested);
  if (oversize) stats_.oversize_allocations.decrease(1);
}
void MemoryStats::retired(bool large, size_t bytes) noexcept {
  decrease(stats_.active, large, 1);
  decrease(stats_.active_bytes, large, bytes);
}
void MemoryStats::fragment_added(bool large, size_t bytes) noexcept {
  increase(stats_.inactive_split, large, 1);
  increase(stats_.inactive_split_bytes, large, bytes);
}
void MemoryStats::fragment_removed(bool large, size_t bytes) noexcept {
  decrease(stats_.inactive_split, large, 1);
  decrease(stats_.inactive_split_bytes, large, bytes);
}

// %% memory-stats-segments
void MemoryStats::segment_added(bool large, size_t bytes, c10::MempoolId_t pool, bool oversize) {
  if (pool != c10::MempoolId_t{}) increase(stats_.reserved_bytes_by_private_pools[pool], large, bytes);  // may throw
  increase(stats_.segment, large, 1);
  increase(stats_.reserved_bytes, large, bytes);
  if (oversize) stats_.oversize_segments.increase(1);
  ++stats_.num_device_alloc;
}
void MemoryStats::segment_removed(bool large, size_t bytes, c10::MempoolId_t pool, bool oversize) noexcept {
  if (pool != c10::MempoolId_t{}) {
    const auto found = stats_.reserved_bytes_by_private_pools.find(pool);
    if (found != stats_.reserved_bytes_by_private_pools.end()) decrease(found->second, large, bytes);
  }
  decrease(stats_.segment, large, 1);
  decrease(stats_.reserved_bytes, large, bytes);
  if (oversize) stats_.oversize_segments.decrease(1);
  ++stats_.num_device_free;
}

// %% memory-stats-resets
namespace {

template <class F>
void for_each_stat(c10::CachingDeviceAllocator::DeviceStats& stats, F f) {
  const auto each = [&f](StatArray& array) {
    for (Stat& stat : array) f(stat);
  };
  for (StatArray* array :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    each(*array);
  }
  for (auto& pool : stats.reserved_bytes_by_private_pools) each(pool.second);
  f(stats.oversize_allocations);
  f(stats.oversize_segments);
}

}  // namespace

void MemoryStats::reset_accumulated() noexcept {
  for_each_stat(stats_, [](Stat& stat) { stat.reset_accumulated(); });
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_sync_all_streams = 0;
  stats_.num_device_alloc = stats_.num_device_free = 0;
}

void MemoryStats::reset_peaks() noexcept {
  for_each_stat(stats_, [](Stat& stat) { stat.reset_peak(); });
}

}  // namespace cookbook
