// chapter 4
// %% foreign-header
// Device memory that somebody else has allocated, as tensors: a vendor's library gives an address, another framework a
// DLPack capsule. Nothing is copied; what must be right is how long the owner is kept.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>

namespace cookbook {

// What keeps the memory alive. Its deleter runs exactly once, on any thread, under no lock, also when nothing came of
// the tensor; it must not throw.
using ForeignOwner = std::unique_ptr<void, void (*)(void*)>;

// A tensor over the memory at `address`. With its last view it lets go of the owner, as soon as the stream that is
// current now has passed that point, and those that record_stream has named. Until then the owner stays; nobody waits.
//
// Throws ValueError when the range is not inside one block of the device's memory, or is not aligned for the dtype.
// Without a device: the one that the address belongs to. The storage cannot be resized: it would be a copy.
at::Tensor from_foreign(void* address, c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                        std::optional<c10::Device> device, ForeignOwner owner);

// The same for what torch._C._from_dlpack has made, which would call the producer's deleter while kernels still use the
// memory. Memory of our own that comes back is returned as it is: the allocator sees to it.
at::Tensor adopt_foreign(const at::Tensor& imported);

// Notes that `stream` uses foreign memory. False when `data` is no such memory.
bool record_foreign(const c10::DataPtr& data, const c10::Stream& stream);

// %% foreign-collect-header
// Lets go of what no stream uses any more. Never waits.
void collect_foreign() noexcept;
// Called on a stream's thread when it has passed the last use of dropped memory: whoever sees to it that
// collect_foreign() runs soon, elsewhere. It must not block, take the GIL or call the driver. Null: nobody.
void set_foreign_waker(void (*wake)()) noexcept;

struct ForeignStats {
  size_t alive = 0;    // tensors' storages over foreign memory
  size_t dropped = 0;  // those that are gone, whose owner is kept for a stream
};
ForeignStats foreign_stats();

}  // namespace cookbook
