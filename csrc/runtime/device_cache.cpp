// chapter 4
// %% device-cache-request
#include "runtime/device_cache.h"

#include <c10/core/AllocatorConfig.h>

#include <array>
#include <bit>

#include "scaffolding/device.h"
#include "scaffolding/error.h"
#include "scaffolding/stream.h"

namespace cookbook {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;

// PYTORCH_ALLOC_CONF=roundup_power2_divisions:... trades memory for sizes that match more often.
size_t round_request(size_t bytes) {
  bytes = std::min(bytes, SIZE_MAX / 4);  // no device has so much, and the sums stay in range
  const size_t divisions = AcceleratorAllocatorConfig::roundup_power2_divisions(bytes);
  if (divisions > 1 && bytes > kGranule * divisions) bytes = round_up(bytes, std::bit_floor(bytes) / divisions);
  return round_up(bytes, kGranule);
}

}  // namespace

Request DeviceCache::request(size_t bytes, cookbookStream_t stream) {
  Request request{bytes, round_request(bytes), stream, {}};
  if (request.large()) {
    request.max_split = AcceleratorAllocatorConfig::max_split_size();
    request.max_rounding = AcceleratorAllocatorConfig::max_non_split_rounding_size();
  }
  if (routing_.load(std::memory_order_relaxed)) [[unlikely]]
    request.id = route();
  return request;
}

// %% device-cache-allocate
// The short way: one lock, no call of the driver, no host memory.
Block* DeviceCache::allocate(size_t bytes, cookbookStream_t stream) {
  if (!pending_.empty()) [[unlikely]]
    reclaim(2);
  const Request wanted = request(bytes, stream);
  {
    const std::lock_guard guard(lock_);
    if (Block* block = blocks_.take(wanted)) [[likely]]
      return block;
  }
  return grow(wanted);
}

void DeviceCache::free(Block* block) noexcept {
  {
    const std::lock_guard guard(lock_);
    blocks_.retire(block);
    if (block->uses == nullptr) [[likely]]
      return blocks_.give(block);
  }
  pending_.add(block);
}

// %% device-cache-record-stream
void DeviceCache::record_stream(Block* block, const c10::Stream& stream) {
  if (handle(stream) == block->pool->stream) return;  // its order is the block's
  StreamUse* use = new_use(stream);
  {
    const std::lock_guard guard(lock_);
    const StreamUse* known = block->uses;
    while (known != nullptr && known->stream != use->stream) known = known->next;
    if (known == nullptr) {
      use->next = block->uses;
      block->uses = std::exchange(use, nullptr);
    }
  }
  if (use != nullptr) drop_use(use);
}

void DeviceCache::reclaim(size_t limit) {
  pending_.collect(limit, [this](Block* block) {
    const std::lock_guard guard(lock_);
    blocks_.give(block);
  });
}

Block* DeviceCache::find(const void* pointer) noexcept {
  const std::lock_guard guard(lock_);
  return blocks_.find(reinterpret_cast<uintptr_t>(pointer));
}

// %% device-cache-route
// Filters are the caller's code, so they run on a copy and not under the lock.
c10::MempoolId_t DeviceCache::route() {
  std::vector<Route> routes;
  {
    const std::lock_guard guard(lock_);
    routes = routes_;
  }
  const c10::Stream stream = current_stream(index_);
  for (const Route& route : routes) {
    if ((*route.filter)(stream)) return route.id;
  }
  return {};
}

void DeviceCache::begin_allocate_to_pool(c10::MempoolId_t id, std::function<bool(c10::Stream)> filter) {
  TORCH_CHECK(id != c10::MempoolId_t{}, "expected the id of a private pool, got (0, 0), which means none");
  const Route route{id, std::make_shared<const std::function<bool(c10::Stream)>>(std::move(filter))};
  bool twice = false;
  {
    const std::lock_guard guard(lock_);
    for (const Route& other : routes_) twice |= other.id == id;
    if (!twice) {
      routes_.push_back(route);
      ++private_pools_[id];
      routing_.store(true, std::memory_order_relaxed);
    }
  }
  TORCH_CHECK(!twice, "allocations go to the private pool (", id.first, ", ", id.second, ") already: end that first");
}

// %% device-cache-end-route
void DeviceCache::end_allocate_to_pool(c10::MempoolId_t id) {
  Route ended;  // the filter goes when this does, without the lock
  {
    const std::lock_guard guard(lock_);
    for (auto route = routes_.begin(); route != routes_.end(); ++route) {
      if (route->id != id) continue;
      ended = std::move(*route);
      routes_.erase(route);
      break;
    }
    routing_.store(!routes_.empty(), std::memory_order_relaxed);
  }
  TORCH_CHECK(ended.filter, "no allocations go to the private pool (", id.first, ", ", id.second, ")");
}

void DeviceCache::release_pool(c10::MempoolId_t id) {
  bool known = false;
  {
    const std::lock_guard guard(lock_);
    const auto pool = private_pools_.find(id);
    known = pool != private_pools_.end();
    if (known && --pool->second == 0) private_pools_.erase(pool);
  }
  TORCH_CHECK(known, "expected the id of a private pool in use, got (", id.first, ", ", id.second, ")");
}

// %% device-cache-ask
c10::CachingDeviceAllocator::DeviceStats DeviceCache::stats() {
  const std::lock_guard guard(lock_);
  return blocks_.stats().get();
}

void DeviceCache::reset_accumulated_stats() {
  const std::lock_guard guard(lock_);
  blocks_.stats().reset_accumulated();
}

void DeviceCache::reset_peak_stats() {
  const std::lock_guard guard(lock_);
  blocks_.stats().reset_peaks();
}

void DeviceCache::set_fraction(double fraction) {
  TORCH_CHECK_VALUE(fraction >= 0.0 && fraction <= 1.0, "expected a fraction between 0 and 1, got ", fraction);
  const std::lock_guard guard(lock_);
  fraction_ = fraction;
}

double DeviceCache::fraction() noexcept {
  const std::lock_guard guard(lock_);
  return fraction_;
}

// %% device-cache-fork
// The order in which both are taken elsewhere.
void DeviceCache::lock() noexcept {
  pending_.lock().lock();
  lock_.lock();
}

void DeviceCache::unlock() noexcept {
  lock_.unlock();
  pending_.lock().unlock();
}

namespace {
template <size_t... index>
auto* make_caches(std::index_sequence<index...>) {
  return new std::array<DeviceCache, sizeof...(index)>{DeviceCache(index)...};
}
}  // namespace

DeviceCache& device_cache(c10::DeviceIndex index) {
  // Never destroyed: tensors that outlive static destructors still free their memory.
  static auto* const caches = make_caches(std::make_index_sequence<kMostDevices>());
  return (*caches)[index];
}

}  // namespace cookbook
