// chapter 2
// %% copy-kernel
// Copies: every direction, dtype pair and layout goes through `_copy_from`.
//
// Bytes move between devices and host only as one contiguous run. All that is not one (other strides, another dtype,
// conj and neg bits, broadcasting) happens on one side, before or after, as a kernel or as a CPU copy; so only the
// bytes of the view move, never those of its storage.
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_ops.h>
#include <torch/library.h>

#include "operators/empty.h"
#include "operators/event.h"
#include "operators/launch.h"
#include "operators/on_device.h"
#include "operators/resize.h"
#if COOKBOOK_CHAPTER >= 4
#include "scaffolding/pinned.h"
#endif
#include "scaffolding/storage.h"

namespace cookbook {
namespace {

// On one device: the chip's copy kernel converts dtypes and walks strides. The bits travel as numbers, since the
// addresses of a tensor do not know them.
void strided_copy(const at::Tensor& dst, const at::Tensor& src) {
  launch<"copy_", [](at::Tensor& out, const at::Tensor& in, bool out_conj, bool out_neg, bool in_conj, bool in_neg) {
    out._set_conj(out_conj);
    out._set_neg(out_neg);
    in._set_conj(in_conj);
    in._set_neg(in_neg);
    at::native::copy_(out, in, false);
    for (const at::Tensor* tensor : {static_cast<const at::Tensor*>(&out), &in}) {
      tensor->_set_conj(false);
      tensor->_set_neg(false);
    }
  }>(dst, src, dst.is_conj(), dst.is_neg(), src.is_conj(), src.is_neg());
}

#if COOKBOOK_CHAPTER >= 4
// %% copy-keep
// A pinned block may be freed while the copy is queued; it must not serve another tensor before the copy has run. For
// memory that is not pinned this does nothing, and needs to do nothing: its copies wait.
void keep_until_passed(const at::Tensor& host, c10::Device device) {
  pinned_allocator().record_event(const_cast<void*>(host.const_data_ptr()), host.storage().data_ptr().get_context(),
                                  current_stream(device.index()));
}
#endif
// %% copy-bytes
bool on_device(const at::Tensor& tensor) { return tensor.is_privateuseone(); }

// Whether the elements of both are one run of bytes in the same order.
bool same_bytes(const at::Tensor& dst, const at::Tensor& src) {
  return dst.scalar_type() == src.scalar_type() && dst.is_conj() == src.is_conj() && dst.is_neg() == src.is_neg() &&
         ((dst.is_contiguous() && src.is_contiguous()) ||
          (dst.is_non_overlapping_and_dense() && dst.strides() == src.strides()));
}

void move_bytes(const at::Tensor& dst, const at::Tensor& src, bool non_blocking) {
  const c10::Device device = on_device(src) ? src.device() : dst.device();
  const bool to_host = !on_device(dst), from_host = !on_device(src);
  const auto kind = to_host     ? cookbookMemcpyDeviceToHost
                    : from_host ? cookbookMemcpyHostToDevice
                                : cookbookMemcpyDeviceToDevice;
#if COOKBOOK_CHAPTER >= 4
  // Before the copy is queued: a copy that nobody noted would be the hazard itself.
  if (non_blocking && to_host) keep_until_passed(dst, device);
  if (non_blocking && from_host) keep_until_passed(src, device);
#endif
  // Without non_blocking the caller may read or change host memory as soon as this returns.
  const auto copy = !non_blocking && (to_host || from_host) ? &cookbookMemcpy : &cookbookMemcpyAsync;
  check(copy(dst.mutable_data_ptr(), src.const_data_ptr(), dst.nbytes(), kind, current_handle(device.index())));
}

// %% copy-peer
// Between devices the copy runs on the source's stream: behind what the destination's stream has queued (an older use
// of the destination), and before what it queues from now on.
void move_to_peer(const at::Tensor& dst, const at::Tensor& src) {
  order_streams(dst.device(), src.device());
  move_bytes(dst, src, /*non_blocking=*/true);
  order_streams(src.device(), dst.device());
}

// A contiguous tensor of `like`'s shape and dtype on `device`, for a copy that needs a stop in between.
at::Tensor temporary(const at::Tensor& like, c10::Device device) {
  if (device.is_cpu()) return at::detail::empty_cpu(like.sizes(), like.scalar_type());
  const OnDevice guard(device);
  return empty(like.sizes(), like.scalar_type());
}

void copy_on_side(const at::Tensor& dst, const at::Tensor& src) {
  if (on_device(dst)) {
    strided_copy(dst, src);
  } else {
    at::_ops::copy_::call(const_cast<at::Tensor&>(dst), src, false);
  }
}

// %% copy
void copy(const at::Tensor& dst, const at::Tensor& src, bool non_blocking) {
  if (dst.device() == src.device()) {
    if (on_device(dst) && same_bytes(dst, src)) return move_bytes(dst, src, true);
    return copy_on_side(dst, src);
  }
  if (same_bytes(dst, src)) {
    return on_device(dst) && on_device(src) ? move_to_peer(dst, src) : move_bytes(dst, src, non_blocking);
  }
  // One run of bytes in the destination's dtype on the source's side ...
  at::Tensor run = src;
  if (src.scalar_type() != dst.scalar_type() || src.is_conj() || src.is_neg() || !src.is_contiguous()) {
    run = temporary(dst, src.device());
    copy_on_side(run, src);
  }
  if (same_bytes(dst, run)) return copy(dst, run, non_blocking);
  // ... and from there on the destination's side. A stop on the host has to be complete before it is read.
  const at::Tensor landed = temporary(dst, dst.device());
  copy(landed, run, non_blocking && on_device(dst));
  copy_on_side(dst, landed);
}

// %% copy-operators
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  TORCH_CHECK(on_device(self) || self.is_cpu(), "copying from ", self.device(), " to ", dst.device(),
              " is not supported: go by way of the CPU");
  TORCH_CHECK(on_device(dst) || dst.is_cpu(), "copying from ", self.device(), " to ", dst.device(),
              " is not supported: go by way of the CPU");
  const at::Tensor source = self.sizes() == dst.sizes() ? self : self.expand_as(dst);  // raises when it cannot
  if (dst.numel() != 0 && !dst.is_same(self)) {
    // Now, and not in the kernel: what a copy may not do is the same on every device.
    at::assert_no_internal_overlap(dst);
    at::assert_no_partial_overlap(dst, self);
    copy(dst, source, non_blocking);
  }
  return dst;
}

// What the CPU fallback uses to return a result. A tensor that was empty takes the result's strides too, gaps included:
// the columns of a matrix stay columns.
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  const bool fresh = dst.numel() == 0;
  dst.resize_(self.sizes());
  if (fresh && on_device(dst) && at::has_internal_overlap(self) != at::MemOverlap::Yes) {
    c10::TensorImpl* impl = dst.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(self.sizes(), self.strides());
    const size_t bytes =
        at::detail::computeStorageNbytes(self.sizes(), self.strides(), impl->itemsize(), impl->storage_offset());
    if (bytes > dst.storage().nbytes()) resize_storage(dst.storage().unsafeGetStorageImpl(), bytes);
  }
  return copy_from(self, dst, false);
}

// The one operator that must wait: a number comes back to Python.
c10::Scalar local_scalar_dense(const at::Tensor& self) {
  alignas(16) std::byte value[16];
  check(cookbookMemcpy(value, self.const_data_ptr(), self.itemsize(), cookbookMemcpyDeviceToHost,
                       current_handle(self.device().index())));
  Scratch& scratch = Scratch::of_this_thread();
  scratch.reset();
  return at::native::_local_scalar_dense_cpu(scratch.view(value, sizeof(value), self.scalar_type(), {}, {}));
}

// %% copy-register
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
}
// The keys of the conj and neg bits would clone the argument first, and a clone is a copy: without these two lines
// `x.conj().resolve_conj()` calls itself until the stack ends. The kernel above handles both bits.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace
}  // namespace cookbook
