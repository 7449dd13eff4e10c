// Sticky errors, injected faults and counters.
#include <chrono>
#include <thread>

#include "support.h"

using namespace support;

TEST_CASE("a failure is sticky: reported with the kernel's name until a reset, later work is dropped") {
  reset_devices();
  TestStream stream, second;
  void* pointer = nullptr;
  REQUIRE_OK(cookbookMalloc(&pointer, 64));
  REQUIRE_OK(store_value(stream, pointer, 1));
  REQUIRE_OK(cookbookStreamSynchronize(stream));
  {
    TestGate gate;
    gate.queue(stream);
    REQUIRE_OK(fail_kernel(stream, "overheated"));
    REQUIRE_OK(store_value(stream, pointer, 2));
    CHECK_OK(cookbookDevicePeekError(0));
    gate.open();
    CHECK(cookbookStreamSynchronize(stream) == cookbookErrorLaunchFailure);
  }
  const std::string text = last_message();
  CHECK(contains(text, "kernel 'fails' on device 0, stream "));
  CHECK(contains(text, " failed: overheated"));
  // Everything that waits or launches says the same, on every stream of the device.
  TestEvent event;
  CHECK_OK(cookbookEventRecord(event, second));
  CHECK(cookbookDevicePeekError(0) == cookbookErrorLaunchFailure);
  CHECK(cookbookStreamSynchronize(second) == cookbookErrorLaunchFailure);
  CHECK(cookbookEventSynchronize(event) == cookbookErrorLaunchFailure);
  CHECK(cookbookDeviceSynchronize(0) == cookbookErrorLaunchFailure);
  CHECK(store_value(second, pointer, 3) == cookbookErrorLaunchFailure);
  CHECK(cookbookMemsetAsync(pointer, 0, 8, second) == cookbookErrorLaunchFailure);
  int64_t value = 7;
  CHECK(cookbookMemcpy(&value, pointer, 8, cookbookMemcpyDefault, second) == cookbookErrorLaunchFailure);
  CHECK(value == 7);
  CHECK(last_message() == text);
  REQUIRE_OK(cookbookDeviceReset(0));
  CHECK_OK(cookbookDevicePeekError(0));
  CHECK(load_value(pointer, second) == 1);  // what stood behind the failure was dropped
  REQUIRE_OK(store_value(stream, pointer, 4));
  CHECK(load_value(pointer, stream) == 4);
  CHECK_OK(cookbookFree(pointer));
}

TEST_CASE("the first failure stays, a block is freed all the same") {
  reset_devices();
  TestStream stream;
  void* pointer = nullptr;
  REQUIRE_OK(cookbookMalloc(&pointer, 64));
  cookbookMemoryStats stats;
  REQUIRE_OK(cookbookMemGetStats(&stats, 0));
  const auto live = stats.live_blocks;
  REQUIRE_OK(fail_kernel(stream, "first", cookbookErrorIllegalAddress));
  (void)fail_kernel(stream, "second");  // queued or refused
  CHECK(cookbookDeviceSynchronize(0) == cookbookErrorIllegalAddress);
  CHECK(contains(last_message(), "first"));
  CHECK(cookbookFree(pointer) == cookbookErrorIllegalAddress);
  REQUIRE_OK(cookbookMemGetStats(&stats, 0));
  CHECK(stats.live_blocks == live - 1);
  CHECK_OK(cookbookDeviceReset(0));
}

TEST_CASE("a failed device hangs nobody: waits of another device pass") {
  reset_devices();
  TestStream healthy(0), failing(1);
  std::vector<int> list;
  REQUIRE_OK(cookbookSetDevice(1));
  TestEvent event(cookbookEventTiming);
  REQUIRE_OK(cookbookSetDevice(0));
  TestGate gate;
  gate.queue(failing);
  REQUIRE_OK(fail_kernel(failing, "broken"));
  REQUIRE_OK(append(failing, &list, 1));
  REQUIRE_OK(cookbookEventRecord(event, failing));
  REQUIRE_OK(cookbookStreamWaitEvent(healthy, event));
  REQUIRE_OK(append(healthy, &list, 2));
  gate.open();
  CHECK_OK(cookbookStreamSynchronize(healthy));
  CHECK(list == std::vector<int>{2});
  CHECK(cookbookEventSynchronize(event) == cookbookErrorLaunchFailure);
  CHECK_OK(cookbookEventQuery(event));
  CHECK_OK(cookbookDeviceReset(1));
}

TEST_CASE("the nth allocation fails, once") {
  reset_devices();
  REQUIRE_OK(cookbookMemResetStats(0, 0, 1));
  REQUIRE_OK(cookbookInjectFault(0, cookbookFaultAlloc, 2, 0));
  void *first = nullptr, *second = &first, *third = nullptr;
  CHECK_OK(cookbookMalloc(&first, 64));
  CHECK(cookbookMallocAsync(&second, 64, nullptr) == cookbookErrorOutOfMemory);
  CHECK(second == nullptr);
  CHECK(contains(last_message(), "injected"));
  CHECK_OK(cookbookMalloc(&third, 64));
  cookbookMemoryStats stats;
  REQUIRE_OK(cookbookMemGetStats(&stats, 0));
  CHECK(stats.out_of_memory == 1);
  CHECK(stats.allocations == 2);
  CHECK_OK(cookbookFree(first));
  CHECK_OK(cookbookFree(third));
}

TEST_CASE("the nth kernel fails when it runs, with its name, and nothing hangs") {
  reset_devices();
  TestStream stream, other;
  std::vector<int> list;
  REQUIRE_OK(cookbookInjectFault(0, cookbookFaultLaunch, 3, 0));
  TestGate gate;
  gate.queue(stream);  // a host function is no kernel
  REQUIRE_OK(append(stream, &list, 1));
  REQUIRE_OK(append(stream, &list, 2));
  CHECK_OK(store_value(stream, nullptr, 0));  // the third: accepted, fails later
  CHECK_OK(append(stream, &list, 4));
  TestEvent event;
  REQUIRE_OK(cookbookEventRecord(event, stream));
  REQUIRE_OK(cookbookStreamWaitEvent(other, event));
  gate.open();
  CHECK(cookbookStreamSynchronize(other) == cookbookErrorLaunchFailure);
  CHECK(contains(last_message(), "kernel 'store_value' on device 0"));
  CHECK(contains(last_message(), "injected fault"));
  CHECK(list == std::vector<int>{1, 2});
  REQUIRE_OK(cookbookDeviceReset(0));
  CHECK_OK(append(stream, &list, 5));
  CHECK_OK(cookbookStreamSynchronize(stream));
  CHECK(list == std::vector<int>{1, 2, 5});
}

TEST_CASE("the nth kernel starts late") {
  reset_devices();
  TestStream stream;
  std::vector<int> list;
  REQUIRE_OK(cookbookInjectFault(0, cookbookFaultDelay, 2, 300000));
  const auto begin = std::chrono::steady_clock::now();
  auto passed = [&] { return std::chrono::steady_clock::now() - begin; };
  REQUIRE_OK(append(stream, &list, 1));
  REQUIRE_OK(append(stream, &list, 2));
  CHECK(passed() < std::chrono::milliseconds(300));
  CHECK(cookbookStreamQuery(stream) == cookbookErrorNotReady);
  REQUIRE_OK(cookbookStreamSynchronize(stream));
  CHECK(passed() >= std::chrono::milliseconds(300));
  CHECK(list == std::vector<int>{1, 2});
}

TEST_CASE("faults are forgotten on request, belong to a device, and are checked") {
  reset_devices();
  TestStream stream;
  std::vector<int> list;
  REQUIRE_OK(cookbookInjectFault(0, cookbookFaultLaunch, 1, 0));
  REQUIRE_OK(cookbookInjectFault(0, cookbookFaultNone, 0, 0));
  REQUIRE_OK(cookbookInjectFault(1, cookbookFaultLaunch, 1, 0));
  CHECK_OK(append(stream, &list, 1));
  CHECK_OK(cookbookStreamSynchronize(stream));
  CHECK(cookbookInjectFault(0, cookbookFaultLaunch, 0, 0) == cookbookErrorInvalidValue);
  CHECK(cookbookInjectFault(9, cookbookFaultNone, 1, 0) == cookbookErrorInvalidDevice);
  reset_devices();
}

TEST_CASE("counters are exact, per device, and start again at zero") {
  reset_devices();
  TestStream stream, other(1);
  TestEvent event, timing(cookbookEventTiming);
  void* pointer = nullptr;
  for (int i = 0; i < 7; ++i) REQUIRE_OK(work_for(stream, 0));
  REQUIRE_OK(cookbookLaunchHostFunc(stream, [](void*) {}, nullptr));
  REQUIRE_OK(cookbookMallocAsync(&pointer, 64, stream));
  REQUIRE_OK(cookbookMemsetAsync(pointer, 0, 64, stream));
  REQUIRE_OK(cookbookMemsetAsync(pointer, 0, 0, stream));
  REQUIRE_OK(cookbookEventRecord(event, stream));
  REQUIRE_OK(cookbookEventRecord(timing, stream));
  REQUIRE_OK(cookbookStreamWaitEvent(stream, event));
  REQUIRE_OK(cookbookStreamSynchronize(stream));
  REQUIRE_OK(cookbookEventSynchronize(event));
  REQUIRE_OK(cookbookDeviceSynchronize(0));
  REQUIRE_OK(cookbookFree(pointer));
  REQUIRE_OK(work_for(other, 0));
  cookbookCounters counters;
  REQUIRE_OK(cookbookGetCounters(&counters, 0));
  CHECK(counters.launches == 7);
  CHECK(counters.host_functions == 1);
  CHECK(counters.fills == 1);
  CHECK(counters.copies == 0);
  CHECK(counters.event_records == 2);
  CHECK(counters.event_waits == 1);
  CHECK(counters.synchronizations == 4);
  CHECK(counters.allocations == 1);
  CHECK(counters.frees == 1);
  REQUIRE_OK(cookbookGetCounters(&counters, 1));
  CHECK(counters.launches == 1);
  CHECK(counters.synchronizations == 0);
  REQUIRE_OK(cookbookResetCounters(0));
  REQUIRE_OK(cookbookGetCounters(&counters, 0));
  CHECK(counters.launches == 0);
  CHECK(counters.synchronizations == 0);
  CHECK(counters.allocations == 0);
}
