// An event: the newest version of "all that was queued then", as a (stream, ticket) pair.
//
// A version is a value: a wait copies the pair, so it keeps waiting for the version that it was given, and neither the
// event nor the stream need live on. Only timing needs an object that the queue and the event share: a TimeStamp.
#pragma once
#include <atomic>
#include <cstdint>

#include "cookbook_driver.h"
#include "shared_event.h"
#include "spin.h"
#include "stream.h"

namespace cookbook::driver {

// The time at which a timing record ran. Owned by reference count: one for the event, one for the queued record.
class TimeStamp {
 public:
  void set(int64_t ns) { ns_.store(ns, std::memory_order_release); }
  int64_t get() const { return ns_.load(std::memory_order_acquire); }
  void drop() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  std::atomic<int> references_{2};
  std::atomic<int64_t> ns_{0};
};

// A slot of the event table (event.cpp). The lock guards everything in it; nothing is called under it.
class alignas(64) Event {
 public:
  struct Version {
    Stream* stream = nullptr;  // null: never recorded
    uint64_t ticket = 0;
    uint64_t capture = 0;  // recorded in the capture with this number: `ticket` is its mark, and no time to come
    bool finished() const { return !capture && (!stream || stream->done(ticket)); }
  };

  // What an event is at one moment.
  struct State {
    int device = 0;
    bool timing = false;
    Version version;
    int64_t ns = 0;                 // when the version ran; 0 while it has not, or without timing
    EventSource* source = nullptr;  // of an interprocess event of this process ...
    uint64_t number = 0;            // ... which has this number
    RemoteEventRef remote;          // of an event that was opened from another process
  };

  void open(int device, bool timing);
  void open(int device, EventSource* source);
  void open(int device, RemoteEventRef remote);
  // False when it is not alive.
  bool close();
  bool read(State& state);
  // Takes over the event's reference to `stamp`, which may be null. False when it is not alive.
  bool record(Version version, TimeStamp* stamp);

 private:
  SpinLock lock_;
  bool alive_ = false, timing_ = false;
  int device_ = 0;
  Version version_;
  TimeStamp* stamp_ = nullptr;
  EventSource* source_ = nullptr;
  uint64_t number_ = 0;
  RemoteEventRef remote_;
};

}  // namespace cookbook::driver
