// chapter 4
// %% device-cache-header
// One device's memory: the cache of its blocks, and what happens when the cache has none.
//
// Locks: `lock_` for a few dozen instructions, on every allocation and free; that of the pending blocks for queries of
// their events, before `lock_` when both are taken. Under neither does the driver wait, is the GIL taken or foreign
// code called: a thread that waits for the device holds no lock, so others go on allocating and freeing.
#pragma once

#include <functional>
#include <mutex>

#include "runtime/block_cache.h"
#include "runtime/capture.h"
#include "runtime/pending_blocks.h"

namespace cookbook {

class DeviceCache {
 public:
  explicit DeviceCache(c10::DeviceIndex index) : index_(index), blocks_(index) {}

  // A block of at least `bytes` (not 0), which work queued on `stream` may use from now on. The device must be the
  // current one. Throws c10::OutOfMemoryError.
  Block* allocate(size_t bytes, cookbookStream_t stream);
  // The block goes back at once for its own stream, or when the other streams that use it have passed this point.
  void free(Block* block) noexcept;
  void record_stream(Block* block, const c10::Stream& stream);
  // The block around an address of this device, null when the cache has none there.
  Block* find(const void* pointer) noexcept;
  // Gives to the driver what no block needs: of a released private pool, or with {0, 0} of all that are released and of
  // the ordinary pools. Never waits.
  void empty(c10::MempoolId_t id);

  // At most this part of the device's memory is taken from the driver.
  void set_fraction(double fraction);
  double fraction() noexcept;

  // %% device-cache-pools
  // Between begin and end, allocations on streams that `filter` accepts come from the private pool. Its memory serves
  // nobody else until release_pool() was called as often as begin; then it goes back to the driver, once it is unused.
  // The filter runs without a lock, on the thread that allocates.
  void begin_allocate_to_pool(c10::MempoolId_t id, std::function<bool(c10::Stream)> filter);
  void end_allocate_to_pool(c10::MempoolId_t id);
  void release_pool(c10::MempoolId_t id);

  c10::CachingDeviceAllocator::DeviceStats stats();
  void reset_accumulated_stats();
  void reset_peak_stats();
  std::vector<c10::CachingDeviceAllocator::SegmentInfo> snapshot();

  // For fork handlers: no thread is inside while these are held.
  void lock() noexcept;
  void unlock() noexcept;

 private:
  // %% device-cache-state
  struct Route {
    c10::MempoolId_t id;
    std::shared_ptr<const std::function<bool(c10::Stream)>> filter;
  };

  Request request(size_t bytes, cookbookStream_t stream);
  c10::MempoolId_t route();
  // Takes back what other streams have passed, of the `limit` oldest pending blocks.
  void reclaim(size_t limit);

  // device_growth.cpp: what an allocation does when the cache has no block for it.
  Block* grow(const Request& request);
  Block* take_from_driver(const Request& request, size_t bytes);
  void collect_garbage(size_t bytes);
  template <class Wanted>
  void give_back(Wanted wanted);
  [[noreturn]] void out_of_memory(const Request& request);
  // Bytes that the driver may be asked for, of a device with `total`; whether a segment may go back. Under the lock.
  size_t limit(size_t total) const { return static_cast<size_t>(fraction_ * static_cast<double>(total)); }
  // Not while the segment's stream is captured: to free in its order would break the capture.
  bool is_released(const Segment& segment) const {
    return !private_pools_.contains(segment.pool->id) && capture_of(segment.pool->stream) == 0;
  }

  const c10::DeviceIndex index_;
  PendingBlocks pending_;
  std::atomic<bool> routing_{false};  // whether routes_ has any: read without the lock

  SpinLock lock_;  // guards all that follows
  BlockCache blocks_;
  std::vector<Route> routes_;
  std::map<c10::MempoolId_t, int> private_pools_;  // those in use, and by how many
  size_t committed_ = 0;  // bytes of segments, also of those on their way from or to the driver
  double fraction_ = 1.0;
};

// Of any device that the driver has.
DeviceCache& device_cache(c10::DeviceIndex index);

}  // namespace cookbook
