// chapter 2
// %% storage-header
// Storages that change their size.
#pragma once

#include <c10/core/StorageImpl.h>

namespace cookbook {

// Gives the storage `bytes` bytes and keeps what fits of its content; the copy is queued on the current stream.
void resize_storage(c10::StorageImpl* storage, size_t bytes);

}  // namespace cookbook
