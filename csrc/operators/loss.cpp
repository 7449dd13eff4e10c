// chapter 2
// %% loss-nll
// Losses, forward and backward. Cross entropy is composite: log_softmax, then `nll_loss`.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy_backward_native.h>
#include <ATen/ops/binary_cross_entropy_native.h>
#include <ATen/ops/huber_loss_backward_native.h>
#include <ATen/ops/huber_loss_native.h>
#include <ATen/ops/mse_loss_backward_native.h>
#include <ATen/ops/mse_loss_cpu_dispatch.h>
#include <ATen/ops/mse_loss_meta.h>
#include <ATen/ops/nll_loss2d_backward_native.h>
#include <ATen/ops/nll_loss2d_forward_native.h>
#include <ATen/ops/nll_loss_backward_cpu_dispatch.h>
#include <ATen/ops/nll_loss_backward_meta.h>
#include <ATen/ops/nll_loss_forward_cpu_dispatch.h>
#include <ATen/ops/nll_loss_forward_meta.h>
#include <ATen/ops/result_type_native.h>
#include <ATen/ops/smooth_l1_loss_backward_native.h>
#include <ATen/ops/smooth_l1_loss_cpu_dispatch.h>
#include <ATen/ops/smooth_l1_loss_meta.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/structured.h"

namespace cookbook {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// %% loss-nll-meta
// A meta function borrows an optional tensor; a registered operator gets one.
at::OptionalTensorRef borrow(const OptionalTensor& tensor) {
  return tensor && tensor->defined() ? at::OptionalTensorRef(*tensor) : at::OptionalTensorRef();
}

// The class numbers are data: one out of range is found by the kernel, and raised at the next synchronization.
struct NllForward : at::meta::structured_nll_loss_forward {
  void meta(const at::Tensor& input, const at::Tensor& target, const OptionalTensor& weight, int64_t reduction,
            int64_t ignored) {
    structured_nll_loss_forward::meta(input, target, borrow(weight), reduction, ignored);
    check_dtype("nll_loss_out_frame", input.scalar_type(), kFloating);
    TORCH_CHECK(target.scalar_type() == c10::kLong || target.scalar_type() == c10::kByte,
                "expected scalar type Long or Byte but found ", target.scalar_type());
  }
};
struct NllBackward : at::meta::structured_nll_loss_backward {
  void meta(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& target, const OptionalTensor& weight,
            int64_t reduction, int64_t ignored, const at::Tensor& total_weight) {
    structured_nll_loss_backward::meta(grad, input, target, borrow(weight), reduction, ignored, total_weight);
    check_dtype("nll_loss_backward_out_frame", input.scalar_type(), kFloating);
  }
};
using Nll = Structured<"nll_loss", &NllForward::meta,
                       [](at::Tensor& out, at::Tensor& total, const at::Tensor& input, const at::Tensor& target,
                          const OptionalTensor& weight, int64_t reduction, int64_t ignored) {
                         at::cpu::nll_loss_forward_out(out, total, input, target, weight, reduction, ignored);
                       },
                       2>;
using NllGrad = Structured<"nll_loss_backward", &NllBackward::meta, &at::cpu::nll_loss_backward_out>;

// %% loss-nll2d
// For an image of targets. Not structured: shapes are checked as core does for the CPU.
void check_nll2d(const char* kernel, const at::Tensor& input, const at::Tensor& target, const OptionalTensor& weight) {
  TORCH_CHECK(target.dim() == 3,
              "only batches of spatial targets supported (3D tensors) but got targets of dimension: ", target.dim());
  TORCH_CHECK(input.dim() == 4,
              "only batches of spatial inputs supported (4D tensors), but got input of dimension: ", input.dim());
  TORCH_CHECK(!weight || !weight->defined() || weight->numel() == input.size(1),
              "weight tensor should be defined either for all or no classes");
  TORCH_CHECK(input.size(0) == target.size(0) && input.size(2) == target.size(1) && input.size(3) == target.size(2),
              "size mismatch (got input: ", input.sizes(), " , target: ", target.sizes(), ")");
  TORCH_CHECK(target.scalar_type() == c10::kLong, "expected scalar type Long but found ", target.scalar_type());
  check_dtype(kernel, input.scalar_type(), kFloating);
}

std::tuple<at::Tensor, at::Tensor> nll2d(const at::Tensor& input, const at::Tensor& target,
                                         const OptionalTensor& weight, int64_t reduction, int64_t ignored) {
  check_nll2d("nll_loss2d_forward_out_frame", input, target, weight);
  const OnDevice guard(input.device());
  const auto sizes = reduction == at::Reduction::None ? target.sizes() : c10::IntArrayRef();
  const at::Tensor out = empty(sizes, input.scalar_type()), total = empty({}, input.scalar_type());
  launch<"nll_loss2d", [](at::Tensor& out, at::Tensor& total, const at::Tensor& input, const at::Tensor& target,
                          const OptionalTensor& weight, int64_t reduction, int64_t ignored) {
    at::native::nll_loss2d_forward_out_cpu(input, target, weight, reduction, ignored, out, total);
  }>(out, total, input, target, weight, reduction, ignored);
  return {out, total};
}

at::Tensor nll2d_backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& target,
                          const OptionalTensor& weight, int64_t reduction, int64_t ignored, const at::Tensor& total) {
  check_nll2d("nll_loss2d_backward_out_frame", input, target, weight);
  const OnDevice guard(input.device());
  const at::Tensor out = empty(input.sizes(), input.scalar_type());
  launch<"nll_loss2d_backward",
         [](at::Tensor& out, const at::Tensor& grad, const at::Tensor& input, const at::Tensor& target,
            const OptionalTensor& weight, int64_t reduction, int64_t ignored, const at::Tensor& total) {
           out.zero_();  // the kernel writes the targets' elements alone
           at::native::nll_loss2d_backward_out_cpu(grad, input, target, weight, reduction, ignored, total, out);
         }>(out, grad, input, target, weight, reduction, ignored, total);
  return out;
}

// %% loss-pointwise
// With a reduction the library's out form first sizes `out` like the input, which an alias of device memory refuses.
void mse_kernel(at::Tensor& out, const at::Tensor& input, const at::Tensor& target, int64_t reduction) {
  if (reduction == at::Reduction::None) {
    at::cpu::mse_loss_out(out, input, target, reduction);
  } else {
    out.copy_(at::cpu::mse_loss(input, target, reduction));
  }
}
void smooth_l1_kernel(at::Tensor& out, const at::Tensor& input, const at::Tensor& target, int64_t reduction,
                      double beta) {
  if (reduction == at::Reduction::None) {
    at::cpu::smooth_l1_loss_out(out, input, target, reduction, beta);
  } else {
    out.copy_(at::cpu::smooth_l1_loss(input, target, reduction, beta));
  }
}
using Mse = Structured<"mse_loss", checked<"mse_cpu", kFloating, &at::meta::structured_mse_loss::meta>, &mse_kernel>;
using SmoothL1 =
    Structured<"smooth_l1_loss", checked<"smooth_l1_cpu", kFloating, &at::meta::structured_smooth_l1_loss::meta>,
               &smooth_l1_kernel>;

// %% loss-pointwise-backward
// The result of a loss that is not structured: broadcast and promoted, or one number. TensorIterator decides strides,
// as on the CPU; it looks at shapes and dtypes alone.
at::Tensor loss_output(const char* kernel, const at::Tensor& a, const at::Tensor& b, int64_t reduction,
                       Dtypes known = kFloating) {
  const c10::ScalarType dtype = at::native::result_type(a, b);
  check_dtype(kernel, dtype, known);
  const OnDevice guard(a.device());
  if (reduction != at::Reduction::None) {
    at::infer_size(a.sizes(), b.sizes());  // raises when they do not broadcast
    return empty({}, dtype);
  }
  const at::Tensor none;
  return at::TensorIterator::borrowing_binary_op(none, a, b).output();
}

at::Tensor mse_loss_backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& target,
                             int64_t reduction) {
  const at::Tensor out = loss_output("mse_backward_cpu_out", input, target, at::Reduction::None, kReal);
  launch<"mse_loss_backward", [](at::Tensor& out, const at::Tensor& grad, const at::Tensor& input,
                                 const at::Tensor& target, int64_t reduction) {
    at::native::mse_loss_backward_out(grad, input, target, reduction, out);
  }>(out, grad, input, target, reduction);
  return out;
}

at::Tensor smooth_l1_loss_backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& target,
                                   int64_t reduction, double beta) {
  const at::Tensor out = loss_output("smooth_l1_backward_cpu_out", input, target, at::Reduction::None, kReal);
  launch<"smooth_l1_loss_backward", [](at::Tensor& out, const at::Tensor& grad, const at::Tensor& input,
                                       const at::Tensor& target, int64_t reduction, double beta) {
    at::native::smooth_l1_loss_backward_out(grad, input, target, reduction, beta, out);
  }>(out, grad, input, target, reduction, beta);
  return out;
}

// %% loss-huber
at::Tensor huber_loss(const at::Tensor& input, const at::Tensor& target, int64_t reduction, double delta) {
  TORCH_CHECK(delta > 0, "huber_loss does not support non-positive values for delta.");
  const at::Tensor out = loss_output("huber_cpu", input, target, reduction);
  launch<"huber_loss",
         [](at::Tensor& out, const at::Tensor& input, const at::Tensor& target, int64_t reduction, double delta) {
           if (reduction == at::Reduction::None) {
             at::native::huber_loss_out(input, target, reduction, delta, out);
           } else {
             out.copy_(at::native::huber_loss(input, target, reduction, delta));
           }
         }>(out, input, target, reduction, delta);
  return out;
}

at::Tensor& huber_loss_backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& target,
                                int64_t reduction, double delta, at::Tensor& out) {
  check_dtype("huber_backward_cpu_out", input.scalar_type(), kReal);
  const OnDevice guard(input.device());
  prepare_output(out, input.sizes(), {}, input.options(), /*in_place=*/false, /*exact_strides=*/false);
  launch<"huber_loss_backward", [](at::Tensor& out, const at::Tensor& grad, const at::Tensor& input,
                                   const at::Tensor& target, int64_t reduction, double delta) {
    at::native::huber_loss_backward_out(grad, input, target, reduction, delta, out);
  }>(out, grad, input, target, reduction, delta);
  return out;
}

// %% loss-bce
// A probability out of range is data too: the kernel finds it.
at::Tensor binary_cross_entropy(const at::Tensor& input, const at::Tensor& target, const OptionalTensor& weight,
                                int64_t reduction) {
  const at::Tensor out = loss_output("binary_cross_entropy", input, target, reduction);
  launch<"binary_cross_entropy", [](at::Tensor& out, const at::Tensor& input, const at::Tensor& target,
                                    const OptionalTensor& weight, int64_t reduction) {
    out.copy_(at::native::binary_cross_entropy_cpu(input, target, weight, reduction));
  }>(out, input, target, weight, reduction);
  return out;
}

at::Tensor binary_cross_entropy_backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& target,
                                         const OptionalTensor& weight, int64_t reduction) {
  check_dtype("binary_cross_entropy_backward", input.scalar_type(), kFloating);
  const OnDevice guard(input.device());
  const at::Tensor out = empty(input.sizes(), input.scalar_type());
  launch<"binary_cross_entropy_backward",
         [](at::Tensor& out, const at::Tensor& grad, const at::Tensor& input, const at::Tensor& target,
            const OptionalTensor& weight, int64_t reduction) {
           at::native::binary_cross_entropy_backward_out_cpu(grad, input, target, weight, reduction, out);
         }>(out, grad, input, target, weight, reduction);
  return out;
}

// %% loss-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nll_loss_forward", &Nll::functional);
  m.impl("nll_loss_forward.output", &Nll::out2);
  m.impl("nll_loss_backward", &NllGrad::functional);
  m.impl("nll_loss_backward.grad_input", &NllGrad::out);
  m.impl("nll_loss2d_forward", &nll2d);
  m.impl("nll_loss2d_backward", &nll2d_backward);
  m.impl("mse_loss", &Mse::functional);
  m.impl("mse_loss.out", &Mse::out);
  m.impl("mse_loss_backward", &mse_loss_backward);
  m.impl("smooth_l1_loss.out", &SmoothL1::out);
  m.impl("smooth_l1_loss_backward", &smooth_l1_loss_backward);
  m.impl("huber_loss", &huber_loss);
  m.impl("huber_loss_backward.out", &huber_loss_backward);
  m.impl("binary_cross_entropy", &binary_cross_entropy);
  m.impl("binary_cross_entropy_backward", &binary_cross_entropy_backward);
}

}  // namespace
}  // namespace cookbook
