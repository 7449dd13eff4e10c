// chapter 2
// %% event-header
// An event for one use: makes one stream wait for what is queued on another.
#pragma once

#include <c10/core/Device.h>

namespace cookbook {

// Work queued on `later`'s current stream from now on runs after what is queued on `earlier`'s now.
void order_streams(c10::Device earlier, c10::Device later);

}  // namespace cookbook
