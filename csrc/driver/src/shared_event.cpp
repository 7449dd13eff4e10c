// The table of a process's shared events, their versions, and the waits of other processes.
#include "shared_event.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

#include "error.h"

namespace cookbook::driver {

using Guard = std::lock_guard<SpinLock>;

namespace {

constexpr size_t kTableBytes = kSharedEvents * sizeof(SharedEvent);
constexpr int64_t kPollForVersion = 100'000;
constexpr int64_t kLongestWait = 2'000'000;

SharedEvent* map_table(int file) {
  void* table = mmap(nullptr, kTableBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return table == MAP_FAILED ? nullptr : static_cast<SharedEvent*>(table);
}

}  // namespace

// ---- sources -------------------------------------------------------------------------------------------------------

// Made with the first interprocess event and never destroyed. mutex_ guards everything.
class EventSources {
 public:
  cookbookError_t acquire(EventSource*& source) {
    const std::lock_guard lock(mutex_);
    if (file_ < 0) {
      const int file = memfd_create("cookbook_events", MFD_CLOEXEC);
      if (file >= 0 && ftruncate(file, static_cast<off_t>(kTableBytes)) == 0) table_ = map_table(file);
      if (!table_) {
        const int error = errno;
        if (file >= 0) close(file);
        return fail(cookbookErrorOutOfMemory, "no memory for events that processes share: %s", std::strerror(error));
      }
      file_ = file;
    }
    if (!free_.empty()) {
      source = free_.back();
      free_.pop_back();
    } else {
      if (sources_.size() == kSharedEvents) {
        return fail(cookbookErrorOutOfMemory, "the process has %zu interprocess events, its limit: destroy some",
                    kSharedEvents);
      }
      free_.reserve(kSharedEvents);  // give_back() must not need memory
      const auto entry = static_cast<uint32_t>(sources_.size());
      sources_.emplace_back(new EventSource(&table_[entry], entry));
      source = sources_.back();
    }
    const Guard own(source->lock_);  // a late begin() may look
    source->next_version_ = 0;
    source->retired_ = false;
    source->slot_->recorded.store(0, std::memory_order_relaxed);
    source->slot_->completed.store(0, std::memory_order_relaxed);
    source->slot_->number.store(unique_number(), std::memory_order_seq_cst);
    return cookbookSuccess;
  }
  void give_back(EventSource* source) {
    const std::lock_guard lock(mutex_);
    free_.push_back(source);
  }
  int file() {
    const std::lock_guard lock(mutex_);
    return file_;
  }

 private:
  std::mutex mutex_;
  int file_ = -1;
  SharedEvent* table_ = nullptr;
  std::deque<EventSource*> sources_;
  std::vector<EventSource*> free_;
};

namespace {
EventSources& sources() {
  static auto* all = new EventSources;
  return *all;
}
}  // namespace

cookbookError_t EventSource::acquire(EventSource*& source) { return sources().acquire(source); }
int EventSource::file() { return sources().file(); }

Signal* EventSource::begin(uint64_t number) {
  auto signal = std::make_unique<Signal>();
  signal->source = this;
  const Guard lock(lock_);
  if (retired_ || this->number() != number) return nullptr;
  signal->version = ++next_version_;
  (newest_ ? newest_->next : oldest_) = signal.get();
  newest_ = signal.get();
  if (!first_unqueued_) first_unqueued_ = newest_;
  return signal.release();
}

// Changes a signal, then moves `recorded` and `completed` as far as E1 lets them.
template <class Change>
void EventSource::change(Change&& change) {
  bool ring = false, free = false;
  Signal* done = nullptr;
  {
    const Guard lock(lock_);
    change();
    for (; first_unqueued_ && first_unqueued_->queued; first_unqueued_ = first_unqueued_->next)
      slot_->recorded.store(first_unqueued_->version, std::memory_order_seq_cst);
    while (oldest_ && oldest_ != first_unqueued_ && oldest_->finished) {
      Signal* const signal = oldest_;
      slot_->completed.store(signal->version, std::memory_order_seq_cst);
      oldest_ = signal->next;
      if (!oldest_) newest_ = nullptr;
      signal->next = done;
      done = signal;
      ring = true;
    }
    if (retired_ && !oldest_ && number() != 0) {
      slot_->number.store(0, std::memory_order_seq_cst);
      ring = free = true;
    }
  }
  if (ring) {
    slot_->bell.fetch_add(1, std::memory_order_seq_cst);
    if (slot_->sleepers.load(std::memory_order_seq_cst)) futex_wake_all(slot_->bell, kShared);
  }
  while (done) {
    Signal* const next = done->next;
    delete done;
    done = next;
  }
  if (free) sources().give_back(this);
}

void EventSource::queued(Signal* signal) {
  change([&] { signal->queued = true; });
}
void EventSource::finished(Signal* signal) {
  change([&] { signal->finished = true; });
}
void EventSource::abandon(Signal* signal) {
  change([&] { signal->queued = signal->finished = true; });
}
void EventSource::retire() {
  change([&] { retired_ = true; });
}

// ---- remote events -------------------------------------------------------------------------------------------------

// The table of another process's events, mapped here.
struct RemoteProcess {
  RemoteProcess(const ProcessId& id, SharedEvent* table) : id(id), watch(watch_process(id)), table(table) {}
  ~RemoteProcess() {
    munmap(table, kTableBytes);
    if (watch >= 0) close(watch);
  }
  RemoteProcess(const RemoteProcess&) = delete;
  RemoteProcess& operator=(const RemoteProcess&) = delete;

  const ProcessId id;
  const int watch;
  SharedEvent* const table;
  std::atomic<bool> ended{false};
};

namespace {

// Those with an open event or a queued wait. The mutex guards the list.
struct RemoteProcesses {
  std::mutex mutex;
  std::vector<std::weak_ptr<RemoteProcess>> list;
};
RemoteProcesses& remote_processes() {
  static auto* all = new RemoteProcesses;
  return *all;
}

cookbookError_t find_process(const ProcessId& id, int file, uint64_t inode, std::shared_ptr<RemoteProcess>& process) {
  RemoteProcesses& all = remote_processes();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.list, [](const auto& entry) { return entry.expired(); });
  for (const auto& entry : all.list)
    if ((process = entry.lock()) && process->id == id) break;
  // Also for a known one: it tells whether the process still runs and may be looked into.
  int opened = -1;
  if (cookbookError_t error = open_file_of(id, file, inode, opened); error != cookbookSuccess) return error;
  if (!process || !(process->id == id)) {
    if (SharedEvent* const table = map_table(opened)) {
      process = std::make_shared<RemoteProcess>(id, table);
      all.list.push_back(process);
    } else {
      process = nullptr;
    }
  }
  close(opened);
  return process ? cookbookSuccess : fail(cookbookErrorOutOfMemory, "cannot map the events of process %d", id.pid);
}

}  // namespace

RemoteEvent::RemoteEvent(std::shared_ptr<RemoteProcess> process, SharedEvent* slot, uint64_t number)
    : process_(std::move(process)), slot_(slot), number_(number) {}
RemoteEvent::~RemoteEvent() = default;

cookbookError_t RemoteEvent::open(const ProcessId& id, int file, uint64_t inode, uint32_t entry, uint64_t number,
                                  RemoteEvent*& event) {
  if (entry >= kSharedEvents) return fail(cookbookErrorInvalidHandle, "the handle names no event");
  std::shared_ptr<RemoteProcess> process;
  if (cookbookError_t error = find_process(id, file, inode, process); error != cookbookSuccess) return error;
  SharedEvent* const slot = &process->table[entry];
  if (slot->number.load(std::memory_order_seq_cst) != number) {
    return fail(cookbookErrorInvalidHandle, "the event was destroyed by process %d, which made the handle", id.pid);
  }
  event = new RemoteEvent(std::move(process), slot, number);
  return cookbookSuccess;
}

int32_t RemoteEvent::pid() const { return process_->id.pid; }

bool RemoteEvent::passed(uint64_t version) const {
  return completed(version) || process_->ended.load(std::memory_order_acquire);
}

void RemoteEvent::await(uint64_t version, bool poll) {
  auto ready = [&] { return passed(version); };
  if (poll && poll_for(kPollForVersion, ready) == Poll::kReady) return;
  const uint32_t bell = slot_->bell.load(std::memory_order_seq_cst);
  slot_->sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (!ready()) futex_wait(slot_->bell, bell, kLongestWait, kShared);
  slot_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
  if (!ready() && !still_runs(process_->id, process_->watch)) process_->ended.store(true, std::memory_order_release);
}

}  // namespace cookbook::driver
