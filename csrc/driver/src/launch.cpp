// The calls that queue kernels and host functions.
#include "launch.h"

#include <cstdio>

#include "capture.h"
#include "device.h"
#include "error.h"
#include "gate.h"

namespace cookbook::driver {

cookbookError_t finish_if_blocking(Stream& stream, uint64_t ticket) {
  if (!launch_blocking.load(std::memory_order_relaxed)) [[likely]]
    return cookbookSuccess;
  stream.wait(ticket);
  return stream.device().status();
}

cookbookError_t push_delay(Stream& stream, int64_t ns) {
  return stream.push(RecordKind::kDelay, nullptr, sizeof(ns),
                     [&](void* payload, StreamCounters&) { std::memcpy(payload, &ns, sizeof(ns)); });
}

namespace {

cookbookError_t launch(Stream& stream, const cookbookKernel_t* kernel, const void* args, size_t bytes) {
  RecordKind kind = RecordKind::kKernel;
  if (Device& device = stream.device(); device.attention()) [[unlikely]] {
    if (cookbookError_t error = may_queue(stream, kernel->name); error != cookbookSuccess) return error;
    // A kernel that is recorded does not count; it does each time that its graph is launched.
    if (device.attention() & Device::kKernelFaults && !stream.capture()) {
      const Device::KernelFault fault = device.next_kernel();
      if (fault.fails) kind = RecordKind::kFailingKernel;
      if (fault.delay_ns) {
        if (cookbookError_t error = push_delay(stream, fault.delay_ns); error != cookbookSuccess) return error;
      }
    }
  }
  uint64_t ticket = 0;
  const cookbookError_t error = stream.push(
      kind, kernel, bytes,
      [&](void* payload, StreamCounters& counters) {
        if (bytes) std::memcpy(payload, args, bytes);
        counters.launches.add(1);
      },
      &ticket);
  return error == cookbookSuccess ? finish_if_blocking(stream, ticket) : error;
}

}  // namespace
}  // namespace cookbook::driver

using namespace cookbook::driver;

cookbookError_t cookbookLaunchKernel(cookbookStream_t handle, const cookbookKernel_t* kernel, const void* args,
                                     size_t bytes) {
  return guarded([&] {
    Stream* stream;
    if (cookbookError_t error = find_stream(handle, stream); error != cookbookSuccess) return error;
    if (!kernel || !kernel->run || !kernel->name)
      return fail(cookbookErrorInvalidValue, "kernel is null or incomplete");
    if (bytes > cookbookMaxKernelArgs || (bytes && !args)) {
      return fail(cookbookErrorInvalidValue, "kernel '%s': %zu bytes of arguments at %p: expected at most %d, not null",
                  kernel->name, bytes, args, int{cookbookMaxKernelArgs});
    }
    return launch(*stream, kernel, args, bytes);
  });
}

cookbookError_t cookbookLaunchHostFunc(cookbookStream_t handle, void (*function)(void*), void* user_data) {
  return guarded([&] {
    Stream* stream;
    if (cookbookError_t error = find_stream(handle, stream); error != cookbookSuccess) return error;
    if (!function) return fail(cookbookErrorInvalidValue, "function is null");
    if (cookbookError_t error = may_queue(*stream, "cookbookLaunchHostFunc"); error != cookbookSuccess) return error;
    const HostFunction call{function, user_data};
    uint64_t ticket = 0;
    const cookbookError_t error = stream->push(
        RecordKind::kHostFunction, nullptr, sizeof(call),
        [&](void* payload, StreamCounters& counters) {
          std::memcpy(payload, &call, sizeof(call));
          counters.host_functions.add(1);
        },
        &ticket);
    return error == cookbookSuccess ? finish_if_blocking(*stream, ticket) : error;
  });
}

cookbookError_t cookbookKernelFail(cookbookKernelContext* context, cookbookError_t error, const char* message) {
  std::snprintf(context->message, sizeof(context->message), "%s", message ? message : "");
  return error;
}
