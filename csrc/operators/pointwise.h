// chapter 2
// %% pointwise-header
// A short way for the hot pointwise calls. A meta function costs 0.3 us: it broadcasts, promotes and orders dimensions.
// Where all tensors are contiguous, of one shape and one floating dtype, the answer to all three is known, and the
// kernel may see one dimension.
#pragma once

#include <torch/library.h>

#include "operators/small.h"
#include "operators/trial.h"

namespace cookbook {

// The dtype of the result when every operand is of one floating dtype.
enum class ResultIs { Operand, Bool };

// The first device tensor among the arguments, if the short way is open for all of them; else null.
class ShortWay {
 public:
  template <class... A>
  static const c10::TensorImpl* leader(const A&... arguments) {
    ShortWay way;
    (way.find(arguments), ...);
    if (way.leader_ == nullptr || !way.leads()) return nullptr;
    return (way.follows(arguments) && ...) ? way.leader_ : nullptr;
  }

 private:
  void find(const at::Tensor& tensor) {
    if (leader_ == nullptr && tensor.is_privateuseone()) leader_ = tensor.unsafeGetTensorImpl();
  }
  template <class T>
  void find(const T&) {}
  bool leads() {
    dtype_ = c10::typeMetaToScalarType(leader_->dtype());
    return c10::isFloatingType(dtype_) && leader_->is_contiguous();
  }

  // %% pointwise-follows
  bool follows(const at::Tensor& tensor) const {
    if (!tensor.defined()) return false;
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (impl == leader_) return true;
    const c10::ScalarType dtype = c10::typeMetaToScalarType(impl->dtype());
    if (impl->is_cpu()) {
      // A number of the program does not promote a tensor of a floating dtype, unless it is complex. A bool is refused
      // by some operators, which the meta function knows.
      return impl->dim() == 0 && !c10::isComplexType(dtype) && dtype != c10::kBool &&
             (impl->is_wrapped_number() || leader_->dim() != 0);
    }
    return dtype == dtype_ && impl->device() == leader_->device() && impl->sizes() == leader_->sizes() &&
           impl->is_contiguous() && !overlaps(impl);
  }
  // Two views of one storage that are not the same elements: core has a check and an error for that.
  bool overlaps(const c10::TensorImpl* impl) const {
    return impl->storage().is_alias_of(leader_->storage()) && impl->storage_offset() != leader_->storage_offset();
  }
  // As a parameter of the operator: alpha, an exponent, a bound.
  static bool follows(const c10::Scalar& scalar) { return scalar.isFloatingPoint() || scalar.isIntegral(false); }
  template <class T>
  static bool follows(const T&) {
    return true;
  }

  const c10::TensorImpl* leader_ = nullptr;
  c10::ScalarType dtype_{};
};

// %% pointwise-launch
// An argument, with a device tensor seen as one dimension of `numel` elements.
inline size_t flat_bytes(const at::Tensor& tensor) { return std::max(TensorWire::bytes(tensor), size_t{24 + 16}); }
template <class T>
size_t flat_bytes(const T& value) {
  return Wire<T>::bytes(value);
}
inline void write_flat(Writer& writer, const at::Tensor& tensor, int64_t numel) {
  if (tensor.is_cpu()) return TensorWire::write(writer, tensor);
  TensorWire::write_view(writer, tensor, numel, 1);
}
template <class T>
void write_flat(Writer& writer, const T& value, int64_t) {
  Wire<T>::write(writer, value);
}

template <Name name, auto Kernel, class... A>
void launch_flat(c10::Device device, int64_t numel, const A&... arguments) {
  const size_t bytes = (flat_bytes(arguments) + ...);
  alignas(16) std::byte begin[768];
  TORCH_INTERNAL_ASSERT(bytes <= sizeof(begin));
  Writer writer(begin, device);
  (write_flat(writer, arguments, numel), ...);
  enqueue(device, KernelLaunch<name, Kernel>::kernel, begin, bytes);
}

// %% pointwise-operator
// Pointwise<"add", &at::meta::structured_add_Tensor::meta, &at::cpu::add_out>: an Operator that takes the short way
// when it is open. `Small`: a loop of our own for small tensors (small.h); void: none.
template <Name name, auto MetaFunction, auto Kernel, ResultIs result = ResultIs::Operand, class Small = void,
          class F = decltype(MetaFunction)>
struct Pointwise;

template <Name name, auto MetaFunction, auto Kernel, ResultIs result, class Small, class R, class Meta, class... A>
struct Pointwise<name, MetaFunction, Kernel, result, Small, R (Meta::*)(A...)>
    : InPlace<Pointwise<name, MetaFunction, Kernel, result, Small>, A...> {
  using Long = Operator<name, MetaFunction, Kernel>;

  static at::Tensor functional(A... arguments) {
    const c10::TensorImpl* leader = ShortWay::leader(arguments...);
    if (leader == nullptr) return Long::functional(arguments...);
    const OnDevice guard(leader->device());
    at::Tensor out =
        empty(leader->sizes(), result == ResultIs::Bool ? c10::kBool : c10::typeMetaToScalarType(leader->dtype()));
    run(*leader, out, arguments...);
    return out;
  }
  static void overwrite(A... arguments) {
    const c10::TensorImpl* leader = ShortWay::leader(arguments...);
    const at::Tensor& self = first(arguments...);
    if (leader != self.unsafeGetTensorImpl() || result == ResultIs::Bool) return Long::overwrite(arguments...);
    run(*leader, self, arguments...);
  }
  static at::Tensor& out(A... arguments, at::Tensor& output) {
    const c10::TensorImpl* leader = result == ResultIs::Bool ? nullptr : ShortWay::leader(output, arguments...);
    // The output leads here, so it has the operands' shape and dtype already.
    if (leader != output.unsafeGetTensorImpl() || !any_device_tensor(arguments...))
      return Long::out(arguments..., output);
    run(*leader, output, arguments...);
    return output;
  }

  // %% pointwise-run
 private:
  static void run(const c10::TensorImpl& leader, const at::Tensor& out, A... arguments) {
    if constexpr (!std::is_void_v<Small>) {
      if (SmallKernel<name, Small>::launch(out, arguments...)) return;
    }
    Trial<Kernel>::check(out, arguments...);
    if (leader.numel() != 0) launch_flat<name, Kernel>(leader.device(), leader.numel(), out, as_argument(arguments)...);
  }
  template <class T>
  static const std::decay_t<T>& as_argument(const T& argument) {
    return argument;
  }
  template <class... T>
  static bool any_device_tensor(const T&... arguments) {
    return device_of(arguments...).is_privateuseone();
  }
  template <class First, class... Rest>
  static const at::Tensor& first(const First& self, const Rest&...) {
    return self;
  }
};

// %% pointwise-register
// The three forms of an operator under their names in the schema; a form that the schema does not have is null.
template <class Op>
void implement(torch::Library& m, const char* functional, const char* in_place, const char* out) {
  m.impl(functional, &Op::functional);
  if (in_place != nullptr) m.impl(in_place, &Op::in_place);
  if (out != nullptr) m.impl(out, &Op::out);
}
// `sin`, `sin_` and `sin.out`.
template <class Op>
void implement(torch::Library& m, const std::string& name) {
  implement<Op>(m, name.c_str(), (name + "_").c_str(), (name + ".out").c_str());
}

}  // namespace cookbook
