// chapter 2
// %% stub-header
// The device's entry in one of PyTorch's DispatchStub tables.
#pragma once

#include "operators/iterator.h"

namespace cookbook {

// stub<"abs", &abs_kernel>: sends the operands of core's iterator to the stream's thread, where `Kernel` computes.
template <Name name, auto Kernel>
struct Stub;
template <Name name, class... A, void (*Kernel)(Operands&, A...)>
struct Stub<name, Kernel> {
  static void compute(at::TensorIteratorBase& iter, A... arguments) {
    launch_iterator<name, Kernel>(iter, arguments...);
  }
  // Some tables want the derived iterator: the table's type picks the overload.
  static void compute(at::TensorIterator& iter, A... arguments) { launch_iterator<name, Kernel>(iter, arguments...); }
};

}  // namespace cookbook
