// chapter 4
// Streams, events and the guard under threads: every thread has a current device and streams of its own, and what an
// event orders is ordered.
#include "runtime/streams.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <chrono>
#include <deque>
#include <random>
#include <set>

#include "runtime/events.h"
#include "scaffolding/device.h"
#include "scaffolding/stream.h"
#include "support.h"
#include "threads.h"

namespace {

using namespace cookbook;
using namespace tests;

// An event as PyTorch's generic code holds it, destroyed at the end of the scope.
class Event {
 public:
  ~Event() { destroy_event(event_); }
  Event() = default;
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  void record(const c10::Stream& stream) { record_event(&event_, stream, -1, c10::EventFlag::PYTORCH_DEFAULT); }
  void* get() const { return event_; }

 private:
  void* event_ = nullptr;
};

}  // namespace

TEST_CASE("streams: a pool that many threads ask at once has 32 streams") {
  constexpr int kThreads = 8, kEach = 24;  // six rounds through the pool
  std::mutex lock;                         // guards `seen`
  std::set<c10::StreamId> seen[2];
  const std::string failure = in_threads(kThreads, [&](int i) {
    const auto index = static_cast<c10::DeviceIndex>(i % 2);
    for (int k = 0; k < kEach; ++k) {
      const c10::Stream stream = new_stream(index, -1);
      expect(stream.device_index() == index, "a stream of the device that was asked for");
      expect(stream_priority(stream) == -1, "the priority that was asked for");
      check(cookbookStreamQuery(handle(stream)));
      const std::lock_guard guard(lock);
      seen[index].insert(stream.id());
    }
  });
  CHECK(failure == "");
  CHECK(seen[0].size() == 32);
  CHECK(seen[1].size() == 32);
}

// A number that kernels of three streams on two devices change, each after the one before: plain reads and writes, so
// that ThreadSanitizer says whether a wait orders them. A different host thread queues each.
TEST_CASE("events: waits across streams, devices and host threads order the work") {
  constexpr int kRounds = 120;
  std::vector<int> log;
  const c10::Stream streams[] = {new_stream(0), new_stream(1), new_stream(0)};
  std::mutex lock;  // guards `turn` and `last`
  int turn = 0;
  std::unique_ptr<Event> last;
  support::TestGate gate;
  gate.queue(handle(streams[0]));
  const std::string failure = in_threads(3, [&](int i) {
    for (int done = 0; done < kRounds;) {
      const std::lock_guard guard(lock);
      if (turn % 3 != i) {
        std::this_thread::yield();
        continue;
      }
      if (last != nullptr) block_stream(last->get(), streams[i]);
      check(support::append(handle(streams[i]), &log, turn));
      auto next = std::make_unique<Event>();
      next->record(streams[i]);
      last = std::move(next);  // the one before goes, though a wait for it is still queued
      ++turn;
      ++done;
    }
  });
  CHECK(failure == "");
  CHECK_FALSE(query_event(last->get()));
  gate.open();
  synchronize_event(last->get());
  REQUIRE(log.size() == 3 * kRounds);
  for (int i = 0; i < 3 * kRounds; ++i) CHECK(log[static_cast<size_t>(i)] == i);
}

// One event for all: recorded by some threads, waited for, asked and synchronized by others at the same time.
TEST_CASE("events: threads share one event") {
  Event event;
  const c10::Stream home = new_stream(0);
  event.record(home);  // the first record makes it; from here on its handle does not change
  std::atomic<int> recording{2};
  std::atomic<int> ran{0};
  const std::string failure = in_threads(6, [&](int i) {
    void* shared = event.get();
    if (i < 2) {
      for (int k = 0; k < 200; ++k) {
        check(cookbookLaunchHostFunc(
            handle(home), [](void* count) { static_cast<std::atomic<int>*>(count)->fetch_add(1); }, &ran));
        record_event(&shared, home, 0, c10::EventFlag::PYTORCH_DEFAULT);
      }
      --recording;
    } else {
      const c10::Stream other = new_stream(static_cast<c10::DeviceIndex>(i % 2));
      do {
        if (i < 4) {
          block_stream(shared, other);
          check(cookbookStreamSynchronize(handle(other)));
        } else if (i == 4) {
          synchronize_event(shared);
        } else {
          static_cast<void>(query_event(shared));
        }
      } while (recording.load() != 0);
    }
  });
  CHECK(failure == "");
  synchronize_event(event.get());
  CHECK(query_event(event.get()));
  CHECK(ran == 400);
}

TEST_CASE("guard: the current device and streams are each thread's own") {
  const std::string failure = in_threads(6, [&](int i) {
    std::mt19937 random(static_cast<unsigned>(i));
    expect(current_device() == 0, "a new thread on device 0");
    expect(current_stream(0).id() == 0 && current_stream(1).id() == 0, "a new thread on the default streams");
    for (int k = 0; k < 200; ++k) {
      const auto index = static_cast<c10::DeviceIndex>(random() % 2);
      const c10::Stream before = current_stream(index), inner = new_stream(index);
      const c10::DeviceIndex device = current_device();
      {
        const c10::DeviceGuard on(c10::Device(kDeviceType, index));
        const c10::StreamGuard with(inner);
        if (random() % 4 == 0) std::this_thread::yield();
        expect(current_device() == index && current_stream(index) == inner, "what this thread has made current");
        expect(current_handle(index) == handle(inner), "the handle of the current stream");
      }
      expect(current_device() == device && current_stream(index) == before, "what was current before the guards");
      if (random() % 8 == 0) exchange_stream(inner), set_device(index);
    }
  });
  CHECK(failure == "");
}
