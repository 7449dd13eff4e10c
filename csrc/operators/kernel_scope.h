// chapter 2
// %% kernel-scope-header
// What a kernel of the chip's library stands on while it runs: CPU tensors that point at device memory, and a dispatch
// state without anything of the host program in it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <cookbook_driver.h>

#include <deque>

namespace cookbook {

// CPU tensors of this thread, pointed at device memory for the time of one kernel. Making a tensor costs two mallocs;
// pointing an old one somewhere else costs neither.
//
// Invariants: a slot's tensor is owned by the slot alone when a kernel starts; one that a kernel kept a reference to is
// made anew. Its storage has no allocator and cannot be resized, so a kernel that resizes an output fails loudly.
class Scratch {
 public:
  static Scratch& of_this_thread();

  // A CPU tensor of these sizes and strides over `data`. Valid until the next `reset`.
  at::Tensor& view(void* data, size_t bytes, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides);
  void reset() { used_ = 0; }

 private:
  struct Slot {
    at::Tensor tensor;
    c10::ScalarType dtype{};
  };
  std::deque<Slot> slots_;  // a deque: references stay good while it grows
  size_t used_ = 0;
};

// %% kernel-scope-run
// Runs `body(context, args)` as a kernel: with a clean dispatch state, with the program's number of intra-op threads,
// and with exceptions turned into the driver's failure. `body` may run on a stream's thread or on a host thread that
// waits for the stream.
cookbookError_t run_kernel(cookbookKernelContext* context, void* args, void (*body)(cookbookKernelContext*, void*));

// Notes the calling thread's at::get_num_threads() if it is the thread that imported the backend: OpenMP keeps the
// number per thread, so `torch.set_num_threads` alone would never reach a stream's thread.
void note_intraop_threads();
void set_importing_thread();

// The dispatch state in which the chip's kernels run, whatever modes the program has on.
const c10::impl::LocalDispatchKeySet& kernel_dispatch_state();

}  // namespace cookbook
