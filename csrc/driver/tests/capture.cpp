// Captures: what is recorded, who joins, and what makes a capture invalid.
#include <cstdio>
#include <functional>
#include <thread>

#include "support.h"

using namespace support;

namespace {

cookbookCaptureStatus status_of(cookbookStream_t stream) {
  cookbookCaptureStatus status;
  REQUIRE_OK(cookbookStreamIsCapturing(stream, &status));
  return status;
}

cookbookCounters counters_of(int device) {
  cookbookCounters counters;
  REQUIRE_OK(cookbookGetCounters(&counters, device));
  return counters;
}

// An invalid capture of `stream` ends with the first reason, and the stream works again.
void check_ends_invalid(cookbookStream_t stream, const std::string& reason) {
  std::vector<int> list;
  CHECK(status_of(stream) == cookbookCaptureInvalidated);
  CHECK(append(stream, &list, 1) == cookbookErrorStreamCaptureInvalidated);
  CHECK_MESSAGE(contains(last_message(), reason), last_message());
  cookbookGraph_t graph = reinterpret_cast<cookbookGraph_t>(&list);
  CHECK(cookbookStreamEndCapture(stream, &graph) == cookbookErrorStreamCaptureInvalidated);
  CHECK_MESSAGE(contains(last_message(), reason), last_message());
  CHECK(graph == nullptr);
  CHECK(status_of(stream) == cookbookCaptureNone);
  CHECK_OK(append(stream, &list, 2));
  CHECK_OK(cookbookStreamSynchronize(stream));
  CHECK(list == std::vector<int>{2});
}

}  // namespace

// ---- recording -----------------------------------------------------------------------------------------------------

TEST_CASE("what is captured does not run; what was queued before does") {
  reset_devices();
  TestStream stream;
  std::vector<int> list;
  cookbookGraph_t graph = nullptr;
  TestGate gate;
  gate.queue(stream);
  REQUIRE_OK(append(stream, &list, 1));
  REQUIRE_OK(cookbookStreamBeginCapture(stream, cookbookCaptureThreadLocal));
  CHECK(status_of(stream) == cookbookCaptureActive);
  REQUIRE_OK(append(stream, &list, 2));
  gate.open();
  REQUIRE_OK(cookbookStreamEndCapture(stream, &graph));
  CHECK(status_of(stream) == cookbookCaptureNone);
  REQUIRE_OK(append(stream, &list, 3));
  REQUIRE_OK(cookbookStreamSynchronize(stream));
  CHECK(list == std::vector<int>{1, 3});
  CHECK(counters_of(0).launches == 2);
  CHECK_OK(cookbookGraphDestroy(graph));
}

TEST_CASE("any thread may push to a captured stream; each keeps its order") {
  constexpr int kThreads = 4, kLaunches = 500;
  TestStream stream;
  std::vector<int> list;
  std::atomic<int> failed{0};
  TestGraph graph(stream, [&] {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < kLaunches; ++i)
          if (append(stream, &list, thread * kLaunches + i) != cookbookSuccess) ++failed;
      });
    }
    for (auto& thread : threads) thread.join();
  });
  CHECK(failed.load() == 0);
  REQUIRE_OK(graph.launch(stream));
  REQUIRE_OK(cookbookStreamSynchronize(stream));
  REQUIRE(list.size() == kThreads * kLaunches);
  std::vector<int> next(kThreads, 0);
  int out_of_order = 0;
  for (int number : list)
    if (number % kLaunches != next[static_cast<size_t>(number / kLaunches)]++) ++out_of_order;
  CHECK(out_of_order == 0);
}

TEST_CASE("threads capture, launch and break captures at the same time, each on a stream of its own") {
  reset_devices();
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      cookbookStream_t stream = nullptr;
      std::vector<int> list;
      if (cookbookStreamCreate(&stream, 0) != cookbookSuccess) ++failed;
      for (int round = 0; round < 50; ++round) {
        cookbookGraph_t graph = nullptr;
        cookbookGraphExec_t exec = nullptr;
        if (cookbookStreamBeginCapture(stream, cookbookCaptureThreadLocal) != cookbookSuccess) ++failed;
        if (append(stream, &list, round) != cookbookSuccess) ++failed;
        const bool broken = round % 5 == 4;
        if (broken && cookbookStreamSynchronize(stream) != cookbookErrorStreamCaptureUnsupported) ++failed;
        const cookbookError_t expected = broken ? cookbookErrorStreamCaptureInvalidated : cookbookSuccess;
        if (cookbookStreamEndCapture(stream, &graph) != expected) ++failed;
        if (broken) continue;
        if (cookbookGraphInstantiate(&exec, graph) != cookbookSuccess) ++failed;
        if (cookbookGraphLaunch(exec, stream) != cookbookSuccess) ++failed;
        if (cookbookGraphDestroy(graph) != cookbookSuccess) ++failed;
        if (cookbookGraphExecDestroy(exec) != cookbookSuccess) ++failed;
      }
      if (cookbookStreamSynchronize(stream) != cookbookSuccess || list.size() != 40) ++failed;
      if (cookbookStreamDestroy(stream) != cookbookSuccess) ++failed;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(failed.load() == 0);
  CHECK_OK(cookbookDeviceSynchronize(0));
}

// ---- joining -------------------------------------------------------------------------------------------------------

TEST_CASE("a stream joins by waiting for an event of the capture, and is joined back") {
  reset_devices();
  TestStream first, second, third;
  TestEvent fork, middle, join;
  std::vector<int> list;
  TestGraph graph(first, [&] {
    REQUIRE_OK(append(first, &list, 1));
    REQUIRE_OK(cookbookEventRecord(fork, first));
    REQUIRE_OK(cookbookStreamWaitEvent(second, fork));
    CHECK(status_of(second) == cookbookCaptureActive);
    CHECK(status_of(third) == cookbookCaptureNone);
    cookbookCaptureStatus status;
    uint64_t ids[3] = {9, 9, 9};
    REQUIRE_OK(cookbookStreamGetCaptureInfo(first, &status, &ids[0]));
    REQUIRE_OK(cookbookStreamGetCaptureInfo(second, &status, &ids[1]));
    CHECK(status == cookbookCaptureActive);
    CHECK(ids[0] != 0);
    CHECK(ids[0] == ids[1]);
    REQUIRE_OK(cookbookStreamGetCaptureInfo(third, &status, &ids[2]));
    CHECK(status == cookbookCaptureNone);
    CHECK(ids[2] == 0);
    REQUIRE_OK(append(second, &list, 2));
    REQUIRE_OK(cookbookEventRecord(middle, second));
    REQUIRE_OK(cookbookStreamWaitEvent(third, middle));  // joins by way of the second
    REQUIRE_OK(append(third, &list, 3));
    REQUIRE_OK(append(first, &list, 4));  // depends on 1 alone
    REQUIRE_OK(cookbookEventRecord(join, third));
    REQUIRE_OK(cookbookStreamWaitEvent(first, join));
    REQUIRE_OK(append(first, &list, 5));
  });
  CHECK(status_of(second) == cookbookCaptureNone);
  CHECK(status_of(third) == cookbookCaptureNone);
  const cookbookGraphInfo info = graph.info();
  CHECK(info.nodes == 5);
  CHECK(info.edges == 5);  // 1-2, 2-3, 1-4, 3-5, 4-5
  CHECK(list.empty());
  const cookbookCounters before = counters_of(0);
  CHECK(before.event_records == 0);
  CHECK(before.event_waits == 0);
  REQUIRE_OK(graph.launch(first));
  REQUIRE_OK(graph.launch(second));  // any stream of the device, once it is no longer captured
  REQUIRE_OK(cookbookDeviceSynchronize(0));
  CHECK(list == std::vector<int>{1, 2, 3, 4, 5, 1, 2, 3, 4, 5});
}

TEST_CASE("in a capture, too, a wait keeps the version that it was given") {
  TestStream first, second;
  TestEvent event, join;
  std::vector<int> list;
  TestGraph graph(first, [&] {
    REQUIRE_OK(append(first, &list, 1));
    REQUIRE_OK(cookbookEventRecord(event, first));
    REQUIRE_OK(cookbookStreamWaitEvent(second, event));
    REQUIRE_OK(append(first, &list, 2));
    REQUIRE_OK(cookbookEventRecord(event, first));
    REQUIRE_OK(append(second, &list, 3));  // comes after 1, not after 2
    REQUIRE_OK(cookbookEventRecord(join, second));
    REQUIRE_OK(cookbookStreamWaitEvent(first, join));
    REQUIRE_OK(cookbookStreamWaitEvent(first, join));  // twice is once
  });
  CHECK(graph.info().edges == 2);
}

TEST_CASE("a branch that is not joined back is an error, and its stream works again") {
  TestStream first, second;
  TestEvent fork;
  std::vector<int> list;
  cookbookGraph_t graph = nullptr;
  REQUIRE_OK(cookbookStreamBeginCapture(first, cookbookCaptureThreadLocal));
  REQUIRE_OK(append(first, &list, 1));
  REQUIRE_OK(cookbookEventRecord(fork, first));
  REQUIRE_OK(cookbookStreamWaitEvent(second, fork));
  REQUIRE_OK(append(second, &list, 2));
  CHECK(cookbookStreamEndCapture(first, &graph) == cookbookErrorStreamCaptureUnjoined);
  CHECK(contains(last_message(), "does not wait for"));
  CHECK(graph == nullptr);
  for (cookbookStream_t stream : {static_cast<cookbookStream_t>(first), static_cast<cookbookStream_t>(second)}) {
    CHECK(status_of(stream) == cookbookCaptureNone);
    CHECK_OK(append(stream, &list, 3));
    CHECK_OK(cookbookStreamSynchronize(stream));
  }
  CHECK(list == std::vector<int>{3, 3});
  // A stream that joined and did nothing needs no joining back.
  TestGraph idle(first, [&] {
    REQUIRE_OK(cookbookEventRecord(fork, first));
    REQUIRE_OK(cookbookStreamWaitEvent(second, fork));
  });
  CHECK(idle.info().nodes == 0);
}

// ---- what is refused -----------------------------------------------------------------------------------------------

TEST_CASE("a call that cannot be recorded makes the capture invalid, says why, and leaves the stream usable") {
  reset_devices();
  TestStream stream;
  TestEvent captured(cookbookEventTiming), outside, shared(cookbookEventInterprocess), timing(cookbookEventTiming);
  void *block = nullptr, *pinned = nullptr;
  REQUIRE_OK(cookbookMalloc(&block, 64));
  REQUIRE_OK(cookbookMallocHost(&pinned, 64));
  REQUIRE_OK(cookbookEventRecord(outside, nullptr));
  REQUIRE_OK(cookbookEventRecord(timing, nullptr));
  REQUIRE_OK(cookbookDeviceSynchronize(0));
  int64_t number = 0;
  float ms = 0;
  void* fresh = &number;
  const struct {
    const char* name;
    const char* reason;
    std::function<cookbookError_t()> call;
  } cases[] = {
      {"stream synchronize", "cookbookStreamSynchronize on stream", [&] { return cookbookStreamSynchronize(stream); }},
      {"stream query", "cookbookStreamQuery on stream", [&] { return cookbookStreamQuery(stream); }},
      {"stream destroy", "end the capture first", [&] { return cookbookStreamDestroy(stream); }},
      {"blocking copy", "cookbookMemcpy on stream",
       [&] { return cookbookMemcpy(pinned, block, 8, cookbookMemcpyDefault, stream); }},
      {"pageable copy", "pin the memory",
       [&] { return cookbookMemcpyAsync(&number, block, 8, cookbookMemcpyDefault, stream); }},
      {"allocation", "pool that grows by cookbookMalloc", [&] { return cookbookMallocAsync(&fresh, 64, stream); }},
      {"free", "free it when the graph is gone", [&] { return cookbookFreeAsync(block, stream); }},
      {"event query", "cookbookEventQuery with an event", [&] { return cookbookEventQuery(captured); }},
      {"event synchronize", "cookbookEventSynchronize with", [&] { return cookbookEventSynchronize(captured); }},
      {"elapsed time", "cookbookEventElapsedTime with",
       [&] { return cookbookEventElapsedTime(&ms, timing, captured); }},
      {"event from outside", "recorded outside of the", [&] { return cookbookStreamWaitEvent(stream, outside); }},
      {"interprocess event", "interprocess event", [&] { return cookbookEventRecord(shared, stream); }},
      {"device synchronize", "cookbookDeviceSynchronize waits", [&] { return cookbookDeviceSynchronize(0); }},
      {"device reset", "cookbookDeviceReset waits", [&] { return cookbookDeviceReset(0); }},
      {"blocking free", "cookbookFree waits", [&] { return cookbookFree(block); }},
      {"free of pinned memory", "cookbookFreeHost waits", [&] { return cookbookFreeHost(pinned); }},
      {"kernel on the default stream", "work_for on the default stream", [&] { return work_for(nullptr, 0); }},
      {"fill on the default stream", "cookbookMemsetAsync on the default stream",
       [&] { return cookbookMemsetAsync(block, 0, 8, nullptr); }},
      {"copy on the default stream", "cookbookMemcpyAsync on the default stream",
       [&] { return cookbookMemcpyAsync(block, pinned, 8, cookbookMemcpyDefault, nullptr); }},
      {"host function on the default stream", "cookbookLaunchHostFunc on the default stream",
       [&] { return cookbookLaunchHostFunc(nullptr, [](void*) {}, nullptr); }},
      {"the default stream joins", "cannot join a capture", [&] { return cookbookStreamWaitEvent(nullptr, captured); }},
  };
  for (const auto& illegal : cases) {
    CAPTURE(illegal.name);
    REQUIRE_OK(cookbookStreamBeginCapture(stream, cookbookCaptureThreadLocal));
    REQUIRE_OK(add_value(stream, block, 1));
    REQUIRE_OK(cookbookEventRecord(captured, stream));
    CHECK(illegal.call() == cookbookErrorStreamCaptureUnsupported);
    CHECK_MESSAGE(contains(last_message(), illegal.reason), last_message());
    // A second illegal call changes nothing: the first reason counts.
    CHECK(cookbookStreamSynchronize(stream) == cookbookErrorStreamCaptureInvalidated);
    check_ends_invalid(stream, illegal.reason);
  }
  CHECK(fresh == nullptr);
  CHECK_OK(cookbookFree(block));
  CHECK_OK(cookbookFreeHost(pinned));
}

TEST_CASE("a call that fails for another reason records nothing and leaves the capture valid") {
  TestStream stream;
  std::vector<int> list;
  int local = 0;
  TestGraph graph(stream, [&] {
    REQUIRE_OK(append(stream, &list, 1));
    CHECK(cookbookLaunchKernel(stream, nullptr, nullptr, 0) == cookbookErrorInvalidValue);
    CHECK(cookbookMemsetAsync(&local, 0, 4, stream) == cookbookErrorInvalidValue);
    CHECK(cookbookStreamBeginCapture(stream, cookbookCaptureThreadLocal) == cookbookErrorInvalidValue);
    CHECK(status_of(stream) == cookbookCaptureActive);
  });
  CHECK(graph.info().nodes == 1);
}

TEST_CASE("what is no illegal call is allowed during a capture") {
  reset_devices();
  TestStream stream, other, foreign(1);
  TestEvent event, never;
  std::vector<int> list;
  void* block = nullptr;
  TestGraph graph(stream, [&] {
    CHECK_OK(cookbookMalloc(&block, 64));
    CHECK_OK(store_value(stream, block, 3));
    // Work beside the capture, with waits of its own, also on another device and its default stream.
    CHECK_OK(append(other, &list, 1));
    CHECK_OK(cookbookEventRecord(event, other));
    CHECK_OK(cookbookEventSynchronize(event));
    CHECK_OK(cookbookStreamSynchronize(other));
    CHECK_OK(work_for(foreign, 0));
    CHECK_OK(cookbookDeviceSynchronize(1));
    CHECK_OK(cookbookSetDevice(1));
    CHECK_OK(work_for(nullptr, 0));
    CHECK_OK(cookbookSetDevice(0));
    CHECK_OK(cookbookEventQuery(never));
    CHECK_OK(cookbookStreamWaitEvent(stream, never));
  });
  CHECK(list == std::vector<int>{1});
  REQUIRE_OK(graph.launch(stream));
  CHECK(load_value(block, stream) == 3);
  CHECK_OK(cookbookFree(block));
}

TEST_CASE("the mode says who may make calls that concern the whole device") {
  reset_devices();
  TestStream stream;
  auto elsewhere = [](cookbookError_t (*call)()) {
    cookbookError_t error = cookbookErrorUnknown;
    std::thread([&] { error = call(); }).join();
    return error;
  };
  const auto synchronize = [] { return cookbookDeviceSynchronize(0); };
  const auto use_default = [] { return work_for(nullptr, 0); };
  cookbookGraph_t graph = nullptr;

  REQUIRE_OK(cookbookStreamBeginCapture(stream, cookbookCaptureThreadLocal));
  CHECK_OK(elsewhere(synchronize));
  CHECK_OK(elsewhere(use_default));
  CHECK(synchronize() == cookbookErrorStreamCaptureUnsupported);
  check_ends_invalid(stream, "cookbookDeviceSynchronize");

  REQUIRE_OK(cookbookStreamBeginCapture(stream, cookbookCaptureGlobal));
  CHECK(elsewhere(synchronize) == cookbookErrorStreamCaptureUnsupported);
  check_ends_invalid(stream, "cookbookDeviceSynchronize");
  REQUIRE_OK(cookbookStreamBeginCapture(stream, cookbookCaptureGlobal));
  CHECK(elsewhere(use_default) == cookbookErrorStreamCaptureUnsupported);
  check_ends_invalid(stream, "default stream");

  REQUIRE_OK(cookbookStreamBeginCapture(stream, cookbookCaptureRelaxed));
  CHECK_OK(synchronize());
  CHECK_OK(use_default());
  // A relaxed capture may end on another thread, no other may.
  std::thread([&] { CHECK_OK(cookbookStreamEndCapture(stream, &graph)); }).join();
  CHECK_OK(cookbookGraphDestroy(graph));
  REQUIRE_OK(cookbookStreamBeginCapture(stream, cookbookCaptureGlobal));
  std::thread([&] {
    CHECK(cookbookStreamEndCapture(stream, &graph) == cookbookErrorStreamCaptureUnsupported);
    CHECK(contains(last_message(), "another thread"));
  }).join();
  CHECK(status_of(stream) == cookbookCaptureActive);
  CHECK_OK(cookbookStreamEndCapture(stream, &graph));
  CHECK_OK(cookbookGraphDestroy(graph));
}

TEST_CASE("two captures stay two, and one has one device") {
  reset_devices();
  TestStream first, second, foreign(1);
  TestEvent event;
  REQUIRE_OK(cookbookStreamBeginCapture(first, cookbookCaptureThreadLocal));
  REQUIRE_OK(cookbookStreamBeginCapture(second, cookbookCaptureThreadLocal));
  REQUIRE_OK(cookbookEventRecord(event, first));
  CHECK(cookbookStreamWaitEvent(second, event) == cookbookErrorStreamCaptureUnsupported);
  CHECK(contains(last_message(), "two captures"));
  check_ends_invalid(second, "two captures");
  check_ends_invalid(first, "another capture");
  REQUIRE_OK(cookbookStreamBeginCapture(first, cookbookCaptureThreadLocal));
  REQUIRE_OK(cookbookEventRecord(event, first));
  CHECK(cookbookStreamWaitEvent(foreign, event) == cookbookErrorStreamCaptureUnsupported);
  CHECK(status_of(foreign) == cookbookCaptureNone);
  check_ends_invalid(first, "one device");
}

TEST_CASE("an event of a capture that is over must be recorded again") {
  reset_devices();
  TestStream stream, other;
  TestEvent event;
  TestGraph graph(stream, [&] { REQUIRE_OK(cookbookEventRecord(event, stream)); });
  CHECK(cookbookEventQuery(event) == cookbookErrorStreamCaptureUnsupported);
  CHECK(cookbookEventSynchronize(event) == cookbookErrorStreamCaptureUnsupported);
  CHECK(cookbookStreamWaitEvent(other, event) == cookbookErrorStreamCaptureUnsupported);
  CHECK(contains(last_message(), "record it again"));
  REQUIRE_OK(cookbookStreamBeginCapture(other, cookbookCaptureThreadLocal));
  CHECK(cookbookStreamWaitEvent(other, event) == cookbookErrorStreamCaptureUnsupported);
  check_ends_invalid(other, "record it again");
  REQUIRE_OK(cookbookEventRecord(event, stream));
  CHECK_OK(cookbookEventSynchronize(event));
}

TEST_CASE("begin and end are checked") {
  reset_devices();
  TestStream stream, joined;
  TestEvent event;
  cookbookGraph_t graph = nullptr;
  cookbookCaptureStatus status;
  CHECK(cookbookStreamBeginCapture(nullptr, cookbookCaptureGlobal) == cookbookErrorStreamCaptureUnsupported);
  CHECK(contains(last_message(), "make a stream"));
  CHECK(cookbookStreamBeginCapture(stream, static_cast<cookbookCaptureMode>(3)) == cookbookErrorInvalidValue);
  CHECK(cookbookStreamEndCapture(stream, &graph) == cookbookErrorInvalidValue);
  CHECK(cookbookStreamIsCapturing(stream, nullptr) == cookbookErrorInvalidValue);
  CHECK(cookbookStreamGetCaptureInfo(stream, &status, nullptr) == cookbookErrorInvalidValue);
  CHECK_OK(cookbookStreamIsCapturing(nullptr, &status));
  CHECK(status == cookbookCaptureNone);
  REQUIRE_OK(cookbookStreamBeginCapture(stream, cookbookCaptureGlobal));
  REQUIRE_OK(cookbookEventRecord(event, stream));
  REQUIRE_OK(cookbookStreamWaitEvent(joined, event));
  CHECK(cookbookStreamEndCapture(joined, &graph) == cookbookErrorStreamCaptureUnsupported);
  CHECK(contains(last_message(), "end it there"));
  CHECK(cookbookStreamEndCapture(stream, nullptr) == cookbookErrorInvalidValue);
  CHECK(status_of(stream) == cookbookCaptureActive);
  CHECK_OK(cookbookStreamEndCapture(stream, &graph));
  CHECK_OK(cookbookGraphDestroy(graph));
  // A failed device captures nothing.
  REQUIRE_OK(fail_kernel(joined, "broken"));
  CHECK(cookbookStreamSynchronize(joined) == cookbookErrorLaunchFailure);
  CHECK(cookbookStreamBeginCapture(stream, cookbookCaptureGlobal) == cookbookErrorLaunchFailure);
  REQUIRE_OK(cookbookDeviceReset(0));
  // It fails in the middle: the kernel behind is missing, so there is no graph.
  TestGate gate;
  gate.queue(joined);
  REQUIRE_OK(fail_kernel(joined, "broken again"));
  REQUIRE_OK(cookbookStreamBeginCapture(stream, cookbookCaptureThreadLocal));
  gate.open();
  CHECK(cookbookStreamSynchronize(joined) == cookbookErrorLaunchFailure);
  CHECK(work_for(stream, 0) == cookbookErrorLaunchFailure);
  CHECK(cookbookStreamEndCapture(stream, &graph) == cookbookErrorLaunchFailure);
  CHECK(graph == nullptr);
  CHECK(status_of(stream) == cookbookCaptureNone);
  REQUIRE_OK(cookbookDeviceReset(0));
}
