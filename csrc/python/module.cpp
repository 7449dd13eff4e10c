// chapter 1
// %% module-includes
// The extension module `cookbook_backend._C`: what the Python side of the backend needs of the C++ side. It is the one
// file that includes pybind11, which costs ten times what the rest of a file costs to compile.
#include <c10/core/DeviceGuard.h>
#include <cookbook_driver.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#if COOKBOOK_CHAPTER >= 3
#include "fallback/exit.h"
#include "fallback/policy.h"
#endif
#if COOKBOOK_CHAPTER >= 2
#include "operators/kernel_scope.h"
#endif
#if COOKBOOK_CHAPTER >= 4
#include "python/foreign.h"
#include "python/ipc.h"
#include "python/memory.h"
#include "python/pinned.h"
#include "python/random.h"
#include "python/streams.h"
#endif
#if COOKBOOK_CHAPTER >= 6
#include "python/tensors.h"
#endif
#include "scaffolding/device.h"
#include "scaffolding/error.h"
#include "scaffolding/hooks.h"

namespace py = pybind11;

// %% module-pybind
// Types that PyTorch itself registers with pybind11 reach this module only if both speak the same internals version.
static_assert(PYBIND11_INTERNALS_VERSION == COOKBOOK_TORCH_PYBIND11_INTERNALS,
              "another pybind11 than PyTorch's is in front of it on the include path: remove it from the build");

namespace cookbook {
namespace {

// %% module-driver
py::dict properties(int device) {
  cookbookDeviceProperties p{};
  check(cookbookGetDeviceProperties(&p, device));
  py::dict result;
  result["name"] = p.name;
  result["total_memory"] = p.total_memory;
  result["capability"] = py::make_tuple(p.major, p.minor);
  return result;
}

py::dict counters(int device) {
  cookbookCounters c{};
  check(cookbookGetCounters(&c, device));
  py::dict result;
  result["launches"] = c.launches;
  result["copies"] = c.copies;
  result["fills"] = c.fills;
  result["bytes_host_to_device"] = c.bytes_host_to_device;
  result["bytes_device_to_host"] = c.bytes_device_to_host;
  result["bytes_device_to_device"] = c.bytes_device_to_device;
  result["bytes_peer"] = c.bytes_peer;
  result["synchronizations"] = c.synchronizations;
  result["allocations"] = c.allocations;
  result["frees"] = c.frees;
  return result;
}

// %% module-faults
void inject_fault(int device, const std::string& kind, uint64_t nth, uint64_t microseconds) {
  cookbookFault_t fault = cookbookFaultNone;
  if (kind == "alloc") {
    fault = cookbookFaultAlloc;
  } else if (kind == "launch") {
    fault = cookbookFaultLaunch;
  } else if (kind == "delay") {
    fault = cookbookFaultDelay;
  } else {
    TORCH_CHECK_VALUE(kind == "none", "expected 'alloc', 'launch', 'delay' or 'none', got '", kind, "'");
  }
  check(cookbookInjectFault(device, fault, nth, microseconds));
}

// For tests: what C++ code sees of a device that is not up yet, and of a guard around code that fails.
bool has_context(int device) {
  int result = 0;
  check(cookbookDeviceHasContext(device, &result));
  return result != 0;
}
py::object call_under_guard(int device, const py::function& function) {
  const c10::DeviceGuard guard(c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(device)));
  return function();
}

// Every call that may block releases the GIL; a thread that waits for the device must not stop the others.
void synchronize(int device) { check(cookbookDeviceSynchronize(device)); }
void reset(int device) { check(cookbookDeviceReset(device)); }
#if COOKBOOK_CHAPTER < 4
void shutdown() { check(cookbookShutdown()); }
#else
// A forked child has the handler and no threads to join.
void shutdown() {
  if (!cookbookIsForkedChild()) check(cookbookShutdown());
}
#endif

#if COOKBOOK_CHAPTER >= 3
// %% module-fallback
int set_policy(int policy) { return static_cast<int>(set_fallback_policy(static_cast<FallbackPolicy>(policy))); }

py::list report() {
  py::list result;
  for (const FallbackRecord& r : fallback_report()) {
    result.append(py::make_tuple(r.name, r.calls, r.bytes_to_cpu, r.bytes_to_device));
  }
  return result;
}
#endif

// %% module-bind
template <class F>
void def(py::module_& m, const char* name, F f) {
  m.def(name, torch::wrap_pybind_function(f));
}
template <class F>
void def_no_gil(py::module_& m, const char* name, F f) {
  m.def(name, torch::wrap_pybind_function_no_gil(f));
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.attr("torch_version") = COOKBOOK_TORCH_VERSION;
  def(m, "register_hooks", &register_hooks);
  def(m, "device_count", [] { return int{device_count()}; });
  def(m, "current_device", &current_device);
  def(m, "set_device", &set_device);
  def(m, "exchange_device", &exchange_device);
  def(m, "maybe_exchange_device", &maybe_exchange_device);
  def_no_gil(m, "synchronize", &synchronize);
  def(m, "properties", &properties);
  def(m, "is_forked_child", [] { return cookbookIsForkedChild() != 0; });
  // Counters, faults and recovery: what tests and the book need of the driver.
  def(m, "counters", &counters);
  def(m, "reset_counters", [](int device) { check(cookbookResetCounters(device)); });
  def(m, "inject_fault", &inject_fault);
  def(m, "has_context", &has_context);
  def(m, "call_under_guard", &call_under_guard);
  def(m, "set_launch_blocking", [](bool on) { return cookbookSetLaunchBlocking(on) != 0; });
  def_no_gil(m, "reset", &reset);
  def_no_gil(m, "shutdown", &shutdown);
#if COOKBOOK_CHAPTER >= 2
  // %% module-operators
  // This thread's torch.set_num_threads is the one that kernels follow.
  set_importing_thread();
#endif
#if COOKBOOK_CHAPTER >= 3
  // %% module-bind-fallback
  def(m, "set_fallback_policy", &set_policy);
  def(m, "fallback_report", &report);
  def(m, "reset_fallback_report", &reset_fallback_report);
  def_no_gil(m, "flush_autograd", &flush_autograd);
#endif
#if COOKBOOK_CHAPTER >= 4
  // %% module-bind-runtime
  bind_memory(m);
  bind_streams(m);
  bind_pinned(m);
  bind_ipc(m);
  bind_foreign(m);
  bind_random(m);
#endif
#if COOKBOOK_CHAPTER >= 6
  // %% module-bind-tensors
  bind_tensors(m);
#endif
  // %% module-end
}

}  // namespace cookbook
