// chapter 2
// %% small-header
// Kernels of our own for the hottest calls on small tensors. PyTorch's kernel first makes an iterator for any shapes,
// dtypes and overlaps: for four numbers that is nearly all it does. Where the short way is open those questions are
// answered, and a loop over float or double is left.
#pragma once

#include "operators/launch.h"

namespace cookbook {

// With more elements PyTorch's kernel is as fast, has this machine's vector instructions, and may use more threads.
inline constexpr int64_t kSmall = 1024;

// All of a launch, in one line of the queue. An operand without an address is the number.
struct SmallArguments {
  const void* out = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  double number = 0;
  int32_t count = 0;
  c10::ScalarType dtype{};
};
static_assert(sizeof(SmallArguments) <= 48, "the driver's record is 64 bytes, 16 of them its own");

// %% small-number
// The number as a double, if that changes nothing: an integer beyond 2^53 would be rounded twice on its way to float.
inline bool as_double(const c10::Scalar& scalar, double& number) {
  constexpr int64_t kExact = int64_t{1} << 53;
  if (scalar.isFloatingPoint()) {
    number = scalar.toDouble();
    return true;
  }
  if (scalar.type() != c10::kLong) return false;
  const int64_t value = scalar.toLong();
  number = static_cast<double>(value);
  return value >= -kExact && value <= kExact;
}
inline bool as_double(const c10::TensorImpl* number_on_host, double& number) {
  switch (c10::typeMetaToScalarType(number_on_host->dtype())) {
    case c10::kDouble:
      number = *static_cast<const double*>(number_on_host->data());
      return true;
    case c10::kFloat:
      number = *static_cast<const float*>(number_on_host->data());
      return true;
    case c10::kLong:
      return as_double(c10::Scalar(*static_cast<const int64_t*>(number_on_host->data())), number);
    default:
      return false;
  }
}

// %% small-kernel
// SmallKernel<"mul", SmallMul>: `Small::apply` computes one element, of two operands or of the number alone. No tensor,
// no dispatch state, nothing that throws: a plain function of the driver's.
template <Name name, class Small>
struct SmallKernel {
  template <class T>
  static cookbookError_t run_as(cookbookKernelContext* context, const SmallArguments& args) {
    const auto place = [&](const void* address) {
      return static_cast<T*>(cookbookTranslate(context, address, static_cast<size_t>(args.count) * sizeof(T)));
    };
    T *out = place(args.out), *a = args.a ? place(args.a) : nullptr, *b = args.b ? place(args.b) : nullptr;
    if (!out || (args.a && !a) || (args.b && !b)) {
      return cookbookKernelFail(context, cookbookErrorIllegalAddress,
                                "illegal address: an operand is not on this device");
    }
    const T number = static_cast<T>(args.number);
    if constexpr (requires { Small::apply(number); }) {
      for (int32_t i = 0; i < args.count; ++i) out[i] = Small::apply(number);
    } else if (a && b) {
      for (int32_t i = 0; i < args.count; ++i) out[i] = Small::apply(a[i], b[i]);
    } else if (a) {
      for (int32_t i = 0; i < args.count; ++i) out[i] = Small::apply(a[i], number);
    } else {
      for (int32_t i = 0; i < args.count; ++i) out[i] = Small::apply(number, b[i]);
    }
    return cookbookSuccess;
  }
  static cookbookError_t run(cookbookKernelContext* context, void* raw) {
    const auto& args = *static_cast<const SmallArguments*>(raw);
    return args.dtype == c10::kFloat ? run_as<float>(context, args) : run_as<double>(context, args);
  }
  static constexpr cookbookKernel_t kernel{name.text, &run};

  // %% small-launch
  // For an `out` that the short way may write. False: not for this kernel.
  static bool open(c10::TensorImpl& out, SmallArguments& args) {
    const int64_t count = out.numel();
    args.dtype = c10::typeMetaToScalarType(out.dtype());
    if (count == 0 || count > kSmall || (args.dtype != c10::kFloat && args.dtype != c10::kDouble)) return false;
    args.count = static_cast<int32_t>(count);
    args.out = out.mutable_data();
    return args.out != nullptr;
  }
  static bool operand(const at::Tensor& tensor, const void*& address, double& number) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (impl->is_cpu()) return as_double(impl, number);
    address = impl->data();
    return address != nullptr;
  }
  static void enqueue(const c10::TensorImpl& out, const SmallArguments& args) {
    check(cookbookLaunchKernel(current_handle(out.device().index()), &kernel, &args, sizeof(args)));
  }
  // On the short way, where at least one operand is on the device. `rest`: what the operator has beside its operands.
  template <class... Rest>
  static bool launch(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Rest&... rest) {
    c10::TensorImpl& impl = *out.unsafeGetTensorImpl();
    SmallArguments args;
    if (!Small::takes(rest...) || !open(impl, args)) return false;
    if (!operand(a, args.a, args.number) || !operand(b, args.b, args.number)) return false;
    enqueue(impl, args);
    return true;
  }
};

}  // namespace cookbook
