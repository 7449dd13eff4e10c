// chapter 2
// %% launch-name
// A launch: the arguments of a kernel are written into the stream's queue, and the call returns.
#pragma once

#include <c10/util/irange.h>

#include <memory>
#include <string_view>
#include <tuple>

#include "operators/wire.h"
#include "scaffolding/device.h"
#include "scaffolding/error.h"
#include "scaffolding/stream.h"

namespace cookbook {

// A kernel's name as a template argument: it ends up in the static object that the driver names in its errors.
template <size_t N>
struct Name {
  constexpr Name(const char (&literal)[N]) { std::copy_n(literal, N, text); }
  char text[N];
};

// %% launch-device
// The device of the first tensor among the arguments that is on one.
template <class... T>
c10::Device device_of(const T&... arguments) {
  c10::Device device(c10::kCPU);
  const auto look = [&device](const auto& argument) {
    using A = std::decay_t<decltype(argument)>;
    if constexpr (std::is_same_v<A, at::Tensor>) {
      if (!device.is_privateuseone() && argument.defined()) device = argument.device();
    } else if constexpr (std::is_same_v<A, std::optional<at::Tensor>>) {
      if (!device.is_privateuseone() && argument && argument->defined()) device = argument->device();
    } else if constexpr (std::is_same_v<A, at::TensorList> || std::is_same_v<A, at::ITensorListRef>) {
      for (const at::Tensor& tensor : argument) {
        if (!device.is_privateuseone() && tensor.defined()) device = tensor.device();
      }
    }
  };
  (look(arguments), ...);
  return device;
}

// %% launch-queue
// Copies the arguments into the queue of the device's current stream.
inline void enqueue(c10::Device device, const cookbookKernel_t& kernel, const void* arguments, size_t bytes) {
  note_intraop_threads();
  check(cookbookLaunchKernel(current_handle(device.index()), &kernel, arguments, bytes));
}

// %% launch-kernel
// KernelLaunch<"add", &at::cpu::add_out>: `Function` is the kernel; its parameter types say how the arguments travel.
template <Name name, auto Function, class Signature = decltype(+Function)>
struct KernelLaunch;

template <Name name, auto Function, class R, class... P>
struct KernelLaunch<name, Function, R (*)(P...)> {
  // On the host.
  static void launch(c10::Device device, const std::decay_t<P>&... arguments) {
    const size_t bytes = (Wire<std::decay_t<P>>::bytes(arguments) + ... + 0);
    alignas(16) std::byte small[768];
    std::unique_ptr<std::byte[]> large;
    std::byte* begin = small;
    if (bytes > sizeof(small)) [[unlikely]] {
      large = std::make_unique<std::byte[]>(bytes);
      begin = large.get();
    }
    Writer writer(begin, device);
    (Wire<std::decay_t<P>>::write(writer, arguments), ...);
    enqueue(device, kernel, begin, bytes);
  }

  // %% launch-run
  // On the stream's thread. The braces make the reads happen in the order of the writes.
  static void body(cookbookKernelContext* context, void* args) {
    Reader reader(context, args);
    std::tuple<typename Wire<std::decay_t<P>>::Held...> held{Wire<std::decay_t<P>>::read(reader)...};
    std::apply([](auto&... argument) { static_cast<void>(Function(argument...)); }, held);
  }
  static cookbookError_t run(cookbookKernelContext* context, void* args) { return run_kernel(context, args, &body); }
  static constexpr cookbookKernel_t kernel{name.text, &run};
};

// %% launch
// launch<"mul", [](at::Tensor& out, const at::Tensor& a) { ... }>(out, a): queues the lambda on the current stream of
// the tensors' device. The lambda captures nothing and must not allocate on the device.
template <Name name, auto Function, class... A>
void launch(const A&... arguments) {
  KernelLaunch<name, Function>::launch(device_of(arguments...), arguments...);
}

}  // namespace cookbook
