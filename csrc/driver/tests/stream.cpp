// Streams: order, many producers, full queues, waits between streams, destruction, priorities.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "support.h"

using namespace support;

TEST_CASE("a launch returns before the work runs, a query sees the last task") {
  TestStream stream;
  CHECK_OK(cookbookStreamQuery(stream));
  TestGate gate;
  gate.queue(stream);
  gate.wait_until_reached();  // the queue is empty now but for the task that runs
  CHECK(cookbookStreamQuery(stream) == cookbookErrorNotReady);
  gate.open();
  CHECK_OK(cookbookStreamSynchronize(stream));
  CHECK_OK(cookbookStreamQuery(stream));
}

TEST_CASE("4 threads, 8 streams, 10,000 launches with events: each stream keeps its order, waits hold") {
  constexpr int kStreams = 8, kThreads = 4, kRounds = 1250;
  // A thread owns two streams and launches to them in turn; every 5th round its second stream waits for its first, and
  // its first for its neighbour's second.
  std::vector<cookbookStream_t> streams(kStreams);
  for (auto& stream : streams) REQUIRE_OK(cookbookStreamCreate(&stream, 0));
  std::vector<std::vector<int>> lists(kStreams);
  std::vector<std::atomic<int>> progress(kStreams);  // rounds that ran on the stream
  std::atomic<int> wrong{0}, failed{0};
  struct StepArgs {
    std::vector<int>* list;
    std::atomic<int>* progress;
    std::atomic<int>* awaited;  // null, or what must have come to `at_least`
    std::atomic<int>* wrong;
    int number, at_least;
  };
  static const cookbookKernel_t step{"step", [](cookbookKernelContext*, void* raw) {
                                       const auto* args = static_cast<const StepArgs*>(raw);
                                       if (args->awaited && args->awaited->load() < args->at_least) ++*args->wrong;
                                       args->list->push_back(args->number);
                                       args->progress->store(args->number + 1);
                                       return cookbookSuccess;
                                     }};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const auto first = static_cast<size_t>(2 * thread), second = first + 1;
      cookbookEvent_t event = nullptr;
      if (cookbookEventCreate(&event, thread % 2 ? cookbookEventTiming : cookbookEventDefault) != cookbookSuccess)
        ++failed;
      for (int round = 0; round < kRounds; ++round) {
        StepArgs args{&lists[first], &progress[first], nullptr, &wrong, round, 0};
        if (cookbookLaunchKernel(streams[first], &step, &args, sizeof(args)) != cookbookSuccess) ++failed;
        args = {&lists[second], &progress[second], nullptr, &wrong, round, 0};
        if (round % 5 == 0) {
          if (cookbookEventRecord(event, streams[first]) != cookbookSuccess) ++failed;
          if (cookbookStreamWaitEvent(streams[second], event) != cookbookSuccess) ++failed;
          args.awaited = &progress[first];
          args.at_least = round + 1;
          // Across threads: cycles of streams, but never of tickets.
          if (cookbookEventRecord(event, streams[second]) != cookbookSuccess) ++failed;
          if (cookbookStreamWaitEvent(streams[(second + 1) % kStreams], event) != cookbookSuccess) ++failed;
        }
        if (cookbookLaunchKernel(streams[second], &step, &args, sizeof(args)) != cookbookSuccess) ++failed;
        if (round % 250 == 249 && cookbookStreamSynchronize(streams[second]) != cookbookSuccess) ++failed;
      }
      if (cookbookEventDestroy(event) != cookbookSuccess) ++failed;
    });
  }
  for (auto& thread : threads) thread.join();
  REQUIRE_OK(cookbookDeviceSynchronize(0));
  CHECK(failed.load() == 0);
  CHECK(wrong.load() == 0);
  std::vector<int> expected(kRounds);
  std::iota(expected.begin(), expected.end(), 0);
  for (const auto& list : lists) CHECK(list == expected);
  for (auto stream : streams) CHECK_OK(cookbookStreamDestroy(stream));
}

TEST_CASE("many threads launch on one stream: nothing is lost, each thread's order stays") {
  constexpr int kThreads = 4, kLaunches = 2000;
  TestStream stream;
  std::vector<int> list;
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kLaunches; ++i) {
        if (append(stream, &list, thread * kLaunches + i) != cookbookSuccess) ++failed;
        if (i % 500 == 499 && cookbookStreamSynchronize(stream) != cookbookSuccess) ++failed;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  REQUIRE_OK(cookbookStreamSynchronize(stream));
  CHECK(failed.load() == 0);
  REQUIRE(list.size() == kThreads * kLaunches);
  std::vector<int> next(kThreads, 0);
  int out_of_order = 0;
  for (int number : list)
    if (number % kLaunches != next[static_cast<size_t>(number / kLaunches)]++) ++out_of_order;
  CHECK(out_of_order == 0);
}

TEST_CASE("arguments up to 64 KiB arrive whole, while the ring wraps around") {
  struct Header {
    uint32_t seed, bytes;
    std::atomic<int>* good;
  };
  static const cookbookKernel_t verify{"verify", [](cookbookKernelContext* context, void* raw) {
                                         const auto* header = static_cast<const Header*>(raw);
                                         if (reinterpret_cast<uintptr_t>(raw) % 16)
                                           return cookbookKernelFail(context, cookbookErrorUnknown, "alignment");
                                         const auto* bytes = static_cast<const unsigned char*>(raw);
                                         for (uint32_t i = sizeof(Header); i < header->bytes; ++i)
                                           if (bytes[i] != static_cast<unsigned char>(header->seed + i))
                                             return cookbookErrorUnknown;
                                         header->good->fetch_add(1);
                                         return cookbookSuccess;
                                       }};
  TestStream stream;
  std::atomic<int> good{0};
  std::vector<unsigned char> args(cookbookMaxKernelArgs);
  int launched = 0;
  for (uint32_t round = 0; round < 300; ++round) {
    uint32_t bytes = round % 3 == 0 ? uint32_t{cookbookMaxKernelArgs} : 16 + round * 7919u % 60000;
    for (uint32_t i = 0; i < bytes; ++i) args[i] = static_cast<unsigned char>(round + i);
    const Header header{round, bytes, &good};
    std::memcpy(args.data(), &header, sizeof(header));
    REQUIRE_OK(cookbookLaunchKernel(stream, &verify, args.data(), bytes));
    ++launched;
  }
  CHECK_OK(cookbookStreamSynchronize(stream));
  CHECK(good.load() == launched);
  CHECK(cookbookLaunchKernel(stream, &verify, args.data(), cookbookMaxKernelArgs + 1) == cookbookErrorInvalidValue);
}

TEST_CASE("a full queue holds the producer back until there is room") {
  TestStream stream;
  std::vector<int> list;
  TestGate gate;
  gate.queue(stream);
  gate.wait_until_reached();
  constexpr int kLaunches = 20000;  // of 64 bytes: more than the queue of 1 MiB takes
  std::atomic<int> launched{0};
  std::thread producer([&] {
    for (int i = 0; i < kLaunches; ++i) {
      if (append(stream, &list, i) == cookbookSuccess) launched.fetch_add(1);
    }
  });
  int before = -1;
  for (int same = 0; same < 5;) {  // until it does not move any more
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const int now = launched.load();
    same = now == before && now > 0 ? same + 1 : 0;
    before = now;
  }
  CHECK(before < (1 << 20) / 64);
  CHECK(before > (1 << 20) / 64 - 64);
  gate.open();
  producer.join();
  CHECK(launched.load() == kLaunches);
  CHECK_OK(cookbookStreamSynchronize(stream));
  std::vector<int> expected(kLaunches);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(list == expected);
}

TEST_CASE("a host thread that waits follows a chain of streams") {
  // 3 waits for 2 waits for 1; the waiting thread must not need the streams' threads to look first.
  TestStream first, second, third(1);
  std::vector<int> list;
  for (int i = 0; i < 200; ++i) {
    TestEvent a, b;
    REQUIRE_OK(append(first, &list, 3 * i));
    REQUIRE_OK(cookbookEventRecord(a, first));
    REQUIRE_OK(cookbookStreamWaitEvent(second, a));
    REQUIRE_OK(append(second, &list, 3 * i + 1));
    REQUIRE_OK(cookbookEventRecord(b, second));
    REQUIRE_OK(cookbookStreamWaitEvent(third, b));
    REQUIRE_OK(append(third, &list, 3 * i + 2));
    if (i % 10 == 9) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // naps in between
    REQUIRE_OK(cookbookStreamSynchronize(third));
  }
  std::vector<int> expected(600);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(list == expected);
}

TEST_CASE("several hosts wait for streams that wait for each other while a gate is closed") {
  TestStream first, second;
  TestEvent event;
  std::vector<int> list;
  TestGate gate;
  gate.queue(first);
  gate.wait_until_reached();
  REQUIRE_OK(cookbookEventRecord(event, first));
  REQUIRE_OK(cookbookStreamWaitEvent(second, event));
  REQUIRE_OK(append(second, &list, 1));
  std::vector<std::thread> hosts;
  std::atomic<int> returned{0};
  for (int i = 0; i < 3; ++i)
    hosts.emplace_back([&] {
      if (cookbookStreamSynchronize(second) == cookbookSuccess) returned.fetch_add(1);
    });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(returned.load() == 0);
  CHECK(cookbookStreamQuery(second) == cookbookErrorNotReady);
  gate.open();
  for (auto& host : hosts) host.join();
  CHECK(returned.load() == 3);
  CHECK(list == std::vector<int>{1});
}

TEST_CASE("destroying a stream runs what is queued, also what others wait for") {
  std::vector<int> list;
  TestStream other;
  cookbookStream_t stream = nullptr;
  REQUIRE_OK(cookbookStreamCreate(&stream, 0));
  TestEvent event;
  REQUIRE_OK(work_for(stream, 2000));
  for (int i = 0; i < 100; ++i) REQUIRE_OK(append(stream, &list, i));
  REQUIRE_OK(cookbookEventRecord(event, stream));
  REQUIRE_OK(cookbookStreamWaitEvent(other, event));
  REQUIRE_OK(append(other, &list, 100));
  REQUIRE_OK(cookbookStreamDestroy(stream));
  CHECK_OK(cookbookEventQuery(event));  // still knows its version
  CHECK_OK(cookbookEventSynchronize(event));
  REQUIRE_OK(cookbookStreamSynchronize(other));
  CHECK(list.size() == 101);
  CHECK(std::is_sorted(list.begin(), list.end()));
}

TEST_CASE("streams come and go, also more than there are slots, beside each other") {
  std::vector<std::thread> threads;
  std::atomic<int> failed{0}, ran{0};
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 400; ++i) {
        cookbookStream_t stream = nullptr;
        if (cookbookStreamCreate(&stream, 0) != cookbookSuccess) ++failed;
        if (i % 4 == 0) {
          auto count = [](void* counter) { static_cast<std::atomic<int>*>(counter)->fetch_add(1); };
          if (cookbookLaunchHostFunc(stream, count, &ran) != cookbookSuccess) ++failed;
        }
        if (cookbookStreamDestroy(stream) != cookbookSuccess) ++failed;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(failed.load() == 0);
  CHECK(ran.load() == 300);
}

TEST_CASE("default streams: one a device, current for a null handle, not to be destroyed") {
  cookbookStream_t zero = nullptr, one = nullptr;
  REQUIRE_OK(cookbookGetDefaultStream(&zero, 0));
  REQUIRE_OK(cookbookGetDefaultStream(&one, 1));
  CHECK(zero != one);
  int device = -1;
  REQUIRE_OK(cookbookSetDevice(1));
  CHECK_OK(cookbookStreamGetDevice(nullptr, &device));
  CHECK(device == 1);
  TestGate gate;
  gate.queue(one);
  CHECK(cookbookStreamQuery(nullptr) == cookbookErrorNotReady);
  REQUIRE_OK(cookbookSetDevice(0));
  CHECK_OK(cookbookStreamQuery(nullptr));
  CHECK(cookbookStreamDestroy(zero) == cookbookErrorInvalidValue);
  CHECK(cookbookStreamDestroy(nullptr) == cookbookErrorInvalidValue);
}

TEST_CASE("priorities are clamped to the device's range") {
  cookbookDeviceProperties properties;
  REQUIRE_OK(cookbookGetDeviceProperties(&properties, 0));
  CHECK(properties.stream_priority_greatest < properties.stream_priority_least);
  int priority = 99;
  TestStream urgent(0, -100), lazy(0, 100), middle(0, properties.stream_priority_greatest + 1);
  REQUIRE_OK(cookbookStreamGetPriority(urgent, &priority));
  CHECK(priority == properties.stream_priority_greatest);
  REQUIRE_OK(cookbookStreamGetPriority(lazy, &priority));
  CHECK(priority == properties.stream_priority_least);
  REQUIRE_OK(cookbookStreamGetPriority(middle, &priority));
  CHECK(priority == properties.stream_priority_greatest + 1);
  CHECK_OK(work_for(urgent, 10));
  CHECK_OK(cookbookStreamSynchronize(urgent));
}
