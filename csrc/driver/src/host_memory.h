// Pinned host memory: a registry of the blocks that the device may copy from and to without staging.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <shared_mutex>

#include "cookbook_driver.h"

namespace cookbook::driver {

class HostMemory {
 public:
  cookbookError_t allocate(size_t bytes, void*& pointer);
  bool owns(void* pointer);  // exactly the start of a block
  cookbookError_t free(void* pointer);

  struct Found {
    void* base;
    size_t bytes;
  };
  bool find(const void* pointer, Found& found);
  bool holds(const void* pointer, size_t bytes);

 private:
  std::shared_mutex mutex_;  // guards blocks_; copies only read
  std::map<uintptr_t, size_t> blocks_;
};

HostMemory& host_memory();

}  // namespace cookbook::driver
