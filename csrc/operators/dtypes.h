// chapter 2
// %% dtypes-sets
// Which dtypes a kernel of the chip's library takes. Asked on the host, before the launch: a kernel that meets a dtype
// it does not know fails later, at a line of the program that has nothing to do with it.
#pragma once

#include <ATen/core/Tensor.h>

#include "operators/launch.h"

namespace cookbook {

class Dtypes {
 public:
  constexpr Dtypes(std::initializer_list<c10::ScalarType> dtypes) {
    for (const c10::ScalarType dtype : dtypes) bits |= bit(dtype);
  }
  constexpr Dtypes operator|(Dtypes other) const { return Dtypes(bits | other.bits); }
  constexpr bool has(c10::ScalarType dtype) const { return (bits & bit(dtype)) != 0; }

  // Public, so that a set can be a template argument.
  uint64_t bits = 0;

 private:
  constexpr explicit Dtypes(uint64_t all) : bits(all) {}
  static constexpr uint64_t bit(c10::ScalarType dtype) { return uint64_t{1} << static_cast<int>(dtype); }
};

// The families that PyTorch's CPU kernels are made for.
inline constexpr Dtypes kFloating{c10::kFloat, c10::kDouble, c10::kHalf, c10::kBFloat16};
inline constexpr Dtypes kIntegers{c10::kByte, c10::kChar, c10::kShort, c10::kInt, c10::kLong};
inline constexpr Dtypes kReal = kFloating | kIntegers;
inline constexpr Dtypes kNumbers = kReal | Dtypes{c10::kComplexFloat, c10::kComplexDouble};
inline constexpr Dtypes kNumbersAndBool = kNumbers | Dtypes{c10::kBool};

// %% dtypes-check
// Raises what PyTorch's own kernels raise. `kernel` is the name that a CPU program would see in the error.
inline void check_dtype(const char* kernel, c10::ScalarType dtype, Dtypes known) {
  TORCH_CHECK_NOT_IMPLEMENTED(known.has(dtype), '"', kernel, "\" not implemented for '", dtype, "'");
}

// A structured operator's meta function, and after it the check of the first tensor's dtype. Made for Structured's
// second argument: checked<"addmm_impl_cpu_", kNumbers, &at::meta::structured_mm::meta>.
template <Name kernel, Dtypes known, auto MetaFunction, class F = decltype(MetaFunction)>
struct Checked;

template <Name kernel, Dtypes known, auto MetaFunction, class R, class Meta, class... A>
struct Checked<kernel, known, MetaFunction, R (Meta::*)(A...)> : Meta {
  R meta(A... arguments) {
    if (const at::Tensor& leader = first(arguments...); leader.numel() != 0) {
      check_dtype(kernel.text, leader.scalar_type(), known);
    }
    return (this->*MetaFunction)(arguments...);
  }

 private:
  template <class First, class... Rest>
  static const at::Tensor& first(const First& leader, const Rest&...) {
    return leader;
  }
};

template <Name kernel, Dtypes known, auto MetaFunction>
constexpr auto checked = &Checked<kernel, known, MetaFunction>::meta;

}  // namespace cookbook
