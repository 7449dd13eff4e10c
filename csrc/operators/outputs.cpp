// chapter 2
// %% outputs-make
#include "operators/outputs.h"

#include <ATen/native/Resize.h>
#include <c10/util/Exception.h>

#include "operators/empty.h"

namespace cookbook {

at::Tensor make_output(c10::IntArrayRef sizes, c10::IntArrayRef strides, const at::TensorOptions& options) {
  const c10::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  return strides.empty() ? empty(sizes, dtype, options.memory_format_opt()) : empty_strided(sizes, strides, dtype);
}

// %% outputs-prepare
at::Tensor prepare_output(const at::Tensor& output, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                          const at::TensorOptions& options, bool in_place, bool exact_strides) {
  TORCH_CHECK(options.dtype() == output.dtype(),
              in_place ? "Expected in-place tensor to have dtype " : "Expected out tensor to have dtype ",
              options.dtype(), ", but got ", output.dtype(), " instead");
  TORCH_CHECK(options.device() == output.device(),
              in_place ? "Expected in-place tensor to have device " : "Expected out tensor to have device ",
              options.device(), ", but got ", output.device(), " instead");
  if (in_place) {
    TORCH_CHECK(output.sizes() == sizes, "output with shape ", output.sizes(), " doesn't match the broadcast shape ",
                sizes);
  } else if (at::native::resize_output(output, sizes)) {
    // Freshly sized: it may as well have the strides that the kernel likes.
    if (!strides.empty()) {
      output.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    } else if (options.memory_format_opt()) {
      output.unsafeGetTensorImpl()->empty_tensor_restride(*options.memory_format_opt());
    }
  }
  if (!exact_strides) return {};
  const bool fits = strides.empty() ? output.is_contiguous() : output.strides() == strides;
  return fits ? at::Tensor() : make_output(sizes, strides, options);
}

}  // namespace cookbook
