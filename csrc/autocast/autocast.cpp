// chapter 6
// %% autocast-fallthrough
// Autocast: the dtype in which each operator runs inside `torch.autocast("cookbook")`.
#include <ATen/autocast_mode.h>

namespace cookbook {
namespace {

// An operator on none of the lists runs as it is, with the dtypes it was given. This must be said: inside the block the
// key AutocastPrivateUse1 is active for every operator, and core gives it a fallthrough for no device but its own.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

// %% autocast-policies
using at::IntArrayRef, at::Scalar, at::ScalarType, at::Tensor;  // the list of `norm` says these without their namespace

// Core's lists are macros that apply another one to (operator) or (operator, overload), and for `norm`, which goes on
// to an overload with a dtype, to all that its kernel needs. The policy is what core's own wrapper does with the
// arguments.
#define COOKBOOK_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define COOKBOOK_FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define COOKBOOK_FLOAT32_UNLESS_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define COOKBOOK_FLOAT32_BY_DTYPE(...) KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE(__VA_ARGS__)
#define COOKBOOK_WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

// %% autocast-banned
// The logarithms of a float16 sigmoid are infinite where a float32 one's are not, and no cast brings the lost digits
// back. What CUDA says about it is a function of core's own file; its kernel for the other key can be asked for it.
Tensor banned(const Tensor& self, const Tensor& target, const std::optional<Tensor>& weight, int64_t reduction) {
  return at::_ops::binary_cross_entropy::redispatch(c10::DispatchKeySet(c10::DispatchKey::AutocastCUDA), self, target,
                                                    weight, reduction);
}

// %% autocast-register
// The lists of CUDA. A release that adds an operator to them adds it here, when you compile against it.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(COOKBOOK_LOWER_PRECISION)
  AT_FORALL_FP32(COOKBOOK_FLOAT32)
  AT_FORALL_FP32_SET_OPT_DTYPE(COOKBOOK_FLOAT32_UNLESS_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(COOKBOOK_FLOAT32_BY_DTYPE)
  AT_FORALL_PROMOTE(COOKBOOK_WIDEST)
  m.impl("binary_cross_entropy", &banned);
}

// %% autocast-custom
// Operators of your own are on no list of core's. Inside a block `rms_norm` gets what a linear layer made, in the lower
// precision, with a weight that is float32, and it takes one dtype only. Core's own `rms_norm` runs in float32: so does
// this one. The call goes back to the dispatcher, with the autocast key excluded.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("cookbook::rms_norm", "")
                             .typed<Tensor(const Tensor&, const Tensor&, double)>();
  return op.call(x, weight, eps);
}

template <c10::DeviceType device>
using RmsNorm = at::autocast::WrapFunction<at::autocast::CastPolicy::fp32, device, decltype(rms_norm),
                                           decltype(rms_norm), &rms_norm>::type;

// The operator has a CPU kernel, and a model that runs on both devices needs the same cast on both.
TORCH_LIBRARY_IMPL(cookbook, AutocastPrivateUse1, m) { m.impl("rms_norm", &RmsNorm<c10::kPrivateUse1>::call); }
TORCH_LIBRARY_IMPL(cookbook, AutocastCPU, m) { m.impl("rms_norm", &RmsNorm<c10::kCPU>::call); }

}  // namespace
}  // namespace cookbook
