// chapter 2
// %% softmax
// Softmax over one dimension, and its gradient from the output.
#include <ATen/ops/_log_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_backward_data_meta.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_log_softmax_meta.h>
#include <ATen/ops/_softmax_backward_data_cpu_dispatch.h>
#include <ATen/ops/_softmax_backward_data_meta.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_meta.h>
#include <torch/library.h>

#include "operators/pointwise.h"

namespace cookbook {
namespace {

using Softmax = Operator<"_softmax", &at::meta::structured__softmax::meta, &at::cpu::_softmax_out, 1, Empty::Passes>;
using LogSoftmax =
    Operator<"_log_softmax", &at::meta::structured__log_softmax::meta, &at::cpu::_log_softmax_out, 1, Empty::Passes>;
using SoftmaxBackwardData = Operator<"_softmax_backward_data", &at::meta::structured__softmax_backward_data::meta,
                                     &at::cpu::_softmax_backward_data_out, 1, Empty::Passes>;
using LogSoftmaxBackwardData =
    Operator<"_log_softmax_backward_data", &at::meta::structured__log_softmax_backward_data::meta,
             &at::cpu::_log_softmax_backward_data_out, 1, Empty::Passes>;

// %% softmax-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  implement<Softmax>(m, "_softmax", nullptr, "_softmax.out");
  implement<LogSoftmax>(m, "_log_softmax", nullptr, "_log_softmax.out");
  implement<SoftmaxBackwardData>(m, "_softmax_backward_data", nullptr, "_softmax_backward_data.out");
  implement<LogSoftmaxBackwardData>(m, "_log_softmax_backward_data", nullptr, "_log_softmax_backward_data.out");
}

}  // namespace
}  // namespace cookbook
