// chapter 4
// Pinned memory under threads: a block that a copy still reads or writes serves nobody else, whichever thread frees it.
#include <chrono>
#include <optional>
#include <random>

#include "runtime/streams.h"
#include "scaffolding/allocator.h"
#include "scaffolding/device.h"
#include "scaffolding/pinned.h"
#include "scaffolding/stream.h"
#include "support.h"
#include "threads.h"

namespace {

using namespace cookbook;
using namespace tests;

// Host memory whose first and last words the host writes and reads itself. A copy that still runs races with that,
// which ThreadSanitizer reports, and shows as a wrong word otherwise.
void mark(const c10::DataPtr& data, size_t bytes, uint64_t value) {
  auto* words = static_cast<uint64_t*>(data.get());
  words[0] = words[bytes / sizeof(uint64_t) - 1] = value;
}

}  // namespace

TEST_CASE("pinned memory: threads allocate, copy and free each other's blocks") {
  constexpr int kWorkers = 4, kRounds = 120;
  std::atomic<int> wrong{0}, working{kWorkers};
  std::mutex lock;  // guards `parcels`
  std::vector<c10::DataPtr> parcels;
  const auto post = [&](c10::DataPtr data) {
    std::optional<c10::DataPtr> freed;  // without the lock
    const std::lock_guard guard(lock);
    parcels.push_back(std::move(data));
    if (parcels.size() > 6) {
      freed = std::move(parcels.front());
      parcels.erase(parcels.begin());
    }
  };
  // A block that was freed during a capture of a stream that used it stays with core for ever; a test before this one
  // may have left some.
  pinned_allocator().empty_cache();
  const auto before = pinned_allocator().get_stats();
  // The copies of two of the streams wait for these until half of the work is queued.
  support::TestGate gate;

  const std::string failure = in_threads(kWorkers + 1, [&](int i) {
    if (i == kWorkers) {
      while (working.load() != 0) {
        pinned_allocator().empty_cache();
        const auto stats = pinned_allocator().get_stats();
        expect(stats.allocations.current >= 0, "statistics that do not count below nothing");
        std::this_thread::sleep_for(std::chrono::microseconds(500));
      }
      return;
    }
    const auto index = static_cast<c10::DeviceIndex>(i % 2);
    set_device(index);
    const c10::Stream stream = new_stream(index);
    exchange_stream(stream);
    if (i < 2) {
      static std::mutex queue_lock;  // TestGate counts without one
      const std::lock_guard guard(queue_lock);
      gate.queue(handle(stream));
    }
    std::mt19937 random(static_cast<unsigned>(i));
    for (int round = 0; round < kRounds; ++round) {
      const size_t bytes = size_t{64} << random() % 8;
      const auto value = static_cast<uint64_t>(i * kRounds + round + 1);
      const c10::DataPtr device = allocator().allocate(bytes);
      c10::DataPtr host = pinned_allocator().allocate(bytes);
      mark(host, bytes, value);
      // There, and back into another block; both go while the copies are queued.
      check(cookbookMemcpyAsync(device.get(), host.get(), bytes, cookbookMemcpyHostToDevice, handle(stream)));
      expect(pinned_allocator().record_event(host.get(), host.get_context(), stream), "a block that the cache knows");
      post(std::move(host));
      const MarkArgs last{static_cast<char*>(device.get()) + bytes - 8, 8, value, &wrong};
      check(cookbookLaunchKernel(handle(stream), &kVerify, &last, sizeof(last)));
      c10::DataPtr back = pinned_allocator().allocate(bytes);
      check(cookbookMemcpyAsync(back.get(), device.get(), bytes, cookbookMemcpyDeviceToHost, handle(stream)));
      expect(pinned_allocator().record_event(back.get(), back.get_context(), stream), "a block that the cache knows");
      post(std::move(back));
      if (round == kRounds / 2) gate.open();
    }
    check(cookbookStreamSynchronize(handle(stream)));
    --working;
  });
  gate.open();
  CHECK(failure == "");
  CHECK(wrong == 0);
  parcels.clear();
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) check(cookbookDeviceSynchronize(index));
  pinned_allocator().empty_cache();
  const auto stats = pinned_allocator().get_stats();
  CHECK(stats.allocations.current == before.allocations.current);
  CHECK(stats.allocated_bytes.current == before.allocated_bytes.current);
}
