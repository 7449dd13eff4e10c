// What the 64 bytes of an interprocess handle hold. They come from outside, so nothing in them is believed: the sum
// says that they are a handle at all, the process's start time and the file's inode that both are still the same, and
// the number that the thing behind them is.
#pragma once
#include <cstdint>
#include <cstring>

#include "cookbook_driver.h"
#include "process.h"

namespace cookbook::driver {

struct HandleData {
  enum Kind : uint32_t { kMemory = 0x4d4b4243, kEvent = 0x454b4243 };  // "CBKM", "CBKE"
  uint32_t kind = 0;
  uint32_t sum = 0;  // of all bytes while it is 0
  int32_t pid = 0, file = -1;
  uint64_t start = 0;     // of the process
  uint64_t inode = 0;     // of the file
  uint64_t number = 0;    // what `entry` holds while the block or event is there
  uint64_t bytes = 0;     // of a block
  uint32_t granules = 0;  // from the start of the device's memory to the block
  uint32_t entry = 0;
  int32_t device = -1;
  uint32_t unused = 0;

  ProcessId process() const { return {pid, start}; }
};
static_assert(sizeof(HandleData) == 64 && sizeof(cookbookIpcMemHandle_t) == 64 &&
              sizeof(cookbookIpcEventHandle_t) == 64);

// Fills in this process and the sum, and writes the handle.
void seal(HandleData& data, void* handle);
// False when the bytes are no handle of this kind.
bool unseal(const void* handle, HandleData::Kind kind, HandleData& data);

}  // namespace cookbook::driver
