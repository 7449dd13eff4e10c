// chapter 4
// %% caching-allocator-observers
#include "runtime/caching_allocator.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/core/impl/GPUTrace.h>
#include <pthread.h>

#include "runtime/device_cache.h"
#include "runtime/foreign.h"
#include "runtime/ipc.h"
#include "scaffolding/device.h"
#include "scaffolding/error.h"
#include "scaffolding/stream.h"

namespace cookbook {
namespace {

// Tells the profiler (profile_memory=True) and who listens to torch.cookbook._gpu_trace. Both are foreign code, and the
// second takes the GIL: this runs without a lock, after a block was taken and before one is given back, so that nobody
// hears of a block's next life before its last one's end.
void tell(const Block& block, bool allocated) {
  if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) [[unlikely]] {
    allocated ? (*trace)->trace_gpu_memory_allocation(kDeviceType, block.address)
              : (*trace)->trace_gpu_memory_deallocation(kDeviceType, block.address);
  }
  if (c10::memoryProfilingEnabled()) [[unlikely]] {
    const c10::DeviceIndex index = block.pool->device;
    const auto stats = device_cache(index).stats();
    const auto bytes = static_cast<int64_t>(block.bytes);
    const int64_t now = stats.allocated_bytes[0].current - (allocated ? 0 : bytes);
    c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(block.address), allocated ? bytes : -bytes,
                                     static_cast<size_t>(now), static_cast<size_t>(stats.reserved_bytes[0].current),
                                     c10::Device(kDeviceType, index));
  }
}

// %% caching-allocator-free
// Runs when the last owner of a storage goes, on whatever thread that is, with the GIL or without, often inside a
// destructor: it cannot throw.
void free_block(void* context) noexcept {
  auto* block = static_cast<Block*>(context);
  if (block == nullptr) return;
  try {
    tell(*block, false);
  } catch (...) {
    // An observer's failure is no reason to lose the memory.
  }
  device_cache(block->pool->device).free(block);
}

// %% caching-allocator-allocate
class CachingAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex index = current_device();
    const c10::Device device(kDeviceType, index);
    if (bytes == 0) return {nullptr, nullptr, &free_block, device};
    Block* block = device_cache(index).allocate(bytes, current_handle(index));
    c10::DataPtr data(reinterpret_cast<void*>(block->address), block, &free_block, device);
    tell(*block, true);
    return data;
  }
  // A context that is not the data pointer spares each free a search for the block, and costs raw_allocate(), which
  // needs the two to be the same: raw_deleter() stays null, which says so.
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return data.get_deleter() == &free_block; }
  void copy_data(void* dst, const void* src, size_t bytes) const override {
    check(cookbookMemcpyAsync(dst, src, bytes, cookbookMemcpyDeviceToDevice, current_handle(current_device())));
  }

  // %% caching-allocator-streams
  bool initialized() override { return device_count() > 0; }
  void emptyCache(c10::MempoolId_t id) override {
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) device_cache(index).empty(id);
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get() == nullptr) return;
    TORCH_CHECK(stream.device_type() == kDeviceType, "expected a stream of a ", kDeviceType, " device, got one of ",
                stream.device());
    DeviceCache& cache = device_cache(resolve(data.device()));
    // Copy-on-write, DLPack and slices of a storage wrap the pointer in a context of their own.
    Block* block = data.get_deleter() == &free_block ? static_cast<Block*>(data.get_context()) : cache.find(data.get());
    if (block != nullptr) return cache.record_stream(block, stream);
    // Memory that no segment holds belongs to another process, or to a library. If it is neither's that we know of, who
    // made the storage knows when the memory may go.
    static_cast<void>(record_received(data, stream) || record_foreign(data, stream));
  }

  // %% caching-allocator-stats
  // Asking brings no device to life.
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    auto stats = cache(index).stats();
    stats.max_split_size = static_cast<int64_t>(c10::CachingAllocator::AcceleratorAllocatorConfig::max_split_size());
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override { cache(index).reset_accumulated_stats(); }
  void resetPeakStats(c10::DeviceIndex index) override { cache(index).reset_peak_stats(); }
  // Of the whole device: what others have taken is not free, and neither is what the cache holds.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    size_t free = 0, total = 0;
    check(cookbookMemGetInfo(&free, &total, resolve(c10::Device(kDeviceType, index))));
    return {free, total};
  }

 private:
  static DeviceCache& cache(c10::DeviceIndex index) { return device_cache(resolve(c10::Device(kDeviceType, index))); }
};

// %% caching-allocator-fork
// A child has the parent's locks as they were. If another thread held one it would stay locked for ever, and the child
// would hang when it drops a tensor that it inherited. So whoever forks takes them first; nobody waits under them.
void lock_all() {
  capture_lock().lock();
  for (size_t i = 0; i < kMostDevices; ++i) device_cache(static_cast<c10::DeviceIndex>(i)).lock();
  lock_uses();
}
void unlock_all() {
  unlock_uses();
  for (size_t i = 0; i < kMostDevices; ++i) device_cache(static_cast<c10::DeviceIndex>(i)).unlock();
  capture_lock().unlock();
}

}  // namespace

c10::DeviceAllocator& caching_allocator() {
  static CachingAllocator* const instance = [] {
    pthread_atfork(&lock_all, &unlock_all, &unlock_all);
    return new CachingAllocator;
  }();
  return *instance;
}

}  // namespace cookbook
