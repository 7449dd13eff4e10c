// What all calls that queue work do after queueing it.
#pragma once
#include "stream.h"

namespace cookbook::driver {

// COOKBOOK_LAUNCH_BLOCKING: waits for the work and returns its error.
cookbookError_t finish_if_blocking(Stream& stream, uint64_t ticket);
// An injected delay.
cookbookError_t push_delay(Stream& stream, int64_t ns);

}  // namespace cookbook::driver
