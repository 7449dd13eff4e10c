// A graph: work that was recorded by a capture, and the same work ready to be launched as one record.
//
// A node is a Record as a stream's ring has it (stream.h), so the ring's runner runs it as well. The nodes are kept in
// the order in which they were recorded. That is an order in which they may run: a node comes after its stream's last
// one and after those that an event stood for, and all of these were recorded before. A launch runs the nodes in this
// order, on the thread that runs the launch's stream; branches of a graph do not run at the same time. The edges are
// kept to check that branches were joined, and to be drawn.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cookbook_driver.h"
#include "spin.h"
#include "stream.h"

namespace cookbook::driver {

using NodeList = std::vector<uint32_t>;

// Records one behind the other.
class RecordBuffer {
 public:
  // A record with room for its payload; stays where it is.
  Record* add(RecordKind kind, const void* target, size_t payload_bytes);

 private:
  struct Free {
    void operator()(char* memory) const { operator delete[](memory, std::align_val_t{64}); }
  };
  static constexpr size_t kChunk = size_t{64} << 10;

  std::vector<std::unique_ptr<char[], Free>> chunks_;
  size_t room_ = 0;
  char* next_ = nullptr;
};

// Written by one capture under its lock, then only read.
struct Graph {
  struct Node {
    Record* record;
    int stream;      // the number of the stream that it was recorded on
    NodeList after;  // nodes that it comes after, by their numbers
  };
  explicit Graph(Device& device) : device(device) {}

  Device& device;
  RecordBuffer records;
  std::vector<Node> nodes;
  StreamCounters counters;  // what one launch adds to its stream's
};

// Owned by reference count: one for the handle, one for each record that launches a part of it.
class GraphExec {
 public:
  explicit GraphExec(const Graph& graph);
  GraphExec(const GraphExec&) = delete;
  GraphExec& operator=(const GraphExec&) = delete;

  Device& device() const { return device_; }
  Record* at(size_t position) const { return reinterpret_cast<Record*>(records_.get() + position); }
  cookbookError_t launch(Stream& stream);

  void keep() { references_.fetch_add(1, std::memory_order_relaxed); }
  void drop() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  struct Free {
    void operator()(char* memory) const { operator delete[](memory, std::align_val_t{64}); }
  };
  ~GraphExec() = default;
  cookbookError_t launch_with_faults(Stream& stream, bool& counted, uint64_t& ticket);
  cookbookError_t push(Stream& stream, size_t begin, size_t end, bool& counted, uint64_t& ticket);

  Device& device_;
  const size_t bytes_;
  const std::unique_ptr<char[], Free> records_;
  StreamCounters counters_;
  std::atomic<int> references_{1};
  SpinLock lock_;  // guards last_
  Dependency last_{nullptr, 0};
};

// The payload of a kGraph record.
struct GraphRange {
  GraphExec* exec;  // one reference
  size_t begin, end;
};

// Makes a graph known by a handle.
cookbookError_t publish(std::shared_ptr<const Graph> graph, cookbookGraph_t& handle);

}  // namespace cookbook::driver
