// chapter 4
// %% assertion
// Assertions about values on the device, which core's `multinomial` makes before it draws. Sent to the CPU they would
// make each sample wait; as a kernel, one that fails is reported at the next synchronization, with its text.
#include <ATen/core/Tensor.h>
#include <ATen/ops/is_nonzero_native.h>
#include <torch/library.h>

#include "operators/launch.h"
#include "operators/on_device.h"

namespace cookbook {
namespace {

void assert_message(const at::Tensor& self, std::string_view message) {
  TORCH_CHECK(self.numel() == 1, "Boolean value of Tensor with ",
              self.numel() == 0 ? "no values" : "more than one value", " is ambiguous");
  const OnDevice guard(self.device());
  launch<"assert_async", [](const at::Tensor& self, std::string_view message) {
    TORCH_CHECK(at::native::is_nonzero(self), message);
  }>(self, message);
}

void assert_plain(const at::Tensor& self) {
  assert_message(self, "Expected Tensor with single nonzero value, but got zero");
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_assert_async", &assert_plain);
  m.impl("_assert_async.msg", [](const at::Tensor& self, std::string_view message) {
    assert_message(self, message.empty() ? "Assertion is failed" : message);
  });
}

}  // namespace
}  // namespace cookbook
