// Devices: the current one of a thread, properties, contexts, synchronization of a whole device.
#include <cstdio>
#include <thread>

#include "support.h"

using namespace support;

TEST_CASE("the current device is a thread's own") {
  REQUIRE_OK(cookbookSetDevice(1));
  int device = -1;
  std::thread([&] { CHECK_OK(cookbookGetDevice(&device)); }).join();
  CHECK(device == 0);
  REQUIRE_OK(cookbookGetDevice(&device));
  CHECK(device == 1);
  CHECK(cookbookSetDevice(2) == cookbookErrorInvalidDevice);
  CHECK(contains(last_message(), "0 to 1"));
  CHECK(cookbookSetDevice(-1) == cookbookErrorInvalidDevice);
  REQUIRE_OK(cookbookGetDevice(&device));
  CHECK(device == 1);
  REQUIRE_OK(cookbookSetDevice(0));
}

TEST_CASE("properties have defaults") {
  int count = 0;
  cookbookDeviceProperties properties;
  REQUIRE_OK(cookbookGetDeviceCount(&count));
  CHECK(count == 2);
  REQUIRE_OK(cookbookGetDeviceProperties(&properties, 1));
  CHECK(std::string(properties.name) == "Cookbook Simulated Accelerator");
  CHECK(properties.total_memory == size_t{4} << 30);
  CHECK(cookbookGetDeviceProperties(&properties, 2) == cookbookErrorInvalidDevice);
  CHECK(cookbookGetDeviceProperties(nullptr, 0) == cookbookErrorInvalidValue);
  CHECK(cookbookGetDeviceCount(nullptr) == cookbookErrorInvalidValue);
}

COOKBOOK_CHILD(contexts) {
  auto has_context = [](int device) {
    int value = -1;
    return cookbookDeviceHasContext(device, &value) == cookbookSuccess ? value : -1;
  };
  int value = 0;
  size_t bytes = 0;
  cookbookDeviceProperties properties;
  cookbookCounters counters;
  cookbookPointerAttributes attributes;
  cookbookMemoryStats stats;
  CHILD_EXPECT(cookbookGetDeviceCount(&value) == cookbookSuccess);
  CHILD_EXPECT(cookbookSetDevice(1) == cookbookSuccess);
  CHILD_EXPECT(cookbookGetDeviceProperties(&properties, 1) == cookbookSuccess);
  CHILD_EXPECT(cookbookMemGetInfo(&bytes, nullptr, 1) == cookbookSuccess && bytes == size_t{4} << 30);
  CHILD_EXPECT(cookbookMemGetStats(&stats, 1) == cookbookSuccess && stats.live_blocks == 0);
  CHILD_EXPECT(cookbookGetCounters(&counters, 1) == cookbookSuccess);
  CHILD_EXPECT(cookbookPointerGetAttributes(&attributes, &value) == cookbookSuccess);
  CHILD_EXPECT(cookbookDeviceSynchronize(1) == cookbookSuccess);
  CHILD_EXPECT(cookbookDevicePeekError(1) == cookbookSuccess);
  CHILD_EXPECT(cookbookDeviceReset(1) == cookbookSuccess);
  CHILD_EXPECT(cookbookShutdown() == cookbookSuccess);
  CHILD_EXPECT(has_context(0) == 0 && has_context(1) == 0);  // asking is no use
  cookbookStream_t stream;
  CHILD_EXPECT(cookbookStreamCreate(&stream, 0) == cookbookSuccess);
  CHILD_EXPECT(has_context(0) == 0 && has_context(1) == 1);
  CHILD_EXPECT(cookbookSetDevice(0) == cookbookSuccess);
  CHILD_EXPECT(has_context(0) == 0);
  void* pointer;
  CHILD_EXPECT(cookbookMalloc(&pointer, 8) == cookbookSuccess);
  CHILD_EXPECT(has_context(0) == 1);
  CHILD_EXPECT(has_context(7) == -1);
  return 0;
}

TEST_CASE("a context comes with the first memory, stream or event, not with questions") {
  CHECK(run_child("contexts").exit_code == 0);
}

COOKBOOK_CHILD(first_use_race) {
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      void* pointer = nullptr;
      if (cookbookSetDevice(thread % 2) != cookbookSuccess) ++failed;
      if (cookbookMalloc(&pointer, 64) != cookbookSuccess) ++failed;
      if (store_value(nullptr, pointer, thread) != cookbookSuccess) ++failed;
      int64_t value = -1;
      if (cookbookMemcpy(&value, pointer, 8, cookbookMemcpyDefault, nullptr) != cookbookSuccess) ++failed;
      if (value != thread) ++failed;
      if (cookbookFree(pointer) != cookbookSuccess) ++failed;
    });
  }
  for (auto& thread : threads) thread.join();
  CHILD_EXPECT(failed.load() == 0);
  return 0;
}

TEST_CASE("threads may race for the first use") { CHECK(run_child("first_use_race").exit_code == 0); }

TEST_CASE("synchronizing a device waits for all its streams and for no other device") {
  TestStream first, second, other(1);
  TestGate gate;
  gate.queue(other);
  std::vector<int> list, more;
  REQUIRE_OK(work_for(first, 2000));
  REQUIRE_OK(append(first, &list, 1));
  REQUIRE_OK(work_for(second, 1000));
  REQUIRE_OK(append(second, &more, 1));
  CHECK_OK(cookbookDeviceSynchronize(0));
  CHECK(list.size() == 1);
  CHECK(more.size() == 1);
  CHECK(cookbookStreamQuery(other) == cookbookErrorNotReady);
  CHECK(cookbookDeviceSynchronize(5) == cookbookErrorInvalidDevice);
}
