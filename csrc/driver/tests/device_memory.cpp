// Memory calls: capacity, statistics, addresses, and blocks that are reused in stream order.
#include <chrono>
#include <cstdio>
#include <mutex>
#include <random>
#include <thread>

#include "support.h"

using namespace support;

namespace {
cookbookMemoryStats stats_of(int device) {
  cookbookMemoryStats stats;
  REQUIRE_OK(cookbookMemGetStats(&stats, device));
  return stats;
}
}  // namespace

TEST_CASE("blocks are aligned, known by any address in them, and forgotten when freed") {
  reset_devices();
  for (int device = 0; device < 2; ++device) {
    REQUIRE_OK(cookbookSetDevice(device));
    void* pointer = nullptr;
    REQUIRE_OK(cookbookMalloc(&pointer, 1000));
    CHECK(reinterpret_cast<uintptr_t>(pointer) % 512 == 0);
    cookbookPointerAttributes attributes;
    for (size_t offset : {size_t{0}, size_t{1}, size_t{999}}) {
      REQUIRE_OK(cookbookPointerGetAttributes(&attributes, static_cast<char*>(pointer) + offset));
      CHECK(attributes.type == cookbookMemoryDevice);
      CHECK(attributes.device == device);
      CHECK(attributes.base == pointer);
      CHECK(attributes.bytes == 1000);
    }
    CHECK(cookbookFree(static_cast<char*>(pointer) + 512) == cookbookErrorInvalidAddress);
    CHECK_OK(cookbookFree(pointer));
    CHECK(cookbookFree(pointer) == cookbookErrorInvalidAddress);
    CHECK(cookbookFreeAsync(pointer, nullptr) == cookbookErrorInvalidAddress);
    REQUIRE_OK(cookbookPointerGetAttributes(&attributes, pointer));
    CHECK(attributes.type == cookbookMemoryUnregistered);
  }
  REQUIRE_OK(cookbookSetDevice(0));
  int local = 0;
  CHECK(cookbookFree(&local) == cookbookErrorInvalidAddress);
  CHECK_OK(cookbookFree(nullptr));
  CHECK_OK(cookbookFreeAsync(nullptr, nullptr));
  void* none = &local;
  CHECK_OK(cookbookMalloc(&none, 0));
  CHECK(none == nullptr);
  CHECK(cookbookMalloc(nullptr, 8) == cookbookErrorInvalidValue);
}

COOKBOOK_CHILD(out_of_memory) {
  size_t free_bytes = 0, total = 0;
  CHILD_EXPECT(cookbookMemGetInfo(&free_bytes, &total, 0) == cookbookSuccess);
  CHILD_EXPECT(free_bytes == size_t{16} << 20 && total == free_bytes);
  void *big = nullptr, *rest = nullptr, *all = nullptr;
  CHILD_EXPECT(cookbookMalloc(&big, size_t{10} << 20) == cookbookSuccess);
  CHILD_EXPECT(cookbookMalloc(&rest, size_t{8} << 20) == cookbookErrorOutOfMemory && !rest);
  const std::string message = cookbookGetLastErrorMessage();
  CHILD_EXPECT(contains(message, "device 0: out of memory: 8.00 MiB asked, 6.00 MiB of 16.00 MiB free"));
  CHILD_EXPECT(contains(message, "largest free block 6.00 MiB"));
  CHILD_EXPECT(cookbookMalloc(&rest, SIZE_MAX) == cookbookErrorOutOfMemory);
  CHILD_EXPECT(cookbookMallocAsync(&rest, size_t{8} << 20, nullptr) == cookbookErrorOutOfMemory);
  CHILD_EXPECT(cookbookMalloc(&rest, size_t{6} << 20) == cookbookSuccess);
  CHILD_EXPECT(cookbookMemGetInfo(&free_bytes, &total, 0) == cookbookSuccess && free_bytes == 0);
  CHILD_EXPECT(cookbookFree(big) == cookbookSuccess);
  CHILD_EXPECT(cookbookFree(rest) == cookbookSuccess);
  CHILD_EXPECT(cookbookMalloc(&all, size_t{16} << 20) == cookbookSuccess);  // all of it in one piece again
  CHILD_EXPECT(store_value(nullptr, static_cast<char*>(all) + (size_t{16} << 20) - 8, 3) == cookbookSuccess);
  CHILD_EXPECT(cookbookFree(all) == cookbookSuccess);
  cookbookMemoryStats stats;
  CHILD_EXPECT(cookbookMemGetStats(&stats, 0) == cookbookSuccess && stats.out_of_memory == 3);
  return 0;
}

TEST_CASE("running out of memory is an error with sizes, and freeing makes it work again") {
  CHECK(run_child("out_of_memory", {{"COOKBOOK_DEVICE_MEMORY", "16M"}}).exit_code == 0);
}

TEST_CASE("statistics count what happens") {
  reset_devices();
  const auto before = stats_of(0);
  REQUIRE_OK(cookbookMemResetStats(0, 1, 1));
  void *first = nullptr, *second = nullptr;
  REQUIRE_OK(cookbookMalloc(&first, 100));
  REQUIRE_OK(cookbookMallocAsync(&second, 1000, nullptr));
  auto stats = stats_of(0);
  CHECK(stats.allocations == 2);
  CHECK(stats.live_blocks == before.live_blocks + 2);
  CHECK(stats.live_bytes == before.live_bytes + 512 + 1024);
  CHECK(stats.requested_bytes == before.requested_bytes + 1100);
  REQUIRE_OK(cookbookFree(first));
  REQUIRE_OK(cookbookFreeAsync(second, nullptr));
  stats = stats_of(0);
  CHECK(stats.frees == 2);
  CHECK(stats.live_blocks == before.live_blocks);
  CHECK(stats.live_blocks_peak == before.live_blocks + 2);
  CHECK(stats.live_bytes == before.live_bytes);
  CHECK(stats.live_bytes_peak == before.live_bytes + 1536);
  CHECK(stats.requested_bytes_peak == before.requested_bytes + 1100);
  CHECK(stats.allocated_bytes_total == 1536);
  CHECK(stats.freed_bytes_total == 1536);
  CHECK(stats.requested_bytes_total == 1100);
  CHECK(stats.requested_freed_total == 1100);
  REQUIRE_OK(cookbookMemResetStats(0, 1, 0));
  CHECK(stats_of(0).live_bytes_peak == before.live_bytes);
  CHECK(stats_of(0).allocations == 2);
  REQUIRE_OK(cookbookMemResetStats(0, 0, 1));
  CHECK(stats_of(0).allocations == 0);
  CHECK(stats_of(0).allocated_bytes_total == 0);
}

TEST_CASE("cookbookFree waits for the device") {
  void* pointer = nullptr;
  REQUIRE_OK(cookbookMalloc(&pointer, 64));
  TestStream stream;
  REQUIRE_OK(work_for(stream, 3000));
  REQUIRE_OK(store_value(stream, pointer, 1));
  REQUIRE_OK(cookbookFree(pointer));
  CHECK_OK(cookbookStreamQuery(stream));
}

TEST_CASE("a block freed in stream order is at once reused on its stream, by another only when it has passed") {
  TestStream first, second;
  void *block = nullptr, *same = nullptr, *other = nullptr, *later = nullptr;
  {
    TestGate gate;
    gate.queue(first);
    REQUIRE_OK(cookbookMallocAsync(&block, 4096, first));
    REQUIRE_OK(cookbookFreeAsync(block, first));
    REQUIRE_OK(cookbookMallocAsync(&same, 4096, first));
    CHECK(same == block);
    REQUIRE_OK(cookbookFreeAsync(same, first));
    REQUIRE_OK(cookbookMallocAsync(&other, 4096, second));  // first has not passed the free
    CHECK(other != block);
    gate.open();
  }
  REQUIRE_OK(cookbookStreamSynchronize(first));
  REQUIRE_OK(cookbookMallocAsync(&later, 4096, first));
  CHECK_OK(cookbookFreeAsync(later, first));
  CHECK_OK(cookbookFreeAsync(other, second));
}

TEST_CASE("memory and stream of different devices do not mix") {
  TestStream stream(1);
  void* pointer = nullptr;
  REQUIRE_OK(cookbookMalloc(&pointer, 64));
  CHECK(cookbookFreeAsync(pointer, stream) == cookbookErrorInvalidHandle);
  CHECK_OK(cookbookFree(pointer));
  REQUIRE_OK(cookbookMallocAsync(&pointer, 64, stream));  // the stream's device, not the current one
  cookbookPointerAttributes attributes;
  REQUIRE_OK(cookbookPointerGetAttributes(&attributes, pointer));
  CHECK(attributes.device == 1);
  CHECK_OK(cookbookFreeAsync(pointer, nullptr));  // null: the default stream of the memory's device
  CHECK(cookbookFreeAsync(pointer, nullptr) == cookbookErrorInvalidAddress);
}

// With 16 MiB only: the second stream can be served only by blocks that the first has not passed yet.
COOKBOOK_CHILD(reuse_across_streams) {
  constexpr size_t kMiB = size_t{1} << 20;
  TestStream first, second;
  for (const int pieces : {1, 4}) {  // one block that fits, and four that must be joined
    TestGate gate;
    gate.queue(first);
    void* blocks[4] = {};
    for (int i = 0; i < pieces; ++i) {
      CHILD_EXPECT(cookbookMallocAsync(&blocks[i], 16 * kMiB / static_cast<size_t>(pieces), first) == cookbookSuccess);
      CHILD_EXPECT(store_value(first, blocks[i], 1) == cookbookSuccess);
    }
    for (int i = 0; i < pieces; ++i) CHILD_EXPECT(cookbookFreeAsync(blocks[i], first) == cookbookSuccess);
    void* stolen = nullptr;
    CHILD_EXPECT(cookbookMallocAsync(&stolen, 12 * kMiB, second) == cookbookSuccess);  // does not wait for the device
    CHILD_EXPECT(store_value(second, stolen, 2) == cookbookSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHILD_EXPECT(cookbookStreamQuery(second) == cookbookErrorNotReady);  // it waits for the first stream instead
    gate.open();
    int64_t value = 0;
    CHILD_EXPECT(cookbookMemcpy(&value, stolen, 8, cookbookMemcpyDefault, second) == cookbookSuccess);
    CHILD_EXPECT(value == 2);
    CHILD_EXPECT(cookbookFreeAsync(stolen, second) == cookbookSuccess);
    CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookSuccess);
  }
  // cookbookMalloc takes no block that a stream has not passed: it waits.
  void *block = nullptr, *all = nullptr;
  CHILD_EXPECT(cookbookMallocAsync(&block, 16 * kMiB, first) == cookbookSuccess);
  CHILD_EXPECT(work_for(first, 3000) == cookbookSuccess);
  CHILD_EXPECT(cookbookFreeAsync(block, first) == cookbookSuccess);
  CHILD_EXPECT(cookbookMalloc(&all, 16 * kMiB) == cookbookSuccess);
  CHILD_EXPECT(cookbookStreamQuery(first) == cookbookSuccess);
  CHILD_EXPECT(cookbookFree(all) == cookbookSuccess);
  return 0;
}

TEST_CASE("when only another stream's blocks could serve, the stream is made to wait for them") {
  CHECK(run_child("reuse_across_streams", {{"COOKBOOK_DEVICE_MEMORY", "16M"}}).exit_code == 0);
}

// Each thread allocates on its streams, lets a kernel write a tag to the whole block's ends and a later kernel verify
// it, and frees in stream order. If a block were handed to another stream too early, or twice, a tag would be wrong.
namespace {
struct TagArgs {
  char* pointer;
  size_t bytes;
  int64_t tag;
  std::atomic<int>* wrong;
};
template <bool kWrite>
cookbookError_t run_tag(cookbookKernelContext* context, void* raw) {
  const auto* args = static_cast<const TagArgs*>(raw);
  for (const size_t offset : {size_t{0}, (args->bytes - 8) / 2 / 8 * 8, (args->bytes - 8) / 8 * 8}) {
    auto* place = static_cast<int64_t*>(cookbookTranslate(context, args->pointer + offset, 8));
    if (!place) return cookbookErrorIllegalAddress;
    if (kWrite) *place = args->tag;
    if (!kWrite && *place != args->tag) args->wrong->fetch_add(1);
  }
  return cookbookSuccess;
}
const cookbookKernel_t write_tag{"write_tag", run_tag<true>};
const cookbookKernel_t check_tag{"check_tag", run_tag<false>};
}  // namespace

COOKBOOK_CHILD(random_reuse) {
  constexpr int kThreads = 4, kStreams = 4, kSteps = 2500;
  cookbookStream_t streams[kStreams];
  for (auto& stream : streams) CHILD_EXPECT(cookbookStreamCreate(&stream, 0) == cookbookSuccess);
  std::atomic<int> wrong{0}, unexpected{0}, full{0}, served{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937 random(static_cast<unsigned>(number) + 11);
      struct Live {
        TagArgs args;
        cookbookStream_t stream;
      };
      std::vector<Live> live;
      auto drop = [&](size_t i) {
        const Live& one = live[i];
        if (cookbookLaunchKernel(one.stream, &check_tag, &one.args, sizeof(one.args)) != cookbookSuccess) ++unexpected;
        const bool in_order = random() % 16 != 0;
        if ((in_order ? cookbookFreeAsync(one.args.pointer, one.stream) : cookbookFree(one.args.pointer)) !=
            cookbookSuccess)
          ++unexpected;
        live[i] = live.back();
        live.pop_back();
      };
      for (int step = 0; step < kSteps; ++step) {
        if (random() % 3 || live.empty()) {
          Live one;
          one.stream = streams[random() % kStreams];
          one.args = {nullptr, 8 + random() % (size_t{1} << (9 + random() % 9)), number * 1000000 + step, &wrong};
          void* pointer = nullptr;
          const cookbookError_t error = random() % 32 ? cookbookMallocAsync(&pointer, one.args.bytes, one.stream)
                                                      : cookbookMalloc(&pointer, one.args.bytes);
          if (error == cookbookErrorOutOfMemory) {
            ++full;
            while (live.size() > 4) drop(0);
            continue;
          }
          if (error != cookbookSuccess) ++unexpected;
          ++served;
          one.args.pointer = static_cast<char*>(pointer);
          if (cookbookLaunchKernel(one.stream, &write_tag, &one.args, sizeof(one.args)) != cookbookSuccess)
            ++unexpected;
          live.push_back(one);
        } else {
          drop(random() % live.size());
        }
      }
      while (!live.empty()) drop(0);
    });
  }
  for (auto& thread : threads) thread.join();
  CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookSuccess);
  CHILD_EXPECT(wrong.load() == 0);
  CHILD_EXPECT(unexpected.load() == 0);
  CHILD_EXPECT(served.load() > kThreads * kSteps / 8);
  CHILD_EXPECT(full.load() > 0);  // else the hard paths were not taken
  cookbookMemoryStats stats;
  CHILD_EXPECT(cookbookMemGetStats(&stats, 0) == cookbookSuccess);
  CHILD_EXPECT(stats.live_blocks == 0 && stats.live_bytes == 0 && stats.requested_bytes == 0);
  CHILD_EXPECT(stats.allocations == static_cast<uint64_t>(served.load()) && stats.frees == stats.allocations);
  void* all = nullptr;
  CHILD_EXPECT(cookbookMalloc(&all, size_t{2} << 20) == cookbookSuccess);  // nothing was lost, all is joined
  CHILD_EXPECT(cookbookFree(all) == cookbookSuccess);
  return 0;
}

TEST_CASE("random allocations by 4 threads on 4 streams: no block is used by two at a time") {
  CHECK(run_child("random_reuse", {{"COOKBOOK_DEVICE_MEMORY", "2M"}}).exit_code == 0);
}
