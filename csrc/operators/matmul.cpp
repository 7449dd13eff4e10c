// chapter 2
// %% matmul-structured
// Matrix products. All but `dot` are structured, and their kernels write straight into the output: no temporary, no
// copy.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/_addmm_activation_cpu_dispatch.h>
#include <ATen/ops/_addmm_activation_meta.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/addmm_meta.h>
#include <ATen/ops/addmv_cpu_dispatch.h>
#include <ATen/ops/addmv_meta.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_meta.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/bmm_meta.h>
#include <ATen/ops/dot_native.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/mm_meta.h>
#include <ATen/ops/vdot_native.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/structured.h"

namespace cookbook {
namespace {

// Two checks that core leaves to its kernels have to be made on the host.
void check_factors(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "expected m1 and m2 to have the same dtype, but got: ", a.dtype(),
              " != ", b.dtype());
}
struct MmMeta : at::meta::structured_mm {
  void meta(const at::Tensor& a, const at::Tensor& b) {
    structured_mm::meta(a, b);
    check_factors(a, b);
  }
};
struct AddmmMeta : at::meta::structured_addmm {
  void meta(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
            const at::Scalar& alpha) {
    structured_addmm::meta(self, a, b, beta, alpha);
    check_factors(a, b);
    const std::array<int64_t, 2> sizes{a.size(0), b.size(1)};
    TORCH_CHECK(at::is_expandable_to(self.sizes(), sizes), "The expanded size of the tensor must match: expected ",
                c10::IntArrayRef(sizes), " or a shape that broadcasts to it, got ", self.sizes());
  }
};
using Mm = Structured<"mm", checked<"addmm_impl_cpu_", kNumbers, &MmMeta::meta>, &at::cpu::mm_out>;
using Addmm = Structured<"addmm", checked<"addmm_impl_cpu_", kNumbers, &AddmmMeta::meta>, &at::cpu::addmm_out>;

// %% matmul-batched
using Bmm = Structured<"bmm", checked<"bmm", kNumbers, &at::meta::structured_bmm::meta>, &at::cpu::bmm_out>;
using Baddbmm =
    Structured<"baddbmm", checked<"baddbmm", kNumbers, &at::meta::structured_baddbmm::meta>, &at::cpu::baddbmm_out>;
using Addmv =
    Structured<"addmv", checked<"addmv_impl_cpu", kNumbers, &at::meta::structured_addmv::meta>, &at::cpu::addmv_out>;
// A linear layer and its ReLU or GELU in one kernel.
using AddmmActivation =
    Structured<"_addmm_activation", checked<"addmm_impl_cpu_", kReal, &at::meta::structured__addmm_activation::meta>,
               &at::cpu::_addmm_activation_out>;

// %% matmul-dot
// Not structured, so shape and dtype are checked here, with core's texts.
void check_dot(const char* name, const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.dim() == 1 && b.dim() == 1, "1D tensors expected, but got ", a.dim(), "D and ", b.dim(), "D tensors");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "dot : expected both vectors to have same dtype, but found ",
              a.scalar_type(), " and ", b.scalar_type());
  TORCH_CHECK(a.numel() == b.numel(), "inconsistent tensor size, expected tensor [", a.numel(), "] and src [",
              b.numel(), "] to have the same number of elements, but got ", a.numel(), " and ", b.numel(),
              " elements respectively");
  check_dtype(name, a.scalar_type(), kNumbers);
}

at::Tensor dot(const at::Tensor& a, const at::Tensor& b) {
  check_dot("dot", a, b);
  const OnDevice guard(a.device());
  const at::Tensor out = empty({}, a.scalar_type());
  launch<"dot", [](at::Tensor& out, const at::Tensor& a, const at::Tensor& b) { out.copy_(at::native::dot(a, b)); }>(
      out, a, b);
  return out;
}

at::Tensor vdot(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_complex()) return cookbook::dot(a, b);
  check_dot("vdot", a, b);
  const OnDevice guard(a.device());
  const at::Tensor out = empty({}, a.scalar_type());
  launch<"vdot", [](at::Tensor& out, const at::Tensor& a, const at::Tensor& b) { out.copy_(at::native::vdot(a, b)); }>(
      out, a, b);
  return out;
}

// %% matmul-conj
// Core lets matrix products see conjugated tensors as they are, since most libraries conjugate on the fly. This chip's
// does not, and a tensor's bit does not travel with its address: conjugate first, or the result is silently another
// one.
at::Tensor plain(const at::Tensor& tensor) { return tensor.resolve_conj(); }
template <class T>
const T& plain(const T& other) {
  return other;
}
bool lazy(const at::Tensor& tensor) { return tensor.is_conj(); }
template <class T>
bool lazy(const T&) {
  return false;
}

template <auto Operator, class F = decltype(Operator)>
struct Conjugated;
template <auto Operator, class R, class... A>
struct Conjugated<Operator, R (*)(A...)> {
  static R call(A... arguments) {
    if (!(lazy(arguments) || ...)) [[likely]]
      return Operator(arguments...);
    std::tuple<std::decay_t<decltype(plain(arguments))>...> plains(plain(arguments)...);
    if constexpr (std::is_same_v<R, at::Tensor>) {
      return std::apply(Operator, plains);
    } else {
      // The output is the last argument of an out variant, the first of an in-place one.
      using Last = std::tuple_element_t<sizeof...(A) - 1, std::tuple<A...>>;
      constexpr size_t output = std::is_same_v<Last, at::Tensor&> ? sizeof...(A) - 1 : 0;
      std::apply(Operator, plains);
      at::Tensor& given = std::get<output>(std::tie(arguments...));
      if (given.is_conj()) given.copy_(std::get<output>(plains));
      return given;
    }
  }
};
template <auto Operator>
constexpr auto conjugated = &Conjugated<Operator>::call;

// %% matmul-register
// `matmul`, `linear`, `mv` and `einsum` are composite: core builds them from these.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mm", conjugated<&Mm::functional>);
  m.impl("mm.out", conjugated<&Mm::out>);
  m.impl("addmm", conjugated<&Addmm::functional>);
  m.impl("addmm_", conjugated<&Addmm::in_place>);
  m.impl("addmm.out", conjugated<&Addmm::out>);
  m.impl("bmm", conjugated<&Bmm::functional>);
  m.impl("bmm.out", conjugated<&Bmm::out>);
  m.impl("baddbmm", conjugated<&Baddbmm::functional>);
  m.impl("baddbmm_", conjugated<&Baddbmm::in_place>);
  m.impl("baddbmm.out", conjugated<&Baddbmm::out>);
  m.impl("addmv", &Addmv::functional);
  m.impl("addmv_", &Addmv::in_place);
  m.impl("addmv.out", &Addmv::out);
  // Only the out variant: core has a kernel that makes the functional one from it
  // (CompositeExplicitAutogradNonFunctional) at the price of one more trip through the dispatcher.
  m.impl("_addmm_activation.out", &AddmmActivation::out);
  m.impl("dot", conjugated<&dot>);
  m.impl("vdot", conjugated<&vdot>);
}

}  // namespace
}  // namespace cookbook
