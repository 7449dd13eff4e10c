// Injected faults and counters: what tests and the book use to state exact facts about a device.
#include <algorithm>

#include "device.h"
#include "error.h"
#include "gate.h"

namespace cookbook::driver {

// ---- faults --------------------------------------------------------------------------------------------------------

cookbookError_t Device::inject(cookbookFault_t fault, uint64_t nth, uint64_t microseconds) {
  constexpr uint64_t kLongestDelay = 3'600'000'000;
  const std::lock_guard lock(fault_lock_);
  switch (fault) {
    case cookbookFaultNone:
      faults_.clear();
      break;
    case cookbookFaultDelay:
      if (microseconds > kLongestDelay) {
        return fail(cookbookErrorInvalidValue, "microseconds is %llu: expected at most an hour",
                    static_cast<unsigned long long>(microseconds));
      }
      [[fallthrough]];
    case cookbookFaultAlloc:
    case cookbookFaultLaunch:
      if (nth == 0) return fail(cookbookErrorInvalidValue, "nth is 0: the next one is number 1");
      faults_.push_back({fault, nth, static_cast<int64_t>(microseconds) * 1000});
      break;
    default:
      return fail(cookbookErrorInvalidValue, "%d is not a fault", static_cast<int>(fault));
  }
  update_attention();
  return cookbookSuccess;
}

void Device::update_attention() {
  uint32_t armed = 0;
  for (const Fault& fault : faults_) armed |= fault.kind == cookbookFaultAlloc ? kAllocFaults : kKernelFaults;
  attention_.fetch_or(armed, std::memory_order_relaxed);
  attention_.fetch_and(armed | ~uint32_t{kKernelFaults | kAllocFaults}, std::memory_order_relaxed);
}

Device::KernelFault Device::next_kernel() {
  const std::lock_guard lock(fault_lock_);
  KernelFault result;
  for (Fault& fault : faults_) {
    if (fault.kind == cookbookFaultAlloc || --fault.remaining) continue;
    if (fault.kind == cookbookFaultLaunch) result.fails = true;
    if (fault.kind == cookbookFaultDelay) result.delay_ns += fault.delay_ns;
  }
  std::erase_if(faults_, [](const Fault& fault) { return fault.remaining == 0; });
  update_attention();
  return result;
}

bool Device::next_allocation_fails() {
  if (!(attention() & kAllocFaults)) [[likely]]
    return false;
  const std::lock_guard lock(fault_lock_);
  bool fails = false;
  for (Fault& fault : faults_)
    if (fault.kind == cookbookFaultAlloc && --fault.remaining == 0) fails = true;
  std::erase_if(faults_, [](const Fault& fault) { return fault.remaining == 0; });
  update_attention();
  return fails;
}

// ---- counters ------------------------------------------------------------------------------------------------------

// Each stream counts for itself, in a line that its producers write anyway; a sum is made when somebody asks. A slot's
// numbers go on when it is reused, so the sum never loses any.
cookbookCounters Device::totals() {
  cookbookCounters sum{};
  for_each_stream([&](Stream& stream) {
    const StreamCounters& counters = stream.counters();
    sum.launches += counters.launches.value();
    sum.host_functions += counters.host_functions.value();
    sum.copies += counters.copies.value();
    sum.fills += counters.fills.value();
    sum.bytes_host_to_device += counters.bytes_host_to_device.value();
    sum.bytes_device_to_host += counters.bytes_device_to_host.value();
    sum.bytes_device_to_device += counters.bytes_device_to_device.value();
    sum.bytes_peer += counters.bytes_peer.value();
    sum.event_records += counters.event_records.load(std::memory_order_relaxed);
    sum.event_waits += counters.event_waits.load(std::memory_order_relaxed);
  });
  sum.synchronizations = synchronizations_.load(std::memory_order_relaxed);
  if (has_context()) {
    const DeviceMemory::Calls calls = memory_->calls();
    sum.allocations = calls.allocations;
    sum.frees = calls.frees;
  }
  return sum;
}

cookbookCounters Device::counters() {
  const std::lock_guard lock(baseline_lock_);
  cookbookCounters now = totals();
  now.launches -= baseline_.launches;
  now.host_functions -= baseline_.host_functions;
  now.copies -= baseline_.copies;
  now.fills -= baseline_.fills;
  now.bytes_host_to_device -= baseline_.bytes_host_to_device;
  now.bytes_device_to_host -= baseline_.bytes_device_to_host;
  now.bytes_device_to_device -= baseline_.bytes_device_to_device;
  now.bytes_peer -= baseline_.bytes_peer;
  now.synchronizations -= baseline_.synchronizations;
  now.allocations -= baseline_.allocations;
  now.frees -= baseline_.frees;
  now.event_records -= baseline_.event_records;
  now.event_waits -= baseline_.event_waits;
  return now;
}

void Device::reset_counters() {
  const std::lock_guard lock(baseline_lock_);
  baseline_ = totals();
}

}  // namespace cookbook::driver

using namespace cookbook::driver;

cookbookError_t cookbookInjectFault(int device, cookbookFault_t fault, uint64_t nth, uint64_t microseconds) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    Device* found;
    if (cookbookError_t error = find_device(device, found); error != cookbookSuccess) return error;
    return found->inject(fault, nth, microseconds);
  });
}

cookbookError_t cookbookGetCounters(cookbookCounters* counters, int device) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    Device* found;
    if (cookbookError_t error = find_device(device, found); error != cookbookSuccess) return error;
    if (!counters) return fail(cookbookErrorInvalidValue, "counters is null");
    *counters = found->counters();
    return cookbookSuccess;
  });
}

cookbookError_t cookbookResetCounters(int device) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    Device* found;
    if (cookbookError_t error = find_device(device, found); error != cookbookSuccess) return error;
    found->reset_counters();
    return cookbookSuccess;
  });
}
