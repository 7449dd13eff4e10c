// chapter 2
// %% optimizers
// Fused optimizers: a whole step, over all parameters, in one launch. What decides at run time whether a step counts,
// `found_inf`, and what divides the gradients, `grad_scale`, are device tensors that only the kernel reads: the host
// never waits.
#include <ATen/ops/_fused_adam_native.h>
#include <ATen/ops/_fused_adamw_native.h>
#include <ATen/ops/_fused_sgd_native.h>
#include <torch/library.h>

#include "operators/foreach.h"

namespace cookbook {
namespace {

// A list may be empty: no momentum, no amsgrad.
FlatList some(at::TensorList list, size_t begin, size_t count) {
  return list.empty() ? at::TensorList() : list.slice(begin, count);
}
template <class T>
const T& some(const T& shared, size_t, size_t) {
  return shared;
}

at::TensorList unpack(const FlatList& flat) { return flat.list; }
template <class T>
const T& unpack(const T& value) {
  return value;
}

// For a trial: the first tensor of each list, and nothing that could end the kernel early.
at::TensorList sample(at::TensorList list) { return list.empty() ? list : list.slice(0, 1); }
std::optional<at::Tensor> sample(const std::optional<at::Tensor>&) { return std::nullopt; }
template <class T>
const T& sample(const T& value) {
  return value;
}

// %% optimizers-checks
// The kernel walks the memory of parameter, gradient and states in step, so these must be alike. Adam's sixth list is
// the step counts, one number a parameter.
class Alike {
 public:
  explicit Alike(const char* name) : name_(name) {}
  void add(at::TensorList list) {
    if (++lists_seen_ == 6) {
      steps_ = list;
    } else if (!list.empty()) {
      lists_.push_back(list);
    }
  }
  template <class T>
  void add(const T&) {}
  void check() const {
    for (const at::TensorList list : lists_) check_length(list);
    if (lists_seen_ == 6) check_length(steps_);
    for (const at::Tensor& step : steps_) {
      TORCH_CHECK(step.numel() == 1 && step.device() == lists_[0][0].device() && step.dtype() == steps_[0].dtype(),
                  name_, ": expected one step count a parameter, on the parameter's device");
    }
    TORCH_CHECK(at::native::can_use_fast_route(lists_), name_,
                ": parameters, gradients and states must be dense and have the same dtype, device, shapes and strides");
  }

 private:
  void check_length(at::TensorList list) const {
    TORCH_CHECK(list.size() == lists_[0].size(), name_, ": expected lists of one length, got ", lists_[0].size(),
                " and ", list.size());
  }
  const char* name_;
  int lists_seen_ = 0;
  c10::SmallVector<at::TensorList, 6> lists_;
  at::TensorList steps_;
};

// %% optimizers-fused
// Fused<"_fused_adam_", &kernel>: `Kernel` is the chip's kernel for some of the parameters; each is independent of the
// others, so as many launches as the arguments need do the same as one.
template <Name name, auto Kernel, class F = decltype(Kernel)>
struct Fused;
template <Name name, auto Kernel, class... A>
struct Fused<name, Kernel, void (*)(at::TensorList, A...)> {
  static void step(at::TensorList self, A... arguments) {
    if (self.empty()) return;
    Alike alike(name.text);
    alike.add(self);
    (alike.add(arguments), ...);
    alike.check();
    const OnDevice guard(self[0].device());
    Trial<Kernel>::check(sample(self), sample(arguments)...);
    const size_t most = tensors_per_launch(16 * 6);
    for (size_t begin = 0; begin < self.size(); begin += most) {
      const size_t count = std::min(most, self.size() - begin);
      KernelLaunch<name, &kernel>::launch(self[0].device(), some(self, begin, count), some(arguments, begin, count)...);
    }
  }

  // On the stream's thread.
  static void kernel(const FlatList& self, const Traveling<std::decay_t<A>>&... arguments) {
    Kernel(self.list, unpack(arguments)...);
  }
};

// %% optimizers-kernels
using at::TensorList;
using MaybeTensor = std::optional<at::Tensor>;

// The learning rate is a number, or a tensor that a scheduler changes on the device.
template <class Rate>
using Sgd = void (*)(TensorList, TensorList, TensorList, double, double, Rate, double, bool, bool, bool,
                     const MaybeTensor&, const MaybeTensor&);
template <class Rate>
using Adam = void (*)(TensorList, TensorList, TensorList, TensorList, TensorList, TensorList, Rate, double, double,
                      double, double, bool, bool, const MaybeTensor&, const MaybeTensor&);

using FusedSgd = Fused<"_fused_sgd_", static_cast<Sgd<double>>(&at::native::_fused_sgd_kernel_cpu_)>;
using FusedSgdRate = Fused<"_fused_sgd_", static_cast<Sgd<const at::Tensor&>>(&at::native::_fused_sgd_kernel_cpu_)>;
using FusedAdam = Fused<"_fused_adam_", static_cast<Adam<double>>(&at::native::_fused_adam_kernel_cpu_)>;
using FusedAdamRate = Fused<"_fused_adam_", static_cast<Adam<const at::Tensor&>>(&at::native::_fused_adam_kernel_cpu_)>;
using FusedAdamw = Fused<"_fused_adamw_", static_cast<Adam<double>>(&at::native::_fused_adamw_kernel_cpu_)>;
using FusedAdamwRate =
    Fused<"_fused_adamw_", static_cast<Adam<const at::Tensor&>>(&at::native::_fused_adamw_kernel_cpu_)>;

// %% optimizers-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sgd_", &FusedSgd::step);
  m.impl("_fused_sgd_.tensor_lr", &FusedSgdRate::step);
  m.impl("_fused_adam_", &FusedAdam::step);
  m.impl("_fused_adam_.tensor_lr", &FusedAdamRate::step);
  m.impl("_fused_adamw_", &FusedAdamw::step);
  m.impl("_fused_adamw_.tensor_lr", &FusedAdamwRate::step);
}

}  // namespace
}  // namespace cookbook
