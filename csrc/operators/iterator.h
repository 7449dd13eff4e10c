// chapter 2
// %% iterator-header
// How a TensorIterator reaches a kernel. On the host it broadcasts, promotes, allocates the output and orders
// dimensions; what is left of it is a list of addresses with one shape. That travels, and the kernel sees it as
// tensors.
#pragma once

#include <ATen/TensorIterator.h>

#include "operators/trial.h"

namespace cookbook {

// The outputs, then the inputs: all of the iterator's shape, numbers of the program (no dimensions) apart.
using Operands = std::vector<at::Tensor>;

struct IteratorWire {
  static size_t bytes(const at::TensorIteratorBase& iter);
  static void write(Writer& writer, const at::TensorIteratorBase& iter);
  static Operands read(Reader& reader);
  // For a trial: one element each.
  static Operands stand_ins(const at::TensorIteratorBase& iter);
  static uint64_t trial_key(const at::TensorIteratorBase& iter);
};

// %% iterator-launch
// launch_iterator<"where", &kernel>(iter, more arguments...): like `launch`; the kernel gets the operands first.
template <Name name, auto Function, class Signature = decltype(+Function)>
struct IteratorLaunch;

template <Name name, auto Function, class... P>
struct IteratorLaunch<name, Function, void (*)(Operands&, P...)> {
  static void body(cookbookKernelContext* context, void* args) {
    Reader reader(context, args);
    Operands operands = IteratorWire::read(reader);
    std::tuple<typename Wire<std::decay_t<P>>::Held...> held{Wire<std::decay_t<P>>::read(reader)...};
    std::apply([&](auto&... argument) { Function(operands, argument...); }, held);
  }
  static cookbookError_t run(cookbookKernelContext* context, void* args) { return run_kernel(context, args, &body); }
  static constexpr cookbookKernel_t kernel{name.text, &run};

  static void launch(const at::TensorIteratorBase& iter, const std::decay_t<P>&... arguments) {
    try_first(iter, arguments...);
    if (iter.numel() == 0) return;
    const size_t bytes = IteratorWire::bytes(iter) + (Wire<std::decay_t<P>>::bytes(arguments) + ... + 0);
    const auto begin = std::make_unique<std::byte[]>(bytes);
    Writer writer(begin.get(), iter.device(0));
    IteratorWire::write(writer, iter);
    (Wire<std::decay_t<P>>::write(writer, arguments), ...);
    enqueue(iter.device(0), kernel, begin.get(), bytes);
  }

  // %% iterator-trial
  static void try_first(const at::TensorIteratorBase& iter, const std::decay_t<P>&... arguments) {
    static TrialsPassed passed;
    const uint64_t key = IteratorWire::trial_key(iter) * 53 * 53 + trial_keys(arguments...);
    if (passed.has(key)) [[likely]]
      return;
    Operands operands = IteratorWire::stand_ins(iter);
    auto others = std::tuple<decltype(stand_in(arguments))...>(stand_in(arguments)...);
    auto state = std::pair(&operands, &others);
    run_trial(
        [](void* opaque) {
          auto& [tensors, rest] = *static_cast<decltype(state)*>(opaque);
          std::apply([&](auto&... argument) { Function(*tensors, argument...); }, *rest);
        },
        &state);
    passed.add(key);
  }
};

// %% iterator-call
template <Name name, auto Function, class... A>
void launch_iterator(const at::TensorIteratorBase& iter, const A&... arguments) {
  IteratorLaunch<name, Function>::launch(iter, arguments...);
}

}  // namespace cookbook
