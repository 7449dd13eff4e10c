// chapter 3
// %% exit-flush
#include "fallback/exit.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>

#include <thread>

#include "scaffolding/device.h"
#include "scaffolding/error.h"

namespace cookbook {
namespace {

bool in_use(c10::DeviceIndex index) {
  int has_context = 0;
  return cookbookDeviceHasContext(index, &has_context) == cookbookSuccess && has_context != 0;
}

}  // namespace

// `backward()` returns when autograd's device thread has announced the end of its work, but that thread still holds a
// reference to the finished graph task. If it is slower than the program's end it is the last owner: it drops Python
// objects of the task's thread state, needs the GIL, the interpreter is finalizing, CPython ends the thread by
// unwinding, and that meets a noexcept function: "terminate called without an active exception", exit code 134.
//
// A device thread can only take up a new task after it has let go of the old one. So one more backward a device pushes
// the old one out. It comes from a fresh C++ thread, whose thread state holds no Python object: dropping it needs no
// GIL.
void flush_autograd() {
  std::thread([] {
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      if (!in_use(index)) continue;
      try {
        const at::Tensor x = at::ones({}, at::TensorOptions().device(c10::Device(kDeviceType, index)));
        x.set_requires_grad(true);
        (x * x).backward();
      } catch (const c10::AcceleratorError&) {
        // A device that has failed cannot run it; its error has been reported where it belongs.
      }
    }
  }).join();
}

}  // namespace cookbook
