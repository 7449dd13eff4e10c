// chapter 2
// %% scattering-gather
// One index a written or read element: gather, and the scatter and index_* families. All structured but `index_fill_`.
#include <ATen/ops/gather_cpu_dispatch.h>
#include <ATen/ops/gather_meta.h>
#include <ATen/ops/index_add_cpu_dispatch.h>
#include <ATen/ops/index_add_meta.h>
#include <ATen/ops/index_copy_cpu_dispatch.h>
#include <ATen/ops/index_copy_meta.h>
#include <ATen/ops/index_fill_native.h>
#include <ATen/ops/scatter_add_cpu_dispatch.h>
#include <ATen/ops/scatter_add_meta.h>
#include <ATen/ops/scatter_cpu_dispatch.h>
#include <ATen/ops/scatter_meta.h>
#include <ATen/ops/scatter_reduce_cpu_dispatch.h>
#include <ATen/ops/scatter_reduce_meta.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/structured.h"

namespace cookbook {
namespace {

constexpr Dtypes kIndexed = kNumbersAndBool | Dtypes{c10::kComplexHalf};
constexpr char kTensorKernel[] = "scatter_gather_tensor_cpu", kScalarKernel[] = "scatter_gather_scalar_cpu";
namespace meta = at::meta;

using Gather =
    Structured<"gather", checked<kTensorKernel, kNumbersAndBool, &meta::structured_gather::meta>, &at::cpu::gather_out>;

// %% scattering-scatter
// `scatter_out` is overloaded; the lambdas choose.
using ScatterTensor =
    Structured<"scatter", checked<kTensorKernel, kNumbersAndBool, &meta::structured_scatter_src::meta>,
               [](at::Tensor& out, const at::Tensor& self, int64_t dim, const at::Tensor& index,
                  const at::Tensor& source) { at::cpu::scatter_out(out, self, dim, index, source); }>;
using ScatterScalar =
    Structured<"scatter", checked<kScalarKernel, kNumbersAndBool, &meta::structured_scatter_value::meta>,
               [](at::Tensor& out, const at::Tensor& self, int64_t dim, const at::Tensor& index,
                  const at::Scalar& value) { at::cpu::scatter_out(out, self, dim, index, value); }>;
using ScatterTensorWith =
    Structured<"scatter", checked<kTensorKernel, kNumbersAndBool, &meta::structured_scatter_reduce::meta>,
               [](at::Tensor& out, const at::Tensor& self, int64_t dim, const at::Tensor& index,
                  const at::Tensor& source,
                  std::string_view reduce) { at::cpu::scatter_out(out, self, dim, index, source, reduce); }>;
using ScatterScalarWith =
    Structured<"scatter", checked<kScalarKernel, kNumbersAndBool, &meta::structured_scatter_value_reduce::meta>,
               [](at::Tensor& out, const at::Tensor& self, int64_t dim, const at::Tensor& index,
                  const at::Scalar& value,
                  std::string_view reduce) { at::cpu::scatter_out(out, self, dim, index, value, reduce); }>;
using ScatterAdd =
    Structured<"scatter_add", checked<kTensorKernel, kNumbersAndBool, &meta::structured_scatter_add::meta>,
               &at::cpu::scatter_add_out>;

// Which dtypes there are depends on the reduction: complex numbers have no order, booleans no mean.
struct ScatterReduceMeta : meta::structured_scatter_reduce_two {
  void meta(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source,
            std::string_view reduce, bool include_self) {
    structured_scatter_reduce_two::meta(self, dim, index, source, reduce, include_self);
    const bool ordered = reduce == "amax" || reduce == "amin";
    const Dtypes known = ordered ? kReal | Dtypes{c10::kBool} : reduce == "mean" ? kNumbers : kNumbersAndBool;
    check_dtype(kTensorKernel, self.scalar_type(), known);
  }
};
using ScatterReduce = Structured<"scatter_reduce", &ScatterReduceMeta::meta, &at::cpu::scatter_reduce_out>;

// %% scattering-index
using IndexAdd = Structured<"index_add", checked<"index_add_", kIndexed, &meta::structured_index_add::meta>,
                            &at::cpu::index_add_out>;
using IndexCopy = Structured<"index_copy", checked<"index_copy_cpu", kIndexed, &meta::structured_index_copy::meta>,
                             &at::cpu::index_copy_out>;

at::Tensor& index_fill(at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Scalar& value) {
  TORCH_CHECK_INDEX(index.scalar_type() == c10::kLong, "index_fill_(): Expected dtype int64 for index.");
  TORCH_CHECK(self.is_complex() || !value.isComplex(),
              "index_fill_(): Converting complex Scalar to non-complex type is not supported");
  TORCH_CHECK(index.dim() <= 1, "Index has to be a vector/scalar");
  dim = c10::maybe_wrap_dim(dim, self.dim());
  check_dtype("index_fill_cpu", self.scalar_type(), kIndexed);
  const OnDevice guard(self.device());
  launch<"index_fill_", [](at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Scalar& value) {
    at::native::index_fill_(self, dim, index, value);
  }>(self, dim, index, value);
  return self;
}
at::Tensor& index_fill_tensor(at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "Only supports 0-dimensional value tensor. Got a tensor with ", value.dim(),
              " dimensions.");
  TORCH_CHECK_INDEX(index.scalar_type() == c10::kLong, "index_fill_(): Expected dtype int64 for index.");
  dim = c10::maybe_wrap_dim(dim, self.dim());
  check_dtype("index_fill_cpu", self.scalar_type(), kIndexed);
  const OnDevice guard(self.device());
  launch<"index_fill_", [](at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& value) {
    at::native::index_fill_(self, dim, index, value);
  }>(self, dim, index, value);
  return self;
}

// %% scattering-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("gather", &Gather::functional);
  m.impl("gather.out", &Gather::out);
  m.impl("scatter.src_out", &ScatterTensor::out);
  m.impl("scatter_.src", &ScatterTensor::in_place);
  m.impl("scatter.value_out", &ScatterScalar::out);
  m.impl("scatter_.value", &ScatterScalar::in_place);
  m.impl("scatter.reduce_out", &ScatterTensorWith::out);
  m.impl("scatter.value_reduce_out", &ScatterScalarWith::out);
  m.impl("scatter_add", &ScatterAdd::functional);
  m.impl("scatter_add_", &ScatterAdd::in_place);
  m.impl("scatter_add.out", &ScatterAdd::out);
  m.impl("scatter_reduce.two_out", &ScatterReduce::out);
  m.impl("index_add_", &IndexAdd::in_place);
  m.impl("index_add.out", &IndexAdd::out);
  m.impl("index_copy.out", &IndexCopy::out);
  m.impl("index_fill_.int_Scalar", &index_fill);
  m.impl("index_fill_.int_Tensor", &index_fill_tensor);
}

}  // namespace
}  // namespace cookbook
