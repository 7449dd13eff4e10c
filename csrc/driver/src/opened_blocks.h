// Blocks of other processes that this one has opened: where their pages lie in a device's window, and who may use them.
//
// Policy
//  * A block keeps its distance to a page's start, so it is mapped with the pages around it; only the block itself is
//    valid, as an address and as a copy's range.
//  * A block that is opened again has the same address and must be closed as often.
//  * It takes no memory of this process's device, only addresses. Addresses are given out in a circle, so that a closed
//    one stays invalid for long: a kernel that uses it reports an illegal address.
//  * The mapping keeps the producer's pages, also after the producer has freed the block or has ended.
//
// Locks: opening_ makes opening and closing one at a time, system calls included. lock_ guards blocks_; kernels take it
// to translate an address. Order: opening_ before lock_.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "cookbook_driver.h"
#include "device_memory.h"
#include "spin.h"

namespace cookbook::driver {

// What a handle says about a block, and the file that it is in.
struct ForeignBlock {
  uint64_t inode;   // of the producer's memfd; with `number` it names the block
  uint64_t number;  // exports.h
  size_t offset, bytes;
};

class OpenedBlocks {
 public:
  explicit OpenedBlocks(int device) : device_(device) {}

  // Maps the block, or counts one more opening of it.
  cookbookError_t open(const ForeignBlock& block, int file, void*& pointer);
  bool is_open(const void* pointer);  // exactly the start of a block
  // Counts one opening less, and unmaps with the last one. The caller has waited for the devices.
  cookbookError_t close(const void* pointer);

  // The opened block around an address of this device.
  bool find(const void* pointer, DeviceMemory::Found& found);

 private:
  struct Block {
    ForeignBlock foreign;
    size_t lead;  // from the first page's start to the block
    size_t pages_bytes;
    unsigned openings;
  };
  using Blocks = std::map<size_t, Block>;  // by the first page's offset in the window

  void* address(const Blocks::value_type& block) const;
  // Need lock_.
  Blocks::iterator find_same(const ForeignBlock& block);
  Blocks::iterator find_start(const void* pointer);
  // Needs opening_: nobody else changes blocks_. False when no gap is large enough.
  bool find_gap(size_t bytes, size_t& offset) const;

  const int device_;
  std::mutex opening_;
  SpinLock lock_;
  Blocks blocks_;
  size_t next_ = 0;  // where the search for a gap goes on; under opening_
};

}  // namespace cookbook::driver
