// chapter 4
// %% memory-stats-header
// A device's memory statistics, as torch.accelerator.memory_stats shows them. Nothing else changes a number: each
// method is one thing that can happen.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace cookbook {

// Not synchronized: the lock of the device's cache guards it.
class MemoryStats {
 public:
  // The program got a block, and gave it back.
  void allocated(bool large, size_t bytes, size_t requested, bool oversize) noexcept;
  void freed(bool large, size_t bytes, size_t requested, bool oversize) noexcept;
  // No stream uses a freed block any more.
  void retired(bool large, size_t bytes) noexcept;
  // A free block that is a part of a segment appeared, and went: it was handed out or joined with another.
  void fragment_added(bool large, size_t bytes) noexcept;
  void fragment_removed(bool large, size_t bytes) noexcept;
  // The driver gave a segment, and took it back. `pool` is {0, 0} but for private pools; may throw for a new one.
  void segment_added(bool large, size_t bytes, c10::MempoolId_t pool, bool oversize);
  void segment_removed(bool large, size_t bytes, c10::MempoolId_t pool, bool oversize) noexcept;
  // The driver had nothing left, and what the cache held was given back; all pending blocks were waited for; even that
  // did not help.
  void retried() noexcept { ++stats_.num_alloc_retries; }
  void waited() noexcept { ++stats_.num_sync_all_streams; }
  void out_of_memory() noexcept { ++stats_.num_ooms; }

  const c10::CachingDeviceAllocator::DeviceStats& get() const noexcept { return stats_; }
  void reset_accumulated() noexcept;
  void reset_peaks() noexcept;

 private:
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

}  // namespace cookbook
