// Runs records, waits for tickets, opens and closes streams.
#include "stream.h"

#include <sys/mman.h>
#include <time.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <system_error>

#include "address_space.h"
#include "capture.h"
#include "device.h"
#include "error.h"
#include "event.h"
#include "graph.h"
#include "shared_event.h"

namespace cookbook::driver {
namespace {
constexpr int64_t kPollForTicket = 100'000;
constexpr int64_t kLongestWait = 2'000'000;

void sleep_ns(int64_t ns) {
  timespec time{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  while (nanosleep(&time, &time) != 0 && errno == EINTR) {
  }
}
}  // namespace

// ---- running -------------------------------------------------------------------------------------------------------

bool Stream::run(uint64_t ticket, Dependency& blocker) {
  uint64_t head = head_.load(std::memory_order_relaxed);
  if (head >= ticket) return true;
  (void)tail_.load(std::memory_order_acquire);  // the records before `ticket` are visible, whoever told us the ticket
  AddressSpace& space = address_space();
  const int device = device_.index();
  cookbookKernelContext context;
  context.device = device;
  context.base = space.range(device);
  context.size = device_.capacity();
  context.to_store = space.to_store(device);
  while (head < ticket) {
    Record* record = at(head);
    const uint32_t bytes = record->bytes;
    if (!run_record(record, context, blocker)) return false;
    head += bytes;
    head_.store(head, std::memory_order_seq_cst);
    if (bell_ticket_.load(std::memory_order_seq_cst) <= head) [[unlikely]]
      ring_bell();
  }
  return true;
}

bool Stream::run_record(Record* record, cookbookKernelContext& context, Dependency& blocker) {
  // I7: these run on a failed device as well.
  if (record->kind == RecordKind::kWait) {
    blocker = *static_cast<Dependency*>(record->payload());
    return blocker.stream ? blocker.stream->done(blocker.ticket) : pass(blocker);
  }
  if (record->kind == RecordKind::kStamp) {
    auto* stamp = static_cast<TimeStamp*>(const_cast<void*>(record->target));
    stamp->set(now_ns());
    stamp->drop();
    return true;
  }
  if (record->kind == RecordKind::kSignal) {
    auto* signal = static_cast<Signal*>(const_cast<void*>(record->target));
    signal->source->finished(signal);
    return true;
  }
  if (record->kind == RecordKind::kGraph) {
    run_graph(payload_of<GraphRange>(*record), context);
    return true;
  }
  if (device_.failed()) [[unlikely]]
    return true;
  switch (record->kind) {
    case RecordKind::kKernel:
    case RecordKind::kFailingKernel:
      run_kernel(record, context);
      break;
    case RecordKind::kDelay:
      sleep_ns(*static_cast<int64_t*>(record->payload()));
      break;
    case RecordKind::kHostFunction:
      run_host_function(*static_cast<HostFunction*>(record->payload()));
      break;
    case RecordKind::kCopy: {
      const Copy copy = *static_cast<Copy*>(record->payload());
      std::memmove(copy.dst, copy.src, copy.bytes);
      break;
    }
    case RecordKind::kFill: {
      const Fill fill = *static_cast<Fill*>(record->payload());
      std::memset(fill.dst, fill.value, fill.bytes);
      break;
    }
    default:
      break;  // kFiller
  }
  return true;
}

void Stream::run_kernel(Record* record, cookbookKernelContext& context) {
  const auto* kernel = static_cast<const cookbookKernel_t*>(record->target);
  context.message[0] = '\0';
  cookbookError_t error;
  if (record->kind == RecordKind::kFailingKernel) [[unlikely]] {
    error = cookbookKernelFail(&context, cookbookErrorLaunchFailure, "injected fault");
  } else {
    try {
      error = kernel->run(&context, record->payload());
    } catch (const std::exception& exception) {  // against the contract; better a sticky error than std::terminate
      error = cookbookKernelFail(&context, cookbookErrorLaunchFailure, exception.what());
    } catch (...) {
      error = cookbookKernelFail(&context, cookbookErrorLaunchFailure, "it threw something");
    }
  }
  if (error == cookbookSuccess) [[likely]]
    return;
  context.message[sizeof(context.message) - 1] = '\0';
  const char* message = context.message[0] ? context.message : cookbookGetErrorString(error);
  char text[512];
  std::snprintf(text, sizeof(text), "kernel '%s' on device %d, stream %d failed: %s", kernel->name, device_.index(),
                id_, message);
  // The device knows two sticky errors; whatever else a kernel returns is a launch failure.
  device_.set_failed(error == cookbookErrorIllegalAddress ? error : cookbookErrorLaunchFailure, text);
}

void Stream::run_graph(const GraphRange& range, cookbookKernelContext& context) {
  // No waits are in a graph, so nothing blocks (I5), and nothing is left to do behind a failure (I7).
  Dependency none{};
  for (size_t position = range.begin; position < range.end && !device_.failed();) {
    Record* const record = range.exec->at(position);
    run_record(record, context, none);
    position += record->bytes;
  }
  range.exec->drop();
}

void Stream::run_host_function(const HostFunction& call) {
  try {
    call.function(call.user_data);
  } catch (...) {  // against the contract; it must not leave the execution right taken
    char text[128];
    std::snprintf(text, sizeof(text), "a host function on device %d, stream %d threw", device_.index(), id_);
    device_.set_failed(cookbookErrorLaunchFailure, text);
  }
}

bool Stream::pass(const Dependency& dependency) {
  RemoteEvent& event = *dependency.remote;
  if (!event.passed(dependency.ticket)) {
    event.keep();  // for the blocker
    return false;
  }
  if (!event.completed(dependency.ticket)) {  // E4
    char text[192];
    std::snprintf(text, sizeof(text),
                  "stream %d of device %d waited for an event of process %d, which ended before the event had come",
                  id_, device_.index(), event.pid());
    device_.set_failed(cookbookErrorLaunchFailure, text);
  }
  event.drop();
  return true;
}

void Stream::leave() {
  running_.unlock();
  // A pushed or half-run queue with a napping worker would wait for the nap's end. The worker looks at the right after
  // it announced the nap, so one of the two sees the other; if not, the nap is short.
  if (has_work() && rest_.load(std::memory_order_seq_cst) != kAwake) wake_worker();
}

// ---- waiting -------------------------------------------------------------------------------------------------------

void Stream::ring_bell() {
  // The exchange comes before the bell: a sleeper that registers in between has either seen the bell move, or registers
  // for a later look (await() checks head after registering).
  bell_ticket_.exchange(kNobody, std::memory_order_seq_cst);
  bell_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(bell_);
}

void Stream::await(uint64_t ticket, bool poll, bool help) {
  auto ready = [&] { return done(ticket) || (help && !running_.is_locked()); };
  if (poll && poll_for(kPollForTicket, ready) == Poll::kReady) return;
  const uint32_t bell = bell_.load(std::memory_order_seq_cst);
  uint64_t registered = bell_ticket_.load(std::memory_order_seq_cst);
  while (ticket < registered && !bell_ticket_.compare_exchange_weak(registered, ticket, std::memory_order_seq_cst)) {
  }
  if (!ready()) futex_wait(bell_, bell, kLongestWait);
}

void Stream::wait(uint64_t ticket) {
  bool poll = true;
  while (!done(ticket)) {
    // Follow the unfinished waits to a queue that can run or is being run. I4: the chain ends.
    Dependency goal{this, ticket};
    for (;;) {
      if (goal.remote) {
        const RemoteEventRef remote(goal.remote);
        remote->await(goal.ticket, poll);
        poll = false;
        break;
      }
      if (goal.stream->running_.try_lock()) {
        Dependency blocker{};
        const bool reached = goal.stream->run(goal.ticket, blocker);
        goal.stream->leave();
        if (reached) break;
        goal = blocker;
        continue;
      }
      if (!goal.stream->done(goal.ticket)) {
        goal.stream->await(goal.ticket, poll, true);
        poll = false;  // once is enough: a long kernel shall not cost a core
      }
      break;
    }
  }
}

// ---- life ----------------------------------------------------------------------------------------------------------

cookbookError_t Stream::record_or_refuse(RecordKind kind, const void* target, size_t payload_bytes, WriteCall call,
                                         void* write) {
  const std::shared_ptr<Capture> capture = this->capture();
  if (!capture) return fail(cookbookErrorInvalidHandle, "the stream was destroyed");
  return capture->record(*this, kind, target, payload_bytes,
                         [&](void* payload, StreamCounters& counters) { call(write, payload, counters); });
}

std::shared_ptr<Capture> Stream::capture() {
  if (state_.load(std::memory_order_acquire) != StreamState::kCapturing) [[likely]]
    return nullptr;
  const std::lock_guard lock(producer_);
  return capture_;
}

bool Stream::enter_capture(std::shared_ptr<Capture> capture) {
  const std::lock_guard lock(producer_);
  if (state_.load(std::memory_order_relaxed) != StreamState::kAlive) return false;
  capture_ = std::move(capture);
  state_.store(StreamState::kCapturing, std::memory_order_release);
  return true;
}

void Stream::leave_capture() {
  std::shared_ptr<Capture> capture;  // freed without the lock
  const std::lock_guard lock(producer_);
  capture = std::move(capture_);
  state_.store(StreamState::kAlive, std::memory_order_release);
}

cookbookError_t Stream::start() {
  if (!ring_) {
    void* ring = mmap(nullptr, kRing, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ring == MAP_FAILED) return fail(cookbookErrorOutOfMemory, "no host memory for a stream's queue");
    ring_ = static_cast<char*>(ring);
  }
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    return fail(cookbookErrorOutOfMemory, "cannot start a stream's thread: %s", error.what());
  }
  started_ = true;
  return cookbookSuccess;
}

void Stream::open(int priority) {
  priority_.store(priority, std::memory_order_relaxed);
  state_.store(StreamState::kAlive, std::memory_order_release);
}

bool Stream::close() {
  const std::lock_guard lock(producer_);
  if (state_.load(std::memory_order_relaxed) != StreamState::kAlive) return false;
  state_.store(StreamState::kClosing, std::memory_order_relaxed);
  return true;
}

void Stream::stop_worker() {
  const std::lock_guard life(life_);
  {
    const std::lock_guard lock(producer_);
    if (!started_) return;
  }
  // Pushes go on meanwhile and find started_ set. The thread runs everything it sees and ends; what came too late for
  // it gets a new thread below. Two threads at once would both use rest_.
  stop_.store(true, std::memory_order_seq_cst);
  wake_worker();
  thread_.join();
  stop_.store(false, std::memory_order_seq_cst);
  const std::lock_guard lock(producer_);
  started_ = false;
  if (has_work()) (void)start();  // without a thread a waiting host thread still runs the queue
}

void Stream::release() {
  stop_worker();
  // A host thread that waited for an old ticket may still hold the right for a moment; it reads no record (I2).
  const std::lock_guard right(running_);
  const std::lock_guard lock(producer_);
  if (ring_) munmap(ring_, kRing);
  ring_ = nullptr;
  state_.store(StreamState::kFree, std::memory_order_release);
}

}  // namespace cookbook::driver
