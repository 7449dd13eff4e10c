// The blocks of a device that were given to other processes: a table in the device's memfd that both sides map.
//
// An entry is the number of an export while its block is in use, else 0. Who opens a handle compares, so the handle of
// a block that was freed is recognized, also when the same memory holds another block by then. Guarded by its owner's
// lock (device_memory.h); other processes only read.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

namespace cookbook::driver {

class Exports {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit Exports(std::atomic<uint64_t>* table) : table_(table) {}
  // kNone when the table is full.
  uint32_t add();
  void remove(uint32_t entry);
  uint64_t number(uint32_t entry) const { return table_[entry].load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t>* table_;
  uint32_t used_ = 0;
  std::vector<uint32_t> free_;
};

}  // namespace cookbook::driver
