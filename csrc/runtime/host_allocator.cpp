// chapter 4
// %% host-cache
// Pinned host memory with a cache: a freed block serves again once the streams that use it have passed.
//
// PyTorch keeps the cache: free lists by size, which streams use a block, events, statistics. What it asks of a backend
// is memory, events, and an instance that outlives every tensor.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Event.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <vector>

#include "operators/on_device.h"
#include "runtime/capture.h"
#include "scaffolding/pinned.h"
#include "scaffolding/stream.h"

namespace cookbook {
namespace {

using Block = at::HostBlock<c10::Stream>;

// Microseconds in the driver, for the statistics.
class Timer {
 public:
  Timer(c10::CachingAllocator::DurationStat& stat, std::mutex& lock) : stat_(stat), lock_(lock) {}
  ~Timer() {
    const auto spent = std::chrono::steady_clock::now() - start_;
    const std::lock_guard guard(lock_);
    stat_.increase(std::chrono::duration_cast<std::chrono::microseconds>(spent).count());
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  c10::CachingAllocator::DurationStat& stat_;
  std::mutex& lock_;  // guards stat_
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// %% host-cache-calls
class HostCache final : public at::CachingHostAllocatorImpl<c10::Stream, c10::Event> {
  using Base = at::CachingHostAllocatorImpl<c10::Stream, c10::Event>;

 public:
  std::pair<void*, void*> allocate(size_t bytes) override {
    TORCH_CHECK(!cookbookIsForkedChild(),
                "Cannot pin memory in a forked subprocess: the device cannot be used there. Pin in the parent, or use "
                "the 'spawn' start method of multiprocessing.");
    const auto block = Base::allocate(bytes);
    release_retired();
    return block;
  }
  void free(void* block) override {
    Base::free(block);
    release_retired();
  }
  void empty_cache() override {
    Base::empty_cache();
    release_retired();
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  // %% host-cache-use
  bool record_event(void* pointer, void* context, c10::Stream stream) override {
    if (Base::record_event(pointer, context, stream)) return true;
    // A tensor that NumPy, DLPack or from_blob laid over a part of a block: its context is another one's, and its
    // address is not where the block begins. The driver knows in which block the address lies.
    cookbookPointerAttributes attributes{};
    check(cookbookPointerGetAttributes(&attributes, pointer));
    return attributes.type == cookbookMemoryHost && attributes.base != pointer &&
           Base::record_event(attributes.base, nullptr, stream);
  }

 private:
  // %% host-cache-events
  // Called for each stream that used the block, when it is freed: so in destructors, where nothing may throw.
  void record_stream(std::optional<std::vector<c10::Event>>& events, c10::Stream stream) override {
    c10::Event event(kDeviceType);
    try {
      const std::lock_guard guard(capture_lock());
      // The block is freed during a capture whose graph copies from or to it. An event would tell nothing, and to ask
      // it would break the capture. Without one the block is never handed out again: what core does with a block that
      // was allocated during the capture, too.
      if (capture_of(handle(stream)) != 0) return;
      event.record(stream);
    } catch (const std::exception&) {
      // The event stays unrecorded, which counts as finished; so it must be.
      warn(cookbookDeviceSynchronize(stream.device_index()));
    }
    events->push_back(std::move(event));  // there is room: the caller reserved it
  }
  bool query_event(c10::Event& event) override { return event.query(); }
  c10::Stream get_current_stream() const override { return current_stream(current_device()); }
  bool stream_is_capturing(c10::Stream stream) const override { return capture_of(handle(stream)) != 0; }

  // %% host-cache-memory
  // Any device's pinned memory serves all of them, and the driver ties it to the current one. So a device that is up
  // already is taken: a loader that pins for device 1 must not bring device 0 to life.
  static c10::DeviceIndex device_in_use() {
    const c10::DeviceIndex current = current_device();
    int in_use = 0;
    check(cookbookDeviceHasContext(current, &in_use));
    for (c10::DeviceIndex i = 0; in_use == 0 && i < device_count(); ++i) {
      check(cookbookDeviceHasContext(i, &in_use));
      if (in_use != 0) return i;
    }
    return current;
  }

  void allocate_host_memory(size_t bytes, void** pointer) override {
    const OnDevice guard(c10::Device(kDeviceType, device_in_use()));
    const Timer timer(stats_.host_alloc_time, stats_.timing_mutex_);
    cookbookError_t error = cookbookMallocHost(pointer, bytes);
    if (error == cookbookErrorOutOfMemory) {
      // What is missing may lie in the cache, in blocks of another size, or be in flight.
      for (c10::DeviceIndex i = 0; i < device_count(); ++i) warn(cookbookDeviceSynchronize(i));
      empty_cache();
      error = cookbookMallocHost(pointer, bytes);
    }
    check(error);
  }

  // %% host-cache-retire
  // Called under the cache's locks. Giving memory back waits for the devices, and a thread that waits may run a queue
  // and the host functions in it: so it is noted here and done when the locks are free.
  void free_block(Block* block) override {
    const std::lock_guard guard(retired_lock_);
    retired_.push_back(block->ptr_);
  }
  void release_retired() {
    std::vector<void*> retired;
    {
      const std::lock_guard guard(retired_lock_);
      retired.swap(retired_);
    }
    for (void* pointer : retired) {
      const Timer timer(stats_.host_free_time, stats_.timing_mutex_);
      warn(cookbookFreeHost(pointer));
    }
  }

  std::mutex retired_lock_;  // guards retired_; the last lock that is taken, nothing is called under it
  std::vector<void*> retired_;
};

// %% host-allocator
void free_host_memory(void* block) noexcept;

using HostAllocator = at::CachingHostAllocatorInterface<HostCache, &free_host_memory>;

HostAllocator& host_allocator() {
  // Never destroyed, so not core's DECLARE_HOST_ALLOCATOR: its static instance ends before the last tensors do.
  static auto* const instance = new HostAllocator;
  return *instance;
}

// The deleter of pinned tensors. A forked child leaves everything as it is: a thread of the parent may have held one of
// the cache's locks at the fork, and in the child nobody will release it. The pages are the child's own copies.
void free_host_memory(void* block) noexcept {
  if (cookbookIsForkedChild()) return;
  try {
    host_allocator().free(block);
  } catch (const std::exception& error) {
    try {
      TORCH_WARN("a block of pinned memory could not be given back, and is lost: ", error.what());
    } catch (...) {  // warnings may be errors
    }
  }
}

// torch.accelerator.empty_host_cache and what else is device-independent finds it here. Without this line it finds a
// null pointer, and does not look.
REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, &host_allocator())

}  // namespace
}  // namespace cookbook
