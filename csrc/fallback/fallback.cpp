// chapter 3
// %% fallback-bytes
// The CPU fallback: an operator without a kernel on the device copies its tensors to the CPU, runs there, and copies
// the results back.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/IListRef.h>
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include "fallback/policy.h"

namespace cookbook {
namespace {

void add_bytes(const c10::IValue& value, uint64_t& bytes) {
  const auto add = [&bytes](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_privateuseone()) bytes += tensor.nbytes();
  };
  if (value.isTensor()) {
    add(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor) add(*tensor);
    }
  }
}

uint64_t bytes_of(c10::ArrayRef<c10::IValue> values) {
  uint64_t bytes = 0;
  for (const c10::IValue& value : values) add_bytes(value, bytes);
  return bytes;
}

// %% fallback-never
// A view shares its argument's storage. Run on the CPU it would share the storage of a copy, and what is written
// through it would be lost without a word. Core tells a view by its schema: a result that aliases an argument it does
// not write.
bool returns_view(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

// %% fallback-overlap
// An out tensor that shares elements with an argument, or with itself, is an error on the CPU. It would not be noticed
// there: what arrives on the CPU are copies. Out and argument may be the very same elements; operators differ in that.
void check_overlap(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  for (const auto i : c10::irange(arguments.size())) {
    if (!schema.arguments()[i].is_out() || !arguments[i].isTensor()) continue;
    const at::Tensor& out = arguments[i].toTensor();
    at::assert_no_internal_overlap(out);
    for (const c10::IValue& other : arguments) {
      if (other.isTensor() && other.toTensor().defined()) at::assert_no_partial_overlap(out, other.toTensor());
    }
  }
}

// %% fallback
void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string name = c10::toString(op.operator_name());
  TORCH_CHECK_NOT_IMPLEMENTED(!returns_view(schema), "'", name,
                              "' returns a view and has no kernel on the cookbook "
                              "device. It cannot fall back to the CPU, since writes through the view would be lost: "
                              "register a native kernel for it.");
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  check_overlap(schema, arguments);
  note_fallback(name, bytes_of(arguments));
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
  note_fallback_result(name, bytes_of(torch::jit::last(*stack, schema.returns().size())));
}

// %% fallback-operators
// Single operators that fall back although core has a composite for them. That of `addr` computes with three roundings,
// the CPU's own kernel with one; that of `mode` refuses device types that it does not know. A registration by name
// comes before the composite.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("addr", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("addr.out", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("mode.values", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// %% fallback-register
// The lowest priority of all: it is asked when the operator has neither a kernel for this key nor a composite one.
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace
}  // namespace cookbook
