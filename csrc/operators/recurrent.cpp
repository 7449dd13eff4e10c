// chapter 2
// %% recurrent-gates
// The cells of LSTM and GRU, each one kernel a step. On this device type core calls `_thnn_fused_lstm_cell` and
// `_thnn_fused_gru_cell`, for which there is no CPU kernel and so no fallback: without these four, no recurrent network
// runs. The two matrix products of a step come from core; a cell is all that follows them.
//
// The formulas are those of core's unfused cells; `workspace` keeps what their backward needs.
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/addcmul_cpu_dispatch.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/sigmoid_backward_cpu_dispatch.h>
#include <ATen/ops/sigmoid_cpu_dispatch.h>
#include <ATen/ops/sub_cpu_dispatch.h>
#include <ATen/ops/sum_cpu_dispatch.h>
#include <ATen/ops/tanh_backward_cpu_dispatch.h>
#include <ATen/ops/tanh_cpu_dispatch.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/empty.h"
#include "operators/on_device.h"

namespace cookbook {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using at::Tensor;
namespace cpu = at::cpu;

// Block `index` of `count` equal column blocks: a view, which kernels can write.
Tensor block(const Tensor& gates, int64_t index, int64_t count) {
  const int64_t width = gates.size(1) / count;
  return gates.narrow(1, index * width, width);
}

// %% recurrent-check
void check_cell(const char* kernel, const Tensor& input, const Tensor& hidden, const Tensor& state,
                const OptionalTensor& input_bias, const OptionalTensor& hidden_bias, int64_t blocks) {
  TORCH_CHECK(input.dim() == 2 && hidden.dim() == 2 && state.dim() == 2, kernel,
              ": expected 2-dimensional gates and state, got ", input.sizes(), ", ", hidden.sizes(), " and ",
              state.sizes());
  TORCH_CHECK(
      input.sizes() == hidden.sizes() && input.size(0) == state.size(0) && input.size(1) == blocks * state.size(1),
      kernel, ": expected gates of ", blocks, " times the state's width ", state.size(1), ", got ", input.sizes(),
      " and ", hidden.sizes());
  const bool has_bias = input_bias && input_bias->defined();
  TORCH_CHECK(has_bias == (hidden_bias && hidden_bias->defined()), kernel, ": expected both biases or none");
  TORCH_CHECK(!has_bias || (input_bias->numel() == input.size(1) && hidden_bias->numel() == input.size(1)), kernel,
              ": expected biases of ", input.size(1), " elements");
  for (const Tensor& other : {hidden, state, input_bias.value_or(Tensor()), hidden_bias.value_or(Tensor())}) {
    TORCH_CHECK(!other.defined() || other.scalar_type() == input.scalar_type(), kernel, ": expected scalar type ",
                input.scalar_type(), " but found ", other.scalar_type());
  }
  check_dtype(kernel, input.scalar_type(), kFloating);
}

// %% recurrent-lstm
// gates = [input, forget, cell, output]; cy = forget * cx + input * cell; hy = output * tanh(cy).
void lstm_kernel(Tensor& hy, Tensor& cy, Tensor& workspace, const Tensor& input, const Tensor& hidden, const Tensor& cx,
                 const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  cpu::add_out(workspace, input, hidden);
  if (input_bias) {
    cpu::add_(workspace, *input_bias);
    cpu::add_(workspace, *hidden_bias);
  }
  Tensor in_and_forget = workspace.narrow(1, 0, 2 * cx.size(1));
  Tensor in = block(workspace, 0, 4), forget = block(workspace, 1, 4), cell = block(workspace, 2, 4),
         out = block(workspace, 3, 4);
  cpu::sigmoid_(in_and_forget);
  cpu::tanh_(cell);
  cpu::sigmoid_(out);
  cpu::mul_out(cy, forget, cx);
  cpu::addcmul_out(cy, cy, in, cell);
  cpu::tanh_out(hy, cy);
  cpu::mul_(hy, out);
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input, const Tensor& hidden, const Tensor& cx,
                                             const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  check_cell("_thnn_fused_lstm_cell", input, hidden, cx, input_bias, hidden_bias, 4);
  const OnDevice guard(input.device());
  const auto dtype = input.scalar_type();
  const Tensor hy = empty(cx.sizes(), dtype), cy = empty(cx.sizes(), dtype), workspace = empty(input.sizes(), dtype);
  if (cx.numel() != 0) {
    launch<"lstm_cell", &lstm_kernel>(hy, cy, workspace, input, hidden, cx, input_bias, hidden_bias);
  }
  return {hy, cy, workspace};
}

// %% recurrent-lstm-backward
// Either gradient may be missing: nobody used that output.
void lstm_backward_kernel(Tensor& grad_gates, Tensor& grad_cx, Tensor& grad_bias, const OptionalTensor& grad_hy,
                          const OptionalTensor& grad_cy, const Tensor& cx, const Tensor& cy, const Tensor& workspace) {
  const Tensor in = block(workspace, 0, 4), forget = block(workspace, 1, 4), cell = block(workspace, 2, 4),
               out = block(workspace, 3, 4);
  Tensor grad_in = block(grad_gates, 0, 4), grad_forget = block(grad_gates, 1, 4), grad_cell = block(grad_gates, 2, 4),
         grad_out = block(grad_gates, 3, 4);
  // The gradient of cy, in grad_cx until the end: what came for cy, and what hy passes on.
  if (grad_hy) {
    const Tensor tanh = cpu::tanh(cy);
    cpu::mul_out(grad_out, *grad_hy, tanh);
    cpu::sigmoid_backward_out(grad_out, grad_out, out);
    cpu::mul_out(grad_cx, *grad_hy, out);
    cpu::tanh_backward_out(grad_cx, grad_cx, tanh);
    if (grad_cy) cpu::add_(grad_cx, *grad_cy);
  } else {
    grad_out.zero_();
    grad_cx.copy_(*grad_cy);
  }
  cpu::mul_out(grad_in, grad_cx, cell);
  cpu::sigmoid_backward_out(grad_in, grad_in, in);
  cpu::mul_out(grad_forget, grad_cx, cx);
  cpu::sigmoid_backward_out(grad_forget, grad_forget, forget);
  cpu::mul_out(grad_cell, grad_cx, in);
  cpu::tanh_backward_out(grad_cell, grad_cell, cell);
  cpu::mul_(grad_cx, forget);
  if (grad_bias.defined()) cpu::sum_out(grad_bias, grad_gates, c10::IntArrayRef(int64_t{0}));
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  const bool any = (grad_hy && grad_hy->defined()) || (grad_cy && grad_cy->defined());
  if (!any) return {};
  const OnDevice guard(workspace.device());
  const auto dtype = workspace.scalar_type();
  const Tensor grad_gates = empty(workspace.sizes(), dtype), grad_cx = empty(cx.sizes(), dtype);
  const Tensor grad_bias = has_bias ? empty({workspace.size(1)}, dtype) : Tensor();
  launch<"lstm_cell_backward", &lstm_backward_kernel>(grad_gates, grad_cx, grad_bias, grad_hy, grad_cy, cx, cy,
                                                      workspace);
  return {grad_gates, grad_cx, grad_bias};
}

// %% recurrent-gru
// gates = [reset, update, new]; new = tanh(in_n + reset * (hidden_n + bias)); hy = new + update * (hx - new).
// The workspace: reset, update, new, hx, and the hidden part of new.
void gru_kernel(Tensor& hy, Tensor& workspace, const Tensor& input, const Tensor& hidden, const Tensor& hx,
                const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const int64_t width = hx.size(1);
  Tensor reset_and_update = workspace.narrow(1, 0, 2 * width), fresh = block(workspace, 2, 5),
         hidden_part = block(workspace, 4, 5);
  cpu::add_out(reset_and_update, input.narrow(1, 0, 2 * width), hidden.narrow(1, 0, 2 * width));
  hidden_part.copy_(block(hidden, 2, 3));
  if (input_bias) {
    cpu::add_(reset_and_update, input_bias->narrow(0, 0, 2 * width));
    cpu::add_(reset_and_update, hidden_bias->narrow(0, 0, 2 * width));
    cpu::add_(hidden_part, hidden_bias->narrow(0, 2 * width, width));
  }
  cpu::sigmoid_(reset_and_update);
  cpu::addcmul_out(fresh, block(input, 2, 3), block(workspace, 0, 5), hidden_part);
  if (input_bias) cpu::add_(fresh, input_bias->narrow(0, 2 * width, width));
  cpu::tanh_(fresh);
  block(workspace, 3, 5).copy_(hx);
  cpu::sub_out(hy, hx, fresh);
  cpu::mul_(hy, block(workspace, 1, 5));
  cpu::add_(hy, fresh);
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& hx,
                                    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  check_cell("_thnn_fused_gru_cell", input, hidden, hx, input_bias, hidden_bias, 3);
  const OnDevice guard(input.device());
  const Tensor hy = empty(hx.sizes(), input.scalar_type());
  const Tensor workspace = empty({hx.size(0), 5 * hx.size(1)}, input.scalar_type());
  if (hx.numel() != 0) {
    launch<"gru_cell", &gru_kernel>(hy, workspace, input, hidden, hx, input_bias, hidden_bias);
  }
  return {hy, workspace};
}

// %% recurrent-gru-backward
void gru_backward_kernel(Tensor& grad_input, Tensor& grad_hidden, Tensor& grad_hx, Tensor& grad_input_bias,
                         Tensor& grad_hidden_bias, const Tensor& grad_hy, const Tensor& workspace) {
  const Tensor reset = block(workspace, 0, 5), update = block(workspace, 1, 5), fresh = block(workspace, 2, 5),
               hx = block(workspace, 3, 5), hidden_part = block(workspace, 4, 5);
  Tensor in_reset = block(grad_input, 0, 3), in_update = block(grad_input, 1, 3), in_fresh = block(grad_input, 2, 3);
  cpu::mul_out(grad_hx, grad_hy, update);
  // new: grad_hy * (1 - update), through tanh.
  cpu::sub_out(in_fresh, grad_hy, grad_hx);
  cpu::tanh_backward_out(in_fresh, in_fresh, fresh);
  // update: grad_hy * (hx - new), through sigmoid.
  cpu::sub_out(in_update, hx, fresh);
  cpu::mul_(in_update, grad_hy);
  cpu::sigmoid_backward_out(in_update, in_update, update);
  // reset: the gradient of new times its hidden part, through sigmoid.
  cpu::mul_out(in_reset, in_fresh, hidden_part);
  cpu::sigmoid_backward_out(in_reset, in_reset, reset);
  // The hidden gates' gradients are the same, but for the third, which the reset gate scales.
  grad_hidden.narrow(1, 0, 2 * hx.size(1)).copy_(grad_input.narrow(1, 0, 2 * hx.size(1)));
  Tensor hidden_fresh = block(grad_hidden, 2, 3);
  cpu::mul_out(hidden_fresh, in_fresh, reset);
  if (grad_input_bias.defined()) {
    cpu::sum_out(grad_input_bias, grad_input, c10::IntArrayRef(int64_t{0}));
    cpu::sum_out(grad_hidden_bias, grad_hidden, c10::IntArrayRef(int64_t{0}));
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  const OnDevice guard(workspace.device());
  const auto dtype = workspace.scalar_type();
  const int64_t batch = workspace.size(0), width = workspace.size(1) / 5;
  const Tensor grad_input = empty({batch, 3 * width}, dtype), grad_hidden = empty({batch, 3 * width}, dtype);
  const Tensor grad_hx = empty({batch, width}, dtype);
  const Tensor input_bias = has_bias ? empty({3 * width}, dtype) : Tensor();
  const Tensor hidden_bias = has_bias ? empty({3 * width}, dtype) : Tensor();
  launch<"gru_cell_backward", &gru_backward_kernel>(grad_input, grad_hidden, grad_hx, input_bias, hidden_bias, grad_hy,
                                                    workspace);
  return {grad_input, grad_hidden, grad_hx, input_bias, hidden_bias};
}

// %% recurrent-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace
}  // namespace cookbook
