// Events and the calls about them.
#include "event.h"

#include <memory>
#include <mutex>

#include "device.h"
#include "error.h"
#include "gate.h"
#include "handle_table.h"

namespace cookbook::driver {

using Guard = std::lock_guard<SpinLock>;

void Event::open(int device, bool timing) {
  const Guard lock(lock_);
  alive_ = true;
  timing_ = timing;
  device_ = device;
  version_ = {};
  stamp_ = nullptr;
}

bool Event::close() {
  TimeStamp* stamp;
  {
    const Guard lock(lock_);
    if (!alive_) return false;
    alive_ = false;
    stamp = stamp_;
    stamp_ = nullptr;
  }
  if (stamp) stamp->drop();
  return true;
}

bool Event::read(Version& version, int& device, bool* timing, int64_t* ns) {
  const Guard lock(lock_);
  if (!alive_) return false;
  version = version_;
  device = device_;
  if (timing) *timing = timing_;
  if (ns) *ns = stamp_ && version_.finished() ? stamp_->get() : 0;
  return true;
}

bool Event::record(Version version, TimeStamp* stamp) {
  TimeStamp* old;
  {
    const Guard lock(lock_);
    if (!alive_) return false;
    version_ = version;
    old = stamp_;
    stamp_ = stamp;
  }
  if (old) old->drop();
  return true;
}

namespace {

using EventTable = HandleTable<Event, size_t{1} << 20, 1024>;

EventTable& events() {
  static auto* table = new EventTable;  // never destroyed: exit handlers may destroy events
  return *table;
}

cookbookError_t dead_event() { return fail(cookbookErrorInvalidHandle, "the event was destroyed"); }

cookbookError_t find_event(cookbookEvent_t handle, Event*& event) {
  if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
  event = events().slot(handle);
  if (!event) {
    return fail(cookbookErrorInvalidHandle, "%p is not an event of this driver", static_cast<void*>(handle));
  }
  return cookbookSuccess;
}

}  // namespace
}  // namespace cookbook::driver

using namespace cookbook::driver;

cookbookError_t cookbookEventCreate(cookbookEvent_t* event, unsigned flags) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    if (!event) return fail(cookbookErrorInvalidValue, "event is null");
    if (flags & ~unsigned{cookbookEventTiming}) {
      return fail(cookbookErrorInvalidValue, "flags are 0x%x: expected cookbookEventDefault or cookbookEventTiming",
                  flags);
    }
    Device* device;
    if (cookbookError_t error = use_current_device(device); error != cookbookSuccess) return error;
    Event* created = events().acquire([](void* place, size_t) { return new (place) Event; });
    if (!created) return fail(cookbookErrorOutOfMemory, "the driver has 1048576 events, its limit: destroy some");
    created->open(device->index(), flags & cookbookEventTiming);
    *event = reinterpret_cast<cookbookEvent_t>(created);
    return cookbookSuccess;
  });
}

cookbookError_t cookbookEventDestroy(cookbookEvent_t handle) {
  return guarded([&] {
    Event* event;
    if (cookbookError_t error = find_event(handle, event); error != cookbookSuccess) return error;
    if (!event->close()) return dead_event();
    events().give_back(event);
    return cookbookSuccess;
  });
}

cookbookError_t cookbookEventRecord(cookbookEvent_t handle, cookbookStream_t stream_handle) {
  return guarded([&] {
    Event* event;
    Stream* stream;
    if (cookbookError_t error = find_event(handle, event); error != cookbookSuccess) return error;
    if (cookbookError_t error = find_stream(stream_handle, stream); error != cookbookSuccess) return error;
    Event::Version version;
    int device;
    bool timing;
    if (!event->read(version, device, &timing)) return dead_event();
    if (device != stream->device().index()) {
      return fail(cookbookErrorInvalidHandle, "the event is of device %d, the stream of device %d", device,
                  stream->device().index());
    }
    TimeStamp* stamp = nullptr;
    version.stream = stream;
    if (timing) {
      stamp = new TimeStamp;
      const cookbookError_t error =
          stream->push(RecordKind::kStamp, stamp, 0, [](void*, StreamCounters&) {}, &version.ticket);
      if (error != cookbookSuccess) {
        delete stamp;
        return error;
      }
    } else {
      version.ticket = stream->tail();
    }
    if (!event->record(version, stamp)) {
      if (stamp) stamp->drop();
      return dead_event();
    }
    stream->counters().event_records.fetch_add(1, std::memory_order_relaxed);
    return cookbookSuccess;
  });
}

cookbookError_t cookbookEventQuery(cookbookEvent_t handle) {
  return guarded([&] {
    Event* event;
    if (cookbookError_t error = find_event(handle, event); error != cookbookSuccess) return error;
    Event::Version version;
    int device;
    if (!event->read(version, device)) return dead_event();
    return version.finished() ? cookbookSuccess : cookbookErrorNotReady;
  });
}

cookbookError_t cookbookEventSynchronize(cookbookEvent_t handle) {
  return guarded([&] {
    Event* event;
    if (cookbookError_t error = find_event(handle, event); error != cookbookSuccess) return error;
    Event::Version version;
    int device;
    if (!event->read(version, device)) return dead_event();
    Device* owner;
    if (cookbookError_t error = find_device(device, owner); error != cookbookSuccess) return error;
    owner->count_synchronization();
    if (version.stream) version.stream->wait(version.ticket);
    return owner->status();
  });
}

cookbookError_t cookbookStreamWaitEvent(cookbookStream_t stream_handle, cookbookEvent_t handle) {
  return guarded([&] {
    Event* event;
    Stream* stream;
    if (cookbookError_t error = find_event(handle, event); error != cookbookSuccess) return error;
    if (cookbookError_t error = find_stream(stream_handle, stream); error != cookbookSuccess) return error;
    Event::Version version;
    int device;
    if (!event->read(version, device)) return dead_event();
    stream->counters().event_waits.fetch_add(1, std::memory_order_relaxed);
    // A stream passes its own tickets in order anyway, and what has finished needs no record.
    if (version.stream == stream || version.finished()) return cookbookSuccess;
    const Dependency dependency{version.stream, version.ticket};
    return stream->push(RecordKind::kWait, nullptr, sizeof(dependency),
                        [&](void* payload, StreamCounters&) { std::memcpy(payload, &dependency, sizeof(dependency)); });
  });
}

cookbookError_t cookbookEventElapsedTime(float* milliseconds, cookbookEvent_t begin_handle,
                                         cookbookEvent_t end_handle) {
  return guarded([&] {
    if (!milliseconds) return fail(cookbookErrorInvalidValue, "milliseconds is null");
    Event* events[2];
    if (cookbookError_t error = find_event(begin_handle, events[0]); error != cookbookSuccess) return error;
    if (cookbookError_t error = find_event(end_handle, events[1]); error != cookbookSuccess) return error;
    int64_t ns[2];
    int device[2];
    for (int i = 0; i < 2; ++i) {
      Event::Version version;
      bool timing;
      if (!events[i]->read(version, device[i], &timing, &ns[i])) return dead_event();
      const char* const name = i ? "end" : "begin";
      if (!timing) {
        return fail(cookbookErrorInvalidHandle, "the %s event was made without cookbookEventTiming", name);
      }
      if (!version.stream) return fail(cookbookErrorInvalidHandle, "the %s event was never recorded", name);
      if (!ns[i]) return cookbookErrorNotReady;
    }
    if (device[0] != device[1]) {
      return fail(cookbookErrorInvalidHandle, "the events are of devices %d and %d", device[0], device[1]);
    }
    *milliseconds = static_cast<float>(static_cast<double>(ns[1] - ns[0]) * 1e-6);
    return cookbookSuccess;
  });
}
