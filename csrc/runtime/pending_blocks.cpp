// chapter 4
// %% stream-use-pool
#include "runtime/pending_blocks.h"

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "operators/on_device.h"
#include "runtime/capture.h"
#include "scaffolding/error.h"
#include "scaffolding/stream.h"

namespace cookbook {
namespace {

// Uses that were dropped, with their events. An event belongs to a device, so each device has a list.
struct Spare {
  SpinLock lock;  // guards `first`
  StreamUse* first = nullptr;
};
std::array<Spare, kMostDevices>& spare() {
  static auto* const lists = new std::array<Spare, kMostDevices>;  // never destroyed: tensors may outlive statics
  return *lists;
}

}  // namespace

// %% stream-use-new
StreamUse* new_use(const c10::Stream& stream) {
  Spare& list = spare().at(stream.device_index());
  StreamUse* use = nullptr;
  {
    const std::lock_guard guard(list.lock);
    use = list.first;
    if (use != nullptr) list.first = use->next;
  }
  if (use == nullptr) {
    auto made = std::make_unique<StreamUse>();
    const OnDevice guard(stream.device());
    check(cookbookEventCreate(&made->event, cookbookEventDefault));
    use = made.release();
  }
  *use = {handle(stream), stream.device_index(), use->event, nullptr};
  return use;
}

void drop_use(StreamUse* use) noexcept {
  Spare& list = spare().at(use->device);
  const std::lock_guard guard(list.lock);
  use->next = std::exchange(list.first, use);
}

void lock_uses() noexcept {
  for (Spare& list : spare()) list.lock.lock();
}
void unlock_uses() noexcept {
  for (Spare& list : spare()) list.lock.unlock();
}

// %% pending-blocks-record
namespace {

// For each stream that uses the block. Without success the block cannot be waited for.
cookbookError_t record(Block* block) noexcept {
  for (StreamUse* use = block->uses; use != nullptr; use = use->next) {
    switch (const cookbookError_t error = cookbookEventRecord(use->event, use->stream)) {
      case cookbookSuccess:
        break;
      case cookbookErrorInvalidHandle:  // somebody destroyed the stream, and destroying it waited for its work
      case cookbookErrorForked:         // a child has no streams
        use->stream = nullptr;
        break;
      default:
        return error;
    }
  }
  return cookbookSuccess;
}

bool is_captured(const Block* block) noexcept {
  for (const StreamUse* use = block->uses; use != nullptr; use = use->next) {
    if (capture_of(use->stream) != 0) return true;
  }
  return false;
}

}  // namespace

// A stream that was destroyed after the record is done too: the event still answers.
bool finished(Block* block) noexcept {
  for (const StreamUse* use = block->uses; use != nullptr; use = use->next) {
    if (use->stream != nullptr && cookbookEventQuery(use->event) == cookbookErrorNotReady) return false;
  }
  while (StreamUse* use = block->uses) {
    block->uses = use->next;
    drop_use(use);
  }
  return true;
}

// %% pending-blocks-queue
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
  if (is_captured(block)) {
    deferred_.push(block);
    deferred_count_.fetch_add(1, std::memory_order_relaxed);
    return cookbookSuccess;
  }
  const cookbookError_t error = record(block);
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
    while (deferred_.first != nullptr && !is_captured(deferred_.first)) {
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
