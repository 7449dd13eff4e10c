// Events and the calls about them.
#include "event.h"

#include <mutex>
#include <utility>

#include "capture.h"
#include "device.h"
#include "error.h"
#include "gate.h"
#include "handle_table.h"
#include "ipc_handle.h"

namespace cookbook::driver {

using Guard = std::lock_guard<SpinLock>;

void Event::open(int device, bool timing) {
  const Guard lock(lock_);
  alive_ = true;
  timing_ = timing;
  device_ = device;
  version_ = {};
}

void Event::open(int device, EventSource* source) {
  open(device, false);
  const Guard lock(lock_);
  source_ = source;
  number_ = source->number();
}

void Event::open(int device, RemoteEventRef remote) {
  open(device, false);
  const Guard lock(lock_);
  remote_ = std::move(remote);
}

bool Event::close() {
  TimeStamp* stamp;
  EventSource* source;
  RemoteEventRef remote;
  {
    const Guard lock(lock_);
    if (!alive_) return false;
    alive_ = false;
    stamp = std::exchange(stamp_, nullptr);
    source = std::exchange(source_, nullptr);
    remote = std::move(remote_);
  }
  if (stamp) stamp->drop();
  if (source) source->retire();
  return true;
}

bool Event::read(State& state) {
  const Guard lock(lock_);
  if (!alive_) return false;
  state.device = device_;
  state.timing = timing_;
  state.version = version_;
  state.ns = stamp_ && version_.finished() ? stamp_->get() : 0;
  state.source = source_;
  state.number = number_;
  if (remote_) {
    remote_->keep();
    state.remote = RemoteEventRef(remote_.get());
  }
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
// A recorded event, in a capture or in a graph, stands for no time: whoever wants to wait for it or to know of it gets
// this, and its capture is invalid.
cookbookError_t refuse_captured(const Event::State& event, const char* call) {
  if (!event.version.capture) [[likely]]
    return cookbookSuccess;
  if (const std::shared_ptr<Capture> capture = find_capture(event.version.capture)) {
    return capture->refuse("%s with an event that was recorded in the capture of stream %d: its work does not run yet",
                           call, capture->origin().id());
  }
  return fail(cookbookErrorStreamCaptureUnsupported,
              "%s with an event that was last recorded in a capture, which is over: record it again", call);
}

cookbookError_t too_many_events() {
  return fail(cookbookErrorOutOfMemory, "the driver has 1048576 events, its limit: destroy some");
}

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
    if (flags > cookbookEventInterprocess) {
      return fail(
          cookbookErrorInvalidValue,
          "flags are 0x%x: expected cookbookEventDefault, cookbookEventTiming or cookbookEventInterprocess; the "
          "last two exclude each other",
          flags);
    }
    Device* device;
    if (cookbookError_t error = use_current_device(device); error != cookbookSuccess) return error;
    EventSource* source = nullptr;
    if (flags & cookbookEventInterprocess) {
      if (cookbookError_t error = EventSource::acquire(source); error != cookbookSuccess) return error;
    }
    Event* created = events().acquire([](void* place, size_t) { return new (place) Event; });
    if (!created) {
      if (source) source->retire();
      return too_many_events();
    }
    if (source) {
      created->open(device->index(), source);
    } else {
      created->open(device->index(), (flags & cookbookEventTiming) != 0);
    }
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

namespace {

// What a record needs in the queue: nothing, a time stamp, or a signal for other processes.
cookbookError_t push_record(const Event::State& event, Stream& stream, uint64_t& ticket, TimeStamp*& stamp) {
  auto push = [&](RecordKind kind, const void* target) {
    return stream.push(kind, target, 0, [](void*, StreamCounters&) {}, &ticket);
  };
  if (event.source) {
    Signal* const signal = event.source->begin(event.number);
    if (!signal) return dead_event();
    const cookbookError_t error = push(RecordKind::kSignal, signal);
    if (error == cookbookSuccess) {
      event.source->queued(signal);
    } else {
      event.source->abandon(signal);
    }
    return error;
  }
  if (event.timing) {
    stamp = new TimeStamp;
    const cookbookError_t error = push(RecordKind::kStamp, stamp);
    if (error != cookbookSuccess) delete stamp;
    return error;
  }
  ticket = stream.tail();
  return cookbookSuccess;
}

}  // namespace

cookbookError_t cookbookEventRecord(cookbookEvent_t handle, cookbookStream_t stream_handle) {
  return guarded([&] {
    Event* event;
    Stream* stream;
    if (cookbookError_t error = find_event(handle, event); error != cookbookSuccess) return error;
    if (cookbookError_t error = find_stream(stream_handle, stream); error != cookbookSuccess) return error;
    Event::State state;
    if (!event->read(state)) return dead_event();
    if (state.remote) {
      return fail(cookbookErrorNotSupported,
                  "the event is of process %d, which alone records it: make one here and send its handle there",
                  state.remote->pid());
    }
    if (state.device != stream->device().index()) {
      return fail(cookbookErrorInvalidHandle, "the event is of device %d, the stream of device %d", state.device,
                  stream->device().index());
    }
    Event::Version version{stream, 0};
    TimeStamp* stamp = nullptr;
    if (const std::shared_ptr<Capture> capture = stream->capture()) {
      if (state.source) {
        return capture->refuse(
            "cookbookEventRecord of an interprocess event on stream %d, which is being captured: "
            "record it behind the graph's launch",
            stream->id());
      }
      version.capture = capture->id();
      if (cookbookError_t error = capture->mark(*stream, version.ticket); error != cookbookSuccess) return error;
      return event->record(version, nullptr) ? cookbookSuccess : dead_event();
    }
    if (cookbookError_t error = push_record(state, *stream, version.ticket, stamp); error != cookbookSuccess) {
      return error;
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
    Event::State state;
    if (!event->read(state)) return dead_event();
    if (cookbookError_t error = refuse_captured(state, "cookbookEventQuery"); error != cookbookSuccess) return error;
    const bool finished = state.remote ? state.remote->completed(state.remote->recorded()) : state.version.finished();
    return finished ? cookbookSuccess : cookbookErrorNotReady;
  });
}

cookbookError_t cookbookEventSynchronize(cookbookEvent_t handle) {
  return guarded([&] {
    Event* event;
    if (cookbookError_t error = find_event(handle, event); error != cookbookSuccess) return error;
    Event::State state;
    if (!event->read(state)) return dead_event();
    if (cookbookError_t error = refuse_captured(state, "cookbookEventSynchronize"); error != cookbookSuccess) {
      return error;
    }
    Device* owner;
    if (cookbookError_t error = find_device(state.device, owner); error != cookbookSuccess) return error;
    owner->count_synchronization();
    if (state.remote) {
      const uint64_t version = state.remote->recorded();
      for (bool poll = true; !state.remote->passed(version); poll = false) state.remote->await(version, poll);
      if (!state.remote->completed(version)) {
        return fail(cookbookErrorInvalidHandle, "process %d ended before its event had come", state.remote->pid());
      }
    }
    if (state.version.stream) state.version.stream->wait(state.version.ticket);
    return owner->status();
  });
}

namespace {

// A wait that has to do with a capture: by a stream that is in one, or for an event that was recorded in one.
cookbookError_t wait_in_capture(const Event::State& event, Stream& stream, const std::shared_ptr<Capture>& capture) {
  const std::shared_ptr<Capture> of_event =
      event.version.capture ? find_capture(event.version.capture) : std::shared_ptr<Capture>();
  if (event.version.capture && !of_event) {
    const cookbookError_t error = refuse_captured(event, "cookbookStreamWaitEvent");
    return capture ? capture->refuse("%s", cookbookGetLastErrorMessage()) : error;
  }
  if (capture && !of_event) {
    if (!event.version.stream && !event.remote) return cookbookSuccess;  // never recorded
    return capture->refuse(
        "cookbookStreamWaitEvent on stream %d, which is being captured, for an event that was recorded outside of the "
        "capture: a graph waits for its own work only; wait before the capture is begun",
        stream.id());
  }
  if (capture && capture != of_event) {
    of_event->refuse("another capture waits for an event of this one");
    return capture->refuse(
        "cookbookStreamWaitEvent on stream %d for an event of the capture of stream %d: two captures cannot become one",
        stream.id(), of_event->origin().id());
  }
  if (!capture) {
    if (&stream.device() != &of_event->device()) {
      return of_event->refuse(
          "cookbookStreamWaitEvent on a stream of device %d for an event of a capture on device %d: a graph has one "
          "device",
          stream.device().index(), of_event->device().index());
    }
    if (stream.id() == 0) {
      return of_event->refuse(
          "cookbookStreamWaitEvent on the default stream of device %d for an event of the capture of stream %d: a "
          "default stream cannot join a capture",
          stream.device().index(), of_event->origin().id());
    }
  }
  return of_event->wait(of_event, stream, event.version.ticket);
}

}  // namespace

cookbookError_t cookbookStreamWaitEvent(cookbookStream_t stream_handle, cookbookEvent_t handle) {
  return guarded([&] {
    Event* event;
    Stream* stream;
    if (cookbookError_t error = find_event(handle, event); error != cookbookSuccess) return error;
    if (cookbookError_t error = find_stream(stream_handle, stream); error != cookbookSuccess) return error;
    Event::State state;
    if (!event->read(state)) return dead_event();
    if (const std::shared_ptr<Capture> capture = stream->capture(); capture || state.version.capture) [[unlikely]]
      return wait_in_capture(state, *stream, capture);
    stream->counters().event_waits.fetch_add(1, std::memory_order_relaxed);
    Dependency dependency{state.version.stream, state.version.ticket, state.remote.get()};
    if (state.remote) {
      dependency.ticket = state.remote->recorded();
      if (state.remote->completed(dependency.ticket)) return cookbookSuccess;
      state.remote->keep();  // for the record
    } else if (state.version.stream == stream || state.version.finished()) {
      return cookbookSuccess;  // a stream passes its own tickets in order anyway, and what has finished needs no record
    }
    const cookbookError_t error =
        stream->push(RecordKind::kWait, nullptr, sizeof(dependency),
                     [&](void* payload, StreamCounters&) { std::memcpy(payload, &dependency, sizeof(dependency)); });
    if (error != cookbookSuccess && state.remote) state.remote->drop();
    return error;
  });
}

cookbookError_t cookbookEventElapsedTime(float* milliseconds, cookbookEvent_t begin_handle,
                                         cookbookEvent_t end_handle) {
  return guarded([&] {
    if (!milliseconds) return fail(cookbookErrorInvalidValue, "milliseconds is null");
    Event* events[2];
    if (cookbookError_t error = find_event(begin_handle, events[0]); error != cookbookSuccess) return error;
    if (cookbookError_t error = find_event(end_handle, events[1]); error != cookbookSuccess) return error;
    Event::State state[2];
    for (int i = 0; i < 2; ++i) {
      if (!events[i]->read(state[i])) return dead_event();
      const char* const name = i ? "end" : "begin";
      if (!state[i].timing) {
        return fail(cookbookErrorInvalidHandle, "the %s event was made without cookbookEventTiming", name);
      }
      if (cookbookError_t error = refuse_captured(state[i], "cookbookEventElapsedTime"); error != cookbookSuccess) {
        return error;
      }
      if (!state[i].version.stream) return fail(cookbookErrorInvalidHandle, "the %s event was never recorded", name);
      if (!state[i].ns) return cookbookErrorNotReady;
    }
    if (state[0].device != state[1].device) {
      return fail(cookbookErrorInvalidHandle, "the events are of devices %d and %d", state[0].device, state[1].device);
    }
    *milliseconds = static_cast<float>(static_cast<double>(state[1].ns - state[0].ns) * 1e-6);
    return cookbookSuccess;
  });
}

cookbookError_t cookbookIpcGetEventHandle(cookbookIpcEventHandle_t* handle, cookbookEvent_t event_handle) {
  return guarded([&] {
    Event* event;
    if (cookbookError_t error = find_event(event_handle, event); error != cookbookSuccess) return error;
    if (!handle) return fail(cookbookErrorInvalidValue, "handle is null");
    Event::State state;
    if (!event->read(state)) return dead_event();
    if (!state.source) {
      return fail(cookbookErrorInvalidHandle, state.remote
                                                  ? "the event is another process's: pass on the handle it came with"
                                                  : "the event was made without cookbookEventInterprocess");
    }
    HandleData data;
    data.kind = HandleData::kEvent;
    data.file = EventSource::file();
    data.inode = inode_of(data.file);
    data.number = state.number;
    data.entry = state.source->entry();
    data.device = state.device;
    seal(data, handle);
    return cookbookSuccess;
  });
}

cookbookError_t cookbookIpcOpenEventHandle(cookbookEvent_t* event, const cookbookIpcEventHandle_t* handle) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    if (!event || !handle) return fail(cookbookErrorInvalidValue, "%s is null", event ? "handle" : "event");
    HandleData data;
    if (!unseal(handle, HandleData::kEvent, data)) {
      return fail(cookbookErrorInvalidHandle, "these 64 bytes are not a handle from cookbookIpcGetEventHandle()");
    }
    Device* device;
    if (cookbookError_t error = use_current_device(device); error != cookbookSuccess) return error;
    RemoteEvent* opened = nullptr;
    const cookbookError_t error =
        RemoteEvent::open(data.process(), data.file, data.inode, data.entry, data.number, opened);
    if (error != cookbookSuccess) return error;
    RemoteEventRef remote(opened);
    Event* created = events().acquire([](void* place, size_t) { return new (place) Event; });
    if (!created) return too_many_events();
    created->open(device->index(), std::move(remote));
    *event = reinterpret_cast<cookbookEvent_t>(created);
    return cookbookSuccess;
  });
}
