// An event: the newest version of "all that was queued then", as a (stream, ticket) pair.
//
// A version is a value: a wait copies the pair, so it keeps waiting for the version that it was given, and neither the
// event nor the stream need live on. Only timing needs an object that the queue and the event share: a TimeStamp.
#pragma once
#include <atomic>
#include <cstdint>

#include "cookbook_driver.h"
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
    bool finished() const { return !stream || stream->done(ticket); }
  };

  void open(int device, bool timing);
  // False when it is not alive.
  bool close();
  // False when it is not alive. `timing` may be null.
  bool read(Version& version, int& device, bool* timing = nullptr, int64_t* ns = nullptr);
  // Takes over the event's reference to `stamp`, which may be null. False when it is not alive.
  bool record(Version version, TimeStamp* stamp);

 private:
  SpinLock lock_;
  bool alive_ = false, timing_ = false;
  int device_ = 0;
  Version version_;
  TimeStamp* stamp_ = nullptr;
};

}  // namespace cookbook::driver
