// Kernels and host functions: order, arguments that are refused, blocking launches.
#include <chrono>
#include <stdexcept>
#include <thread>

#include "support.h"

using namespace support;

TEST_CASE("host functions run in stream order between kernels") {
  TestStream stream;
  std::vector<int> list;
  struct Call {
    std::vector<int>* list;
    int number;
  };
  std::vector<Call> calls;
  calls.reserve(50);
  for (int i = 0; i < 50; ++i) {
    calls.push_back({&list, 2 * i + 1});
    REQUIRE_OK(append(stream, &list, 2 * i));
    REQUIRE_OK(cookbookLaunchHostFunc(
        stream,
        [](void* raw) {
          auto* call = static_cast<Call*>(raw);
          call->list->push_back(call->number);
        },
        &calls.back()));
  }
  REQUIRE_OK(cookbookStreamSynchronize(stream));
  REQUIRE(list.size() == 100);
  for (int i = 0; i < 100; ++i) CHECK(list[static_cast<size_t>(i)] == i);
}

TEST_CASE("what cannot be launched is refused") {
  TestStream stream;
  const cookbookKernel_t empty{"empty", nullptr};
  const cookbookKernel_t fine{"fine", [](cookbookKernelContext*, void*) { return cookbookSuccess; }};
  CHECK(cookbookLaunchKernel(stream, nullptr, nullptr, 0) == cookbookErrorInvalidValue);
  CHECK(cookbookLaunchKernel(stream, &empty, nullptr, 0) == cookbookErrorInvalidValue);
  CHECK(cookbookLaunchKernel(stream, &fine, nullptr, 8) == cookbookErrorInvalidValue);
  CHECK(contains(last_message(), "fine"));
  CHECK(cookbookLaunchHostFunc(stream, nullptr, nullptr) == cookbookErrorInvalidValue);
  CHECK_OK(cookbookLaunchKernel(stream, &fine, nullptr, 0));
  CHECK_OK(cookbookStreamSynchronize(stream));
}

TEST_CASE("a blocking launch returns its own error") {
  reset_devices();
  TestStream stream;
  std::vector<int> list;
  CHECK(cookbookSetLaunchBlocking(1) == 0);
  CHECK_OK(append(stream, &list, 1));
  CHECK(list.size() == 1);  // without a wait
  CHECK(fail_kernel(stream, "on purpose") == cookbookErrorLaunchFailure);
  CHECK(contains(last_message(), "kernel 'fails' on device 0"));
  CHECK(contains(last_message(), "on purpose"));
  CHECK(cookbookSetLaunchBlocking(0) == 1);
  CHECK_OK(cookbookDeviceReset(0));
}

TEST_CASE("a kernel that throws becomes a launch failure") {
  reset_devices();
  static const cookbookKernel_t thrower{
      "thrower", [](cookbookKernelContext*, void*) -> cookbookError_t { throw std::runtime_error("thrown text"); }};
  TestStream stream;
  REQUIRE_OK(cookbookLaunchKernel(stream, &thrower, nullptr, 0));
  CHECK(cookbookStreamSynchronize(stream) == cookbookErrorLaunchFailure);
  CHECK(contains(last_message(), "kernel 'thrower'"));
  CHECK(contains(last_message(), "thrown text"));
  CHECK_OK(cookbookDeviceReset(0));
}

TEST_CASE("a host function that throws becomes a failure too, whoever runs it") {
  reset_devices();
  TestStream stream;
  for (int i = 0; i < 50; ++i) {  // some of them on this thread
    REQUIRE_OK(cookbookLaunchHostFunc(stream, [](void*) { throw 1; }, nullptr));
    CHECK(cookbookStreamSynchronize(stream) == cookbookErrorLaunchFailure);
    CHECK(contains(last_message(), "a host function on device 0"));
    REQUIRE_OK(cookbookDeviceReset(0));
  }
  std::vector<int> list;
  CHECK_OK(append(stream, &list, 1));
  CHECK_OK(cookbookStreamSynchronize(stream));
  CHECK(list.size() == 1);
}
