// chapter 4
// %% dlpack-header
// The stream side of a DLPack export, which core leaves out for PrivateUse1.
#pragma once

#include <ATen/dlpack.h>
#include <c10/core/Stream.h>

namespace cookbook {

// `consumer` may use the tensor from now on: it waits for what is queued on the current stream of the tensor's device,
// and the memory stays out of use until `consumer` has passed the point at which the tensor is dropped.
void hand_over(const DLTensor& tensor, const c10::Stream& consumer);

}  // namespace cookbook
