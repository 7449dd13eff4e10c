// A device's memory in stream order: who may have a freed block, and when.
//
// Policy
//  * cookbookFree() waits for the device, so its block is free for everybody.
//  * cookbookFreeAsync() on a stream that has work queued makes the block *held*: at once usable for allocations on the
//    same stream, since those come later in its order, and free for everybody when the stream has passed the ticket of
//    the free. The blocks of a stream are held oldest first, so finding out costs one look.
//  * cookbookMallocAsync() takes, in this order: a held block of its own stream of about the right size; a free block;
//  a
//    larger held one of its own. If none will do it tries harder: it frees all held blocks that streams have
//    passed; joins its own held blocks with their neighbours; takes one held block of another stream and makes its
//    stream wait for that one's ticket; makes its stream wait for all other streams and joins all blocks.
//  * cookbookMalloc() takes free blocks only; it waits for held ones before it gives up.
//  * A block that is held never joins a free neighbour, except for the stream that holds it.
//
// lock_ guards everything here. Nothing is waited for, queued or populated under it.
#pragma once
#include <climits>
#include <memory>
#include <vector>

#include "block_allocator.h"
#include "cookbook_driver.h"
#include "exports.h"
#include "spin.h"
#include "stream.h"

namespace cookbook::driver {

class DeviceMemory {
 public:
  DeviceMemory(Device& device, size_t capacity);

  // In the order of `stream`, or at once for all streams when it is null.
  cookbookError_t allocate(size_t bytes, Stream* stream, void*& pointer);
  // The caller has waited for the device.
  cookbookError_t free(void* pointer);
  cookbookError_t free_in_order(void* pointer, Stream& stream);
  // Frees what `stream` holds. It must have run everything.
  void forget(Stream& stream);

  struct Found {
    void* base;
    size_t bytes;  // as asked for
  };
  // The live block around an address of this device.
  bool find(const void* pointer, Found& found);

  struct Exported {
    size_t offset, bytes;
    uint32_t entry;   // of the exports
    uint64_t number;  // what the entry holds while the block is in use
  };
  // Makes the live block around an address known to other processes; a block is exported once.
  cookbookError_t export_block(const void* pointer, Exported& exported);

  struct Calls {
    uint64_t allocations = 0, frees = 0;
  };
  Calls calls();  // successful ones since the context was made
  cookbookMemoryStats stats();
  void reset_stats(bool peaks, bool totals);

 private:
  struct Held {
    Bins bins;
    Block *oldest = nullptr, *newest = nullptr;
  };

  // All need lock_.
  Held& held_by(int stream);
  void hold(Block* block, int stream, uint64_t ticket);
  void unhold(Block* block);
  Block* take_held(Block* block, size_t bytes);
  Block* find_held(int stream, size_t bytes) const;  // not thorough
  void reap(int stream, int limit);
  void reap_all();
  void join_held(int stream);
  bool joins(const Block* block, int stream) const;
  void* finish(Block* block, size_t requested);
  Block* live_block(void* pointer);
  Block* withdraw(void* pointer);
  std::vector<Dependency> unfinished_holders();

  // Do not.
  Block* allocate_slowly(size_t bytes, Stream* stream, cookbookError_t& error);
  cookbookError_t out_of_memory(size_t bytes, bool injected);
  cookbookError_t not_a_block(const void* pointer) const;

  Device& device_;
  SpinLock lock_;
  BlockAllocator blocks_;
  Exports exports_;
  std::vector<std::unique_ptr<Held>> held_;  // by stream number
  cookbookMemoryStats stats_{};
  Calls calls_;
};

}  // namespace cookbook::driver
