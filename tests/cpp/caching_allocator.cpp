// chapter 4
// The caching allocator under threads: whoever allocates, lends, gives away and frees, no two live blocks overlap and
// no byte is lost.
#include <c10/core/Event.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>

#include "runtime/device_cache.h"
#include "runtime/streams.h"
#include "scaffolding/allocator.h"
#include "scaffolding/device.h"
#include "scaffolding/stream.h"
#include "support.h"
#include "threads.h"

namespace {

using namespace cookbook;
using namespace tests;

constexpr c10::MempoolId_t kNoPool{};

// Device memory that somebody owns, with a mark in it.
struct Held {
  c10::DataPtr data;
  size_t bytes;
  uint64_t mark;
  cookbookStream_t home;  // whose order the block is in
};

class Mailbox {
 public:
  void put(Held held) {
    const std::lock_guard guard(lock_);
    box_.push_back(std::move(held));
  }
  std::optional<Held> take() {
    const std::lock_guard guard(lock_);
    if (box_.empty()) return std::nullopt;
    Held held = std::move(box_.back());
    box_.pop_back();
    return held;
  }

 private:
  std::mutex lock_;  // guards box_
  std::vector<Held> box_;
};

size_t random_bytes(std::mt19937& random) {
  const size_t largest[] = {2048, 256 << 10, 3 << 20};
  return 8 + random() % largest[random() % 3];
}

// Its statistics and its picture agree with themselves at any moment.
void look_at(c10::DeviceIndex index) {
  const auto stats = allocator().getDeviceStats(index);
  expect(stats.allocated_bytes[0].current <= stats.active_bytes[0].current, "allocated <= active");
  expect(stats.active_bytes[0].current <= stats.reserved_bytes[0].current, "active <= reserved");
  for (const auto& segment : device_cache(index).snapshot()) {
    size_t sum = 0;
    for (const auto& block : segment.blocks) sum += block.size;
    expect(sum == segment.total_size, "blocks that tile their segment");
  }
}

void expect_nothing_left() {
  for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
    check(cookbookDeviceSynchronize(index));
    allocator().emptyCache(kNoPool);
    const auto stats = allocator().getDeviceStats(index);
    CHECK(stats.allocated_bytes[0].current == 0);
    CHECK(stats.active_bytes[0].current == 0);
    CHECK(stats.reserved_bytes[0].current == 0);
    CHECK(device_cache(index).snapshot().empty());
  }
}

}  // namespace

TEST_CASE("allocator: threads allocate, lend, give away and free") {
  constexpr int kWorkers = 4, kRounds = 250;
  std::atomic<int> wrong{0}, working{kWorkers};
  std::atomic<uint64_t> marks{0};
  Mailbox mailboxes[2];
  // What is lent waits behind these until most of the work has been queued: the freed blocks stay pending.
  support::TestGate gate;
  const c10::Stream lenders[] = {new_stream(0), new_stream(1)};
  for (const c10::Stream& stream : lenders) gate.queue(handle(stream));

  const std::string failure = in_threads(kWorkers + 2, [&](int i) {
    if (i >= kWorkers) {  // one empties the cache, one looks
      while (working.load() != 0) {
        i == kWorkers ? allocator().emptyCache(kNoPool) : (look_at(0), look_at(1));
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      return;
    }
    const auto index = static_cast<c10::DeviceIndex>(i % 2);
    std::mt19937 random(static_cast<unsigned>(i));
    set_device(index);
    exchange_stream(new_stream(index));
    std::vector<Held> mine;
    const auto drop = [&](size_t which) {
      Held held = std::move(mine[which]);
      mine.erase(mine.begin() + static_cast<ptrdiff_t>(which));
      verify(held.home, held.data.get(), held.bytes, held.mark, wrong);  // and free, with this queued
    };
    for (int round = 0; round < kRounds; ++round) {
      const unsigned action = random() % 8;
      if (action < 4 || mine.empty()) {
        const size_t bytes = random_bytes(random);
        Held held{allocator().allocate(bytes), bytes, ++marks, current_handle(index)};
        fill(held.home, held.data.get(), bytes, held.mark);
        mine.push_back(std::move(held));
      } else if (action == 4) {  // to another stream, which uses it after the free
        const Held& held = mine[random() % mine.size()];
        const c10::Stream& other = lenders[index];
        c10::Event filled(kDeviceType);
        filled.record(c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, index),
                                  reinterpret_cast<c10::StreamId>(held.home)));
        filled.block(other);
        verify(handle(other), held.data.get(), held.bytes, held.mark, wrong);
        allocator().recordStream(held.data, other);
      } else if (action == 5) {  // to another thread, which frees it
        mailboxes[index].put(std::move(mine.back()));
        mine.pop_back();
      } else if (action == 6) {
        if (auto held = mailboxes[index].take()) mine.push_back(std::move(*held));
      } else {
        drop(random() % mine.size());
      }
      while (mine.size() > 24) drop(0);
      if (round == kRounds * 3 / 4) gate.open();
    }
    while (!mine.empty()) drop(0);
    --working;
  });
  gate.open();
  CHECK(failure == "");
  for (Mailbox& mailbox : mailboxes) {
    while (mailbox.take()) {
    }
  }
  expect_nothing_left();
  CHECK(wrong == 0);
}

// Less memory than all of them want at once, but enough for each: somebody's cache has to go back.
COOKBOOK_CHILD(allocators_at_the_limit) {
  std::atomic<int> wrong{0}, failures{0};
  const std::string failure = in_threads(4, [&](int i) {
    exchange_stream(new_stream(0));
    std::mt19937 random(static_cast<unsigned>(i));
    for (int round = 0; round < 60; ++round) {
      const size_t bytes = (1 + random() % 24) << 20;
      try {
        const c10::DataPtr data = allocator().allocate(bytes);
        fill(current_handle(0), data.get(), bytes, static_cast<uint64_t>(round));
        verify(current_handle(0), data.get(), bytes, static_cast<uint64_t>(round), wrong);
      } catch (const c10::OutOfMemoryError&) {
        ++failures;  // three others may hold it all at this moment
      }
    }
  });
  if (!failure.empty()) std::fprintf(stderr, "%s\n", failure.c_str());
  CHILD_EXPECT(failure.empty());
  CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookSuccess);
  CHILD_EXPECT(wrong == 0);
  const auto stats = allocator().getDeviceStats(0);
  CHILD_EXPECT(stats.num_alloc_retries > 0);
  CHILD_EXPECT(stats.num_ooms == failures);
  CHILD_EXPECT(failures < 120);
  CHILD_EXPECT(stats.allocated_bytes[0].current == 0);
  allocator().emptyCache(kNoPool);
  CHILD_EXPECT(allocator().getDeviceStats(0).reserved_bytes[0].current == 0);
  return 0;
}

TEST_CASE("allocator: threads that run out of memory together") {
  const auto result = support::run_child("allocators_at_the_limit", {{"COOKBOOK_DEVICE_MEMORY", "64M"}});
  CHECK(result.signal == 0);
  CHECK(result.exit_code == 0);
}

// Deleters run wherever the last owner goes. A stream's thread must not call the driver from a host function, and
// freeing a block that no other stream uses calls none.
TEST_CASE("allocator: a stream's thread frees") {
  constexpr int kBlocks = 50;
  std::atomic<int> wrong{0};
  const std::string failure = in_threads(3, [&](int) {
    const c10::Stream stream = new_stream(0);
    exchange_stream(stream);
    for (int i = 0; i < kBlocks; ++i) {
      auto data = std::make_unique<c10::DataPtr>(allocator().allocate(4096));
      fill(handle(stream), data->get(), 4096, static_cast<uint64_t>(i));
      verify(handle(stream), data->get(), 4096, static_cast<uint64_t>(i), wrong);
      check(cookbookLaunchHostFunc(
          handle(stream), [](void* owner) { delete static_cast<c10::DataPtr*>(owner); }, data.release()));
    }
    check(cookbookStreamSynchronize(handle(stream)));
  });
  CHECK(failure == "");
  CHECK(wrong == 0);
  expect_nothing_left();
}
