// A stream: a ring of records, a ticket for each position, and the right to run it.
//
// Words: a *record* is one unit of queued work. A *ticket* is a byte position in the endless sequence of records: the
// work "queued so far" is the ticket tail(), and it has finished when done(ticket), that is head >= ticket. So an event
// is a (stream, ticket) pair, recording costs a load, and a query is exact.
//
// Invariants
//  I1  head <= tail <= head + ring size. Both only grow, also over destruction and reuse of the stream's slot: a ticket
//      stays true for ever, and slots are never freed. So whoever holds a (stream, ticket) pair needs no reference.
//  I2  Only the holder of the execution right (running_) reads records and moves head. It moves head past a record only
//      after the record has run or was dropped. The order is the ring's order, whoever runs it.
//  I3  Only the holder of the producer lock (producer_) writes records and moves tail. No thread waits,
//      runs a record or makes a system call that blocks under it (starting the thread apart).
//  I4  A queued wait names a ticket that was a tail when the wait was queued, or a version of another process's event
//      that was recorded by then (shared_event.h). Hence every record waits only for records that were queued before it
//      in time: no cycle can exist, and among all unfinished records the oldest one can run.
//  I5  Nobody blocks while it has an execution right: a runner that meets an unfinished wait leaves head in front of
//  it,
//      gives the right back and then waits for the other stream (the worker) or runs the other stream (a host thread,
//      see wait()). With I4 and I6 that means that waiting always ends if the kernels do.
//  I6  A worker sleeps without a time limit only after it announced so (kAsleep) and then found the queue empty; a
//      producer moves tail and then looks for the announcement (both seq_cst), so one of them sees the other. All other
//      sleeps are bounded: naps by 50 us to 1 ms, waits for a ticket by 2 ms. A lost wake-up costs time, never
//      progress.
//  I7  After a failure on the device records are dropped, waits, time stamps and signals apart; head moves on as ever.
//      So nobody hangs on a failed device, neither its own waiters nor the streams of another.
//
// Locks: producer_ guards ring_ (creation), head_seen_, state_, capture_, the counters and the start of the thread;
// life_ guards the joining of the thread. Order: life_ before running_ before producer_.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>

#include "cookbook_driver.h"
#include "spin.h"

namespace cookbook::driver {

class Capture;
class Device;
class RemoteEvent;
class Stream;
struct GraphRange;

enum class RecordKind : uint32_t {
  kFiller,         // to the end of the ring
  kKernel,         // target: cookbookKernel_t
  kFailingKernel,  // the same, with an injected failure
  kDelay,          // int64_t: nanoseconds
  kHostFunction,   // HostFunction
  kCopy,           // Copy
  kFill,           // Fill
  kWait,           // Dependency
  kStamp,          // target: TimeStamp (event.h), one reference
  kSignal,         // target: Signal (shared_event.h)
  kGraph           // GraphRange (graph.h)
};

struct Record {
  const void* target;
  uint32_t bytes;  // of the whole record, a multiple of 64
  RecordKind kind;
  void* payload() { return this + 1; }
};
static_assert(sizeof(Record) == 16, "payloads are 16-byte aligned behind it");

constexpr size_t record_bytes(size_t payload_bytes) { return (sizeof(Record) + payload_bytes + 63) / 64 * 64; }
template <class T>
T payload_of(const Record& record) {
  T payload;
  std::memcpy(&payload, &record + 1, sizeof(payload));
  return payload;
}

struct HostFunction {
  void (*function)(void*);
  void* user_data;
};
// Addresses are those of the stores, or of host memory.
struct Copy {
  void* dst;
  const void* src;
  size_t bytes;
};
struct Fill {
  void* dst;
  size_t bytes;
  int value;
};
// What a wait waits for: a ticket of a stream, or a version of an event of another process. A queued one owns a
// reference to the event, and so does one that is taken out of the queue (run()).
struct Dependency {
  Stream* stream;  // null: a remote event
  uint64_t ticket;
  RemoteEvent* remote = nullptr;
};

// One writer at a time (the producer lock), read by anybody.
class Counter {
 public:
  void add(uint64_t n) { value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct StreamCounters {
  Counter launches, host_functions, copies, fills;
  Counter bytes_host_to_device, bytes_device_to_host, bytes_device_to_device, bytes_peer;
  std::atomic<uint64_t> event_records{0}, event_waits{0};  // also counted without the producer lock

  // What a graph's work counts; events are none of it.
  void add(const StreamCounters& other) {
    launches.add(other.launches.value());
    host_functions.add(other.host_functions.value());
    copies.add(other.copies.value());
    fills.add(other.fills.value());
    bytes_host_to_device.add(other.bytes_host_to_device.value());
    bytes_device_to_host.add(other.bytes_device_to_host.value());
    bytes_device_to_device.add(other.bytes_device_to_device.value());
    bytes_peer.add(other.bytes_peer.value());
  }
};

enum class StreamState : uint32_t { kFree, kAlive, kCapturing, kClosing };

// A page each: that keeps the streams' lines apart, and a handle can be checked without touching it (stream_table.h).
class alignas(4096) Stream {
 public:
  Stream(Device& device, int id) : device_(device), id_(id) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  int id() const { return id_; }  // 0 is the device's default stream
  int priority() const { return priority_.load(std::memory_order_relaxed); }
  bool alive() const {
    const StreamState state = state_.load(std::memory_order_acquire);
    return state == StreamState::kAlive || state == StreamState::kCapturing;
  }
  const StreamCounters& counters() const { return counters_; }
  StreamCounters& counters() { return counters_; }

  uint64_t tail() const { return tail_.load(std::memory_order_acquire); }
  bool done(uint64_t ticket) const { return head_.load(std::memory_order_seq_cst) >= ticket; }

  // Queues a record. `write(payload, counters)` fills it in under the producer lock. `ticket`, if given, gets the end
  // of the record. Blocks while the ring is full. While the stream is captured the record becomes a node of the graph
  // instead, and `ticket` stays as it is.
  template <class Write>
  cookbookError_t push(RecordKind kind, const void* target, size_t payload_bytes, Write&& write,
                       uint64_t* ticket = nullptr);
  // Runs `body` on the calling thread, in the order of the queue, if nothing is queued and nobody runs. False: not run.
  template <class Body>
  bool run_if_idle(Body&& body);
  // Calls `count(counters)` under the producer lock, for work that needs no record.
  template <class Count>
  void count(Count&& count) {
    const std::lock_guard lock(producer_);
    count(counters_);
  }
  // The calling thread waits, and runs the queue (and those that it depends on) when nobody else does.
  void wait(uint64_t ticket);

  // The capture that the stream is in, or null.
  std::shared_ptr<Capture> capture();
  // False when the stream is not alive, or is in a capture already.
  bool enter_capture(std::shared_ptr<Capture> capture);
  void leave_capture();

  void open(int priority);  // a free slot becomes a stream
  // Refuses new work from now on. False when another thread was first, or the stream is not alive.
  bool close();
  void release();      // after close() and wait(): ends the thread, gives the ring back
  void stop_worker();  // runs what is queued, joins the thread; a later push starts one again

 private:
  enum : uint32_t { kAwake, kNapping, kAsleep };
  static constexpr uint64_t kRing = uint64_t{1} << 20;
  static constexpr uint64_t kBacklog = 64 * 128;  // 64 launches of usual size end a nap
  static constexpr uint64_t kNobody = UINT64_MAX;

  Record* at(uint64_t position) { return reinterpret_cast<Record*>(ring_ + (position & (kRing - 1))); }

  // Running, in stream.cpp. run() needs the right; false: it stands at an unfinished wait, which is in `blocker`, with
  // a reference of its own if it is a remote one.
  bool run(uint64_t ticket, Dependency& blocker);
  bool run_record(Record* record, cookbookKernelContext& context, Dependency& blocker);
  void run_kernel(Record* record, cookbookKernelContext& context);
  void run_graph(const GraphRange& range, cookbookKernelContext& context);
  void run_host_function(const HostFunction& call);
  bool pass(const Dependency& dependency);
  void ring_bell();
  void leave();  // gives the right back, and the worker a push if work is left
  // Waits a bounded time for the ticket; with `help` also until the right is free.
  void await(uint64_t ticket, bool poll, bool help);
  // What push() does with a stream that is not plainly alive.
  using WriteCall = void (*)(void* write, void* payload, StreamCounters& counters);
  cookbookError_t record_or_refuse(RecordKind kind, const void* target, size_t payload_bytes, WriteCall call,
                                   void* write);
  cookbookError_t start();  // needs producer_

  // The thread, in worker.cpp.
  void work();
  void idle(int64_t& poll_ns);
  void wake_worker();
  bool has_work() const { return head_.load(std::memory_order_seq_cst) != tail_.load(std::memory_order_seq_cst); }

  // Written once a push; a worker that waits for work reads it all the time, so nothing else may share its line.
  alignas(64) std::atomic<uint64_t> tail_{0};

  // Written by producers.
  alignas(64) SpinLock producer_;
  bool started_ = false;
  std::atomic<StreamState> state_{StreamState::kFree};
  uint64_t head_seen_ = 0;  // saves producers a look at the runner's line
  StreamCounters counters_;
  std::shared_ptr<Capture> capture_;  // while the state is kCapturing

  // Written by the runner.
  alignas(64) std::atomic<uint64_t> head_{0};
  SpinLock running_;  // the execution right

  // Written when somebody goes to sleep.
  alignas(64) std::atomic<uint32_t> rest_{kAwake};
  std::atomic<uint32_t> bell_{0};               // moves when the ticket that sleepers wait for has passed
  std::atomic<uint64_t> bell_ticket_{kNobody};  // the smallest of those tickets
  std::atomic<bool> stop_{false};

  // Rarely written.
  alignas(64) Device& device_;
  const int id_;
  std::atomic<int> priority_{0};
  char* ring_ = nullptr;  // written under producer_ before the first record, and by release()
  std::mutex life_;
  std::thread thread_;
};

template <class Write>
cookbookError_t Stream::push(RecordKind kind, const void* target, size_t payload_bytes, Write&& write,
                             uint64_t* ticket) {
  const auto bytes = static_cast<uint32_t>(record_bytes(payload_bytes));
  producer_.lock();
  uint64_t tail, to_end;
  for (;;) {
    if (state_.load(std::memory_order_relaxed) != StreamState::kAlive) [[unlikely]] {
      producer_.unlock();
      using Writer = std::remove_reference_t<Write>;
      return record_or_refuse(
          kind, target, payload_bytes,
          [](void* call, void* payload, StreamCounters& counters) { (*static_cast<Writer*>(call))(payload, counters); },
          const_cast<void*>(static_cast<const void*>(&write)));
    }
    if (!started_) [[unlikely]] {
      if (cookbookError_t error = start(); error != cookbookSuccess) {
        producer_.unlock();
        return error;
      }
    }
    tail = tail_.load(std::memory_order_relaxed);
    to_end = kRing - (tail & (kRing - 1));
    const uint64_t end = tail + (bytes > to_end ? to_end : 0) + bytes;
    if (end - head_seen_ <= kRing) [[likely]]
      break;
    head_seen_ = head_.load(std::memory_order_acquire);
    if (end - head_seen_ <= kRing) break;
    // Full. Waiting runs records, which no lock may cover (I3). An eighth of the ring more than needed, so that the
    // next pushes do not come back one by one.
    producer_.unlock();
    wait(std::min(tail, end - kRing + kRing / 8));
    producer_.lock();
  }
  if (bytes > to_end) [[unlikely]] {
    Record* filler = at(tail);
    filler->target = nullptr;
    filler->bytes = static_cast<uint32_t>(to_end);
    filler->kind = RecordKind::kFiller;
    tail += to_end;
  }
  Record* record = at(tail);
  record->target = target;
  record->bytes = bytes;
  record->kind = kind;
  write(record->payload(), counters_);
  tail += bytes;
  if (ticket) *ticket = tail;
  tail_.store(tail, std::memory_order_seq_cst);  // I6
  producer_.unlock();
  const uint32_t rest = rest_.load(std::memory_order_seq_cst);
  if (rest != kAwake) [[unlikely]] {
    if (rest == kAsleep || tail - head_.load(std::memory_order_relaxed) > kBacklog) wake_worker();
  }
  return cookbookSuccess;
}

template <class Body>
bool Stream::run_if_idle(Body&& body) {
  if (!alive() || has_work() || !running_.try_lock()) return false;
  const bool idle = !has_work();
  if (idle) body();
  leave();
  return idle;
}

}  // namespace cookbook::driver
