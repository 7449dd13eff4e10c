// Where device memory lives: address ranges that nobody can touch, and the stores behind them.
//
// All of it is one reservation without access rights, counted in windows (more than twice the capacity, whole GiB), for
// N devices:
//
//   [ range 0 | range 1 | ... | range N-1 ][ store 0 | N-1 empty windows | store 1 | N-1 empty windows | ... ]
//
//  * A window begins with the device's own memory. The rest of it, at least as large, is for blocks of other processes
//    (opened_blocks.h): their pages are mapped there, so that the same constant serves them.
//  * A device pointer lies in its device's range, which is never mapped: any host access faults.
//  * Only the stores are mapped, and only when their device is first used. A kernel adds its device's constant,
//    store d - range d.
//  * A pointer of device e that is translated with the constant of d lands at window N + d*N + (e - d). A store k is at
//    window N + k*N, and |e - d| < N, so it meets a store only if e == d. All other results are inside the reservation
//    (their windows run from N to N + (N-1)*N), so even an unchecked translation faults. Stores at the same distance as
//    the ranges would not have this property: d could reach k through e = k.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cookbook_driver.h"
#include "environment.h"

namespace cookbook::driver {

constexpr size_t kPage = 65536;     // mappings begin at a multiple: the largest page that Linux uses on usual machines
constexpr size_t kExports = 65536;  // blocks of a device that are exported at once

class AddressSpace {
 public:
  // Reserves everything. Needs setup_mutex(); a second call does nothing.
  cookbookError_t reserve(int devices, size_t capacity) noexcept;
  // Maps the store of a device. Needs setup_mutex(); a second call does nothing.
  cookbookError_t map_store(int device) noexcept;

  // The device whose range holds the address, else -1.
  int owner(const void* pointer) const noexcept {
    const uintptr_t base = base_.load(std::memory_order_acquire);
    if (!base) return -1;
    const uintptr_t offset = reinterpret_cast<uintptr_t>(pointer) - base;
    return offset < window_ * static_cast<size_t>(devices_) ? static_cast<int>(offset / window_) : -1;
  }
  uintptr_t range(int device) const noexcept {
    return base_.load(std::memory_order_acquire) + window_ * static_cast<size_t>(device);
  }
  uintptr_t store(int device) const noexcept {
    const auto slot = static_cast<size_t>(devices_) * (1 + static_cast<size_t>(device));
    return base_.load(std::memory_order_acquire) + window_ * slot;
  }
  intptr_t to_store(int device) const noexcept { return static_cast<intptr_t>(store(device) - range(device)); }
  // The device's memfd, which other processes map: its own memory, and behind it one page-aligned table of
  // kExports numbers (exports.h), which is mapped here. Both exist once the store is mapped.
  int file(int device) const noexcept { return file_[device]; }
  std::atomic<uint64_t>* exports(int device) const noexcept { return exports_[device]; }
  size_t exports_offset() const noexcept { return (capacity_ + kPage - 1) / kPage * kPage; }

  // Where blocks of other processes may lie, as offsets into the device's window; whole pages. The page between the
  // device's own memory and the first of them is never mapped.
  size_t opened_begin() const noexcept { return exports_offset() + kPage; }
  size_t opened_end() const noexcept { return window_; }
  // Maps pages of another process's memfd at `offset` of a device's store, and takes them away again.
  cookbookError_t map_opened(int device, size_t offset, size_t bytes, int file, size_t file_offset) noexcept;
  void unmap_opened(int device, size_t offset, size_t bytes) noexcept;

  // Makes the pages behind [offset, offset + bytes) of a device present, in steps of 2 MiB, so that the page faults of
  // a new block do not happen in the first kernel that uses it.
  cookbookError_t populate(int device, size_t offset, size_t bytes) noexcept;

 private:
  // Blocks above this size are left to the kernels' page faults: a test that fills a device to see it full need not own
  // the memory.
  static constexpr size_t kPopulateLimit = size_t{256} << 20;
  static constexpr size_t kStep = size_t{2} << 20;

  std::atomic<uintptr_t> base_{0};
  size_t window_ = 0, capacity_ = 0;  // written before base_ is published
  int devices_ = 0;
  bool mapped_[kMaxDevices] = {};                    // under setup_mutex()
  int file_[kMaxDevices]{};                          // written before the device's context is published
  std::atomic<uint64_t>* exports_[kMaxDevices]{};    // likewise
  std::atomic<uint64_t>* populated_[kMaxDevices]{};  // one bit a step
};

AddressSpace& address_space();

}  // namespace cookbook::driver
