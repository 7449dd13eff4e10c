// A device: its context, streams, sticky error, injected faults and counters.
//
// Locks: setup_mutex() (gate.h) guards the creation of the context; error_lock_ the sticky error's text; fault_lock_
// the list of faults; baseline_lock_ the counters' zero points. None is held while another is taken or while work runs.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cookbook_driver.h"
#include "device_memory.h"
#include "environment.h"
#include "handle_table.h"
#include "opened_blocks.h"
#include "stream.h"

namespace cookbook::driver {

constexpr int kLeastPriority = 0, kGreatestPriority = -3;  // as in CUDA, the smaller number is the more urgent
constexpr size_t kMaxStreams = 1024;                       // of a device, alive at once

class Device {
 public:
  explicit Device(int index) : index_(index), opened_(index) {}

  int index() const { return index_; }
  size_t capacity() const;

  bool has_context() const { return context_.load(std::memory_order_acquire); }
  // Makes the context at first use.
  cookbookError_t use() {
    if (has_context()) [[likely]]
      return cookbookSuccess;
    return make_context();
  }

  // Need a context.
  DeviceMemory& memory() { return *memory_; }
  OpenedBlocks& opened() { return opened_; }
  // The block around an address of this device, its own in use or an opened one of another process.
  bool find_block(const void* pointer, DeviceMemory::Found& found) {
    return memory().find(pointer, found) || opened_.find(pointer, found);
  }
  Stream& default_stream() { return *streams_->at(0); }
  Stream* stream(const void* handle) const { return has_context() ? streams_->slot(handle) : nullptr; }
  Stream* stream_number(int id) const { return streams_->at(static_cast<size_t>(id)); }
  cookbookError_t create_stream(int priority, Stream*& stream);
  void recycle(Stream* stream);
  template <class Body>
  void for_each_stream(Body&& body) {
    if (!has_context()) return;
    for (size_t i = 0, n = streams_->used(); i < n; ++i) body(*streams_->at(i));
  }
  // Blocks until all that is queued now has run.
  void drain();

  // ---- what a launch must look at: one word, which is zero in normal times
  enum : uint32_t { kFailed = 1, kKernelFaults = 2, kAllocFaults = 4, kCapturing = 8 };
  uint32_t attention() const { return attention_.load(std::memory_order_relaxed); }

  // ---- the sticky error
  bool failed() const { return attention() & kFailed; }
  void set_failed(cookbookError_t error, const char* text);  // the first one stays
  void clear_failed();
  // Success, or the sticky error with its text.
  cookbookError_t status() { return failed() ? report_failure() : cookbookSuccess; }

  // ---- captures: whether one of its streams is in one. Set by capture.cpp, under its lock.
  bool capturing() const { return attention() & kCapturing; }
  void set_capturing(bool on) {
    on ? attention_.fetch_or(kCapturing, std::memory_order_relaxed)
       : attention_.fetch_and(~uint32_t{kCapturing}, std::memory_order_relaxed);
  }

  // ---- injected faults
  struct KernelFault {
    bool fails = false;
    int64_t delay_ns = 0;
  };
  cookbookError_t inject(cookbookFault_t fault, uint64_t nth, uint64_t microseconds);
  KernelFault next_kernel();  // counts one kernel
  bool next_allocation_fails();

  // ---- counters
  void count_synchronization() { synchronizations_.fetch_add(1, std::memory_order_relaxed); }
  cookbookCounters counters();
  void reset_counters();

 private:
  using StreamTable = HandleTable<Stream, kMaxStreams, 64>;
  struct Fault {
    cookbookFault_t kind;
    uint64_t remaining;
    int64_t delay_ns;
  };

  cookbookError_t make_context();
  cookbookError_t report_failure();
  cookbookCounters totals();
  void update_attention();  // needs fault_lock_

  const int index_;
  std::atomic<bool> context_{false};
  std::unique_ptr<StreamTable> streams_;
  std::unique_ptr<DeviceMemory> memory_;
  OpenedBlocks opened_;

  alignas(64) std::atomic<uint32_t> attention_{0};

  alignas(64) std::mutex error_lock_;
  cookbookError_t error_ = cookbookSuccess;
  char error_text_[512] = "";

  std::mutex fault_lock_;
  std::vector<Fault> faults_;

  std::atomic<uint64_t> synchronizations_{0};
  std::mutex baseline_lock_;
  cookbookCounters baseline_{};
};

// Null, with an error, when there is no such device. The gate must be open.
cookbookError_t find_device(int index, Device*& device);
// The calling thread's current device, with a context.
cookbookError_t use_current_device(Device*& device);
int current_device();
// A stream handle of any device, null for the current device's default stream. Passes the gate.
cookbookError_t find_stream(cookbookStream_t handle, Stream*& stream);
inline cookbookStream_t handle_of(Stream* stream) { return reinterpret_cast<cookbookStream_t>(stream); }
Device* device_or_null(int index);
// Every device that has a context.
template <class Body>
void for_each_used_device(Body&& body) {
  for (int i = 0; i < kMaxDevices; ++i) {
    if (Device* device = device_or_null(i); device && device->has_context()) body(*device);
  }
}

}  // namespace cookbook::driver
