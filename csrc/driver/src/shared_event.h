// Events that processes share: the newest version and how far it has come, in memory that both map.
//
// Words: the *source* is the event in the process that made it, a *remote* event is what another process opened. Only
// the source is recorded.
//
// Invariants
//  E1  completed <= recorded. Version v is recorded when its signal stands in a stream's queue, and so do those of all
//      versions before; it is completed when its signal has run, and so have all before. So two numbers tell all.
//  E2  Who waits for version v has read it from `recorded`. With E1 the wait is for signals that were queued before it
//      in time, also those of earlier versions: I4 (stream.h) holds over all processes.
//  E3  A slot is given to another event only after its last signal has run; `number` then changes. So a wait may stay
//      when its event is destroyed: it has finished when the number is another one.
//  E4  A signal runs on a failed device too (I7). A process that ends without running its signals is noticed by those
//      who wait (they look every few milliseconds): their wait passes, and their device fails with the reason.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "cookbook_driver.h"
#include "process.h"
#include "spin.h"

namespace cookbook::driver {

// In the shared memory. All zero is a free slot.
struct alignas(64) SharedEvent {
  std::atomic<uint64_t> number;  // unlike that of any other event; 0: free
  std::atomic<uint64_t> recorded, completed;
  std::atomic<uint32_t> bell, sleepers;
};
static_assert(sizeof(SharedEvent) == 64 && std::atomic<uint64_t>::is_always_lock_free);
constexpr size_t kSharedEvents = 4096;  // of a process, alive at once

// ---- in the process that made the event ----------------------------------------------------------------------------

class EventSource;

// A version on its way through a queue. Owned by its source.
struct Signal {
  EventSource* source;
  uint64_t version;
  bool queued = false, finished = false;
  Signal* next = nullptr;
};

// lock_ guards everything but the shared slot's sleepers.
class EventSource {
 public:
  // A free slot; null, with an error, when there is none.
  static cookbookError_t acquire(EventSource*& source);

  uint64_t number() const { return slot_->number.load(std::memory_order_relaxed); }
  uint32_t entry() const { return entry_; }
  static int file();
  // Takes the next version; null when the source is not the event `number` any more.
  Signal* begin(uint64_t number);
  void queued(Signal* signal);    // its record is in a queue
  void finished(Signal* signal);  // its record has run
  void abandon(Signal* signal);   // it could not be queued
  void retire();                  // the event was destroyed

 private:
  friend class EventSources;
  EventSource(SharedEvent* slot, uint32_t entry) : slot_(slot), entry_(entry) {}
  template <class Change>
  void change(Change&& change);

  SpinLock lock_;
  SharedEvent* const slot_;
  const uint32_t entry_;
  uint64_t next_version_ = 0;
  bool retired_ = false;
  Signal *oldest_ = nullptr, *newest_ = nullptr, *first_unqueued_ = nullptr;
};

// ---- in a process that opened it -----------------------------------------------------------------------------------

struct RemoteProcess;

// Owned by reference count: one for the opened event, one for each queued wait, one for who looks at it now.
class RemoteEvent {
 public:
  static cookbookError_t open(const ProcessId& process, int file, uint64_t inode, uint32_t entry, uint64_t number,
                              RemoteEvent*& event);
  void keep() { references_.fetch_add(1, std::memory_order_relaxed); }
  void drop() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  uint64_t recorded() const { return slot_->recorded.load(std::memory_order_seq_cst); }
  bool completed(uint64_t version) const {
    return slot_->completed.load(std::memory_order_seq_cst) >= version ||
           slot_->number.load(std::memory_order_seq_cst) != number_;
  }
  // Nothing is left to wait for: completed, or the process has ended.
  bool passed(uint64_t version) const;
  // Waits a bounded time.
  void await(uint64_t version, bool poll);
  int32_t pid() const;

 private:
  RemoteEvent(std::shared_ptr<RemoteProcess> process, SharedEvent* slot, uint64_t number);
  ~RemoteEvent();

  std::atomic<int> references_{1};
  const std::shared_ptr<RemoteProcess> process_;
  SharedEvent* const slot_;
  const uint64_t number_;
};

// One reference.
class RemoteEventRef {
 public:
  RemoteEventRef() = default;
  explicit RemoteEventRef(RemoteEvent* event) : event_(event) {}  // takes it over
  RemoteEventRef(RemoteEventRef&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  RemoteEventRef& operator=(RemoteEventRef&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~RemoteEventRef() {
    if (event_) event_->drop();
  }
  RemoteEvent* get() const { return event_; }
  RemoteEvent* operator->() const { return event_; }
  explicit operator bool() const { return event_ != nullptr; }

 private:
  RemoteEvent* event_ = nullptr;
};

}  // namespace cookbook::driver
