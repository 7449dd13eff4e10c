// chapter 2
// %% event
#include "operators/event.h"

#include <cookbook_driver.h>

#include "operators/on_device.h"
#include "scaffolding/stream.h"

namespace cookbook {

void order_streams(c10::Device earlier, c10::Device later) {
  const OnDevice guard(earlier);  // an event belongs to the device on which it is made
  cookbookEvent_t event = nullptr;
  check(cookbookEventCreate(&event, cookbookEventDefault));
  cookbookError_t error = cookbookEventRecord(event, current_handle(earlier.index()));
  if (error == cookbookSuccess) error = cookbookStreamWaitEvent(current_handle(later.index()), event);
  // Destroying it does not wait: the queued wait keeps what it needs.
  warn(cookbookEventDestroy(event));
  check(error);
}

}  // namespace cookbook
