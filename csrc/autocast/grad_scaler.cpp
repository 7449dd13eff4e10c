// chapter 6
// %% scaler-kernels
// What GradScaler asks of a device: to divide all gradients by the scale while looking for one that is not finite, and
// to change the scale by what was found. Scale, flag and counter are numbers in device memory that only kernels read
// and write, so a step with a fused optimizer never waits for the device.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale_native.h>
#include <ATen/ops/_amp_update_scale_native.h>
#include <torch/library.h>

#include "operators/foreach.h"

namespace cookbook {
namespace {

using at::Tensor;

// On the stream's thread. `found_inf` is only ever set, never cleared: it may have been set for another dtype before.
constexpr auto kUnscale = &at::native::_amp_foreach_non_finite_check_and_unscale_cpu_;
void unscale_flat(const FlatList& gradients, Tensor& found_inf, const Tensor& inv_scale) {
  kUnscale(gradients.list, found_inf, inv_scale);
}
using UnscaleFlat = KernelLaunch<"_amp_foreach_non_finite_check_and_unscale_", &unscale_flat>;
using UnscaleAny = KernelLaunch<"_amp_foreach_non_finite_check_and_unscale_", kUnscale>;

// %% scaler-checks
// A number that lies elsewhere would be an illegal address for the kernel, reported long after this call.
void check_number(const char* op, const char* name, const Tensor& number, c10::ScalarType dtype, c10::Device device) {
  TORCH_CHECK(number.device() == device && number.scalar_type() == dtype && number.numel() == 1, op, ": expected ",
              name, " to be one element of dtype ", dtype, " on ", device, ", got ", number.numel(), " of dtype ",
              number.scalar_type(), " on ", number.device());
}

// The kernel writes each gradient in place, so the checks of an in-place operator are this function's.
void check_gradient(const Tensor& gradient, c10::Device device) {
  TORCH_CHECK(gradient.layout() == at::kStrided && gradient.device() == device,
              "_amp_foreach_non_finite_check_and_unscale_: expected dense gradients on one device, ", device,
              ", got one of layout ", gradient.layout(), " on ", gradient.device());
  at::assert_no_internal_overlap(gradient);
}

// %% scaler-unscale
void unscale_(at::TensorList gradients, Tensor& found_inf, const Tensor& inv_scale) {
  if (gradients.empty()) return;
  const c10::Device device = gradients[0].device();
  const c10::ScalarType dtype = gradients[0].scalar_type();
  constexpr const char* op = "_amp_foreach_non_finite_check_and_unscale_";
  check_number(op, "found_inf", found_inf, at::kFloat, device);
  check_number(op, "inv_scale", inv_scale, at::kFloat, device);
  bool flat = true;
  for (const Tensor& gradient : gradients) {
    check_gradient(gradient, device);
    flat = flat && gradient.scalar_type() == dtype && gradient.is_non_overlapping_and_dense();
  }
  // Gradients of one dtype without gaps, as GradScaler sorts them, are one launch. Others are a launch each.
  const size_t most = flat ? tensors_per_launch(16) : 1;
  for (size_t begin = 0; begin < gradients.size(); begin += most) {
    const at::TensorList some = gradients.slice(begin, std::min(most, gradients.size() - begin));
    Trial<kUnscale>::check(some.slice(0, 1), found_inf, inv_scale);
    if (flat) {
      UnscaleFlat::launch(device, some, found_inf, inv_scale);
    } else {
      UnscaleAny::launch(device, some, found_inf, inv_scale);
    }
  }
}

// %% scaler-update
Tensor& update_scale_(Tensor& scale, Tensor& growth_tracker, const Tensor& found_inf, double growth_factor,
                      double backoff_factor, int64_t growth_interval) {
  const c10::Device device = scale.device();
  check_number("_amp_update_scale_", "the scale", scale, at::kFloat, device);
  check_number("_amp_update_scale_", "growth_tracker", growth_tracker, at::kInt, device);
  check_number("_amp_update_scale_", "found_inf", found_inf, at::kFloat, device);
  launch<"_amp_update_scale_", &at::native::_amp_update_scale_cpu_>(scale, growth_tracker, found_inf, growth_factor,
                                                                    backoff_factor, growth_interval);
  return scale;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_amp_foreach_non_finite_check_and_unscale_", &unscale_);
  m.impl("_amp_update_scale_", &update_scale_);
}

}  // namespace
}  // namespace cookbook
