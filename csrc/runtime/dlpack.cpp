// chapter 4
// %% dlpack-hand-over
#include "runtime/dlpack.h"

#include <c10/core/Event.h>

#include "operators/on_device.h"
#include "scaffolding/allocator.h"
#include "scaffolding/stream.h"

namespace cookbook {

void hand_over(const DLTensor& tensor, const c10::Stream& consumer) {
  const c10::Device device(kDeviceType, static_cast<c10::DeviceIndex>(tensor.device.device_id));
  const c10::Stream producer = current_stream(resolve(device));
  if (producer != consumer) {
    c10::Event ready(kDeviceType);
    ready.record(producer);
    ready.block(consumer);
  }
  // The consumer calls the deleter when its host code is done with the tensor; its stream may not be.
  allocator().recordStream(c10::DataPtr(static_cast<char*>(tensor.data) + tensor.byte_offset, device), consumer);
}

}  // namespace cookbook
