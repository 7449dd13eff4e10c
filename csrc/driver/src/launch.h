// What all calls that queue work do after queueing it.
#pragma once
#include "stream.h"

namespace cookbook::driver {

// COOKBOOK_LAUNCH_BLOCKING: waits for the work and returns its error.
cookbookError_t finish_if_blocking(Stream& stream, uint64_t ticket);

}  // namespace cookbook::driver
