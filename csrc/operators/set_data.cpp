// chapter 2
// %% set-data
// Lets a parameter keep its identity when its module moves to the device.
//
// `Module.to` writes `parameter.data = moved` where core calls the two tensors compatible; an optimizer that was made
// before goes on with the same objects, and tied weights stay one. Core's answer is a list of backends in which
// PrivateUse1 is missing (c10/core/TensorImpl.h, has_compatible_shallow_copy_type), so a move to this device would make
// new parameters: the optimizer steps the old ones, and nothing says so. The question is an operator, and `.data =`
// asks the same one; so it can be answered here.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace cookbook {
namespace {

// Tensors of the CPU and of this device are both plain TensorImpls: copying the fields of one into the other is all
// that a move needs.
bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.is_privateuseone()) &&
         !tensor.key_set().has(c10::DispatchKey::Python) &&
         tensor.key_set().has_any(c10::DispatchKeySet(c10::DispatchKey::Dense));
}

bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set()) ||
         (is_plain(self) && is_plain(from));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

}  // namespace
}  // namespace cookbook
