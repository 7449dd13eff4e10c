// chapter 4
// %% streams-pool
#include "runtime/streams.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "operators/on_device.h"
#include "scaffolding/stream.h"

namespace cookbook {
namespace {

// The streams of one device and priority. A place is empty until its turn comes for the first time, and the driver
// starts a stream's thread at its first launch: a program with one side stream has one driver stream more and not 32.
//
// No lock: a fork in the middle of a call leaves nothing locked behind in the child.
class Pool {
 public:
  cookbookStream_t next(c10::DeviceIndex index, int priority) {
    const size_t turn = turn_.fetch_add(1, std::memory_order_relaxed) % kStreams;
    std::atomic<cookbookStream_t>& place = places_[turn];
    cookbookStream_t stream = place.load(std::memory_order_acquire);
    return stream != nullptr ? stream : fill(place, index, priority);
  }

 private:
  static constexpr size_t kStreams = 32;

  static cookbookStream_t fill(std::atomic<cookbookStream_t>& place, c10::DeviceIndex index, int priority) {
    const OnDevice guard(c10::Device(kDeviceType, index));
    cookbookStream_t made = nullptr;
    check(cookbookStreamCreate(&made, priority));
    cookbookStream_t first = nullptr;
    if (place.compare_exchange_strong(first, made, std::memory_order_acq_rel)) return made;
    // 32 callers later another thread had the same turn, and was faster.
    warn(cookbookStreamDestroy(made));
    return first;
  }

  std::array<std::atomic<cookbookStream_t>, kStreams> places_{};
  std::atomic<size_t> turn_{0};
};

// %% streams-priorities
constexpr size_t kMaxDevices = 16, kMaxPriorities = 8;

Pool& pool(c10::DeviceIndex index, size_t urgency) {
  static std::array<std::array<Pool, kMaxPriorities>, kMaxDevices> pools;
  return pools.at(index).at(urgency);
}

}  // namespace

StreamPriorities stream_priorities(c10::DeviceIndex index) {
  cookbookDeviceProperties properties{};
  check(cookbookGetDeviceProperties(&properties, index));
  return {properties.stream_priority_least, properties.stream_priority_greatest};
}

int stream_priority(const c10::Stream& stream) {
  int priority = 0;
  check(cookbookStreamGetPriority(handle(stream), &priority));
  return priority;
}

// %% streams-new
c10::Stream new_stream(c10::DeviceIndex index, int priority) {
  const auto [least, greatest] = stream_priorities(index);
  const int wanted = std::clamp(priority, greatest, least);
  cookbookStream_t stream = pool(index, static_cast<size_t>(least - wanted)).next(index, wanted);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, index), reinterpret_cast<c10::StreamId>(stream));
}

c10::Stream external_stream(cookbookStream_t stream) {
  TORCH_CHECK_VALUE(stream != nullptr,
                    "expected the handle of a stream, got null, which means the default stream of whatever device is "
                    "current: take the device's default stream instead");
  int index = -1;
  check(cookbookStreamGetDevice(stream, &index));
  const c10::Device device(kDeviceType, static_cast<c10::DeviceIndex>(index));
  // The default stream has one name only, or two equal streams would differ.
  const c10::Stream by_default(c10::Stream::DEFAULT, device);
  if (handle(by_default) == stream) return by_default;
  return c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(stream));
}

}  // namespace cookbook
