// chapter 3
// %% layouts
// Tensors of other layouts have dispatch keys of their own, which no fallback of PrivateUse1 covers. The device has no
// such tensors; an operator that would make or take one says so.
#include <torch/library.h>

namespace cookbook {
namespace {

void refuse(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "'", op.operator_name(),
      "' was called for a sparse, quantized or nested tensor on the "
      "cookbook device, which stores dense tensors only. Convert it first (to_dense, dequantize, "
      "to_padded_tensor), or keep it on the CPU.");
}

// One function a key: a fallback is registered for exactly one.
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>()); }
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>()); }
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>()); }
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>()); }

}  // namespace
}  // namespace cookbook
