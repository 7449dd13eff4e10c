// chapter 2
// %% pinned
#include "scaffolding/pinned.h"

#if COOKBOOK_CHAPTER < 4
#include <cstring>

#include "scaffolding/error.h"
#else
#include "scaffolding/device.h"
#endif

namespace cookbook {
#if COOKBOOK_CHAPTER < 4
namespace {

// The driver waits until no device uses the memory: a non_blocking copy may still read from a tensor that Python has
// dropped. Chapter 4 replaces the wait by events and a cache.
void free_pinned_memory(void* pointer) noexcept { warn(cookbookFreeHost(pointer)); }

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* pointer = nullptr;
    check(cookbookMallocHost(&pointer, bytes));
    return {pointer, pointer, &free_pinned_memory, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned_memory; }
  void copy_data(void* dst, const void* src, size_t bytes) const override { std::memcpy(dst, src, bytes); }
};

}  // namespace

c10::Allocator& pinned_allocator() {
  static PinnedAllocator* const instance = new PinnedAllocator;
  return *instance;
}
#else

// The runtime registers it with PyTorch when the library is loaded.
at::HostAllocator& pinned_allocator() { return *at::getHostAllocator(kDeviceType); }
#endif

}  // namespace cookbook
