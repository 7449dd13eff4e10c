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
#if COOKBOOK_CHAPTER < 4
  // The old block goes back in stream order, so behind the copy that reads it.
#else
  // The old block goes back in the order of the stream that it was allocated on. The copy reads it on the current one,
  // and so does what the program has queued there: on another stream that is a use like any other.
  allocator().recordStream(storage->data_ptr(), current_stream(storage->device().index()));
#endif
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(bytes);
}

}  // namespace cookbook
