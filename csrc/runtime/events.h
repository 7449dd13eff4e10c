// chapter 4
// %% events-header
// Events, as PyTorch's device-independent code uses them: a `void*` that is null until the first record.
#pragma once

#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace cookbook {

// Makes a new version of the event: all that is queued on `stream` now. The first call makes the driver's event, on the
// stream's device; from then on the event belongs to that device, and `index` says so (-1: not recorded yet).
void record_event(void** event, const c10::Stream& stream, c10::DeviceIndex index, c10::EventFlag flag);
// Work that is queued on `stream`, of any device, from now on waits for the newest version.
void block_stream(void* event, const c10::Stream& stream);
// Whether the newest version has finished.
bool query_event(void* event);
// Blocks until the version that is the newest now has finished.
void synchronize_event(void* event);
// Milliseconds of device time between the newest versions of two events with timing.
double elapsed_time(void* begin, void* end);
void destroy_event(void* event) noexcept;

}  // namespace cookbook
