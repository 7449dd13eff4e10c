// Contexts, sticky errors, and the calls about devices.
#include "device.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "address_space.h"
#include "capture.h"
#include "environment.h"
#include "error.h"
#include "gate.h"

namespace cookbook::driver {
namespace {

thread_local int current = 0;

// Devices are made with the first context of any and never destroyed: streams' threads and exit handlers of other
// libraries may outlive this library's static objects.
std::atomic<Device*> devices[kMaxDevices];

}  // namespace

Device* device_or_null(int index) { return devices[index].load(std::memory_order_acquire); }

int current_device() { return current; }

cookbookError_t find_device(int index, Device*& device) {
  const int count = environment().device_count;
  if (count == 0) return fail(cookbookErrorNoDevice, "this machine has no device (COOKBOOK_DEVICE_COUNT is 0)");
  if (index < 0 || index >= count) {
    return fail(cookbookErrorInvalidDevice, "device %d: expected an index from 0 to %d", index, count - 1);
  }
  device = device_or_null(index);
  if (!device) {
    const std::lock_guard lock(setup_mutex());
    device = devices[index].load(std::memory_order_relaxed);
    if (!device) {
      device = new Device(index);
      devices[index].store(device, std::memory_order_release);
    }
  }
  return cookbookSuccess;
}

cookbookError_t use_current_device(Device*& device) {
  if (cookbookError_t error = find_device(current, device); error != cookbookSuccess) return error;
  return device->use();
}

cookbookError_t find_stream(cookbookStream_t handle, Stream*& stream) {
  if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
  if (!handle) {
    Device* device;
    if (cookbookError_t error = use_current_device(device); error != cookbookSuccess) return error;
    stream = &device->default_stream();
    return cookbookSuccess;
  }
  for (int i = 0; i < environment().device_count; ++i) {
    const Device* device = device_or_null(i);
    if (!device) continue;
    if (Stream* slot = device->stream(handle)) {
      if (!slot->alive()) return fail(cookbookErrorInvalidHandle, "the stream was destroyed");
      stream = slot;
      return cookbookSuccess;
    }
  }
  return fail(cookbookErrorInvalidHandle, "%p is not a stream of this driver", static_cast<void*>(handle));
}

size_t Device::capacity() const { return environment().device_memory / kGranule * kGranule; }

cookbookError_t Device::make_context() {
  const std::lock_guard lock(setup_mutex());
  if (context_.load(std::memory_order_relaxed)) return cookbookSuccess;
  AddressSpace& space = address_space();
  cookbookError_t error = space.reserve(environment().device_count, capacity());
  if (error == cookbookSuccess) error = space.map_store(index_);
  if (error != cookbookSuccess) return error;
  if (!memory_) memory_ = std::make_unique<DeviceMemory>(*this, capacity());
  if (!streams_) {
    auto streams = std::make_unique<StreamTable>();
    streams->acquire([&](void* place, size_t id) { return new (place) Stream(*this, static_cast<int>(id)); })->open(0);
    streams_ = std::move(streams);
  }
  note_context();
  context_.store(true, std::memory_order_release);
  return cookbookSuccess;
}

cookbookError_t Device::create_stream(int priority, Stream*& stream) {
  stream = streams_->acquire([&](void* place, size_t id) { return new (place) Stream(*this, static_cast<int>(id)); });
  if (!stream) {
    return fail(cookbookErrorOutOfMemory, "device %d has %zu streams, its limit: destroy some", index_, kMaxStreams);
  }
  stream->open(std::clamp(priority, kGreatestPriority, kLeastPriority));
  return cookbookSuccess;
}

void Device::recycle(Stream* stream) { streams_->give_back(stream); }

void Device::drain() {
  for_each_stream([](Stream& stream) { stream.wait(stream.tail()); });
}

void Device::set_failed(cookbookError_t error, const char* text) {
  const std::lock_guard lock(error_lock_);
  if (error_ != cookbookSuccess) return;
  error_ = error;
  std::snprintf(error_text_, sizeof(error_text_), "%s", text);
  attention_.fetch_or(kFailed, std::memory_order_relaxed);
}

void Device::clear_failed() {
  const std::lock_guard lock(error_lock_);
  error_ = cookbookSuccess;
  attention_.fetch_and(~uint32_t{kFailed}, std::memory_order_relaxed);
}

cookbookError_t Device::report_failure() {
  const std::lock_guard lock(error_lock_);
  return error_ == cookbookSuccess ? error_ : fail(error_, "%s", error_text_);
}

}  // namespace cookbook::driver

using namespace cookbook::driver;

cookbookError_t cookbookGetDeviceCount(int* count) {
  if (cookbookError_t error = enter_in_any_process(); error != cookbookSuccess) return error;
  if (!count) return fail(cookbookErrorInvalidValue, "count is null");
  *count = environment().device_count;
  return cookbookSuccess;
}

cookbookError_t cookbookGetDevice(int* device) {
  if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
  if (!device) return fail(cookbookErrorInvalidValue, "device is null");
  if (environment().device_count == 0) {
    return fail(cookbookErrorNoDevice, "this machine has no device (COOKBOOK_DEVICE_COUNT is 0)");
  }
  *device = current;
  return cookbookSuccess;
}

// The lookup that begins most calls about a device.
static cookbookError_t enter_with(int index, Device*& device) {
  if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
  return find_device(index, device);
}

cookbookError_t cookbookSetDevice(int device) {
  return guarded([&] {
    Device* found;
    if (cookbookError_t error = enter_with(device, found); error != cookbookSuccess) return error;
    current = device;
    return cookbookSuccess;
  });
}

cookbookError_t cookbookGetDeviceProperties(cookbookDeviceProperties* properties, int device) {
  return guarded([&] {
    Device* found;
    if (cookbookError_t error = enter_with(device, found); error != cookbookSuccess) return error;
    if (!properties) return fail(cookbookErrorInvalidValue, "properties is null");
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "%s", environment().device_name);
    properties->total_memory = found->capacity();
    properties->major = COOKBOOK_DRIVER_VERSION / 100;
    properties->minor = COOKBOOK_DRIVER_VERSION % 100;
    properties->stream_priority_least = kLeastPriority;
    properties->stream_priority_greatest = kGreatestPriority;
    return cookbookSuccess;
  });
}

cookbookError_t cookbookDeviceHasContext(int device, int* has_context) {
  return guarded([&] {
    Device* found;
    if (cookbookError_t error = enter_with(device, found); error != cookbookSuccess) return error;
    if (!has_context) return fail(cookbookErrorInvalidValue, "has_context is null");
    *has_context = found->has_context();
    return cookbookSuccess;
  });
}

cookbookError_t cookbookDeviceSynchronize(int device) {
  return guarded([&] {
    Device* found;
    if (cookbookError_t error = enter_with(device, found); error != cookbookSuccess) return error;
    if (cookbookError_t error = refuse_on_captured_device(*found, "cookbookDeviceSynchronize");
        error != cookbookSuccess) {
      return error;
    }
    found->count_synchronization();
    found->drain();
    return found->status();
  });
}

cookbookError_t cookbookDeviceReset(int device) {
  return guarded([&] {
    Device* found;
    if (cookbookError_t error = enter_with(device, found); error != cookbookSuccess) return error;
    if (cookbookError_t error = refuse_on_captured_device(*found, "cookbookDeviceReset"); error != cookbookSuccess) {
      return error;
    }
    found->drain();
    found->clear_failed();
    return cookbookSuccess;
  });
}

cookbookError_t cookbookDevicePeekError(int device) {
  return guarded([&] {
    Device* found;
    if (cookbookError_t error = enter_with(device, found); error != cookbookSuccess) return error;
    return found->status();
  });
}

cookbookError_t cookbookShutdown(void) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    for_each_used_device([](Device& device) { device.drain(); });
    for_each_used_device([](Device& device) { device.for_each_stream([](Stream& stream) { stream.stop_worker(); }); });
    return cookbookSuccess;
  });
}
