// chapter 2
// %% fill-check
// Filling a tensor with one value.
#include "operators/fill.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/ops/fill_native.h>
#include <torch/library.h>

#include "operators/launch.h"
#include "operators/on_device.h"
#include "operators/small.h"

namespace cookbook {

void check_fits(const c10::Scalar& value, c10::ScalarType dtype) {
  // A float fits in float32 or it does not; nothing to convert for double.
  if (dtype == c10::kDouble && !value.isComplex()) return;
  AT_DISPATCH_V2(dtype, "fill_out", AT_WRAP([&] { static_cast<void>(value.to<scalar_t>()); }), AT_EXPAND(AT_ALL_TYPES),
                 AT_EXPAND(AT_COMPLEX_TYPES), c10::kComplexHalf, c10::kHalf, c10::kBFloat16, c10::kBool,
                 AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), AT_EXPAND(AT_FLOAT8_TYPES));
}

// %% fill-small
namespace {

struct SmallFill {
  template <class T>
  static T apply(T number) {
    return number;
  }
};

bool fill_small(c10::TensorImpl& self, const c10::Scalar& value) {
  using Kernel = SmallKernel<"fill_", SmallFill>;
  SmallArguments args;
  if (!self.is_contiguous() || !Kernel::open(self, args) || !as_double(value, args.number)) return false;
  Kernel::enqueue(self, args);
  return true;
}

// %% fill

at::Tensor& fill_scalar(at::Tensor& self, const c10::Scalar& value) {
  // As on the CPU: with one element a number that is too large for a small float becomes infinity.
  const bool may_overflow = self.numel() == 1 && c10::isReducedFloatingType(self.scalar_type()) && !value.isComplex();
  if (!may_overflow) check_fits(value, self.scalar_type());
  if (self.numel() != 0 && !fill_small(*self.unsafeGetTensorImpl(), value)) {
    launch<"fill_", [](at::Tensor& out, const c10::Scalar& value) { at::native::fill_(out, value); }>(self, value);
  }
  return self;
}

// The value stays on the device: nothing waits for it.
at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  if (value.is_cpu() || value.device() != self.device()) return fill_scalar(self, value.item());
  if (self.numel() != 0) {
    launch<"fill_", [](at::Tensor& out, const at::Tensor& value) { at::native::fill_(out, value); }>(self, value);
  }
  return self;
}

// %% fill-zero
// Zero is all bits zero in every dtype, so the driver can do it.
at::Tensor& zero(at::Tensor& self) {
  if (self.numel() == 0) return self;
  if (!self.is_non_overlapping_and_dense()) return fill_scalar(self, 0);
  check(cookbookMemsetAsync(self.mutable_data_ptr(), 0, self.nbytes(), current_handle(self.device().index())));
  return self;
}

// %% fill-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("fill_.Scalar", &fill_scalar);
  m.impl("fill_.Tensor", &fill_tensor);
  m.impl("zero_", &zero);
}

}  // namespace
}  // namespace cookbook
