// chapter 1
// %% allocator-free
#include "scaffolding/allocator.h"

#if COOKBOOK_CHAPTER >= 4
#include "runtime/caching_allocator.h"
#endif
#include "scaffolding/device.h"
#include "scaffolding/error.h"
#include "scaffolding/stream.h"

namespace cookbook {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;

// Runs when the last owner of a storage goes, on whatever thread that is, often inside a destructor: it cannot throw.
// In stream order the block is free at once, though kernels that use it may still be queued.
void free_device_memory(void* pointer) noexcept { warn(cookbookFreeAsync(pointer, nullptr)); }

// %% allocator-allocate
class DirectAllocator final : public c10::DeviceAllocator {
 public:
  // Asks the driver each time; chapter 4 puts a cache here.
  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex index = current_device();
    void* pointer = nullptr;
    check(cookbookMallocAsync(&pointer, bytes, current_handle(index)));
    return {pointer, pointer, &free_device_memory, c10::Device(kDeviceType, index)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_device_memory; }
  void copy_data(void* dst, const void* src, size_t bytes) const override {
    check(cookbookMemcpyAsync(dst, src, bytes, cookbookMemcpyDeviceToDevice, current_handle(current_device())));
  }

  // %% allocator-streams
  bool initialized() override { return device_count() > 0; }
  // Nothing is cached, so nothing can be given back.
  void emptyCache(c10::MempoolId_t) override {}
  // One stream a device: its order is the only order, and a freed block is reused behind its last user.
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    TORCH_CHECK(data.device() == stream.device(), "expected a stream of ", data.device(), ", got one of ",
                stream.device(), ": chapter 1's allocator orders memory on its own device only");
  }

  // %% allocator-stats
  // The driver counts; nothing here can disagree with it.
  DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    cookbookMemoryStats now{};
    check(cookbookMemGetStats(&now, resolve(c10::Device(kDeviceType, index))));
    DeviceStats stats;
    fill(stats.allocation, now.live_blocks, now.live_blocks_peak, now.allocations, now.frees);
    fill(stats.allocated_bytes, now.live_bytes, now.live_bytes_peak, now.allocated_bytes_total, now.freed_bytes_total);
    fill(stats.requested_bytes, now.requested_bytes, now.requested_bytes_peak, now.requested_bytes_total,
         now.requested_freed_total);
    // Without a cache a block is a segment, active while it is allocated, and reserved is what is allocated.
    stats.segment = stats.active = stats.allocation;
    stats.reserved_bytes = stats.active_bytes = stats.allocated_bytes;
    stats.num_ooms = static_cast<int64_t>(now.out_of_memory);
    stats.num_device_alloc = static_cast<int64_t>(now.allocations);
    stats.num_device_free = static_cast<int64_t>(now.frees);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override { check(cookbookMemResetStats(index, 0, 1)); }
  void resetPeakStats(c10::DeviceIndex index) override { check(cookbookMemResetStats(index, 1, 0)); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    size_t free = 0, total = 0;
    check(cookbookMemGetInfo(&free, &total, resolve(c10::Device(kDeviceType, index))));
    return {free, total};
  }

 private:
  // Small and large pools are a matter of caching allocators: all that is counted here is the aggregate.
  static void fill(StatArray& array, uint64_t current, uint64_t peak, uint64_t allocated, uint64_t freed) {
    Stat& stat = array[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    stat.current = static_cast<int64_t>(current);
    stat.peak = static_cast<int64_t>(peak);
    stat.allocated = static_cast<int64_t>(allocated);
    stat.freed = static_cast<int64_t>(freed);
  }
};

}  // namespace

// %% allocator-register
#if COOKBOOK_CHAPTER >= 4
c10::DeviceAllocator& allocator() { return caching_allocator(); }

c10::DeviceAllocator& direct_allocator() {
#else
c10::DeviceAllocator& allocator() {
#endif
  // Never destroyed: tensors that outlive static destructors still free their memory.
  static DirectAllocator* const instance = new DirectAllocator;
  return *instance;
}

namespace {
[[maybe_unused]] const bool registered = (c10::SetAllocator(kDeviceType, &allocator()), true);
}

}  // namespace cookbook
