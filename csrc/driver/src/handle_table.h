// Slots for objects behind handles: storage that is never freed, so that any value a caller passes can be checked
// without touching memory that might be gone.
//
// A handle is the address of a slot. is_slot() is arithmetic; whether the object is alive is in the slot itself. Slots
// are reused first in, first out and only when kQuarantine are free, so that a destroyed handle is recognized for long.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>

#include "lazy_array.h"

namespace cookbook::driver {

template <class T, size_t kSlots, size_t kQuarantine>
class HandleTable {
  struct alignas(alignof(T)) Storage {
    std::byte bytes[sizeof(T)];
  };
  static_assert(alignof(T) <= 4096, "a mapping is aligned to pages");

 public:
  HandleTable() : storage_(kSlots) {}

  // Null when the value cannot be a handle of this table.
  T* slot(const void* handle) const {
    const uintptr_t offset = reinterpret_cast<uintptr_t>(handle) - reinterpret_cast<uintptr_t>(&storage_[0]);
    const size_t index = offset / sizeof(T);
    if (offset % sizeof(T) || index >= used_.load(std::memory_order_acquire)) return nullptr;
    return at(index);
  }
  T* at(size_t index) const { return reinterpret_cast<T*>(const_cast<std::byte*>(storage_[index].bytes)); }
  // Slots below this number are constructed.
  size_t used() const { return used_.load(std::memory_order_acquire); }

  // A free slot, made with `construct(place, index)` the first time. Null when all are in use.
  template <class Construct>
  T* acquire(Construct&& construct) {
    const std::lock_guard lock(mutex_);
    const size_t used = used_.load(std::memory_order_relaxed);
    if (free_.size() >= kQuarantine || (used == kSlots && !free_.empty())) {
      T* const slot = free_.front();
      free_.pop_front();
      return slot;
    }
    if (used == kSlots) return nullptr;
    T* const slot = construct(static_cast<void*>(at(used)), used);
    used_.store(used + 1, std::memory_order_release);
    return slot;
  }
  void give_back(T* slot) {
    const std::lock_guard lock(mutex_);
    free_.push_back(slot);
  }

 private:
  LazyArray<Storage> storage_;
  std::atomic<size_t> used_{0};
  std::mutex mutex_;  // guards free_ and the growth of used_
  std::deque<T*> free_;
};

}  // namespace cookbook::driver
