// chapter 2
// %% clamp
// Clamping between bounds that are numbers, tensors, or absent.
#include <ATen/core/Tensor.h>
#include <ATen/ops/clamp_cpu_dispatch.h>
#include <ATen/ops/clamp_max_cpu_dispatch.h>
#include <ATen/ops/clamp_max_meta.h>
#include <ATen/ops/clamp_meta.h>
#include <ATen/ops/clamp_min_cpu_dispatch.h>
#include <ATen/ops/clamp_min_meta.h>
#include <torch/library.h>

#include "operators/pointwise.h"

namespace cookbook {
namespace {

using Number = std::optional<at::Scalar>;
using Bound = std::optional<at::Tensor>;

// The meta functions take references to optional arguments, the operators and kernels take the arguments themselves.
struct ClampMeta : at::meta::structured_clamp {
  void meta(const at::Tensor& self, const Number& min, const Number& max) {
    structured_clamp::meta(self, min ? at::OptionalScalarRef(*min) : at::OptionalScalarRef(),
                           max ? at::OptionalScalarRef(*max) : at::OptionalScalarRef());
  }
};
struct ClampTensorMeta : at::meta::structured_clamp_Tensor {
  void meta(const at::Tensor& self, const Bound& min, const Bound& max) {
    structured_clamp_Tensor::meta(self, min ? at::OptionalTensorRef(*min) : at::OptionalTensorRef(),
                                  max ? at::OptionalTensorRef(*max) : at::OptionalTensorRef());
  }
};

// %% clamp-operators
using Clamp = Operator<"clamp", &ClampMeta::meta,
                       static_cast<at::Tensor& (*)(at::Tensor&, const at::Tensor&, const Number&, const Number&)>(
                           &at::cpu::clamp_out)>;
using ClampTensor = Operator<"clamp", &ClampTensorMeta::meta,
                             static_cast<at::Tensor& (*)(at::Tensor&, const at::Tensor&, const Bound&, const Bound&)>(
                                 &at::cpu::clamp_out)>;

using Binary = at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Tensor&);
using WithScalar = at::Tensor& (*)(at::Tensor&, const at::Tensor&, const at::Scalar&);
using ClampMin =
    Pointwise<"clamp_min", &at::meta::structured_clamp_min::meta, static_cast<WithScalar>(&at::cpu::clamp_min_out)>;
using ClampMax =
    Pointwise<"clamp_max", &at::meta::structured_clamp_max::meta, static_cast<WithScalar>(&at::cpu::clamp_max_out)>;
using ClampMinTensor =
    Operator<"clamp_min", &at::meta::structured_clamp_min_Tensor::meta, static_cast<Binary>(&at::cpu::clamp_min_out)>;
using ClampMaxTensor =
    Operator<"clamp_max", &at::meta::structured_clamp_max_Tensor::meta, static_cast<Binary>(&at::cpu::clamp_max_out)>;

// %% clamp-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  implement<Clamp>(m, "clamp");
  implement<ClampTensor>(m, "clamp.Tensor", "clamp_.Tensor", "clamp.Tensor_out");
  implement<ClampMin>(m, "clamp_min");
  implement<ClampMax>(m, "clamp_max");
  implement<ClampMinTensor>(m, "clamp_min.Tensor", "clamp_min_.Tensor", "clamp_min.Tensor_out");
  implement<ClampMaxTensor>(m, "clamp_max.Tensor", "clamp_max_.Tensor", "clamp_max.Tensor_out");
}

}  // namespace
}  // namespace cookbook
