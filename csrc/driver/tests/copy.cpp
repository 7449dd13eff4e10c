// Copies of all kinds, fills, and what is refused.
#include <numeric>
#include <thread>

#include "support.h"

using namespace support;

namespace {
struct Buffers {
  static constexpr size_t kBytes = 100000;
  void *device = nullptr, *second = nullptr, *peer = nullptr, *pinned = nullptr;
  std::vector<unsigned char> host = std::vector<unsigned char>(kBytes), result = std::vector<unsigned char>(kBytes);
  Buffers() {
    REQUIRE_OK(cookbookMalloc(&device, kBytes));
    REQUIRE_OK(cookbookMalloc(&second, kBytes));
    REQUIRE_OK(cookbookSetDevice(1));
    REQUIRE_OK(cookbookMalloc(&peer, kBytes));
    REQUIRE_OK(cookbookSetDevice(0));
    REQUIRE_OK(cookbookMallocHost(&pinned, kBytes));
    for (size_t i = 0; i < kBytes; ++i) host[i] = static_cast<unsigned char>(i * 31 + i / 256);
  }
  ~Buffers() {
    for (void* pointer : {device, second, peer}) CHECK_OK(cookbookFree(pointer));
    CHECK_OK(cookbookFreeHost(pinned));
  }
};
}  // namespace

TEST_CASE("bytes survive every kind of copy, and are counted by direction") {
  reset_devices();
  Buffers b;
  TestStream stream;
  const size_t n = Buffers::kBytes;
  REQUIRE_OK(cookbookResetCounters(0));
  CHECK_OK(cookbookMemcpyAsync(b.pinned, b.host.data(), n, cookbookMemcpyHostToHost, stream));  // waits: pageable
  CHECK_OK(cookbookMemcpyAsync(b.device, b.pinned, n, cookbookMemcpyHostToDevice, stream));
  CHECK_OK(cookbookMemcpyAsync(b.second, b.device, n, cookbookMemcpyDeviceToDevice, stream));
  CHECK_OK(cookbookMemcpyAsync(b.peer, b.second, n, cookbookMemcpyDeviceToDevice, stream));
  CHECK_OK(cookbookMemsetAsync(b.device, 0, n, stream));
  CHECK_OK(cookbookMemcpyAsync(b.device, b.peer, n, cookbookMemcpyDefault, stream));
  CHECK_OK(cookbookMemcpy(b.result.data(), b.device, n, cookbookMemcpyDeviceToHost, stream));
  CHECK(b.result == b.host);
  CHECK_OK(cookbookMemcpy(b.device, b.host.data(), 0, cookbookMemcpyHostToDevice, stream));
  cookbookCounters counters;
  REQUIRE_OK(cookbookGetCounters(&counters, 0));
  CHECK(counters.copies == 6);
  CHECK(counters.fills == 1);
  CHECK(counters.bytes_host_to_device == n);
  CHECK(counters.bytes_device_to_host == n);
  CHECK(counters.bytes_device_to_device == n);
  CHECK(counters.bytes_peer == 2 * n);
  CHECK(counters.synchronizations == 3);
  CHECK(counters.launches == 0);
}

TEST_CASE("a copy with pageable memory has run when the call returns") {
  Buffers b;
  TestStream stream;
  REQUIRE_OK(work_for(stream, 2000));
  CHECK_OK(cookbookMemcpyAsync(b.device, b.host.data(), Buffers::kBytes, cookbookMemcpyDefault, stream));
  CHECK_OK(cookbookStreamQuery(stream));
  std::fill(b.host.begin(), b.host.end(), static_cast<unsigned char>(9));  // too late to matter
  CHECK_OK(cookbookMemcpyAsync(b.result.data(), b.device, Buffers::kBytes, cookbookMemcpyDefault, stream));
  CHECK(b.result[1000] == static_cast<unsigned char>(1000 * 31 + 1000 / 256));
}

TEST_CASE("overlapping copies within a device and fills of parts") {
  Buffers b;
  TestStream stream;
  auto* device = static_cast<char*>(b.device);
  CHECK_OK(cookbookMemcpyAsync(device, b.host.data(), 1000, cookbookMemcpyHostToDevice, stream));
  CHECK_OK(cookbookMemcpyAsync(device + 10, device, 900, cookbookMemcpyDeviceToDevice, stream));
  CHECK_OK(cookbookMemsetAsync(device + 500, 0x1ab, 7, stream));
  CHECK_OK(cookbookMemcpy(b.result.data(), device, 1000, cookbookMemcpyDeviceToHost, stream));
  for (size_t i = 0; i < 900; ++i) {
    const size_t at = i + 10;
    CHECK(b.result[at] == (at >= 500 && at < 507 ? 0xab : b.host[i]));
  }
}

TEST_CASE("wrong kinds and addresses are refused before anything is queued") {
  reset_devices();
  Buffers b;
  TestStream stream;
  auto* device = static_cast<char*>(b.device);
  CHECK(cookbookMemcpy(b.host.data(), b.device, 8, cookbookMemcpyHostToDevice, stream) == cookbookErrorInvalidValue);
  CHECK(contains(last_message(), "host to device"));
  CHECK(contains(last_message(), "device to host"));
  CHECK(cookbookMemcpy(b.device, b.host.data(), 8, static_cast<cookbookMemcpyKind>(7), stream) ==
        cookbookErrorInvalidValue);
  CHECK(cookbookMemcpy(nullptr, b.device, 8, cookbookMemcpyDefault, stream) == cookbookErrorInvalidValue);
  CHECK(cookbookMemcpy(b.device, b.host.data(), Buffers::kBytes + 1, cookbookMemcpyDefault, stream) ==
        cookbookErrorInvalidAddress);
  CHECK(contains(last_message(), "100000"));
  CHECK(cookbookMemcpy(device + 99993, b.host.data(), 8, cookbookMemcpyDefault, stream) == cookbookErrorInvalidAddress);
  CHECK_OK(cookbookMemcpy(device + 99992, b.host.data(), 8, cookbookMemcpyDefault, stream));
  CHECK(cookbookMemsetAsync(b.host.data(), 0, 8, stream) == cookbookErrorInvalidValue);
  CHECK(cookbookMemsetAsync(device + 99999, 0, 2, stream) == cookbookErrorInvalidAddress);
  void* freed = nullptr;
  REQUIRE_OK(cookbookMalloc(&freed, 64));
  REQUIRE_OK(cookbookFree(freed));
  CHECK(cookbookMemsetAsync(freed, 0, 8, stream) == cookbookErrorInvalidAddress);
  CHECK(contains(last_message(), "freed"));
  CHECK_OK(cookbookDeviceSynchronize(0));  // none of it is a failure of the device
  cookbookCounters counters;
  REQUIRE_OK(cookbookGetCounters(&counters, 0));
  CHECK(counters.copies == 1);
  CHECK(counters.fills == 0);
}

TEST_CASE("blocking copies and kernels of several threads share a stream, in order and all counted") {
  reset_devices();
  constexpr int kThreads = 3, kTimes = 2000;
  TestStream stream;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      void* pointer = nullptr;
      int64_t value = 0;
      wrong += cookbookMalloc(&pointer, 8) != cookbookSuccess;
      wrong += cookbookMemcpy(pointer, &value, 8, cookbookMemcpyDefault, stream) != cookbookSuccess;
      for (int i = 1; i <= kTimes; ++i) {
        wrong += add_value(stream, pointer, 1) != cookbookSuccess;
        wrong += cookbookMemcpy(&value, pointer, 8, cookbookMemcpyDefault, stream) != cookbookSuccess;
        wrong += value != i;
        // The stream may well be idle now, so this one needs no record.
        wrong += cookbookMemcpy(pointer, &value, 8, cookbookMemcpyDefault, stream) != cookbookSuccess;
      }
      wrong += cookbookFree(pointer) != cookbookSuccess;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  cookbookCounters counters;
  REQUIRE_OK(cookbookGetCounters(&counters, 0));
  CHECK(counters.launches == kThreads * kTimes);
  CHECK(counters.copies == kThreads * (2 * kTimes + 1));
  CHECK(counters.bytes_host_to_device == kThreads * 8 * (kTimes + 1));
  CHECK(counters.bytes_device_to_host == kThreads * 8 * kTimes);
}

TEST_CASE("a blocking copy reports a kernel that failed before it, however late") {
  Buffers b;
  TestStream stream;
  for (int i = 0; i < 200; ++i) {
    b.result[0] = 77;
    REQUIRE_OK(fail_kernel(stream, "on purpose"));
    CHECK(cookbookMemcpy(b.result.data(), b.device, 8, cookbookMemcpyDefault, stream) == cookbookErrorLaunchFailure);
    CHECK(contains(last_message(), "on purpose"));
    CHECK(b.result[0] == 77);  // dropped, as all work behind a failure
    reset_devices();
  }
}
