// chapter 4
// %% bind-pinned
#include "python/pinned.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "scaffolding/pinned.h"

namespace py = pybind11;

namespace cookbook {
namespace {

py::dict stat(const c10::CachingAllocator::Stat& s) {
  py::dict result;
  result["current"] = s.current;
  result["peak"] = s.peak;
  result["allocated"] = s.allocated;
  result["freed"] = s.freed;
  return result;
}

py::dict stat(const c10::CachingAllocator::DurationStat& s) {
  py::dict result;
  result["total"] = s.total;
  result["max"] = s.max;
  result["min"] = s.min;
  result["count"] = s.count;
  result["avg"] = s.count == 0 ? 0 : s.total / s.count;
  return result;
}

// %% bind-pinned-stats
// The cache's locks are taken without the GIL: a thread that holds one of them may be about to warn.
at::HostStats host_stats() {
  const py::gil_scoped_release no_gil;
  return pinned_allocator().get_stats();
}

py::dict host_memory_stats() {
  const at::HostStats stats = host_stats();
  py::dict result;
  result["allocations"] = stat(stats.allocations);
  result["allocated_bytes"] = stat(stats.allocated_bytes);
  result["active_requests"] = stat(stats.active_requests);
  result["active_bytes"] = stat(stats.active_bytes);
  result["host_alloc_time"] = stat(stats.host_alloc_time);
  result["host_free_time"] = stat(stats.host_free_time);
  result["num_host_alloc"] = stats.num_host_alloc;
  result["num_host_free"] = stats.num_host_free;
  return result;
}

}  // namespace

// %% bind-pinned-module
void bind_pinned(py::module_& m) {
  // Core's binding of the same keeps the GIL, and giving memory back waits for all devices.
  m.def("empty_host_cache", torch::wrap_pybind_function_no_gil([] { pinned_allocator().empty_cache(); }));
  m.def("host_memory_stats", torch::wrap_pybind_function(&host_memory_stats));
  m.def("reset_accumulated_host_memory_stats",
        torch::wrap_pybind_function_no_gil([] { pinned_allocator().reset_accumulated_stats(); }));
  m.def("reset_peak_host_memory_stats",
        torch::wrap_pybind_function_no_gil([] { pinned_allocator().reset_peak_stats(); }));
}

}  // namespace cookbook
