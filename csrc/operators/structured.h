// chapter 2
// %% structured-outputs
// Structured operators: PyTorch's meta function says what the output looks like, the chip's kernel fills it, and one
// pair of the two serves the functional, the in-place and the out variant.
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/TensorMeta.h>

#include <array>

#include "operators/empty.h"
#include "operators/launch.h"
#include "operators/on_device.h"
#include "operators/outputs.h"

namespace cookbook {

// Runs the meta function `Meta::meta` and answers its calls to set_output: with a new tensor, or by preparing the one
// that the caller gave. Core's generated code has the same class once for each operator and device.
template <class Meta, size_t N>
class MetaRun final : public Meta {
 public:
  MetaRun() = default;
  // The caller's tensors: `in_place` ones must fit already, out ones are resized.
  MetaRun(const std::array<at::Tensor, N>& given, bool in_place) : outputs_(given), in_place_(in_place) {}

  void set_output_strided(int64_t index, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output(index, sizes, strides, options, /*exact_strides=*/true);
  }
  void set_output_raw_strided(int64_t index, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                              at::TensorOptions options) override {
    set_output(index, sizes, strides, options, /*exact_strides=*/false);
  }
  const at::Tensor& maybe_get_output(int64_t index) override { return kernel_output(index); }

  // %% structured-proxies
  // What the kernel writes. A meta function may insist on strides that the caller's tensor does not have; the kernel
  // then writes to a proxy, and `finish` copies it into place.
  const at::Tensor& kernel_output(size_t index) const {
    return proxies_[index].defined() ? proxies_[index] : outputs_[index];
  }
  const at::Tensor& output(size_t index) const { return outputs_[index]; }
  void finish() const {
    for (size_t i = 0; i < N; ++i) {
      if (proxies_[i].defined()) outputs_[i].copy_(proxies_[i]);
    }
  }

 private:
  void set_output(int64_t index, c10::IntArrayRef sizes, c10::IntArrayRef strides, const at::TensorOptions& options,
                  bool exact_strides) {
    at::Tensor& output = outputs_[index];
    if (!output.defined()) {
      output = make_output(sizes, strides, options);
    } else {
      proxies_[index] = prepare_output(output, sizes, strides, options, in_place_, exact_strides);
    }
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Meta>) {
      at::TensorIteratorBase::set_output_raw_strided(index, sizes, strides, options);
    }
  }
  std::array<at::Tensor, N> outputs_, proxies_;
  bool in_place_ = false;
};

// %% structured-in-place
// The in-place form takes its first tensor as `Tensor&`, where the meta function has a `const Tensor&`; the dispatcher
// compares the types of all kernels of an operator and refuses another one.
template <class Op, class... A>
struct InPlace {};
template <class Op, class... Rest>
struct InPlace<Op, const at::Tensor&, Rest...> {
  static at::Tensor& in_place(at::Tensor& self, Rest... rest) {
    Op::overwrite(self, rest...);
    return self;
  }
};

// %% structured-operator
// Structured<"add", &at::meta::structured_add_Tensor::meta, &at::cpu::add_out>: the members are the functions to
// register. The kernel's parameters are the N outputs and then the operator's arguments.
template <Name name, auto MetaFunction, auto Kernel, size_t N = 1, class F = decltype(MetaFunction)>
struct Structured;

template <Name name, auto MetaFunction, auto Kernel, size_t N, class R, class Meta, class... A>
struct Structured<name, MetaFunction, Kernel, N, R (Meta::*)(A...)>
    : InPlace<Structured<name, MetaFunction, Kernel, N>, A...> {
  using Run = MetaRun<Meta, N>;
  using Result = std::conditional_t<N == 1, at::Tensor, OutputTuple<N>>;

  static Result functional(A... arguments) {
    const OnDevice guard(device_of(std::decay_t<A>(arguments)...));
    Run run;
    return execute(run, arguments...);
  }
  static void overwrite(A... arguments) {
    const at::Tensor& self = first(arguments...);
    const OnDevice guard(self.device());
    Run run({self}, /*in_place=*/true);
    execute(run, arguments...);
  }
  static at::Tensor& out(A... arguments, at::Tensor& output) {
    const OnDevice guard(output.device());
    Run run({output}, /*in_place=*/false);
    execute(run, arguments...);
    return output;
  }
  static std::tuple<at::Tensor&, at::Tensor&> out2(A... arguments, at::Tensor& output0, at::Tensor& output1) {
    const OnDevice guard(output0.device());
    Run run({output0, output1}, /*in_place=*/false);
    execute(run, arguments...);
    return {output0, output1};
  }

  // %% structured-execute
 private:
  template <class First, class... Rest>
  static const at::Tensor& first(const First& self, const Rest&...) {
    return self;
  }
  static Result execute(Run& run, A... arguments) {
    static_cast<void>((run.*MetaFunction)(arguments...));
    return [&]<size_t... I>(std::index_sequence<I...>) -> Result {
      // Nothing to compute: an empty output, and no kernel would find a first element.
      if ((run.kernel_output(I).numel() + ...) != 0) {
        KernelLaunch<name, Kernel>::launch(run.output(0).device(), run.kernel_output(I)..., arguments...);
      }
      run.finish();
      return Result(run.output(I)...);
    }(std::make_index_sequence<N>());
  }
};

}  // namespace cookbook
