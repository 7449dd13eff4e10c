// chapter 2
// %% scratch
#include "operators/kernel_scope.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <utility>

namespace cookbook {

namespace {
thread_local Scratch* scratch = nullptr;

// A host thread that waits runs kernels too, and a program may start many of them. A stream's thread may end after
// ATen's own statics are gone: it leaves its tensors as they are.
struct EndOfThread {
  ~EndOfThread() {
    if (!cookbookOnStreamThread()) delete std::exchange(scratch, nullptr);
  }
};
}  // namespace

Scratch& Scratch::of_this_thread() {
  if (scratch == nullptr) [[unlikely]] {
    static thread_local const EndOfThread end;
    scratch = new Scratch;
  }
  return *scratch;
}

// %% scratch-view
at::Tensor& Scratch::view(void* data, size_t bytes, c10::ScalarType dtype, c10::IntArrayRef sizes,
                          c10::IntArrayRef strides) {
  if (used_ == slots_.size()) slots_.emplace_back();
  Slot& slot = slots_[used_++];
  const c10::Device cpu(c10::kCPU);
  if (!slot.tensor.defined() || slot.tensor.use_count() != 1 || slot.tensor.storage().use_count() != 1) {
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(data, cpu), nullptr, /*resizable=*/false);
    slot.tensor = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype));
    slot.dtype = dtype;
  } else {
    c10::StorageImpl* storage = slot.tensor.storage().unsafeGetStorageImpl();
    storage->_mutable_data_ptr_no_checks() = c10::DataPtr(data, cpu);
    storage->unsafe_set_nbytes(bytes);
    if (slot.dtype != dtype) {
      slot.tensor.unsafeGetTensorImpl()->set_storage_and_dtype(c10::Storage(slot.tensor.storage()),
                                                               c10::scalarTypeToTypeMeta(dtype));
      slot.dtype = dtype;
    }
  }
  c10::TensorImpl* impl = slot.tensor.unsafeGetTensorImpl();
  // The slot may have been a number of the program before; that would decide type promotion.
  if (impl->is_wrapped_number()) impl->set_wrapped_number(false);
  impl->set_sizes_and_strides(sizes, strides);
  return slot.tensor;
}

// %% intraop-threads
namespace {
std::atomic<int> intraop_threads{0};
thread_local bool importing_thread = false;

void follow_intraop_threads() {
  static thread_local int current = 0;
  const int wanted = intraop_threads.load(std::memory_order_relaxed);
  if (wanted != current && wanted > 0 && cookbookOnStreamThread()) [[unlikely]] {
    at::set_num_threads(wanted);
    current = wanted;
  }
}
}  // namespace

void note_intraop_threads() {
  if (!importing_thread) return;
  const int threads = at::get_num_threads();
  // Written only when it changes: every stream's thread reads this cache line.
  if (threads != intraop_threads.load(std::memory_order_relaxed)) {
    intraop_threads.store(threads, std::memory_order_relaxed);
  }
}

void set_importing_thread() { importing_thread = true; }

// %% dispatch-state
// Plain CPU kernels: no autograd, no autocast, no mode of the program. BackendSelect must be in, or the first factory
// function inside a CPU kernel finds no kernel of its own.
const c10::impl::LocalDispatchKeySet& kernel_dispatch_state() {
  static const c10::impl::LocalDispatchKeySet state = [] {
    c10::impl::PODLocalDispatchKeySet keys{};
    keys.set_included(c10::DispatchKeySet(c10::DispatchKey::BackendSelect));
    keys.set_excluded(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
    return c10::impl::LocalDispatchKeySet(keys);
  }();
  return state;
}

namespace {

struct KernelScope {
  KernelScope() : saved(c10::impl::tls_local_dispatch_key_set()) {
    c10::impl::_force_tls_local_dispatch_key_set(kernel_dispatch_state());
  }
  ~KernelScope() { c10::impl::_force_tls_local_dispatch_key_set(saved); }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;
  c10::impl::LocalDispatchKeySet saved;
};

}  // namespace

// %% run-kernel
cookbookError_t run_kernel(cookbookKernelContext* context, void* args, void (*body)(cookbookKernelContext*, void*)) {
  const KernelScope scope;
  Scratch::of_this_thread().reset();
  follow_intraop_threads();
  try {
    body(context, args);
    return cookbookSuccess;
  } catch (const c10::Error& error) {
    // Without the backtrace: it is this thread's, not that of the line that launched the kernel.
    return cookbookKernelFail(context, cookbookErrorLaunchFailure, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return cookbookKernelFail(context, cookbookErrorLaunchFailure, error.what());
  } catch (...) {
    return cookbookKernelFail(context, cookbookErrorLaunchFailure, "unknown exception");
  }
}

}  // namespace cookbook
