// chapter 4
// %% capture-header
// What a graph needs beside its kernels: memory that nobody else gets, and random numbers that differ each time it
// runs.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <cookbook_driver.h>

#include <memory>
#include <mutex>
#include <vector>

#include "runtime/spin_lock.h"

namespace cookbook {

class PhiloxGenerator;
class PhiloxState;

// What names one graph that is being captured, the driver's number; 0 is none.
using CaptureId = uint64_t;

// The capture that a stream is in; 0 when it is in none, or does not exist. Never waits, takes no lock of the backend.
CaptureId capture_of(cookbookStream_t stream) noexcept;
// Nobody begins a capture while it is held: for those who look whether a stream is captured and then queue on it what
// must not become a part of a graph. Taken before the locks of the caches; nothing that waits is called under it.
SpinLock& capture_lock() noexcept;

// For operators that draw: the capture of the device's current stream, of which the generator is a part from now on.
CaptureId join_capture(const PhiloxGenerator& generator, c10::DeviceIndex index);

// %% capture-resources
// Made for one capture, and kept as long as its graph can run.
class GraphResources : public std::enable_shared_from_this<GraphResources> {
 public:
  GraphResources(c10::DeviceIndex index, c10::MempoolId_t pool) : index_(index), pool_(pool) {}

  // From begin() to end(), what the capture's streams allocate comes from the pool, on the device and in pinned memory.
  void begin(CaptureId capture);
  void end() noexcept;
  // Queues, on the device's current stream, what gives the graph its random numbers for one run.
  void draw();
  // The graph is gone. Its memory may be used for something else behind `last_replay`, on every stream that has some.
  void release(cookbookEvent_t last_replay) noexcept;

  CaptureId capture() const { return capture_; }
  void add(const std::shared_ptr<PhiloxState>& generator);

 private:
  struct Drawer {
    std::shared_ptr<PhiloxState> generator;
    c10::DataPtr cell;
    uint64_t columns = 0;  // that one run reads; known at the end of the capture
  };
  bool accepts(const c10::Stream& stream);

  const c10::DeviceIndex index_;
  const c10::MempoolId_t pool_;
  CaptureId capture_ = 0;
  bool on_device_ = false, on_host_ = false;  // which allocators know the pool
  std::mutex lock_;                           // guards what follows; only a generator's state is called under it
  std::vector<Drawer> drawers_;
  std::vector<cookbookStream_t> streams_;  // those that have allocated
};

}  // namespace cookbook
