// chapter 2
// %% activations
// Activation functions and their gradients.
#include <ATen/native/Activation.h>
#include <ATen/ops/clamp_min_cpu_dispatch.h>
#include <ATen/ops/clamp_min_meta.h>
#include <ATen/ops/elu_cpu_dispatch.h>
#include <ATen/ops/elu_meta.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/gelu_cpu_dispatch.h>
#include <ATen/ops/gelu_meta.h>
#include <ATen/ops/hardsigmoid_cpu_dispatch.h>
#include <ATen/ops/hardsigmoid_meta.h>
#include <ATen/ops/hardtanh_native.h>
#include <ATen/ops/leaky_relu_cpu_dispatch.h>
#include <ATen/ops/leaky_relu_meta.h>
#include <ATen/ops/log_sigmoid_backward_native.h>
#include <ATen/ops/log_sigmoid_forward_native.h>
#include <ATen/ops/mish_cpu_dispatch.h>
#include <ATen/ops/mish_meta.h>
#include <ATen/ops/silu_cpu_dispatch.h>
#include <ATen/ops/silu_meta.h>
#include <ATen/ops/softplus_cpu_dispatch.h>
#include <ATen/ops/softplus_meta.h>
#include <ATen/ops/threshold_cpu_dispatch.h>
#include <ATen/ops/threshold_meta.h>

// %% activations-headers-gradients
// Gradients.
#include <ATen/ops/elu_backward_cpu_dispatch.h>
#include <ATen/ops/elu_backward_meta.h>
#include <ATen/ops/gelu_backward_cpu_dispatch.h>
#include <ATen/ops/gelu_backward_meta.h>
#include <ATen/ops/hardsigmoid_backward_cpu_dispatch.h>
#include <ATen/ops/hardsigmoid_backward_meta.h>
#include <ATen/ops/leaky_relu_backward_cpu_dispatch.h>
#include <ATen/ops/leaky_relu_backward_meta.h>
#include <ATen/ops/sigmoid_backward_cpu_dispatch.h>
#include <ATen/ops/sigmoid_backward_meta.h>
#include <ATen/ops/silu_backward_cpu_dispatch.h>
#include <ATen/ops/silu_backward_meta.h>
#include <ATen/ops/softplus_backward_cpu_dispatch.h>
#include <ATen/ops/softplus_backward_meta.h>
#include <ATen/ops/tanh_backward_cpu_dispatch.h>
#include <ATen/ops/tanh_backward_meta.h>
#include <ATen/ops/threshold_backward_cpu_dispatch.h>
#include <ATen/ops/threshold_backward_meta.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/pointwise.h"

namespace cookbook {
namespace {

// %% activations-gelu
using Gelu = Pointwise<"gelu", &at::meta::structured_gelu::meta, &at::cpu::gelu_out>;
// The text is checked here: as an error of the kernel it would come later.
struct CheckedGelu {
  static at::Tensor functional(const at::Tensor& self, std::string_view approximate) {
    at::native::get_gelutype_enum(approximate);
    return Gelu::functional(self, approximate);
  }
  static at::Tensor& in_place(at::Tensor& self, std::string_view approximate) {
    at::native::get_gelutype_enum(approximate);
    return Gelu::in_place(self, approximate);
  }
  static at::Tensor& out(const at::Tensor& self, std::string_view approximate, at::Tensor& output) {
    at::native::get_gelutype_enum(approximate);
    return Gelu::out(self, approximate, output);
  }
};

// %% activations-pointwise
using GeluBackward = Pointwise<"gelu_backward", &at::meta::structured_gelu_backward::meta, &at::cpu::gelu_backward_out>;
using Silu = Pointwise<"silu", &at::meta::structured_silu::meta, &at::cpu::silu_out>;
using SiluBackward = Pointwise<"silu_backward", &at::meta::structured_silu_backward::meta, &at::cpu::silu_backward_out>;
using LeakyRelu = Pointwise<"leaky_relu", &at::meta::structured_leaky_relu::meta, &at::cpu::leaky_relu_out>;
using LeakyReluBackward = Pointwise<"leaky_relu_backward", &at::meta::structured_leaky_relu_backward::meta,
                                    &at::cpu::leaky_relu_backward_out>;
using Elu = Pointwise<"elu", &at::meta::structured_elu::meta, &at::cpu::elu_out>;
using EluBackward = Pointwise<"elu_backward", &at::meta::structured_elu_backward::meta, &at::cpu::elu_backward_out>;
using Threshold = Pointwise<"threshold", &at::meta::structured_threshold::meta, &at::cpu::threshold_out>;
using ThresholdBackward =
    Pointwise<"threshold_backward", &at::meta::structured_threshold_backward::meta, &at::cpu::threshold_backward_out>;
using SigmoidBackward =
    Pointwise<"sigmoid_backward", &at::meta::structured_sigmoid_backward::meta, &at::cpu::sigmoid_backward_out>;
using TanhBackward = Pointwise<"tanh_backward", &at::meta::structured_tanh_backward::meta, &at::cpu::tanh_backward_out>;
using Softplus = Pointwise<"softplus", &at::meta::structured_softplus::meta, &at::cpu::softplus_out>;
using SoftplusBackward =
    Pointwise<"softplus_backward", &at::meta::structured_softplus_backward::meta, &at::cpu::softplus_backward_out>;
using Mish = Pointwise<"mish", &at::meta::structured_mish::meta, &at::cpu::mish_out>;
using Hardsigmoid = Pointwise<"hardsigmoid", &at::meta::structured_hardsigmoid::meta, &at::cpu::hardsigmoid_out>;
using HardsigmoidBackward = Pointwise<"hardsigmoid_backward", &at::meta::structured_hardsigmoid_backward::meta,
                                      &at::cpu::hardsigmoid_backward_out>;

// %% activations-relu
// Core's own relu is clamp_min(x, 0) by way of the dispatcher; this is the same without the detour.
using Relu =
    Pointwise<"relu", &at::meta::structured_clamp_min::meta,
              static_cast<at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Scalar&)>(&at::cpu::clamp_min_out)>;

void refuse_bool(const at::Tensor& self) {
  TORCH_CHECK(self.scalar_type() != c10::kBool, "Boolean inputs not supported for relu");
}
at::Tensor relu(const at::Tensor& self) {
  refuse_bool(self);
  return Relu::functional(self, 0);
}
at::Tensor& relu_in_place(at::Tensor& self) {
  refuse_bool(self);
  return Relu::in_place(self, 0);
}

// %% activations-log-sigmoid
// Not structured. The buffer is for the backward: its shape and strides are the input's, as on the CPU.
at::Tensor like(const at::Tensor& tensor) { return at::_ops::empty_like::call(tensor, {}, {}, {}, {}, {}); }

std::tuple<at::Tensor, at::Tensor> log_sigmoid(const at::Tensor& self) {
  check_dtype("log_sigmoid_cpu", self.scalar_type(), kFloating);
  const OnDevice guard(self.device());
  const at::Tensor out = like(self), buffer = like(self);
  if (self.numel() != 0) {
    launch<"log_sigmoid", [](at::Tensor& out, at::Tensor& buffer, const at::Tensor& self) {
      at::native::log_sigmoid_forward_out_cpu(self, out, buffer);
    }>(out, buffer, self);
  }
  return {out, buffer};
}

at::Tensor log_sigmoid_backward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& buffer) {
  check_dtype("log_sigmoid_backward_cpu", self.scalar_type(), kFloating);
  const OnDevice guard(self.device());
  const at::Tensor out = like(grad);
  if (grad.numel() != 0) {
    launch<"log_sigmoid_backward",
           [](at::Tensor& out, const at::Tensor& grad, const at::Tensor& self, const at::Tensor& buffer) {
             out.copy_(at::native::log_sigmoid_backward_cpu(grad, self, buffer));
           }>(out, grad, self, buffer);
  }
  return out;
}

// %% activations-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("relu", &relu);
  m.impl("relu_", &relu_in_place);
  // Bounds and checks only: they end in clamp, which is native.
  m.impl("hardtanh", &at::native::hardtanh);
  m.impl("hardtanh_", &at::native::hardtanh_);
  m.impl("hardtanh.out", &at::native::hardtanh_out);
  m.impl("log_sigmoid_forward", &log_sigmoid);
  m.impl("log_sigmoid_backward", &log_sigmoid_backward);
  implement<CheckedGelu>(m, "gelu");
  implement<Silu>(m, "silu");
  implement<LeakyRelu>(m, "leaky_relu");
  implement<Elu>(m, "elu");
  implement<Threshold>(m, "threshold");
  implement<Hardsigmoid>(m, "hardsigmoid");
  implement<Mish>(m, "mish");
  implement<Softplus>(m, "softplus", nullptr, "softplus.out");
  implement<GeluBackward>(m, "gelu_backward", nullptr, "gelu_backward.grad_input");
  implement<SiluBackward>(m, "silu_backward", nullptr, "silu_backward.grad_input");
  implement<LeakyReluBackward>(m, "leaky_relu_backward", nullptr, "leaky_relu_backward.grad_input");
  implement<EluBackward>(m, "elu_backward", nullptr, "elu_backward.grad_input");
  implement<ThresholdBackward>(m, "threshold_backward", nullptr, "threshold_backward.grad_input");
  implement<SigmoidBackward>(m, "sigmoid_backward", nullptr, "sigmoid_backward.grad_input");
  implement<TanhBackward>(m, "tanh_backward", nullptr, "tanh_backward.grad_input");
  implement<SoftplusBackward>(m, "softplus_backward", nullptr, "softplus_backward.grad_input");
  implement<HardsigmoidBackward>(m, "hardsigmoid_backward", nullptr, "hardsigmoid_backward.grad_input");
}

}  // namespace
}  // namespace cookbook
