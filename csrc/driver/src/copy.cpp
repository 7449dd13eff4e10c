// Copies and fills. Addresses are checked and translated when the work is queued, so the stream only moves bytes.
#include <cstring>

#include "address_space.h"
#include "capture.h"
#include "device.h"
#include "error.h"
#include "gate.h"
#include "host_memory.h"
#include "launch.h"

namespace cookbook::driver {
namespace {

// One end of a copy.
struct Side {
  int device = -1;          // -1: host memory
  bool pageable = false;    // host memory that the device cannot reach on its own
  char* address = nullptr;  // where a stream's thread finds the bytes
};

// A copy that blocks does not ask whether host memory is pinned: it would wait in any case.
cookbookError_t resolve(const void* pointer, size_t bytes, const char* name, Side& side, bool blocking) {
  side.device = address_space().owner(pointer);
  if (side.device < 0) {
    if (!pointer) return fail(cookbookErrorInvalidValue, "%s is null", name);
    side.pageable = blocking || !host_memory().holds(pointer, bytes);
    side.address = const_cast<char*>(static_cast<const char*>(pointer));
    return cookbookSuccess;
  }
  Device* device = device_or_null(side.device);
  DeviceMemory::Found found{};
  if (!device || !device->has_context() || !device->find_block(pointer, found)) {
    return fail(cookbookErrorInvalidAddress, "%s %p is in the range of device %d but in no block in use: freed?", name,
                pointer, side.device);
  }
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(found.base);
  if (offset > found.bytes || bytes > found.bytes - offset) {
    return fail(cookbookErrorInvalidAddress,
                "%s: %zu bytes at %p reach past their block of %zu bytes at %p (device %d)", name, bytes, pointer,
                found.bytes, found.base, side.device);
  }
  side.address = reinterpret_cast<char*>(reinterpret_cast<intptr_t>(pointer) + address_space().to_store(side.device));
  return cookbookSuccess;
}

cookbookError_t check_kind(cookbookMemcpyKind kind, const Side& dst, const Side& src) {
  const char* const place[] = {"host", "device"};
  bool from_device, to_device;
  switch (kind) {
    case cookbookMemcpyDefault:
      return cookbookSuccess;
    case cookbookMemcpyHostToHost:
      from_device = false, to_device = false;
      break;
    case cookbookMemcpyHostToDevice:
      from_device = false, to_device = true;
      break;
    case cookbookMemcpyDeviceToHost:
      from_device = true, to_device = false;
      break;
    case cookbookMemcpyDeviceToDevice:
      from_device = true, to_device = true;
      break;
    default:
      return fail(cookbookErrorInvalidValue, "%d is not a kind of copy", static_cast<int>(kind));
  }
  if (from_device == (src.device >= 0) && to_device == (dst.device >= 0)) return cookbookSuccess;
  return fail(cookbookErrorInvalidValue, "the kind says %s to %s, the addresses are %s to %s", place[from_device],
              place[to_device], place[src.device >= 0], place[dst.device >= 0]);
}

void count(StreamCounters& counters, const Side& dst, const Side& src, size_t bytes) {
  counters.copies.add(1);
  if (src.device < 0 && dst.device >= 0) counters.bytes_host_to_device.add(bytes);
  if (src.device >= 0 && dst.device < 0) counters.bytes_device_to_host.add(bytes);
  if (src.device < 0 || dst.device < 0) return;
  (src.device == dst.device ? counters.bytes_device_to_device : counters.bytes_peer).add(bytes);
}

cookbookError_t copy(void* dst, const void* src, size_t bytes, cookbookMemcpyKind kind, Stream& stream, bool blocking) {
  Device& device = stream.device();
  const char* const call = blocking ? "cookbookMemcpy" : "cookbookMemcpyAsync";
  if (blocking) {
    const cookbookError_t error = refuse_on_captured_stream(
        stream, call,
        "it waits, and nothing runs during a capture; copy before or after it, or use cookbookMemcpyAsync");
    if (error != cookbookSuccess) return error;
  }
  if (blocking) device.count_synchronization();
  if (bytes == 0) {
    if (!blocking) return cookbookSuccess;
    stream.wait(stream.tail());
    return device.status();
  }
  if (cookbookError_t error = may_queue(stream, call); error != cookbookSuccess) return error;
  Side to, from;
  if (cookbookError_t error = resolve(dst, bytes, "dst", to, blocking); error != cookbookSuccess) return error;
  if (cookbookError_t error = resolve(src, bytes, "src", from, blocking); error != cookbookSuccess) return error;
  if (cookbookError_t error = check_kind(kind, to, from); error != cookbookSuccess) return error;
  if (to.pageable || from.pageable) {
    const cookbookError_t error =
        refuse_on_captured_stream(stream, "cookbookMemcpyAsync with pageable host memory",
                                  "it would have to wait for the copy; pin the memory (cookbookMallocHost)");
    if (error != cookbookSuccess) return error;
  }
  const bool waits = blocking || to.pageable || from.pageable;
  if (!blocking && waits) device.count_synchronization();
  // Nothing to wait for: a record would only be written and read again.
  // A kernel may have failed since the look above, so the device is asked again.
  const auto move = [&] {
    if (!device.failed()) std::memmove(to.address, from.address, bytes);
  };
  if (waits && stream.run_if_idle(move)) {
    stream.count([&](StreamCounters& counters) { count(counters, to, from, bytes); });
    return device.status();
  }
  const Copy work{to.address, from.address, bytes};
  uint64_t ticket = 0;
  const cookbookError_t error = stream.push(
      RecordKind::kCopy, nullptr, sizeof(work),
      [&](void* payload, StreamCounters& counters) {
        std::memcpy(payload, &work, sizeof(work));
        count(counters, to, from, bytes);
      },
      &ticket);
  if (error != cookbookSuccess) return error;
  if (!waits) return finish_if_blocking(stream, ticket);
  stream.wait(ticket);
  return device.status();
}

}  // namespace
}  // namespace cookbook::driver

using namespace cookbook::driver;

cookbookError_t cookbookMemcpyAsync(void* dst, const void* src, size_t bytes, cookbookMemcpyKind kind,
                                    cookbookStream_t handle) {
  return guarded([&] {
    Stream* stream;
    if (cookbookError_t error = find_stream(handle, stream); error != cookbookSuccess) return error;
    return copy(dst, src, bytes, kind, *stream, false);
  });
}

cookbookError_t cookbookMemcpy(void* dst, const void* src, size_t bytes, cookbookMemcpyKind kind,
                               cookbookStream_t handle) {
  return guarded([&] {
    Stream* stream;
    if (cookbookError_t error = find_stream(handle, stream); error != cookbookSuccess) return error;
    return copy(dst, src, bytes, kind, *stream, true);
  });
}

cookbookError_t cookbookMemsetAsync(void* pointer, int value, size_t bytes, cookbookStream_t handle) {
  return guarded([&] {
    Stream* stream;
    if (cookbookError_t error = find_stream(handle, stream); error != cookbookSuccess) return error;
    if (bytes == 0) return cookbookSuccess;
    if (cookbookError_t error = may_queue(*stream, "cookbookMemsetAsync"); error != cookbookSuccess) return error;
    Side side;
    if (cookbookError_t error = resolve(pointer, bytes, "pointer", side, false); error != cookbookSuccess) return error;
    if (side.device < 0) return fail(cookbookErrorInvalidValue, "%p is host memory: expected device memory", pointer);
    const Fill fill{side.address, bytes, value};
    uint64_t ticket = 0;
    const cookbookError_t error = stream->push(
        RecordKind::kFill, nullptr, sizeof(fill),
        [&](void* payload, StreamCounters& counters) {
          std::memcpy(payload, &fill, sizeof(fill));
          counters.fills.add(1);
        },
        &ticket);
    return error == cookbookSuccess ? finish_if_blocking(*stream, ticket) : error;
  });
}
