// Events: versions, waits that keep theirs, time, and lifetimes.
#include <chrono>
#include <limits>
#include <thread>

#include "support.h"

using namespace support;

TEST_CASE("a query tells the newest version") {
  TestStream stream;
  TestEvent event;
  CHECK_OK(cookbookEventQuery(event));  // never recorded
  CHECK_OK(cookbookEventSynchronize(event));
  CHECK_OK(cookbookStreamWaitEvent(stream, event));
  REQUIRE_OK(cookbookEventRecord(event, stream));
  CHECK_OK(cookbookEventSynchronize(event));
  TestGate gate;
  gate.queue(stream);
  CHECK_OK(cookbookEventQuery(event));  // recorded before the gate
  REQUIRE_OK(cookbookEventRecord(event, stream));
  gate.wait_until_reached();
  CHECK(cookbookEventQuery(event) == cookbookErrorNotReady);
  gate.open();
  CHECK_OK(cookbookEventSynchronize(event));
  CHECK_OK(cookbookEventQuery(event));
}

TEST_CASE("a wait keeps its version when the event is recorded again") {
  TestStream first, second;
  TestEvent event;
  std::vector<int> list;
  TestGate early, late;
  early.queue(first);
  REQUIRE_OK(cookbookEventRecord(event, first));
  REQUIRE_OK(cookbookStreamWaitEvent(second, event));
  REQUIRE_OK(append(second, &list, 1));
  late.queue(first);
  REQUIRE_OK(cookbookEventRecord(event, first));  // while the first version has not finished
  early.open();
  REQUIRE_OK(cookbookStreamSynchronize(second));  // needs the first version only
  CHECK(list == std::vector<int>{1});
  CHECK(cookbookEventQuery(event) == cookbookErrorNotReady);
  late.open();
  CHECK_OK(cookbookEventSynchronize(event));
}

TEST_CASE("a stream may wait for an event and then record it itself") {
  TestStream first, second;
  TestEvent event;
  TestGate gate;
  gate.queue(first);
  REQUIRE_OK(cookbookEventRecord(event, first));
  REQUIRE_OK(cookbookStreamWaitEvent(second, event));
  REQUIRE_OK(cookbookEventRecord(event, second));  // the wait stands before the record that replaces it
  CHECK(cookbookEventQuery(event) == cookbookErrorNotReady);
  gate.open();
  CHECK_OK(cookbookEventSynchronize(event));
  CHECK_OK(cookbookStreamSynchronize(second));
  REQUIRE_OK(cookbookStreamWaitEvent(second, event));  // its own
  CHECK_OK(cookbookStreamSynchronize(second));
}

TEST_CASE("events order streams of different devices, and are recorded on their own device only") {
  TestEvent event;
  TestStream own(0), other(1);
  std::vector<int> list;
  TestGate gate;
  gate.queue(own);
  REQUIRE_OK(append(own, &list, 1));
  REQUIRE_OK(cookbookEventRecord(event, own));
  REQUIRE_OK(cookbookStreamWaitEvent(other, event));
  REQUIRE_OK(append(other, &list, 2));
  CHECK(cookbookStreamQuery(other) == cookbookErrorNotReady);
  gate.open();
  REQUIRE_OK(cookbookStreamSynchronize(other));
  CHECK(list == std::vector<int>{1, 2});
  CHECK(cookbookEventRecord(event, other) == cookbookErrorInvalidHandle);
  CHECK(contains(last_message(), "device 0"));
  CHECK(contains(last_message(), "device 1"));
}

TEST_CASE("an event is destroyed while a wait and a record are queued") {
  TestStream first, second;
  // One for each event: what the first stream does for the second event is not ordered with what waited for the first.
  std::vector<int> lists[2];
  TestGate gate;
  gate.queue(first);
  for (unsigned flags : {unsigned{cookbookEventDefault}, unsigned{cookbookEventTiming}}) {
    std::vector<int>* const list = &lists[flags == cookbookEventTiming];
    cookbookEvent_t event = nullptr;
    REQUIRE_OK(cookbookEventCreate(&event, flags));
    REQUIRE_OK(append(first, list, 0));
    REQUIRE_OK(cookbookEventRecord(event, first));
    REQUIRE_OK(cookbookStreamWaitEvent(second, event));
    REQUIRE_OK(append(second, list, 1));
    CHECK_OK(cookbookEventDestroy(event));
  }
  CHECK(cookbookStreamQuery(second) == cookbookErrorNotReady);
  gate.open();
  REQUIRE_OK(cookbookStreamSynchronize(second));
  for (const std::vector<int>& list : lists) CHECK(list == std::vector<int>{0, 1});
}

TEST_CASE("elapsed time is the device's time, not the host's") {
  TestStream stream;
  TestEvent begin(cookbookEventTiming), end(cookbookEventTiming);
  float ms = -1;
  TestGate gate;
  gate.queue(stream);
  REQUIRE_OK(cookbookEventRecord(begin, stream));
  REQUIRE_OK(work_for(stream, 8000));
  REQUIRE_OK(cookbookEventRecord(end, stream));
  CHECK(cookbookEventElapsedTime(&ms, begin, end) == cookbookErrorNotReady);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));  // host time between the records and the run
  gate.open();
  REQUIRE_OK(cookbookEventSynchronize(end));
  REQUIRE_OK(cookbookEventElapsedTime(&ms, begin, end));
  CHECK(ms >= 8.0f);
  CHECK(ms < 400.0f);
  float back = 0;
  REQUIRE_OK(cookbookEventElapsedTime(&back, end, begin));
  CHECK(back == -ms);
}

TEST_CASE("elapsed time needs timing, a record, and one device") {
  TestStream stream, other(1);
  TestEvent timing(cookbookEventTiming), plain, never(cookbookEventTiming);
  REQUIRE_OK(cookbookEventRecord(timing, stream));
  REQUIRE_OK(cookbookEventRecord(plain, stream));
  REQUIRE_OK(cookbookStreamSynchronize(stream));
  float ms = 0;
  CHECK(cookbookEventElapsedTime(&ms, timing, plain) == cookbookErrorInvalidHandle);
  CHECK(contains(last_message(), "cookbookEventTiming"));
  CHECK(cookbookEventElapsedTime(&ms, timing, never) == cookbookErrorInvalidHandle);
  CHECK(cookbookEventElapsedTime(nullptr, timing, timing) == cookbookErrorInvalidValue);
  CHECK_OK(cookbookEventElapsedTime(&ms, timing, timing));
  CHECK(ms == 0.0f);
  REQUIRE_OK(cookbookSetDevice(1));
  {
    TestEvent foreign(cookbookEventTiming);
    REQUIRE_OK(cookbookEventRecord(foreign, other));
    REQUIRE_OK(cookbookEventSynchronize(foreign));
    CHECK(cookbookEventElapsedTime(&ms, timing, foreign) == cookbookErrorInvalidHandle);
  }
  REQUIRE_OK(cookbookSetDevice(0));
  cookbookEvent_t event = nullptr;
  CHECK(cookbookEventCreate(&event, 6) == cookbookErrorInvalidValue);
}

TEST_CASE("threads record, wait for, query and synchronize one event") {
  TestStream first, second;
  TestEvent event(cookbookEventTiming);
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 1000; ++i) {
        cookbookStream_t stream = (i + thread) % 2 ? first : second;
        cookbookError_t error = cookbookSuccess;
        switch ((i + thread) % 4) {
          case 0:
            error = cookbookEventRecord(event, stream);
            break;
          case 1:
            error = cookbookStreamWaitEvent(stream, event);
            break;
          case 2:
            error = cookbookEventQuery(event);
            break;
          default:
            error = cookbookEventSynchronize(event);
            break;
        }
        if (error != cookbookSuccess && error != cookbookErrorNotReady) ++failed;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(failed.load() == 0);
  CHECK_OK(cookbookEventSynchronize(event));
}
