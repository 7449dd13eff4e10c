// chapter 4
// Graph capture in one thread while others use the device, as data loaders and autograd do.
#include "runtime/graph.h"

#include <c10/core/Event.h>

#include <chrono>

#include "runtime/device_cache.h"
#include "runtime/random.h"
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

constexpr c10::MempoolId_t kNoPool{};

struct CountArgs {
  PhiloxArguments random;
  uint64_t* counter;  // device memory
};

// Adds one, and reads its random numbers' place as an operator does.
cookbookError_t run_count(cookbookKernelContext* context, void* raw) {
  const auto& args = *static_cast<const CountArgs*>(raw);
  auto* counter = static_cast<uint64_t*>(cookbookTranslate(context, args.counter, sizeof(uint64_t)));
  const void* cell = args.random.cell;
  if (counter == nullptr || (cell != nullptr && cookbookTranslate(context, cell, sizeof(PhiloxCell)) == nullptr)) {
    return cookbookKernelFail(context, cookbookErrorIllegalAddress, "not on this device");
  }
  ++*counter;
  return cookbookSuccess;
}
constexpr cookbookKernel_t kCount{"count", &run_count};

// What a thread does with the device meanwhile: memory of its own stream, lent to another stream, random numbers.
void bystander(const c10::Stream& borrower, const std::atomic<bool>& done, std::atomic<int>& wrong) {
  exchange_stream(new_stream(0));
  uint64_t round = 0;
  do {
    const size_t bytes = 1024 << round % 12;
    const c10::DataPtr data = allocator().allocate(bytes);
    fill(current_handle(0), data.get(), bytes, ++round);
    verify(current_handle(0), data.get(), bytes, round, wrong);
    // Only said, not done: work on a stream of a capture would become a part of it.
    if (round % 3 == 0) allocator().recordStream(data, borrower);
    const c10::DataPtr pinned = pinned_allocator().allocate(64);
    if (round % 16 == 1) pinned_allocator().record_event(pinned.get(), pinned.get_context(), borrower);
    if (round % 8 == 0) allocator().emptyCache(kNoPool);
    reserve(std::nullopt, c10::Device(kDeviceType, 0), 16);
    if (round % 16 == 0) check(cookbookStreamSynchronize(current_handle(0)));
  } while (!done.load());
  check(cookbookStreamSynchronize(current_handle(0)));
}

}  // namespace

TEST_CASE("graph: captures, replays and resets beside threads that use the device") {
  constexpr int kCaptures = 30, kReplays = 4, kLaunches = 3;
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  const c10::Stream captured = new_stream(0), replaying = new_stream(0);
  c10::DataPtr counter = allocator().allocate(sizeof(uint64_t));
  check(cookbookMemsetAsync(counter.get(), 0, sizeof(uint64_t), current_handle(0)));
  check(cookbookDeviceSynchronize(0));
  const std::string failure = in_threads(4, [&](int i) {
    if (i < 3) return bystander(i == 0 ? captured : replaying, done, wrong);
    struct Done {
      std::atomic<bool>& done;
      ~Done() { done = true; }
    } last{done};
    for (int k = 0; k < kCaptures; ++k) {
      Graph graph(at::GraphImplArgs{});
      exchange_stream(captured);
      graph.capture_begin(kNoPool, at::GraphCaptureMode::Default);
      {
        const c10::DataPtr scratch = allocator().allocate(4096);
        for (int launch = 0; launch < kLaunches; ++launch) {
          fill(handle(captured), scratch.get(), 4096, 7);
          verify(handle(captured), scratch.get(), 4096, 7, wrong);
          const CountArgs args{reserve(std::nullopt, c10::Device(kDeviceType, 0), 16),
                               static_cast<uint64_t*>(counter.get())};
          check(cookbookLaunchKernel(handle(captured), &kCount, &args, sizeof(args)));
        }
      }
      graph.capture_end();
      exchange_stream(replaying);
      support::TestGate gate;
      gate.queue(handle(replaying));
      for (int replay = 0; replay < kReplays; ++replay) graph.replay();
      if (k % 2 == 0) graph.reset();  // with all of the replays queued; else the destructor does it
      gate.open();
      check(cookbookStreamSynchronize(handle(replaying)));
    }
  });
  CHECK(failure == "");
  CHECK(wrong == 0);
  CHECK(static_cast<uint64_t>(support::load_value(counter.get(), handle(replaying))) ==
        uint64_t{kCaptures} * kReplays * kLaunches);
}

// The block belongs to device 1, its reader to device 0. An event that were recorded on the reader now would become a
// part of the graph, and the first look at it would break the capture.
TEST_CASE("graph: a block goes back after the capture of a stream of another device") {
  constexpr size_t kBytes = 4096;
  const c10::Stream captured = new_stream(0);
  const c10::DataPtr target = allocator().allocate(kBytes);
  set_device(1);
  c10::DataPtr lent = allocator().allocate(kBytes);
  void* const address = lent.get();
  support::TestGate gate;
  gate.queue(handle(captured));  // the reader's work
  allocator().recordStream(lent, captured);

  set_device(0);
  const c10::Stream before = exchange_stream(captured);
  Graph graph(at::GraphImplArgs{});
  graph.capture_begin(kNoPool, at::GraphCaptureMode::Default);
  fill(handle(captured), target.get(), kBytes, 1);
  lent.clear();
  std::vector<c10::DataPtr> others;
  const auto allocate_on_1 = [&] {
    set_device(1);
    others.push_back(allocator().allocate(kBytes));
    set_device(0);
    return others.back().get();
  };
  for (int i = 0; i < 8; ++i) CHECK(allocate_on_1() != address);
  CHECK_NOTHROW(graph.capture_end());
  for (int i = 0; i < 8; ++i) CHECK(allocate_on_1() != address);  // the reader is not done
  gate.open();
  check(cookbookStreamSynchronize(handle(captured)));
  bool reused = false;
  for (int i = 0; i < 8; ++i) reused |= allocate_on_1() == address;
  CHECK(reused);
  exchange_stream(before);
}

// The moment in which a capture begins, again and again: nothing that others queue on its stream gets in.
TEST_CASE("graph: captures begin while others free what the stream has used") {
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  const c10::Stream captured = new_stream(0);
  const c10::DataPtr target = allocator().allocate(512);
  const std::string failure = in_threads(4, [&](int i) {
    if (i < 3) return bystander(captured, done, wrong);
    exchange_stream(captured);
    std::string failed;
    for (int k = 0; k < 300 && failed.empty(); ++k) {
      Graph graph(at::GraphImplArgs{});
      try {
        graph.capture_begin(kNoPool, at::GraphCaptureMode::Default);
        fill(handle(captured), target.get(), 512, 1);
        graph.capture_end();
      } catch (const std::exception& error) {
        failed = error.what();
      }
    }
    done = true;
    expect(failed.empty(), failed.c_str());
  });
  CHECK(failure == "");
  CHECK(wrong == 0);
}
