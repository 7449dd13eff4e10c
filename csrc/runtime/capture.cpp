// chapter 4
// %% capture-of
#include "runtime/capture.h"

#include <ATen/core/CachingHostAllocator.h>

#include <algorithm>
#include <map>

#include "operators/on_device.h"
#include "runtime/device_cache.h"
#include "runtime/random.h"
#include "scaffolding/allocator.h"
#include "scaffolding/stream.h"

namespace cookbook {

CaptureId capture_of(cookbookStream_t stream) noexcept {
  cookbookCaptureStatus status = cookbookCaptureNone;
  uint64_t capture = 0;
  return cookbookStreamGetCaptureInfo(stream, &status, &capture) == cookbookSuccess ? capture : 0;
}

SpinLock& capture_lock() noexcept {
  static constinit SpinLock lock;
  return lock;
}

namespace {

// The captures that are open. The lock guards the list. Only the entry that is meant is locked to a strong pointer: it
// may be the last one by then, and a graph must not go under the lock, since freeing its memory may call observers.
struct OpenCaptures {
  std::mutex lock;
  std::map<CaptureId, std::weak_ptr<GraphResources>> list;
};
OpenCaptures& open_captures() {
  static auto* const captures = new OpenCaptures;  // never destroyed: a graph may outlive static objects
  return *captures;
}

std::shared_ptr<GraphResources> find_open(CaptureId capture) {
  OpenCaptures& open = open_captures();
  const std::lock_guard guard(open.lock);
  const auto entry = open.list.find(capture);
  return entry == open.list.end() ? nullptr : entry->second.lock();
}

}  // namespace

// %% capture-join
CaptureId join_capture(const PhiloxGenerator& generator, c10::DeviceIndex index) {
  const CaptureId capture = capture_of(current_handle(index));
  if (capture == 0) [[likely]]
    return 0;
  const std::shared_ptr<GraphResources> graph = find_open(capture);
  TORCH_CHECK(graph != nullptr,
              "expected a capture that torch.accelerator.Graph has begun: in another one random numbers would be the "
              "same each time that the graph runs");
  graph->add(generator.state());
  return capture;
}

// No lock is held while the cell is allocated: an observer of allocations may take the GIL, and a thread that holds the
// GIL may wait for the lock. The cell comes from the graph's own pool, since the stream is captured.
void GraphResources::add(const std::shared_ptr<PhiloxState>& generator) {
  const auto known = [&] {
    return std::any_of(drawers_.begin(), drawers_.end(),
                       [&](const Drawer& drawer) { return drawer.generator == generator; });
  };
  {
    const std::lock_guard guard(lock_);
    if (known()) return;
  }
  const OnDevice device(c10::Device(kDeviceType, index_));
  c10::DataPtr cell = allocator().allocate(sizeof(PhiloxCell));  // freed behind the lock if it is not needed
  const std::lock_guard guard(lock_);
  if (known()) return;
  drawers_.push_back({generator, std::move(cell)});
  generator->begin_capture(capture_, static_cast<const PhiloxCell*>(drawers_.back().cell.get()));
}

// %% capture-pool
bool GraphResources::accepts(const c10::Stream& stream) {
  const cookbookStream_t wanted = handle(stream);
  if (capture_of(wanted) != capture_) return false;
  const std::lock_guard guard(lock_);
  if (std::find(streams_.begin(), streams_.end(), wanted) == streams_.end()) streams_.push_back(wanted);
  return true;
}

void GraphResources::begin(CaptureId capture) {
  capture_ = capture;
  // By way of a weak pointer: an allocator that keeps the filter must not keep the graph.
  const auto filter = [weak = weak_from_this()](const c10::Stream& stream) {
    const std::shared_ptr<GraphResources> self = weak.lock();
    return self != nullptr && self->accepts(stream);
  };
  device_cache(index_).begin_allocate_to_pool(pool_, filter);
  on_device_ = true;
  at::getHostAllocator(kDeviceType)->begin_allocate_to_pool(pool_, filter);
  on_host_ = true;
  OpenCaptures& open = open_captures();
  const std::lock_guard guard(open.lock);
  open.list.insert_or_assign(capture_, weak_from_this());
}

// %% capture-end
namespace {
// Happens only if somebody else has ended or released the pool.
void warn_of_pool(const std::exception& error) noexcept {
  try {
    TORCH_WARN("a graph's memory pool: ", error.what());
  } catch (...) {  // warnings may be errors
  }
}
}  // namespace

void GraphResources::end() noexcept {
  {
    OpenCaptures& open = open_captures();
    const std::lock_guard guard(open.lock);
    open.list.erase(capture_);
  }
  try {
    if (on_device_) device_cache(index_).end_allocate_to_pool(pool_);
    if (on_host_) at::getHostAllocator(kDeviceType)->end_allocate_to_pool(pool_);
    const std::lock_guard guard(lock_);
    for (Drawer& drawer : drawers_) drawer.columns = drawer.generator->end_capture(capture_);
  } catch (const std::exception& error) {
    warn_of_pool(error);
  }
}

// %% capture-draw
void GraphResources::draw() {
  // Nobody adds a generator after the capture.
  for (Drawer& drawer : drawers_) {
    if (drawer.columns == 0) continue;
    write_cell(index_, static_cast<PhiloxCell*>(drawer.cell.get()), drawer.generator->replay(drawer.columns));
  }
}

// %% capture-release
void GraphResources::release(cookbookEvent_t last_replay) noexcept {
  // The cache gives a block to work that comes later on the block's stream. So that stream has to come behind the last
  // replay, which may be queued on another one. A stream that is captured meanwhile runs nothing and takes no wait; its
  // host waits instead, as the alternative would be to lose the memory.
  std::vector<cookbookStream_t> streams;
  std::vector<Drawer> drawers;  // freed behind the waits, without the lock
  {
    const std::lock_guard guard(lock_);
    streams.swap(streams_);
    drawers.swap(drawers_);
  }
  for (const cookbookStream_t stream : streams) {
    const bool captured = capture_of(stream) != 0;
    const cookbookError_t error =
        captured ? cookbookEventSynchronize(last_replay) : cookbookStreamWaitEvent(stream, last_replay);
    if (error != cookbookErrorInvalidHandle) warn(error);  // a stream that was destroyed has run all its work
  }
  drawers.clear();
  try {
    if (std::exchange(on_device_, false)) device_cache(index_).release_pool(pool_);
    if (std::exchange(on_host_, false)) at::getHostAllocator(kDeviceType)->release_pool(pool_);
  } catch (const std::exception& error) {
    warn_of_pool(error);
  }
}

}  // namespace cookbook
