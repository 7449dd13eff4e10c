// chapter 4
// %% stream-use
// Streams that use memory beside its own one: what record_stream notes, and what a free has to wait for.
#pragma once

#include <c10/core/Stream.h>
#include <cookbook_driver.h>

namespace cookbook {

// One of them. Made while the memory is live, with all that can fail: the free itself runs in destructors and only
// records the event.
struct StreamUse {
  cookbookStream_t stream;  // null: known to be done
  c10::DeviceIndex device;  // the stream's, which may be another than the memory's
  cookbookEvent_t event;
  StreamUse* next;
};

inline constexpr size_t kMostDevices = 16;  // that the driver can have

// From those that were dropped before, or with a new event.
StreamUse* new_use(const c10::Stream& stream);
void drop_use(StreamUse* use) noexcept;
// For fork handlers: nobody makes or drops one while these are held.
void lock_uses() noexcept;
void unlock_uses() noexcept;

// %% stream-use-lists
// Of a list: whether a stream is captured, so that a record on it would become a part of a graph and tell nothing.
bool is_captured(const StreamUse* uses) noexcept;
// Notes the end of what is queued on each stream now. Needs capture_lock(), under which is_captured() said no. Without
// success nobody can know when the memory is free.
cookbookError_t record(StreamUse* uses) noexcept;
// Whether all streams have passed what was noted. Then the list is dropped, and empty.
bool finished(StreamUse*& uses) noexcept;

}  // namespace cookbook
