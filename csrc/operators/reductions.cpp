// chapter 2
// %% reductions
// Reductions over dimensions, and scans along one. All but variance and the full max, min and prod are structured.
#include <ATen/core/Tensor.h>
#include <ATen/ops/all_cpu_dispatch.h>
#include <ATen/ops/all_meta.h>
#include <ATen/ops/amax_cpu_dispatch.h>
#include <ATen/ops/amax_meta.h>
#include <ATen/ops/amin_cpu_dispatch.h>
#include <ATen/ops/amin_meta.h>
#include <ATen/ops/aminmax_cpu_dispatch.h>
#include <ATen/ops/aminmax_meta.h>
#include <ATen/ops/any_cpu_dispatch.h>
#include <ATen/ops/any_meta.h>
#include <ATen/ops/argmax_cpu_dispatch.h>
#include <ATen/ops/argmax_meta.h>
#include <ATen/ops/argmin_cpu_dispatch.h>
#include <ATen/ops/argmin_meta.h>
#include <ATen/ops/cumprod_cpu_dispatch.h>
#include <ATen/ops/cumprod_meta.h>
#include <ATen/ops/cumsum_cpu_dispatch.h>
#include <ATen/ops/cumsum_meta.h>
#include <ATen/ops/linalg_vector_norm_cpu_dispatch.h>
#include <ATen/ops/linalg_vector_norm_meta.h>
#include <ATen/ops/max_cpu_dispatch.h>
#include <ATen/ops/max_meta.h>
#include <ATen/ops/mean_cpu_dispatch.h>
#include <ATen/ops/mean_meta.h>
#include <ATen/ops/min_cpu_dispatch.h>
#include <ATen/ops/min_meta.h>
#include <ATen/ops/norm_cpu_dispatch.h>
#include <ATen/ops/norm_meta.h>
#include <ATen/ops/prod_cpu_dispatch.h>
#include <ATen/ops/prod_meta.h>
#include <ATen/ops/sum_cpu_dispatch.h>
#include <ATen/ops/sum_meta.h>
#include <torch/library.h>

#include "operators/pointwise.h"

namespace cookbook {
namespace {

// %% reductions-sums
using Sum = Operator<"sum", &at::meta::structured_sum_dim_IntList::meta, &at::cpu::sum_out>;
struct MeanMeta : at::meta::structured_mean_dim {
  void meta(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, std::optional<c10::ScalarType> dtype) {
    structured_mean_dim::meta(self, dim, keepdim, dtype);
    // `out=` may be of another dtype; the kernel checks that last, which would be too late.
    const c10::ScalarType computed = dtype.value_or(self.scalar_type()), out = maybe_get_output().scalar_type();
    TORCH_CHECK(c10::canCast(computed, out), "result type ", computed, " can't be cast to the desired output type ",
                out);
  }
};
using Mean = Operator<"mean", &MeanMeta::meta, &at::cpu::mean_out>;
using Prod = Operator<"prod", &at::meta::structured_prod_dim_int::meta, &at::cpu::prod_out>;
using Cumsum = Operator<"cumsum", &at::meta::structured_cumsum::meta, &at::cpu::cumsum_out, 1, Empty::Passes>;
using Cumprod = Operator<"cumprod", &at::meta::structured_cumprod::meta, &at::cpu::cumprod_out>;
using VectorNorm =
    Operator<"linalg_vector_norm", &at::meta::structured_linalg_vector_norm::meta, &at::cpu::linalg_vector_norm_out>;

// %% reductions-norm
// The meta function takes a reference to an optional number, the operator and the kernel take the number.
struct NormMeta : at::meta::structured_norm_ScalarOpt_dim {
  void meta(const at::Tensor& self, const std::optional<at::Scalar>& p, c10::IntArrayRef dim, bool keepdim) {
    structured_norm_ScalarOpt_dim::meta(self, p ? at::OptionalScalarRef(*p) : at::OptionalScalarRef(), dim, keepdim);
  }
};
struct NormDtypeMeta : at::meta::structured_norm_ScalarOpt_dim_dtype {
  void meta(const at::Tensor& self, const std::optional<at::Scalar>& p, c10::IntArrayRef dim, bool keepdim,
            c10::ScalarType dtype) {
    structured_norm_ScalarOpt_dim_dtype::meta(self, p ? at::OptionalScalarRef(*p) : at::OptionalScalarRef(), dim,
                                              keepdim, dtype);
  }
};
using Norm = Operator<"norm", &NormMeta::meta,
                      static_cast<at::Tensor& (*)(at::Tensor&, const at::Tensor&, const std::optional<at::Scalar>&,
                                                  c10::IntArrayRef, bool)>(&at::cpu::norm_out)>;
using NormDtype = Operator<"norm", &NormDtypeMeta::meta,
                           static_cast<at::Tensor& (*)(at::Tensor&, const at::Tensor&, const std::optional<at::Scalar>&,
                                                       c10::IntArrayRef, bool, c10::ScalarType)>(&at::cpu::norm_out)>;

// %% reductions-extrema
using Amax = Operator<"amax", &at::meta::structured_amax::meta, &at::cpu::amax_out, 1, Empty::Passes>;
using Amin = Operator<"amin", &at::meta::structured_amin::meta, &at::cpu::amin_out, 1, Empty::Passes>;
using Argmax = Operator<"argmax", &at::meta::structured_argmax::meta, &at::cpu::argmax_out>;
using Argmin = Operator<"argmin", &at::meta::structured_argmin::meta, &at::cpu::argmin_out>;

// Two outputs: values and indices, or both extrema.
using ValuesAndIndices = std::tuple<at::Tensor&, at::Tensor&> (*)(at::Tensor&, at::Tensor&, const at::Tensor&, int64_t,
                                                                  bool);
using MaxDim =
    Operator<"max", &at::meta::structured_max_dim::meta, static_cast<ValuesAndIndices>(&at::cpu::max_out), 2>;
using MinDim =
    Operator<"min", &at::meta::structured_min_dim::meta, static_cast<ValuesAndIndices>(&at::cpu::min_out), 2>;
struct AminmaxMeta : at::meta::structured_aminmax {
  void meta(const at::Tensor& self, std::optional<int64_t> dim, bool keepdim) {
    structured_aminmax::meta(self, dim, keepdim);
    // The text of the kernel without a dimension; it is no NotImplementedError, so a trial would not let it through.
    TORCH_CHECK((dim && self.dim() != 0) || !self.is_complex(), "aminmax not implemented for ", self.scalar_type());
  }
};
using Aminmax = Operator<"aminmax", &AminmaxMeta::meta, &at::cpu::aminmax_out, 2>;

// %% reductions-truth
using OverAll = at::Tensor& (*)(at::Tensor&, const at::Tensor&);
using OverDim = at::Tensor& (*)(at::Tensor&, const at::Tensor&, int64_t, bool);
using OverDims = at::Tensor& (*)(at::Tensor&, const at::Tensor&, at::OptionalIntArrayRef, bool);
using All = Operator<"all", &at::meta::structured_all::meta, static_cast<OverAll>(&at::cpu::all_out)>;
using AllDim = Operator<"all", &at::meta::structured_all_dim::meta, static_cast<OverDim>(&at::cpu::all_out)>;
using AllDims = Operator<"all", &at::meta::structured_all_dims::meta, static_cast<OverDims>(&at::cpu::all_out)>;
using Any = Operator<"any", &at::meta::structured_any::meta, static_cast<OverAll>(&at::cpu::any_out)>;
using AnyDim = Operator<"any", &at::meta::structured_any_dim::meta, static_cast<OverDim>(&at::cpu::any_out)>;
using AnyDims = Operator<"any", &at::meta::structured_any_dims::meta, static_cast<OverDims>(&at::cpu::any_out)>;

// %% reductions-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  implement<Sum>(m, "sum.dim_IntList", nullptr, "sum.IntList_out");
  implement<Mean>(m, "mean.dim", nullptr, "mean.out");
  implement<Prod>(m, "prod.dim_int", nullptr, "prod.int_out");
  implement<Cumsum>(m, "cumsum");
  implement<Cumprod>(m, "cumprod");
  implement<VectorNorm>(m, "linalg_vector_norm", nullptr, "linalg_vector_norm.out");
  implement<Norm>(m, "norm.ScalarOpt_dim", nullptr, "norm.out");
  implement<NormDtype>(m, "norm.ScalarOpt_dim_dtype", nullptr, "norm.dtype_out");
  implement<Amax>(m, "amax", nullptr, "amax.out");
  implement<Amin>(m, "amin", nullptr, "amin.out");
  implement<Argmax>(m, "argmax", nullptr, "argmax.out");
  implement<Argmin>(m, "argmin", nullptr, "argmin.out");
  m.impl("max.dim", &MaxDim::functional);
  m.impl("max.dim_max", &MaxDim::out2);
  m.impl("min.dim", &MinDim::functional);
  m.impl("min.dim_min", &MinDim::out2);
  m.impl("aminmax", &Aminmax::functional);
  m.impl("aminmax.out", &Aminmax::out2);
  implement<All>(m, "all", nullptr, "all.all_out");
  implement<AllDim>(m, "all.dim", nullptr, "all.out");
  implement<AllDims>(m, "all.dims", nullptr, "all.dims_out");
  implement<Any>(m, "any", nullptr, "any.all_out");
  implement<AnyDim>(m, "any.dim", nullptr, "any.out");
  implement<AnyDims>(m, "any.dims", nullptr, "any.dims_out");
}

}  // namespace
}  // namespace cookbook
