// chapter 2
// %% foreach-norm
// The norm of each tensor of a list, in one launch: the heart of `clip_grad_norm_`.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_norm_native.h>
#include <ATen/ops/linalg_vector_norm_cpu_dispatch.h>
#include <torch/library.h>

#include "operators/foreach.h"

namespace cookbook {
namespace {

void norm_one(at::Tensor& out, const at::Tensor& self, const at::Scalar& ord) {
  at::cpu::linalg_vector_norm_out(out, self, ord, std::nullopt, false, std::nullopt);
}

// The results have no dimension, so they do not travel as flat tensors.
void norm_kernel(at::TensorList outs, const FlatList& self, const at::Scalar& ord) {
  for (const size_t i : c10::irange(outs.size())) {
    at::Tensor out = outs[i];
    norm_one(out, self.list[i], ord);
  }
}

// %% foreach-norm-operator
bool any_empty(at::TensorList list) {
  return std::any_of(list.begin(), list.end(), [](const at::Tensor& tensor) { return tensor.numel() == 0; });
}

std::vector<at::Tensor> foreach_norm(at::TensorList self, const at::Scalar& ord, std::optional<c10::ScalarType> dtype) {
  // An empty tensor has no maximum: core decides for which `ord` that is an error.
  if (dtype.has_value() || !is_one_launch({self}, ord, nullptr) || any_empty(self)) {
    return at::native::foreach_tensor_norm_slow(self, ord, dtype);
  }
  const OnDevice guard(self[0].device());
  std::vector<at::Tensor> outs;
  outs.reserve(self.size());
  for (const at::Tensor& tensor : self) outs.push_back(empty({}, tensor.scalar_type()));
  Trial<&norm_one>::check(outs[0], self[0], ord);
  const size_t step = tensors_per_launch(16 + 24);
  for (size_t begin = 0; begin < self.size(); begin += step) {
    const size_t count = std::min(step, self.size() - begin);
    KernelLaunch<"_foreach_norm", &norm_kernel>::launch(self[0].device(), at::TensorList(outs).slice(begin, count),
                                                        part(self, begin, count), ord);
  }
  return outs;
}

// %% foreach-norm-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_foreach_norm.Scalar", &foreach_norm); }

}  // namespace
}  // namespace cookbook
