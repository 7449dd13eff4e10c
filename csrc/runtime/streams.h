// chapter 4
// %% streams-header
// Streams beside the default one: a pool for each device and priority, and streams that somebody else made.
//
// A c10::StreamId is the driver's handle of the stream, as a number; 0 means the device's default stream. So no table
// stands between the two, and a stream that somebody else made is a stream like the others.
#pragma once

#include <c10/core/Stream.h>
#include <cookbook_driver.h>

namespace cookbook {

// A stream of the device's pool for this priority: a smaller number is more urgent, and a number outside the driver's
// range means the nearest one inside. The pool hands 32 streams out in turn, so the 33rd caller shares the first one's:
// more order than asked for, never less. Nobody frees a stream, so copies of it may live as long as they like.
c10::Stream new_stream(c10::DeviceIndex index, int priority = 0);

// The stream of a handle that other code made on the same driver. The caller keeps it alive while it is in use.
c10::Stream external_stream(cookbookStream_t stream);

// As the driver has it, after its clamping.
int stream_priority(const c10::Stream& stream);

struct StreamPriorities {
  int least;
  int greatest;  // the smaller number
};
StreamPriorities stream_priorities(c10::DeviceIndex index);

}  // namespace cookbook
