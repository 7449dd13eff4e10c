// chapter 2
// %% sorting
// Sort and top-k. Sorting is stable on the CPU whether asked for or not, so equal elements keep their order here too.
#include <ATen/ops/sort_cpu_dispatch.h>
#include <ATen/ops/sort_meta.h>
#include <ATen/ops/topk_cpu_dispatch.h>
#include <ATen/ops/topk_meta.h>
#include <torch/library.h>

#include "operators/dtypes.h"
#include "operators/structured.h"

namespace cookbook {
namespace {

constexpr Dtypes kSorted = kReal | Dtypes{c10::kBool, c10::kUInt16, c10::kUInt32, c10::kUInt64};

struct SortMeta : at::meta::structured_sort_stable {
  void meta(const at::Tensor& self, std::optional<bool> stable, int64_t dim, bool descending) {
    TORCH_CHECK(!self.is_complex(), " Sort does not support complex dtypes on CPU");
    check_dtype("sorting_kernel_method_name", self.scalar_type(), kSorted);
    structured_sort_stable::meta(self, stable, dim, descending);
  }
};
struct TopkMeta : at::meta::structured_topk {
  void meta(const at::Tensor& self, int64_t k, int64_t dim, bool largest, bool sorted) {
    TORCH_CHECK(!self.is_complex(), " topk does not support complex dtypes on CPU");
    TORCH_CHECK(self.scalar_type() != c10::kBool, "topk does not support bool dtypes on CPU");
    check_dtype("topk_cpu", self.scalar_type(), kReal);
    structured_topk::meta(self, k, dim, largest, sorted);
  }
};

using Sort =
    Structured<"sort", &SortMeta::meta,
               [](at::Tensor& values, at::Tensor& indices, const at::Tensor& self, std::optional<bool> stable,
                  int64_t dim, bool descending) { at::cpu::sort_out(values, indices, self, stable, dim, descending); },
               2>;
using Topk =
    Structured<"topk", &TopkMeta::meta,
               [](at::Tensor& values, at::Tensor& indices, const at::Tensor& self, int64_t k, int64_t dim, bool largest,
                  bool sorted) { at::cpu::topk_out(values, indices, self, k, dim, largest, sorted); },
               2>;

// %% sorting-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("sort.stable", &Sort::functional);
  m.impl("sort.values_stable", &Sort::out2);
  m.impl("topk", &Topk::functional);
  m.impl("topk.values", &Topk::out2);
}

}  // namespace
}  // namespace cookbook
