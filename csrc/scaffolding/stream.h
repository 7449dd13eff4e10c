// chapter 1
// %% stream-header
// Which stream an operator uses. A device has its default stream and no other yet; everything that queues work asks
// here, so that more streams change nothing but this file.
#pragma once

#include <c10/core/Stream.h>
#include <cookbook_driver.h>

namespace cookbook {

// The stream of `index` on which this thread queues work.
c10::Stream current_stream(c10::DeviceIndex index);
// Makes `stream` the current one of its device for this thread and returns the one before.
c10::Stream exchange_stream(c10::Stream stream);
// The driver's handle of a stream.
cookbookStream_t handle(const c10::Stream& stream);
// handle(current_stream(index)), the short way.
cookbookStream_t current_handle(c10::DeviceIndex index);

}  // namespace cookbook
