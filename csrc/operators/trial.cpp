// chapter 2
// %% trial-tensors
#include "operators/trial.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/fill_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "operators/kernel_scope.h"

namespace cookbook {

at::Tensor stand_in(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const c10::SmallVector<int64_t, 6> ones(tensor.dim(), 1);
  at::Tensor cpu = at::detail::empty_cpu(ones, tensor.scalar_type());
  at::_ops::fill__Scalar::call(cpu, 1);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) cpu.unsafeGetTensorImpl()->set_wrapped_number(true);
  return cpu;
}

std::optional<at::Tensor> stand_in(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional(stand_in(*tensor)) : std::nullopt;
}

std::vector<at::Tensor> stand_in(at::TensorList list) {
  std::vector<at::Tensor> stand_ins;
  for (const at::Tensor& tensor : list) stand_ins.push_back(stand_in(tensor));
  return stand_ins;
}

// %% trial-scope
void run_trial(void (*body)(void*), void* state) {
  const c10::impl::ForceDispatchKeyGuard clean(kernel_dispatch_state());
  const QuietWarnings quiet;
  try {
    body(state);
  } catch (const c10::NotImplementedError&) {
    throw;
  } catch (const std::exception&) {
  }
}

}  // namespace cookbook
