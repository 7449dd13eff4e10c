// chapter 6
// %% sleep-header
// A kernel that does nothing but take its time.
#pragma once

#include <cstdint>

namespace cookbook {

// Queues it on the current stream of the current device. A cycle is a nanosecond: the simulated clock runs at 1 GHz.
void sleep(uint64_t cycles);

}  // namespace cookbook
