// Graphs, their launches, and the calls about them.
#include "graph.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "capture.h"
#include "device.h"
#include "error.h"
#include "gate.h"
#include "handle_table.h"
#include "launch.h"

namespace cookbook::driver {

// ---- nodes ---------------------------------------------------------------------------------------------------------

Record* RecordBuffer::add(RecordKind kind, const void* target, size_t payload_bytes) {
  const size_t bytes = record_bytes(payload_bytes);
  if (bytes > room_) {
    const size_t chunk = std::max(kChunk, bytes);
    chunks_.emplace_back(static_cast<char*>(operator new[](chunk, std::align_val_t{64})));
    next_ = chunks_.back().get();
    room_ = chunk;
  }
  auto* record = new (next_) Record{target, static_cast<uint32_t>(bytes), kind};
  next_ += bytes;
  room_ -= bytes;
  return record;
}

// ---- launching -----------------------------------------------------------------------------------------------------

static size_t bytes_of(const Graph& graph) {
  size_t bytes = 0;
  for (const Graph::Node& node : graph.nodes) bytes += node.record->bytes;
  return bytes;
}

GraphExec::GraphExec(const Graph& graph)
    : device_(graph.device),
      bytes_(bytes_of(graph)),
      records_(static_cast<char*>(operator new[](std::max<size_t>(bytes_, 64), std::align_val_t{64}))) {
  char* next = records_.get();
  for (const Graph::Node& node : graph.nodes) {
    std::memcpy(next, node.record, node.record->bytes);
    next += node.record->bytes;
  }
  counters_.add(graph.counters);
}

cookbookError_t GraphExec::push(Stream& stream, size_t begin, size_t end, bool& counted, uint64_t& ticket) {
  if (begin == end) return cookbookSuccess;
  const GraphRange range{this, begin, end};
  keep();
  const cookbookError_t error = stream.push(
      RecordKind::kGraph, nullptr, sizeof(range),
      [&](void* payload, StreamCounters& counters) {
        std::memcpy(payload, &range, sizeof(range));
        if (!counted) counters.add(counters_);
        counted = true;
      },
      &ticket);
  if (error != cookbookSuccess) drop();
  return error;
}

// A kernel with a fault is a record of its own, between ranges of the graph.
cookbookError_t GraphExec::launch_with_faults(Stream& stream, bool& counted, uint64_t& ticket) {
  size_t begin = 0;
  for (size_t position = 0; position < bytes_; position += at(position)->bytes) {
    const Record* const record = at(position);
    if (record->kind != RecordKind::kKernel) continue;
    const Device::KernelFault fault = device_.next_kernel();
    if (!fault.fails && !fault.delay_ns) continue;
    if (cookbookError_t error = push(stream, begin, position, counted, ticket); error != cookbookSuccess) return error;
    begin = position;
    if (fault.delay_ns) {
      const cookbookError_t error = push_delay(stream, fault.delay_ns);
      if (error != cookbookSuccess) return error;
    }
    if (!fault.fails) continue;
    begin += record->bytes;
    const cookbookError_t error = stream.push(
        RecordKind::kFailingKernel, record->target, 0,
        [&](void*, StreamCounters& counters) {
          if (!counted) counters.add(counters_);
          counted = true;
        },
        &ticket);
    if (error != cookbookSuccess) return error;
  }
  return push(stream, begin, bytes_, counted, ticket);
}

cookbookError_t GraphExec::launch(Stream& stream) {
  Dependency last{};
  {
    const std::lock_guard lock(lock_);
    last = last_;
  }
  // A graph's kernels use the same memory each time, so a launch runs after the one before, on whatever stream that
  // was.
  if (last.stream && last.stream != &stream && !last.stream->done(last.ticket)) {
    const cookbookError_t error =
        stream.push(RecordKind::kWait, nullptr, sizeof(last),
                    [&](void* payload, StreamCounters&) { std::memcpy(payload, &last, sizeof(last)); });
    if (error != cookbookSuccess) return error;
  }
  bool counted = false;
  uint64_t ticket = 0;
  const cookbookError_t error = device_.attention() & Device::kKernelFaults
                                    ? launch_with_faults(stream, counted, ticket)
                                    : push(stream, 0, bytes_, counted, ticket);
  if (error != cookbookSuccess) return error;
  if (ticket == 0) return cookbookSuccess;  // nothing in it
  {
    const std::lock_guard lock(lock_);
    last_ = {&stream, ticket};
  }
  return finish_if_blocking(stream, ticket);
}

// ---- handles -------------------------------------------------------------------------------------------------------

namespace {

// A slot of a handle table: what the handle stands for, empty once destroyed. The lock guards it.
template <class Pointer>
class alignas(64) Slot {
 public:
  void set(Pointer object) {
    const std::lock_guard lock(lock_);
    object_ = std::move(object);
  }
  Pointer get() {
    const std::lock_guard lock(lock_);
    return object_;
  }
  Pointer take() {
    const std::lock_guard lock(lock_);
    return std::exchange(object_, nullptr);
  }

 private:
  SpinLock lock_;
  Pointer object_ = nullptr;
};

struct DropExec {
  void operator()(GraphExec* exec) const { exec->drop(); }
};
using GraphSlot = Slot<std::shared_ptr<const Graph>>;
using ExecSlot = Slot<std::shared_ptr<GraphExec>>;
constexpr size_t kMaxGraphs = size_t{1} << 16;

// Never destroyed: exit handlers may destroy graphs.
HandleTable<GraphSlot, kMaxGraphs, 64>& graphs() {
  static auto* table = new HandleTable<GraphSlot, kMaxGraphs, 64>;
  return *table;
}
HandleTable<ExecSlot, kMaxGraphs, 64>& execs() {
  static auto* table = new HandleTable<ExecSlot, kMaxGraphs, 64>;
  return *table;
}

template <class Table, class Pointer, class Handle>
cookbookError_t publish_in(Table& table, Pointer object, Handle& handle) {
  using SlotType = Slot<Pointer>;
  SlotType* const slot = table.acquire([](void* place, size_t) { return new (place) SlotType; });
  if (!slot) return fail(cookbookErrorOutOfMemory, "the driver has %zu graphs, its limit: destroy some", kMaxGraphs);
  slot->set(std::move(object));
  handle = reinterpret_cast<Handle>(slot);
  return cookbookSuccess;
}

template <class Table, class Handle, class Object>
cookbookError_t find_in(Table& table, Handle handle, Object& object) {
  if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
  auto* const slot = table.slot(handle);
  if (!slot) {
    return fail(cookbookErrorInvalidHandle, "%p is not a graph of this driver", static_cast<const void*>(handle));
  }
  object = slot->get();
  return object ? cookbookSuccess : fail(cookbookErrorInvalidHandle, "the graph was destroyed");
}

template <class Table, class Handle>
cookbookError_t destroy_in(Table& table, Handle handle) {
  if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
  auto* const slot = table.slot(handle);
  if (!slot) {
    return fail(cookbookErrorInvalidHandle, "%p is not a graph of this driver", static_cast<const void*>(handle));
  }
  const auto object = slot->take();
  if (!object) return fail(cookbookErrorInvalidHandle, "the graph was destroyed");
  table.give_back(slot);
  return cookbookSuccess;
}

// ---- drawing -------------------------------------------------------------------------------------------------------

std::string label(const Record& record) {
  char text[192];
  switch (record.kind) {
    case RecordKind::kKernel:
      std::snprintf(text, sizeof(text), "%s", static_cast<const cookbookKernel_t*>(record.target)->name);
      break;
    case RecordKind::kHostFunction:
      return "host function";
    case RecordKind::kCopy:
      std::snprintf(text, sizeof(text), "copy %zu bytes", payload_of<Copy>(record).bytes);
      break;
    default:
      std::snprintf(text, sizeof(text), "fill %zu bytes", payload_of<Fill>(record).bytes);
      break;
  }
  std::string result;
  for (const char* at = text; *at; ++at) {
    if (*at == '"' || *at == '\\') result += '\\';
    result += *at;
  }
  return result;
}

}  // namespace

cookbookError_t publish(std::shared_ptr<const Graph> graph, cookbookGraph_t& handle) {
  return publish_in(graphs(), std::move(graph), handle);
}

}  // namespace cookbook::driver

using namespace cookbook::driver;

cookbookError_t cookbookGraphDestroy(cookbookGraph_t graph) {
  return guarded([&] { return destroy_in(graphs(), graph); });
}

cookbookError_t cookbookGraphGetInfo(cookbookGraph_t handle, cookbookGraphInfo* info) {
  return guarded([&] {
    std::shared_ptr<const Graph> graph;
    if (cookbookError_t error = find_in(graphs(), handle, graph); error != cookbookSuccess) return error;
    if (!info) return fail(cookbookErrorInvalidValue, "info is null");
    *info = {};
    info->device = graph->device.index();
    info->nodes = graph->nodes.size();
    info->kernels = graph->counters.launches.value();
    info->copies = graph->counters.copies.value();
    info->fills = graph->counters.fills.value();
    info->host_functions = graph->counters.host_functions.value();
    for (const Graph::Node& node : graph->nodes) info->edges += node.after.size();
    info->bytes = bytes_of(*graph);
    return cookbookSuccess;
  });
}

cookbookError_t cookbookGraphDebugDotPrint(cookbookGraph_t handle, const char* path) {
  return guarded([&] {
    std::shared_ptr<const Graph> graph;
    if (cookbookError_t error = find_in(graphs(), handle, graph); error != cookbookSuccess) return error;
    if (!path) return fail(cookbookErrorInvalidValue, "path is null");
    FILE* const file = std::fopen(path, "we");
    if (!file) return fail(cookbookErrorInvalidValue, "cannot write \"%s\": %s", path, std::strerror(errno));
    std::fprintf(file, "digraph cookbook {\n  rankdir=TB;\n  node [shape=box];\n");
    for (size_t i = 0; i < graph->nodes.size(); ++i) {
      const Graph::Node& node = graph->nodes[i];
      std::fprintf(file, "  n%zu [label=\"%zu: %s\\nstream %d\"];\n", i, i, label(*node.record).c_str(), node.stream);
      for (const uint32_t before : node.after) std::fprintf(file, "  n%u -> n%zu;\n", before, i);
    }
    std::fprintf(file, "}\n");
    const bool written = !std::ferror(file);
    if (std::fclose(file) == 0 && written) return cookbookSuccess;
    return fail(cookbookErrorInvalidValue, "cannot write \"%s\": %s", path, std::strerror(errno));
  });
}

cookbookError_t cookbookGraphInstantiate(cookbookGraphExec_t* exec, cookbookGraph_t handle) {
  return guarded([&] {
    std::shared_ptr<const Graph> graph;
    if (cookbookError_t error = find_in(graphs(), handle, graph); error != cookbookSuccess) return error;
    if (!exec) return fail(cookbookErrorInvalidValue, "exec is null");
    *exec = nullptr;
    return publish_in(execs(), std::shared_ptr<GraphExec>(new GraphExec(*graph), DropExec{}), *exec);
  });
}

cookbookError_t cookbookGraphExecDestroy(cookbookGraphExec_t exec) {
  return guarded([&] { return destroy_in(execs(), exec); });
}

cookbookError_t cookbookGraphLaunch(cookbookGraphExec_t handle, cookbookStream_t stream_handle) {
  return guarded([&] {
    std::shared_ptr<GraphExec> exec;
    Stream* stream;
    if (cookbookError_t error = find_in(execs(), handle, exec); error != cookbookSuccess) return error;
    if (cookbookError_t error = find_stream(stream_handle, stream); error != cookbookSuccess) return error;
    if (&exec->device() != &stream->device()) {
      return fail(cookbookErrorInvalidHandle, "the graph is of device %d, the stream of device %d",
                  exec->device().index(), stream->device().index());
    }
    cookbookError_t error =
        refuse_on_captured_stream(*stream, "cookbookGraphLaunch", "a graph in a graph is not supported");
    if (error == cookbookSuccess) error = may_queue(*stream, "cookbookGraphLaunch");
    return error == cookbookSuccess ? exec->launch(*stream) : error;
  });
}
