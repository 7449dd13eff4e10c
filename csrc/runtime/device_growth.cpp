// chapter 4
// %% growth-segment
// What an allocation does when the cache has no block for it: a segment from the driver; if there is none, giving back
// what the cache holds; and if that does not help, an error that says where the memory is.
#include <c10/core/AllocatorConfig.h>
#include <c10/util/ScopeExit.h>

#include "runtime/device_cache.h"
#include "scaffolding/device.h"
#include "scaffolding/error.h"

namespace cookbook {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;

static_assert(kGranule == c10::CachingAllocator::kMinBlockSize && kSmallLimit == c10::CachingAllocator::kSmallSize &&
                  kSmallSegment == c10::CachingAllocator::kSmallBuffer &&
                  kLargeStep == c10::CachingAllocator::kRoundLarge,
              "PyTorch's documentation of PYTORCH_ALLOC_CONF and of memory_stats speaks of these sizes");

// How much to ask the driver for. Large requests share segments of large_segment_size_mb (20 MiB) unless they need half
// of one; and no segment for sharing takes more than a 32nd of the device, or a small device would be full of rests.
size_t segment_bytes(size_t bytes, size_t total) {
  if (bytes <= kSmallLimit) return kSmallSegment;
  const size_t share = std::max(kLargeStep, total / 32 / kLargeStep * kLargeStep);
  const size_t shared = std::min(AcceleratorAllocatorConfig::large_segment_size(), share);
  return bytes < shared / 2 ? shared : round_up(bytes, kLargeStep);
}

size_t capacity(c10::DeviceIndex index) {
  cookbookDeviceProperties properties{};
  check(cookbookGetDeviceProperties(&properties, index));
  return properties.total_memory;
}

}  // namespace

// %% growth-driver
// Null when the driver has not so much, or when it would be more than the limit.
Block* DeviceCache::take_from_driver(const Request& request, size_t bytes) {
  const size_t total = capacity(index_);
  {
    const std::lock_guard guard(lock_);
    const size_t most = limit(total);
    if (bytes > most || committed_ > most - bytes) return nullptr;
    committed_ += bytes;  // now, so that two threads together stay below the limit, too
  }
  auto uncommit = c10::make_scope_exit([&] {
    const std::lock_guard guard(lock_);
    committed_ -= bytes;
  });
  void* pointer = nullptr;
  const cookbookError_t error = cookbookMalloc(&pointer, bytes);  // may wait for the device
  if (error == cookbookErrorOutOfMemory) return nullptr;
  check(error);
  std::unique_ptr<void, void (*)(void*)> segment(pointer, [](void* lost) { warn(cookbookFree(lost)); });
  const std::lock_guard guard(lock_);
  blocks_.add(request, reinterpret_cast<uintptr_t>(pointer), bytes);
  static_cast<void>(segment.release());
  uncommit.release();
  return blocks_.take(request);
}

// %% growth-give-back
template <class Wanted>
void DeviceCache::give_back(Wanted wanted) {
  std::vector<Segment> segments;
  cookbookError_t failed = cookbookSuccess;
  {
    // From here to the last free: a stream that is not captured when `wanted` looks must not be when its segment goes.
    const std::lock_guard no_capture(capture_lock());
    {
      const std::lock_guard guard(lock_);
      segments = blocks_.take_out(wanted);
    }
    // Kernels that use a segment may still be queued on its stream. Freeing it in that stream's order waits for nobody,
    // and empty_cache() runs with the GIL.
    for (Segment& segment : segments) {
      const auto error = cookbookFreeAsync(reinterpret_cast<void*>(segment.address), segment.pool->stream);
      if (error == cookbookErrorInvalidHandle) continue;
      if (error != cookbookSuccess) failed = error;
      segment.first = nullptr;
    }
  }
  warn(failed);  // foreign code, so without a lock
  size_t bytes = 0;
  for (const Segment& segment : segments) {
    // Somebody has destroyed the stream.
    if (segment.first != nullptr) warn(cookbookFree(reinterpret_cast<void*>(segment.address)));
    bytes += segment.bytes;
  }
  const std::lock_guard guard(lock_);
  committed_ -= bytes;
}

void DeviceCache::empty(c10::MempoolId_t id) {
  reclaim(SIZE_MAX);
  const bool every = id == c10::MempoolId_t{};
  give_back([&](const Segment& segment) { return (every || segment.pool->id == id) && is_released(segment); });
}

// %% growth-garbage
// PYTORCH_ALLOC_CONF=garbage_collection_threshold:0.8 keeps the cache from growing beyond 80 % of the limit as long as
// it holds segments that nobody uses. Those go first that have been unused for longest.
void DeviceCache::collect_garbage(size_t bytes) {
  const double threshold = AcceleratorAllocatorConfig::garbage_collection_threshold();
  if (threshold <= 0) return;
  const size_t total = capacity(index_);
  std::map<uint64_t, size_t> unused;  // bytes by the time of the last free
  size_t excess = 0;
  {
    const std::lock_guard guard(lock_);
    const auto most = static_cast<size_t>(threshold * static_cast<double>(limit(total)));
    if (committed_ + bytes <= most) return;
    excess = committed_ + bytes - most;
    for (const auto& [address, segment] : blocks_.segments()) {
      const Block& block = *segment.first;
      const bool whole = block.state == Block::State::Free && !block.is_split();
      if (whole && is_released(segment)) unused[block.freed_at] += segment.bytes;
    }
  }
  uint64_t last = 0;
  for (auto it = unused.begin(); it != unused.end() && excess != 0; ++it) {
    last = it->first;
    excess -= std::min(excess, it->second);
  }
  give_back([&](const Segment& segment) { return segment.first->freed_at <= last && is_released(segment); });
}

// %% growth
Block* DeviceCache::grow(const Request& request) {
  if (AcceleratorAllocatorConfig::use_expandable_segments()) {
    TORCH_WARN_ONCE("expandable_segments of PYTORCH_ALLOC_CONF is ignored: the driver cannot map memory to addresses");
  }
  const size_t wanted = segment_bytes(request.bytes, capacity(index_));
  collect_garbage(wanted);
  if (Block* block = take_from_driver(request, wanted)) return block;

  const bool capturing = routing_.load(std::memory_order_relaxed);  // then nobody may wait for a stream
  if (!capturing) pending_.wait();
  reclaim(SIZE_MAX);
  {
    const std::lock_guard guard(lock_);
    blocks_.stats().retried();
    if (!capturing) blocks_.stats().waited();
    if (Block* block = blocks_.take(request)) return block;
  }
  empty({});
  if (Block* block = take_from_driver(request, wanted)) return block;
  // No room for a segment to share; then one for this request alone.
  if (request.bytes < wanted) {
    if (Block* block = take_from_driver(request, request.bytes)) return block;
  }
  out_of_memory(request);
}

// %% growth-out-of-memory
void DeviceCache::out_of_memory(const Request& request) {
  size_t free = 0, total = 0;
  check(cookbookMemGetInfo(&free, &total, index_));
  size_t allocated = 0, active = 0, reserved = 0, most = 0;
  {
    const std::lock_guard guard(lock_);
    blocks_.stats().out_of_memory();
    const auto& stats = blocks_.stats().get();
    allocated = static_cast<size_t>(stats.allocated_bytes[0].current);
    active = static_cast<size_t>(stats.active_bytes[0].current);
    reserved = static_cast<size_t>(stats.reserved_bytes[0].current);
    most = limit(total);
  }
  const c10::Device device(kDeviceType, index_);
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(request.requested), allocated, reserved, device);
  using c10::CachingAllocator::format_size;
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, device, " is out of memory. Tried to allocate ", format_size(request.requested),
      ". The device has a total capacity of ", format_size(total), ", of which ", format_size(free), " is free",
      most < total ? " and PyTorch may take " + format_size(most) + " (torch.cookbook.set_per_process_memory_fraction)"
                   : std::string(),
      ". PyTorch has taken ", format_size(reserved), ": ", format_size(allocated), " is allocated to tensors, ",
      format_size(active - allocated), " was freed and waits for other streams, ", format_size(reserved - active),
      " is cached. What is cached is in use in parts, or belongs to graphs; if it is much, torch.cookbook."
      "memory_snapshot() shows the parts, and PYTORCH_ALLOC_CONF=max_split_size_mb:... keeps large blocks whole.");
}

}  // namespace cookbook
