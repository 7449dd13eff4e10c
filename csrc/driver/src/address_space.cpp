// Reserves, maps and populates the simulated devices' memory.
#include "address_space.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "error.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace cookbook::driver {
namespace {
constexpr size_t kWindowUnit = size_t{1} << 30;
}

AddressSpace& address_space() {
  static AddressSpace space;  // trivially destructible: stays valid in exit handlers
  return space;
}

cookbookError_t AddressSpace::reserve(int devices, size_t capacity) noexcept {
  if (base_.load(std::memory_order_relaxed)) return cookbookSuccess;
  devices_ = devices;
  capacity_ = capacity;
  window_ = (2 * (capacity + kPage) + kWindowUnit - 1) / kWindowUnit * kWindowUnit;
  const auto n = static_cast<size_t>(devices);
  const size_t bytes = window_ * (n * n + 1);
  void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return fail(cookbookErrorOutOfMemory, "cannot reserve %s of address space for %d devices: %s",
                ByteText(bytes).c_str(), devices, std::strerror(errno));
  }
  base_.store(reinterpret_cast<uintptr_t>(base), std::memory_order_release);
  return cookbookSuccess;
}

cookbookError_t AddressSpace::map_store(int device) noexcept {
  if (mapped_[device]) return cookbookSuccess;
  if (!populated_[device]) {
    populated_[device] = new (std::nothrow) std::atomic<uint64_t>[capacity_ / kStep / 64 + 1]();
    if (!populated_[device]) return fail(cookbookErrorOutOfMemory, "the driver ran out of ordinary host memory");
  }
  // A memfd mapped shared: another process maps the same pages without a copy (process.h).
  const int file = memfd_create("cookbook_device", MFD_CLOEXEC);
  if (file < 0) return fail(cookbookErrorOutOfMemory, "device %d: memfd_create: %s", device, std::strerror(errno));
  constexpr size_t kTable = kExports * sizeof(std::atomic<uint64_t>);
  const size_t table_at = exports_offset();
  void* const place = reinterpret_cast<void*>(store(device));
  void* table = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(table_at + kTable)) == 0)
    table = mmap(nullptr, kTable, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(table_at));
  if (table == MAP_FAILED ||
      mmap(place, capacity_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED) {
    const int error = errno;
    if (table != MAP_FAILED) munmap(table, kTable);
    close(file);
    return fail(cookbookErrorOutOfMemory, "device %d: cannot map a store of %s: %s", device,
                ByteText(capacity_).c_str(), std::strerror(error));
  }
  file_[device] = file;
  exports_[device] = static_cast<std::atomic<uint64_t>*>(table);  // the system's pages are zero, which is their start
  // A forked child has no device: it shall not see the parent's device memory change either.
  madvise(place, capacity_, MADV_DONTFORK);
  madvise(table, kTable, MADV_DONTFORK);
  mapped_[device] = true;
  return cookbookSuccess;
}

cookbookError_t AddressSpace::map_opened(int device, size_t offset, size_t bytes, int file,
                                         size_t file_offset) noexcept {
  void* const place = reinterpret_cast<void*>(store(device) + offset);
  if (mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
           static_cast<off_t>(file_offset)) == MAP_FAILED) {
    return fail(cookbookErrorOutOfMemory, "device %d: cannot map %s of another process: %s", device,
                ByteText(bytes).c_str(), std::strerror(errno));
  }
  madvise(place, bytes, MADV_DONTFORK);
  return cookbookSuccess;
}

void AddressSpace::unmap_opened(int device, size_t offset, size_t bytes) noexcept {
  // Without rights again, in one step: a hole in the reservation could be given to somebody else. If the system cannot,
  // the pages stay until the range is used again.
  (void)mmap(reinterpret_cast<void*>(store(device) + offset), bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

cookbookError_t AddressSpace::populate(int device, size_t offset, size_t bytes) noexcept {
  if (bytes > kPopulateLimit) return cookbookSuccess;
  for (size_t step = offset / kStep; step <= (offset + bytes - 1) / kStep; ++step) {
    std::atomic<uint64_t>& word = populated_[device][step / 64];
    const uint64_t bit = uint64_t{1} << (step % 64);
    if (word.load(std::memory_order_relaxed) & bit) continue;
    // Two threads may do the same step: harmless, the pages keep their contents.
    const size_t begin = step * kStep, length = std::min(kStep, capacity_ - begin);
    if (madvise(reinterpret_cast<void*>(store(device) + begin), length, MADV_POPULATE_WRITE) != 0) {
      // EINVAL: a kernel before 5.14 does not know the advice; pages then come with their first use.
      if (errno != EINVAL && errno != EAGAIN && errno != EINTR) {
        return fail(cookbookErrorOutOfMemory, "device %d: the host has no memory behind the device's: %s", device,
                    std::strerror(errno));
      }
      if (errno != EINVAL) continue;
    }
    word.fetch_or(bit, std::memory_order_relaxed);
  }
  return cookbookSuccess;
}

}  // namespace cookbook::driver
