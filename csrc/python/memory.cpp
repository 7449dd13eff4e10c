// chapter 4
// %% bind-memory-snapshot
#include "python/memory.h"

#include <c10/core/CPUAllocator.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>

#include "runtime/device_cache.h"
#include "scaffolding/allocator.h"
#include "scaffolding/device.h"

namespace py = pybind11;

namespace cookbook {
namespace {

using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::SegmentInfo;

DeviceCache& cache(int device) {
  return device_cache(resolve(c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(device))));
}

// %% bind-memory-dicts
py::list blocks(const SegmentInfo& segment) {
  py::list result;
  size_t address = segment.address;
  for (const BlockInfo& block : segment.blocks) {
    py::dict entry;
    entry["address"] = address;
    entry["size"] = block.size;
    entry["requested_size"] = block.requested_size;
    entry["state"] = block.allocated ? "active_allocated" : block.active ? "active_pending_free" : "inactive";
    result.append(entry);
    address += block.size;
  }
  return result;
}

py::list snapshot(int device) {
  py::list result;
  for (const SegmentInfo& segment : cache(device).snapshot()) {
    py::dict entry;
    entry["device"] = int{segment.device};
    entry["address"] = segment.address;
    entry["total_size"] = segment.total_size;
    entry["allocated_size"] = segment.allocated_size;
    entry["active_size"] = segment.active_size;
    entry["requested_size"] = segment.requested_size;
    entry["stream"] = reinterpret_cast<uintptr_t>(segment.stream);
    entry["segment_type"] = segment.is_large ? "large" : "small";
    entry["segment_pool_id"] = segment.owner_private_pool_id;
    entry["is_expandable"] = segment.is_expandable;
    entry["blocks"] = blocks(segment);
    result.append(entry);
  }
  return result;
}

// %% bind-memory-pools
// What graph capture does in C++, for tests.
void begin_allocate_to_pool(int device, c10::MempoolId_t id, c10::Stream stream) {
  cache(device).begin_allocate_to_pool(id, [stream](c10::Stream current) { return current == stream; });
}
void end_allocate_to_pool(int device, c10::MempoolId_t id) { cache(device).end_allocate_to_pool(id); }
void release_pool(int device, c10::MempoolId_t id) { cache(device).release_pool(id); }

// %% bind-memory-benchmark
// For benchmarks: seconds of `count` pairs of allocate and free through the interface that storages use.
double time_pairs(const std::string& name, size_t bytes, size_t count) {
  TORCH_CHECK_VALUE(name == "cache" || name == "direct" || name == "cpu", "expected 'cache', 'direct' or 'cpu', got '",
                    name, "'");
  c10::Allocator& from = name == "cpu" ? *c10::GetCPUAllocator() : name == "direct" ? direct_allocator() : allocator();
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < count; ++i) static_cast<void>(from.allocate(bytes));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

// %% bind-memory
void bind_memory(py::module_& m) {
  m.def("memory_snapshot", torch::wrap_pybind_function(&snapshot));
  m.def("set_memory_fraction",
        torch::wrap_pybind_function([](int device, double fraction) { cache(device).set_fraction(fraction); }));
  m.def("memory_fraction", torch::wrap_pybind_function([](int device) { return cache(device).fraction(); }));
  m.def("empty_pool", torch::wrap_pybind_function([](c10::MempoolId_t id) { allocator().emptyCache(id); }));
  m.def("begin_allocate_to_pool", torch::wrap_pybind_function(&begin_allocate_to_pool));
  m.def("end_allocate_to_pool", torch::wrap_pybind_function(&end_allocate_to_pool));
  m.def("release_pool", torch::wrap_pybind_function(&release_pool));
  m.def("time_pairs", torch::wrap_pybind_function_no_gil(&time_pairs));
}

}  // namespace cookbook
