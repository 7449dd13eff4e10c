// chapter 4
// %% events-record
#include "runtime/events.h"

#include <c10/util/Exception.h>
#include <cookbook_driver.h>

#include "operators/on_device.h"
#include "scaffolding/error.h"
#include "scaffolding/stream.h"

namespace cookbook {
namespace {

cookbookEvent_t driver_event(void* event) { return static_cast<cookbookEvent_t>(event); }

// The names are historical: what PyTorch takes when nobody asks has no timing, since a time stamp costs a place in the
// stream's queue; the "backend's default" has it.
unsigned driver_flags(c10::EventFlag flag) {
  switch (flag) {
    case c10::EventFlag::PYTORCH_DEFAULT:
      return cookbookEventDefault;
    case c10::EventFlag::BACKEND_DEFAULT:
      return cookbookEventTiming;
    default:
      TORCH_CHECK(false, "expected an event with or without timing, got event flag ", static_cast<int>(flag));
  }
}

}  // namespace

void record_event(void** event, const c10::Stream& stream, c10::DeviceIndex index, c10::EventFlag flag) {
  TORCH_CHECK(index < 0 || index == stream.device_index(), "expected a stream of cookbook:", static_cast<int>(index),
              ", on which the event was recorded first, got one of ", stream.device(),
              ": record an event of the stream's own device and wait for that");
  if (*event == nullptr) {
    const OnDevice guard(stream.device());
    cookbookEvent_t made = nullptr;
    check(cookbookEventCreate(&made, driver_flags(flag)));
    *event = made;  // at once: whatever happens from here on, the owner destroys it
  }
  check(cookbookEventRecord(driver_event(*event), handle(stream)));
}

// %% events-wait
void block_stream(void* event, const c10::Stream& stream) {
  if (event != nullptr) check(cookbookStreamWaitEvent(handle(stream), driver_event(event)));
}

bool query_event(void* event) {
  if (event == nullptr) return true;
  const cookbookError_t error = cookbookEventQuery(driver_event(event));
  if (error == cookbookErrorNotReady) return false;
  check(error);
  return true;
}

void synchronize_event(void* event) {
  if (event != nullptr) check(cookbookEventSynchronize(driver_event(event)));
}

// %% events-time
double elapsed_time(void* begin, void* end) {
  TORCH_CHECK(begin != nullptr && end != nullptr, "expected two recorded events");
  float milliseconds = 0;
  const cookbookError_t error = cookbookEventElapsedTime(&milliseconds, driver_event(begin), driver_event(end));
  // No failure of the driver's, so it has no text of its own.
  TORCH_CHECK(error != cookbookErrorNotReady, "expected two events that have finished: synchronize the second first");
  check(error);
  return milliseconds;
}

// Called by destructors, also while an exception is on its way. Never waits: a queued wait keeps what it needs.
void destroy_event(void* event) noexcept {
  if (event != nullptr) warn(cookbookEventDestroy(driver_event(event)));
}

}  // namespace cookbook
