// chapter 4
// %% pending-blocks-header
// Blocks that the program has freed while streams other than their own may still use them: what record_stream is for.
#pragma once

#include <cookbook_driver.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "runtime/free_blocks.h"
#include "runtime/spin_lock.h"
#include "runtime/stream_uses.h"

namespace cookbook {

class PendingBlocks {
 public:
  // Whether collect() has nothing to look at. Needs no lock.
  bool empty() const noexcept {
    return count_.load(std::memory_order_relaxed) == 0 && deferred_count_.load(std::memory_order_relaxed) == 0;
  }

  // Takes over a block and notes the end of what is queued on its uses' streams now. On a stream that is captured a
  // record would become a part of the graph and tell nothing: then the block waits until the capture is over.
  void add(Block* block) noexcept;
  // Looks at the `limit` oldest blocks, calls `give(block)` for those whose streams are done, and puts the others at
  // the end, so that one that waits for long does not hide those behind it.
  template <class Give>
  void collect(size_t limit, Give give);
  // Blocks until the streams have passed all blocks that are pending now.
  void wait();

  // For fork handlers.
  SpinLock& lock() noexcept { return lock_; }

 private:
  // %% pending-blocks-state
  struct Queue {
    Block *first = nullptr, *last = nullptr;
    void push(Block* block) noexcept;
    Block* pop() noexcept;
  };

  // Needs capture_lock() and lock_; the error is for the caller to tell when it holds neither.
  cookbookError_t put(Block* block) noexcept;
  // Records for the blocks that waited for the end of a capture, up to the first whose capture is still open.
  void retry() noexcept;

  SpinLock lock_;  // guards all but the counts' reading. The driver's calls under it never block
  Queue recorded_, deferred_;
  std::atomic<size_t> count_{0}, deferred_count_{0};
};

// %% pending-blocks-collect
template <class Give>
void PendingBlocks::collect(size_t limit, Give give) {
  if (deferred_count_.load(std::memory_order_relaxed) != 0) [[unlikely]]
    retry();
  const std::lock_guard guard(lock_);
  for (size_t left = std::min(limit, count_.load(std::memory_order_relaxed)); left != 0; --left) {
    Block* block = recorded_.pop();
    if (finished(block->uses)) {
      count_.fetch_sub(1, std::memory_order_relaxed);
      give(block);
    } else {
      recorded_.push(block);
    }
  }
}

}  // namespace cookbook
