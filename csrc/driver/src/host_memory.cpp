// The registry of pinned host memory.
#include "host_memory.h"

#include <cstdlib>
#include <mutex>

#include "error.h"

namespace cookbook::driver {

HostMemory& host_memory() {
  static auto* memory = new HostMemory;  // never destroyed: exit handlers may free
  return *memory;
}

cookbookError_t HostMemory::allocate(size_t bytes, void*& pointer) {
  constexpr size_t kPage = 4096;
  pointer = nullptr;
  if (bytes == 0) return cookbookSuccess;
  if (posix_memalign(&pointer, kPage, bytes) != 0) {
    pointer = nullptr;
    return fail(cookbookErrorOutOfMemory, "no host memory for %s of pinned memory", ByteText(bytes).c_str());
  }
  try {
    const std::lock_guard lock(mutex_);
    blocks_.emplace(reinterpret_cast<uintptr_t>(pointer), bytes);
  } catch (...) {
    std::free(pointer);
    pointer = nullptr;
    throw;
  }
  return cookbookSuccess;
}

bool HostMemory::owns(void* pointer) {
  const std::shared_lock lock(mutex_);
  return blocks_.count(reinterpret_cast<uintptr_t>(pointer)) != 0;
}

cookbookError_t HostMemory::free(void* pointer) {
  {
    const std::lock_guard lock(mutex_);
    if (!blocks_.erase(reinterpret_cast<uintptr_t>(pointer))) {
      return fail(cookbookErrorInvalidAddress, "%p is not the start of a block of pinned memory: freed before?",
                  pointer);
    }
  }
  std::free(pointer);
  return cookbookSuccess;
}

bool HostMemory::find(const void* pointer, Found& found) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::shared_lock lock(mutex_);
  auto next = blocks_.upper_bound(address);
  if (next == blocks_.begin()) return false;
  --next;
  if (address - next->first >= next->second) return false;
  found = {reinterpret_cast<void*>(next->first), next->second};
  return true;
}

bool HostMemory::holds(const void* pointer, size_t bytes) {
  Found found{};
  if (!find(pointer, found)) return false;
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(found.base);
  return bytes <= found.bytes - offset;
}

}  // namespace cookbook::driver
