// chapter 4
// %% ipc-header
// Device memory that several processes use, without a copy: what `torch.multiprocessing` sends instead of the bytes.
#pragma once

#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <string>
#include <string_view>

namespace cookbook {

// A message that gives a storage's memory to one receiver. Blocks until the device has done what is queued: the
// receiver's streams know nothing of ours. The memory is kept until the receiver lets go of it, also when the storage
// goes before that. A storage that was received can be sent on.
std::string share_storage(const c10::Storage& storage);

// In the receiver. The storage cannot be resized; with its last tensor the receiver lets go, in the order of the stream
// that is current now and of those that record_stream named. A message is received once.
c10::Storage receive_storage(std::string_view message);
// For a message about a storage that this process has received before and still has: that one serves again.
void acknowledge_storage(std::string_view message);
// The same for all messages about one storage, and for no other.
std::string storage_key(std::string_view message);

// Frees what other processes have let go of, and closes other processes' memory that no storage uses here. Waits for
// the devices where something is closed.
void ipc_collect();

// Notes that `stream` uses received memory. False when `data` is not received memory.
bool record_received(const c10::DataPtr& data, c10::Stream stream);

// %% ipc-stats
struct IpcStats {
  uint64_t sent = 0;      // storages of this process that were shared, and still have their memory
  uint64_t waiting = 0;   // of these, the ones that are dropped here and kept for others
  uint64_t received = 0;  // storages over other processes' memory; a dropped one counts until its streams have passed
  uint64_t opened = 0;    // blocks of other processes that are open here
  uint64_t unused = 0;    // of these, the ones without a storage
};
IpcStats ipc_stats();

}  // namespace cookbook
