// Streams' threads: started by the first launch, ended by a shutdown, found again, and quiet when idle.
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <thread>

#include "support.h"

using namespace support;

namespace {
int threads_of_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(tasks, std::filesystem::directory_iterator()));
}
double cpu_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}
}  // namespace

TEST_CASE("a thread starts with the first launch and ends with the shutdown; launches then work again") {
  REQUIRE_OK(cookbookShutdown());
  const int before = threads_of_process();
  TestStream stream;
  CHECK_OK(cookbookStreamSynchronize(stream));
  CHECK(threads_of_process() == before);
  std::vector<int> list;
  for (int round = 0; round < 20; ++round) {
    REQUIRE_OK(append(stream, &list, round));
    CHECK(threads_of_process() == before + 1);
    REQUIRE_OK(cookbookShutdown());
    CHECK(list.size() == static_cast<size_t>(round) + 1);  // it ran what was queued
    for (int i = 0; i < 100 && threads_of_process() != before; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // joined, but the system may still list it
    CHECK(threads_of_process() == before);
  }
}

TEST_CASE("shutdown beside launches loses nothing") {
  TestStream stream;
  constexpr int kLaunches = 20000;
  std::vector<int> list;
  std::atomic<bool> stop{false};
  std::atomic<int> failed{0};
  std::thread closer([&] {
    while (!stop.load())
      if (cookbookShutdown() != cookbookSuccess) ++failed;
  });
  for (int i = 0; i < kLaunches; ++i)
    if (append(stream, &list, i) != cookbookSuccess) ++failed;
  CHECK_OK(cookbookStreamSynchronize(stream));
  stop.store(true);
  closer.join();
  CHECK(failed.load() == 0);
  CHECK(list.size() == kLaunches);
  REQUIRE_OK(append(stream, &list, 1));  // and nobody waits: the thread alone must do it
  for (int i = 0; i < 5000 && cookbookStreamQuery(stream) != cookbookSuccess; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK_OK(cookbookStreamQuery(stream));
}

TEST_CASE("work runs without anybody waiting, after every kind of pause") {
  TestStream stream;
  std::vector<int> list;
  for (const int pause_us : {0, 30, 90, 150, 300, 1000, 4000, 5300, 8000, 20000}) {
    CAPTURE(pause_us);
    for (int repeat = 0; repeat < 5; ++repeat) {
      REQUIRE_OK(append(stream, &list, pause_us));
      int looks = 0;
      while (cookbookStreamQuery(stream) != cookbookSuccess && ++looks < 20000)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      REQUIRE_OK(cookbookStreamQuery(stream));
      std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
    }
  }
  CHECK(list.size() == 50);
}

TEST_CASE("an idle stream costs no processor time") {
  std::vector<int> list;
  TestStream first, second;
  REQUIRE_OK(append(first, &list, 1));
  REQUIRE_OK(cookbookStreamSynchronize(first));
  REQUIRE_OK(append(second, &list, 2));
  REQUIRE_OK(cookbookStreamSynchronize(second));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // past the naps
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(cpu_seconds() - before < 0.03);
}

TEST_CASE("a stream that waits for a long kernel of another costs little") {
  TestStream first, second;
  TestEvent event;
  TestGate gate;
  gate.queue(first);
  REQUIRE_OK(cookbookEventRecord(event, first));
  REQUIRE_OK(cookbookStreamWaitEvent(second, event));
  std::thread host([&] { cookbookStreamSynchronize(second); });
  gate.wait_until_reached();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double used = cpu_seconds() - before;
  gate.open();
  host.join();
  CHECK(used < 0.1);  // the gate itself looks every 50 us
}

TEST_CASE("cookbookOnStreamThread tells a stream's thread from a host thread") {
  CHECK(cookbookOnStreamThread() == 0);
  TestStream stream;
  std::atomic<int> on_stream{-1};
  auto look = [](void* place) { static_cast<std::atomic<int>*>(place)->store(cookbookOnStreamThread()); };
  REQUIRE_OK(cookbookLaunchHostFunc(stream, look, &on_stream));
  while (on_stream.load() < 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  CHECK(on_stream.load() == 1);
  // A thread that waits runs the queue itself, sooner or later: then it is a host thread.
  bool helped = false;
  for (int i = 0; i < 10000 && !helped; ++i) {
    REQUIRE_OK(cookbookLaunchHostFunc(stream, look, &on_stream));
    REQUIRE_OK(cookbookStreamSynchronize(stream));
    helped = on_stream.load() == 0;
  }
  CHECK(helped);
}

TEST_CASE("signals are not delivered to a stream's thread") {
  TestStream stream;
  std::atomic<int> blocked{-1};
  while (true) {
    REQUIRE_OK(cookbookLaunchHostFunc(
        stream,
        [](void* place) {
          sigset_t set;
          pthread_sigmask(SIG_BLOCK, nullptr, &set);
          static_cast<std::atomic<int>*>(place)->store(sigismember(&set, SIGINT) * 2 + sigismember(&set, SIGSEGV));
        },
        &blocked));
    while (cookbookStreamQuery(stream) != cookbookSuccess) std::this_thread::sleep_for(std::chrono::microseconds(50));
    break;
  }
  CHECK(blocked.load() == 2);
}
