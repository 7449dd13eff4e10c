// chapter 4
// Two broken programs that ThreadSanitizer must report, or it does not see what it is run for: one without a lock of
// the runtime's, one without an order on the device.
#include <chrono>
#include <cstring>

#include "runtime/device_cache.h"
#include "runtime/streams.h"
#include "scaffolding/allocator.h"
#include "scaffolding/stream.h"
#include "threads.h"

namespace {

using namespace cookbook;
using namespace tests;

// block_cache.h says "no lock": so somebody else has to hold one.
void without_the_lock() {
  BlockCache cache(0);
  const Request request{kGranule, kGranule, nullptr, {}};
  cache.add(request, uintptr_t{1} << 40, kSmallSegment);
  std::mutex lock;
  in_threads(2, [&](int i) {
    for (int k = 0; k < 200; ++k) {
      Block* block = cache.take(request);
      // The second thread has forgotten it.
      std::unique_lock guard(lock, std::defer_lock);
      if (i == 0) guard.lock();
      if (block != nullptr) cache.retire(block), cache.give(block);
    }
  });
}

// A side stream marks a block that goes back while the mark is on its way, and nobody told the allocator. The streams'
// own threads run the marks: a host thread that waited would run both, one after the other, so it asks instead.
void without_record_stream() {
  const c10::Stream side = new_stream(0);
  for (int k = 0; k < 50; ++k) {
    for (const auto& stream : {side, current_stream(0)}) {
      const c10::DataPtr data = allocator().allocate(512);
      fill(handle(stream), data.get(), 512, 1);
    }
  }
  const auto running = [](const c10::Stream& stream) { return cookbookStreamQuery(handle(stream)) != cookbookSuccess; };
  while (running(side) || running(current_stream(0))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::strcmp(argv[1], "lock") == 0 ? without_the_lock() : without_record_stream();
  return 0;
}
