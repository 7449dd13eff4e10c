// chapter 2
// %% storage-resize
#include "scaffolding/storage.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "scaffolding/allocator.h"
#include "scaffolding/error.h"
#include "scaffolding/stream.h"

namespace cookbook {

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  const c10::DeviceGuard guard(storage->device());
  c10::DataPtr data = allocator().allocate(bytes);
  if (const size_t kept = std::min(bytes, storage->nbytes()); kept != 0) {
    check(cookbookMemcpyAsync(data.get(), storage->data(), kept, cookbookMemcpyDeviceToDevice,
                              current_handle(storage->device().index())));
  }
  // The old block goes back in stream order, so behind the copy that reads it.
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(bytes);
}

}  // namespace cookbook
