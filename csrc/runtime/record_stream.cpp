// chapter 4
// %% record-stream
// `Tensor.record_stream`: core has no kernel of it for PrivateUse1, and a fallback would send the tensor to the CPU.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include "scaffolding/allocator.h"

namespace cookbook {
namespace {

void record_stream(at::Tensor& self, c10::Stream stream) {
  allocator().recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("record_stream", &record_stream); }

}  // namespace
}  // namespace cookbook
