// chapter 2
// %% empty-new
#include "operators/empty.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <torch/library.h>

#include "operators/on_device.h"
#include "scaffolding/allocator.h"

namespace cookbook {
namespace {
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
}

at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &allocator(), kKeys, dtype, format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  return at::detail::empty_strided_generic(sizes, strides, &allocator(), kKeys, dtype);
}

// %% empty-operators
namespace {

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::Layout::Strided,
                              "the cookbook device stores strided tensors only, got layout ", *layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

// What torch.use_deterministic_algorithms promises: memory that nobody has written holds NaN, or the largest integer.
// Only what a program asks for; outputs that a kernel writes come from the functions above.
at::Tensor filled_if_deterministic(at::Tensor tensor) {
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

at::Tensor empty_memory_format(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  check_options(layout, pin_memory);
  const OnDevice guard(device.value_or(c10::Device(kDeviceType)));
  return filled_if_deterministic(empty(sizes, c10::dtype_or_default(dtype), format));
}

at::Tensor empty_with_strides(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                              std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                              std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  const OnDevice guard(device.value_or(c10::Device(kDeviceType)));
  return filled_if_deterministic(empty_strided(sizes, strides, c10::dtype_or_default(dtype)));
}

// %% empty-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_with_strides);
}

}  // namespace
}  // namespace cookbook
