// chapter 4
// %% pending-blocks-queue
#include "runtime/pending_blocks.h"

#include <vector>

#include "runtime/capture.h"
#include "scaffolding/error.h"

namespace cookbook {

void PendingBlocks::Queue::push(Block* block) noexcept {
  block->next = nullptr;
  (first != nullptr ? last->next : first) = block;
  last = block;
}
Block* PendingBlocks::Queue::pop() noexcept {
  Block* block = first;
  if (block != nullptr) first = block->next;
  return block;
}

// %% pending-blocks-add
cookbookError_t PendingBlocks::put(Block* block) noexcept {
  if (is_captured(block->uses)) {
    deferred_.push(block);
    deferred_count_.fetch_add(1, std::memory_order_relaxed);
    return cookbookSuccess;
  }
  const cookbookError_t error = record(block->uses);
  if (error == cookbookSuccess) {
    recorded_.push(block);
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  return error;  // then nobody gets the block any more: a leak is better than a wrong number
}

// The warning is foreign code: it comes when no lock is held.
void PendingBlocks::add(Block* block) noexcept {
  cookbookError_t error = cookbookSuccess;
  {
    const std::lock_guard no_capture(capture_lock());
    const std::lock_guard guard(lock_);
    error = put(block);
  }
  warn(error);
}

void PendingBlocks::retry() noexcept {
  cookbookError_t error = cookbookSuccess;
  {
    const std::lock_guard no_capture(capture_lock());
    const std::lock_guard guard(lock_);
    while (deferred_.first != nullptr && !is_captured(deferred_.first->uses)) {
      deferred_count_.fetch_sub(1, std::memory_order_relaxed);
      const cookbookError_t failed = put(deferred_.pop());
      if (failed != cookbookSuccess) error = failed;
    }
  }
  warn(error);
}

// %% pending-blocks-wait
// The events are copied, since a host thread that waits may run the stream's work, and that work may need the lock. An
// event that has been reused meanwhile only makes the wait longer.
void PendingBlocks::wait() {
  std::vector<cookbookEvent_t> events;
  {
    const std::lock_guard guard(lock_);
    for (const Block* block = recorded_.first; block != nullptr; block = block->next) {
      for (const StreamUse* use = block->uses; use != nullptr; use = use->next) {
        if (use->stream != nullptr) events.push_back(use->event);
      }
    }
  }
  for (cookbookEvent_t event : events) check(cookbookEventSynchronize(event));
}

}  // namespace cookbook
