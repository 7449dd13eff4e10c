// The calls about memory.
#include "address_space.h"
#include "capture.h"
#include "device.h"
#include "error.h"
#include "gate.h"
#include "host_memory.h"

using namespace cookbook::driver;

namespace {

// The device that a pointer belongs to, if it has a context; without one nothing of it was given out.
cookbookError_t find_owner(const void* pointer, Device*& device) {
  const int owner = address_space().owner(pointer);
  device = owner < 0 ? nullptr : device_or_null(owner);
  if (!device || !device->has_context()) {
    return fail(cookbookErrorInvalidAddress, "%p is not device memory of this driver", pointer);
  }
  if (reinterpret_cast<uintptr_t>(pointer) - address_space().range(owner) >= device->capacity()) {
    return fail(cookbookErrorInvalidAddress,
                "%p is among the addresses for memory of other processes: close it with cookbookIpcCloseMemHandle()",
                pointer);
  }
  return cookbookSuccess;
}

}  // namespace

cookbookError_t cookbookMalloc(void** pointer, size_t bytes) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    if (!pointer) return fail(cookbookErrorInvalidValue, "pointer is null");
    *pointer = nullptr;
    Device* device;
    if (cookbookError_t error = use_current_device(device); error != cookbookSuccess) return error;
    return device->memory().allocate(bytes, nullptr, *pointer);
  });
}

cookbookError_t cookbookFree(void* pointer) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    if (!pointer) return cookbookSuccess;
    Device* device;
    if (cookbookError_t error = find_owner(pointer, device); error != cookbookSuccess) return error;
    if (cookbookError_t error = refuse_on_captured_device(*device, "cookbookFree"); error != cookbookSuccess) {
      return error;
    }
    device->count_synchronization();
    device->drain();
    // The block is freed in any case; a sticky error is reported as by every call that waits.
    if (cookbookError_t error = device->memory().free(pointer); error != cookbookSuccess) return error;
    return device->status();
  });
}

cookbookError_t cookbookMallocAsync(void** pointer, size_t bytes, cookbookStream_t handle) {
  return guarded([&] {
    Stream* stream;
    if (cookbookError_t error = find_stream(handle, stream); error != cookbookSuccess) return error;
    if (!pointer) return fail(cookbookErrorInvalidValue, "pointer is null");
    *pointer = nullptr;
    const cookbookError_t error = refuse_on_captured_stream(
        *stream, "cookbookMallocAsync",
        "a graph uses the same addresses each time that it runs, so its memory must be its own; take it from a pool "
        "that grows by cookbookMalloc, which is allowed");
    if (error != cookbookSuccess) return error;
    return stream->device().memory().allocate(bytes, stream, *pointer);
  });
}

cookbookError_t cookbookFreeAsync(void* pointer, cookbookStream_t handle) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    if (!pointer) return cookbookSuccess;
    Device* device;
    if (cookbookError_t error = find_owner(pointer, device); error != cookbookSuccess) return error;
    // Null is the default stream of the memory's device, since a free is often far from the code that set a device.
    Stream* stream = &device->default_stream();
    if (handle) {
      if (cookbookError_t error = find_stream(handle, stream); error != cookbookSuccess) return error;
    }
    if (device != &stream->device()) {
      return fail(cookbookErrorInvalidHandle, "the memory is of device %d, the stream of device %d", device->index(),
                  stream->device().index());
    }
    const cookbookError_t error = refuse_on_captured_stream(
        *stream, "cookbookFreeAsync", "the graph will use the memory again; free it when the graph is gone");
    if (error != cookbookSuccess) return error;
    return device->memory().free_in_order(pointer, *stream);
  });
}

cookbookError_t cookbookMallocHost(void** pointer, size_t bytes) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    if (!pointer) return fail(cookbookErrorInvalidValue, "pointer is null");
    *pointer = nullptr;
    Device* device;  // pinned memory belongs to no device, but to a driver that has one
    if (cookbookError_t error = use_current_device(device); error != cookbookSuccess) return error;
    return host_memory().allocate(bytes, *pointer);
  });
}

cookbookError_t cookbookFreeHost(void* pointer) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    if (!pointer) return cookbookSuccess;
    if (!host_memory().owns(pointer)) return host_memory().free(pointer);  // for its error, without waiting
    cookbookError_t error = cookbookSuccess;
    for_each_used_device([&](Device& device) {
      if (error == cookbookSuccess) error = refuse_on_captured_device(device, "cookbookFreeHost");
    });
    if (error != cookbookSuccess) return error;
    for_each_used_device([](Device& device) {
      device.count_synchronization();
      device.drain();
    });
    return host_memory().free(pointer);
  });
}

cookbookError_t cookbookMemGetInfo(size_t* free_bytes, size_t* total_bytes, int device) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    Device* found;
    if (cookbookError_t error = find_device(device, found); error != cookbookSuccess) return error;
    const size_t used = found->has_context() ? found->memory().stats().live_bytes : 0;
    if (free_bytes) *free_bytes = found->capacity() - used;
    if (total_bytes) *total_bytes = found->capacity();
    return cookbookSuccess;
  });
}

cookbookError_t cookbookMemGetStats(cookbookMemoryStats* stats, int device) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    Device* found;
    if (cookbookError_t error = find_device(device, found); error != cookbookSuccess) return error;
    if (!stats) return fail(cookbookErrorInvalidValue, "stats is null");
    *stats = found->has_context() ? found->memory().stats() : cookbookMemoryStats{};
    return cookbookSuccess;
  });
}

cookbookError_t cookbookMemResetStats(int device, int peaks, int totals) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    Device* found;
    if (cookbookError_t error = find_device(device, found); error != cookbookSuccess) return error;
    if (found->has_context()) found->memory().reset_stats(peaks != 0, totals != 0);
    return cookbookSuccess;
  });
}

cookbookError_t cookbookPointerGetAttributes(cookbookPointerAttributes* attributes, const void* pointer) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    if (!attributes) return fail(cookbookErrorInvalidValue, "attributes is null");
    *attributes = {cookbookMemoryUnregistered, -1, nullptr, 0};
    if (const int owner = address_space().owner(pointer); owner >= 0) {
      Device* device = device_or_null(owner);
      DeviceMemory::Found found{};
      if (device && device->has_context() && device->find_block(pointer, found))
        *attributes = {cookbookMemoryDevice, owner, found.base, found.bytes};
      return cookbookSuccess;
    }
    if (HostMemory::Found found{}; host_memory().find(pointer, found))
      *attributes = {cookbookMemoryHost, -1, found.base, found.bytes};
    return cookbookSuccess;
  });
}
