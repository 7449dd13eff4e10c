// chapter 2
// %% custom-schema
// The fifth way: an operator of your own. PyTorch has no name for what your chip does in one pass, so give it one:
//
//   torch.ops.cookbook.rms_norm(x, weight, eps)      y = x / sqrt(mean(x^2) + eps) * weight, over the last dimension
//
// The schema is what PyTorch knows about it: no argument is written, no result shares memory with one. torch.export,
// torch.compile and the checks of `torch.library.opcheck` believe it.
#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/empty.h"
#include "operators/on_device.h"

namespace cookbook {
namespace {

using at::Tensor;

TORCH_LIBRARY(cookbook, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("rms_norm_backward(Tensor grad, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
}

void check_rms_norm(const Tensor& x, const Tensor& weight) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 1 && x.size(-1) == weight.size(0),
              "rms_norm: expected a weight of one element for each of the last dimension of x, got x of shape ",
              x.sizes(), " and weight of shape ", weight.sizes());
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "rms_norm: expected one dtype, got ", x.scalar_type(), " and ",
              weight.scalar_type());
  check_dtype("rms_norm", x.scalar_type(), kFloating);
}

// %% custom-kernel
// Half precision is summed in float32.
template <class T, class Sum = at::opmath_type<T>>
Sum inverse_rms(const T* row, int64_t width, double eps) {
  Sum squares = 0;
  for (int64_t i = 0; i != width; ++i) squares += static_cast<Sum>(row[i]) * static_cast<Sum>(row[i]);
  return 1 / std::sqrt(squares / static_cast<Sum>(width) + static_cast<Sum>(eps));
}

void rms_norm_kernel(Tensor& out, const Tensor& x, const Tensor& weight, double eps) {
  const Tensor rows = x.contiguous(), scale = weight.contiguous();
  const int64_t width = x.size(-1);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "rms_norm", [&] {
    using Sum = at::opmath_type<scalar_t>;
    const auto* in = rows.const_data_ptr<scalar_t>();
    const auto* w = scale.const_data_ptr<scalar_t>();
    auto* to = out.mutable_data_ptr<scalar_t>();
    for (int64_t r = 0; r != x.numel() / width; ++r, in += width, to += width) {
      const Sum inverse = inverse_rms(in, width, eps);
      for (int64_t i = 0; i != width; ++i) {
        to[i] = static_cast<scalar_t>(static_cast<Sum>(in[i]) * inverse * static_cast<Sum>(w[i]));
      }
    }
  });
}

// %% custom-backward-kernel
// With r = 1 / rms and n = x * r: grad_x = r * (g * w - n * mean(g * w * n)), grad_w = sum over rows of g * n.
void rms_norm_backward_kernel(Tensor& grad_x, Tensor& grad_weight, const Tensor& grad, const Tensor& x,
                              const Tensor& weight, double eps) {
  const Tensor rows = x.contiguous(), grads = grad.contiguous(), scale = weight.contiguous();
  const int64_t width = x.size(-1);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "rms_norm_backward", [&] {
    using Sum = at::opmath_type<scalar_t>;
    const auto* in = rows.const_data_ptr<scalar_t>();
    const auto* g = grads.const_data_ptr<scalar_t>();
    const auto* w = scale.const_data_ptr<scalar_t>();
    auto* to = grad_x.mutable_data_ptr<scalar_t>();
    std::vector<Sum> total(width, 0);
    for (int64_t r = 0; r != x.numel() / width; ++r, in += width, g += width, to += width) {
      const Sum inverse = inverse_rms(in, width, eps);
      Sum mean = 0;
      for (int64_t i = 0; i != width; ++i) {
        const Sum normal = static_cast<Sum>(in[i]) * inverse;
        mean += static_cast<Sum>(g[i]) * static_cast<Sum>(w[i]) * normal;
        total[i] += static_cast<Sum>(g[i]) * normal;
      }
      mean /= static_cast<Sum>(width);
      for (int64_t i = 0; i != width; ++i) {
        const Sum normal = static_cast<Sum>(in[i]) * inverse;
        to[i] = static_cast<scalar_t>(inverse * (static_cast<Sum>(g[i]) * static_cast<Sum>(w[i]) - normal * mean));
      }
    }
    auto* to_weight = grad_weight.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i != width; ++i) to_weight[i] = static_cast<scalar_t>(total[i]);
  });
}

// %% custom-device
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_rms_norm(x, weight);
  const OnDevice guard(x.device());
  const Tensor out = empty(x.sizes(), x.scalar_type());
  if (out.numel() != 0) launch<"rms_norm", &rms_norm_kernel>(out, x, weight, eps);
  return out;
}
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, double eps) {
  check_rms_norm(x, weight);
  const OnDevice guard(x.device());
  const Tensor grad_x = empty(x.sizes(), x.scalar_type()), grad_weight = empty(weight.sizes(), x.scalar_type());
  if (weight.numel() != 0) {
    launch<"rms_norm_backward", &rms_norm_backward_kernel>(grad_x, grad_weight, grad, x, weight, eps);
  }
  return {grad_x, grad_weight};
}

// %% custom-cpu
// The CPU runs the same kernels at once: a model that uses the operator still runs where there is no chip.
Tensor rms_norm_cpu(const Tensor& x, const Tensor& weight, double eps) {
  check_rms_norm(x, weight);
  Tensor out = at::detail::empty_cpu(x.sizes(), x.scalar_type());
  if (out.numel() != 0) rms_norm_kernel(out, x, weight, eps);
  return out;
}
std::tuple<Tensor, Tensor> rms_norm_backward_cpu(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                 double eps) {
  check_rms_norm(x, weight);
  Tensor grad_x = at::detail::empty_cpu(x.sizes(), x.scalar_type());
  Tensor grad_weight = at::detail::empty_cpu(weight.sizes(), x.scalar_type());
  if (weight.numel() != 0) rms_norm_backward_kernel(grad_x, grad_weight, grad, x, weight, eps);
  return {grad_x, grad_weight};
}

// %% custom-meta
// What a result looks like, without data: FakeTensor and torch.compile run this instead of a kernel. Sizes may be
// symbols here, so it works on symbolic sizes.
Tensor rms_norm_meta(const Tensor& x, const Tensor& weight, double) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 1, "rms_norm: expected a weight of 1 dimension, got ", weight.dim());
  TORCH_SYM_CHECK(x.sym_size(-1).sym_eq(weight.sym_size(0)), "rms_norm: expected a weight of ", x.sym_size(-1),
                  " elements, got ", weight.sym_size(0));
  return at::empty_symint(x.sym_sizes(), x.options());
}
std::tuple<Tensor, Tensor> rms_norm_backward_meta(const Tensor&, const Tensor& x, const Tensor& weight, double) {
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty_symint(weight.sym_sizes(), x.options())};
}

// %% custom-autograd
// Both calls go back to the dispatcher, below autograd: the device of the tensors decides which kernel runs, and the
// backward is an operator too, which torch.compile can put into its graph.
Tensor call_rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("cookbook::rms_norm", "")
                             .typed<Tensor(const Tensor&, const Tensor&, double)>();
  return op.call(x, weight, eps);
}
std::tuple<Tensor, Tensor> call_rms_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                  double eps) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("cookbook::rms_norm_backward", "")
                             .typed<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, double)>();
  return op.call(grad, x, weight, eps);
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& weight, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, weight});
    context->saved_data["eps"] = eps;
    return call_rms_norm(x, weight, eps);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    auto [grad_x, grad_weight] =
        call_rms_norm_backward(grads[0], saved[0], saved[1], context->saved_data["eps"].toDouble());
    return {grad_x, grad_weight, Tensor()};
  }
};

// %% custom-register
Tensor rms_norm_autograd(const Tensor& x, const Tensor& weight, double eps) { return RmsNorm::apply(x, weight, eps); }

TORCH_LIBRARY_IMPL(cookbook, PrivateUse1, m) {
  m.impl("rms_norm", &rms_norm);
  m.impl("rms_norm_backward", &rms_norm_backward);
}
TORCH_LIBRARY_IMPL(cookbook, CPU, m) {
  m.impl("rms_norm", &rms_norm_cpu);
  m.impl("rms_norm_backward", &rms_norm_backward_cpu);
}
TORCH_LIBRARY_IMPL(cookbook, Meta, m) {
  m.impl("rms_norm", &rms_norm_meta);
  m.impl("rms_norm_backward", &rms_norm_backward_meta);
}
// `Autograd` stands for the autograd key of every device: the formula is the same on all. AutogradPrivateUse1 is for a
// formula that is this device's alone, such as one that saves what its own forward kernel computed; where both are
// registered, the special one wins. aten's operators need neither: their formulas are core's.
TORCH_LIBRARY_IMPL(cookbook, Autograd, m) {
  m.impl("rms_norm", &rms_norm_autograd);
  // The backward has no formula. Without this line a second derivative would be a warning and a missing gradient; with
  // it, it is an error that names the operator.
  m.impl("rms_norm_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace cookbook
