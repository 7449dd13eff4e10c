// chapter 2
// %% outputs-header
// Outputs that an operator makes, or that the caller gave and the operator must prepare.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace cookbook {

template <size_t N>
using OutputTuple =
    std::conditional_t<N == 2, std::tuple<at::Tensor, at::Tensor>, std::tuple<at::Tensor, at::Tensor, at::Tensor>>;

// A new tensor with the strides that a meta function asked for; empty strides mean contiguous.
at::Tensor make_output(c10::IntArrayRef sizes, c10::IntArrayRef strides, const at::TensorOptions& options);

// Makes the caller's tensor fit: checks dtype and device, resizes an out tensor (with PyTorch's warning), refuses an
// in-place one of another shape. Returns a proxy for the kernel when `exact_strides` are wanted and not there, else an
// undefined tensor.
at::Tensor prepare_output(const at::Tensor& output, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                          const at::TensorOptions& options, bool in_place, bool exact_strides);

}  // namespace cookbook
