// chapter 4
// %% stream-use-pool
#include "runtime/stream_uses.h"

#include <array>
#include <memory>
#include <mutex>
#include <utility>

#include "operators/on_device.h"
#include "runtime/capture.h"
#include "runtime/spin_lock.h"
#include "scaffolding/error.h"
#include "scaffolding/stream.h"

namespace cookbook {
namespace {

// Uses that were dropped, with their events. An event belongs to a device, so each device has a list.
struct Spare {
  SpinLock lock;  // guards `first`
  StreamUse* first = nullptr;
};
std::array<Spare, kMostDevices>& spare() {
  static auto* const lists = new std::array<Spare, kMostDevices>;  // never destroyed: tensors may outlive statics
  return *lists;
}

}  // namespace

// %% stream-use-new
StreamUse* new_use(const c10::Stream& stream) {
  Spare& list = spare().at(stream.device_index());
  StreamUse* use = nullptr;
  {
    const std::lock_guard guard(list.lock);
    use = list.first;
    if (use != nullptr) list.first = use->next;
  }
  if (use == nullptr) {
    auto made = std::make_unique<StreamUse>();
    const OnDevice guard(stream.device());
    check(cookbookEventCreate(&made->event, cookbookEventDefault));
    use = made.release();
  }
  *use = {handle(stream), stream.device_index(), use->event, nullptr};
  return use;
}

void drop_use(StreamUse* use) noexcept {
  Spare& list = spare().at(use->device);
  const std::lock_guard guard(list.lock);
  use->next = std::exchange(list.first, use);
}

void lock_uses() noexcept {
  for (Spare& list : spare()) list.lock.lock();
}
void unlock_uses() noexcept {
  for (Spare& list : spare()) list.lock.unlock();
}

// %% stream-use-record
bool is_captured(const StreamUse* uses) noexcept {
  for (; uses != nullptr; uses = uses->next) {
    if (uses->stream != nullptr && capture_of(uses->stream) != 0) return true;
  }
  return false;
}

cookbookError_t record(StreamUse* uses) noexcept {
  for (StreamUse* use = uses; use != nullptr; use = use->next) {
    if (use->stream == nullptr) continue;
    switch (const cookbookError_t error = cookbookEventRecord(use->event, use->stream)) {
      case cookbookSuccess:
        break;
      case cookbookErrorInvalidHandle:  // somebody destroyed the stream, and destroying it waited for its work
      case cookbookErrorForked:         // a child has no streams
        use->stream = nullptr;
        break;
      default:
        return error;
    }
  }
  return cookbookSuccess;
}

// A stream that was destroyed after the record is done too: the event still answers.
bool finished(StreamUse*& uses) noexcept {
  for (const StreamUse* use = uses; use != nullptr; use = use->next) {
    if (use->stream != nullptr && cookbookEventQuery(use->event) == cookbookErrorNotReady) return false;
  }
  while (StreamUse* use = uses) {
    uses = use->next;
    drop_use(use);
  }
  return true;
}

}  // namespace cookbook
