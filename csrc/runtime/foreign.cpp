// chapter 4
// %% foreign-state
#include "runtime/foreign.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "operators/on_device.h"
#include "runtime/device_cache.h"
#include "scaffolding/stream.h"

namespace cookbook {
namespace {

// What one storage needs of memory that is not ours.
struct Foreign {
  Foreign(uintptr_t begin, size_t bytes, ForeignOwner owner) : begin(begin), bytes(bytes), owner(std::move(owner)) {}
  const uintptr_t begin;
  const size_t bytes;
  ForeignOwner owner;
  StreamUse* uses = nullptr;  // the stream that was current when it came, and those that record_stream has named
  bool marked = false;        // whether the uses' events are recorded
};

// By address. A node moves from one map to the other without memory and without changing its address, so a deleter may
// do it. The lock guards both; owners are let go of without it, since that runs other code.
using ForeignByAddress = std::multimap<uintptr_t, Foreign>;
struct Books {
  std::mutex lock;
  ForeignByAddress alive, dropped;
  std::atomic<size_t> count{0};  // of `alive`, for those who only want to know whether there is anything
  std::atomic<void (*)()> wake{nullptr};
};
Books& books() {
  static auto* const instance = new Books;  // never destroyed: storages outlive static destructors
  return *instance;
}

// %% foreign-passed
// Whether no stream uses the memory any more; then its uses are dropped. What fails is the caller's to warn of, without
// the lock: a warning may run Python. The owner is kept for ever then, which is better than a wrong number.
bool passed(Foreign& foreign, cookbookError_t& failed) noexcept {
  if (!foreign.marked) {
    const std::lock_guard no_capture(capture_lock());
    if (is_captured(foreign.uses)) return false;  // it is tried again later
    const cookbookError_t error = record(foreign.uses);
    if (error != cookbookSuccess) {
      failed = error;
      return false;
    }
    foreign.marked = true;
  }
  return finished(foreign.uses);
}

// %% foreign-drop
// On the stream's thread.
void wake(void*) {
  if (void (*const wake)() = books().wake.load()) wake();
}

// The deleter of the storage. A forked child leaves everything to its parent: it has no streams that could pass.
void free_foreign(void* context) noexcept {
  if (cookbookIsForkedChild()) return;
  auto* const foreign = static_cast<Foreign*>(context);
  cookbookError_t failed = cookbookSuccess;
  std::array<cookbookStream_t, 8> behind{};  // more than eight streams wait for the next collect_foreign()
  {
    const std::lock_guard guard(books().lock);
    auto entry = books().alive.lower_bound(foreign->begin);
    while (&entry->second != foreign) ++entry;
    books().dropped.insert(books().alive.extract(entry));
    books().count.fetch_sub(1);
    if (!passed(*foreign, failed) && foreign->marked) {
      size_t n = 0;
      for (const StreamUse* use = foreign->uses; use != nullptr && n < behind.size(); use = use->next) {
        behind[n++] = use->stream;
      }
    }
  }
  warn(failed);
  // A full queue makes the launch wait: without the lock. Whether it fails does not matter, since somebody who calls
  // collect_foreign() for another reason comes by.
  for (cookbookStream_t stream : behind) {
    if (stream != nullptr && capture_of(stream) == 0) cookbookLaunchHostFunc(stream, &wake, nullptr);
  }
  collect_foreign();
}

}  // namespace

// %% foreign-collect
void collect_foreign() noexcept {
  if (cookbookIsForkedChild()) return;
  ForeignByAddress done;  // ends without the lock
  cookbookError_t failed = cookbookSuccess;
  {
    const std::lock_guard guard(books().lock);
    for (auto entry = books().dropped.begin(); entry != books().dropped.end();) {
      const auto next = std::next(entry);
      if (passed(entry->second, failed)) done.insert(books().dropped.extract(entry));
      entry = next;
    }
  }
  warn(failed);
}

void set_foreign_waker(void (*wake)()) noexcept { books().wake.store(wake); }

ForeignStats foreign_stats() {
  const std::lock_guard guard(books().lock);
  return {books().alive.size(), books().dropped.size()};
}

// %% foreign-check
namespace {

// Which device's memory [address, address + bytes) is.
c10::Device check_range(const void* address, size_t bytes, c10::ScalarType dtype, std::optional<c10::Device> device) {
  if (device) *device = c10::Device(kDeviceType, resolve(*device));
  if (bytes == 0) return device.value_or(c10::Device(kDeviceType, current_device()));
  cookbookPointerAttributes block{};
  check(cookbookPointerGetAttributes(&block, address));
  TORCH_CHECK_VALUE(block.type == cookbookMemoryDevice, "expected an address of device memory, got ", address,
                    block.type == cookbookMemoryHost ? ", which is pinned host memory" : ", which is no device memory");
  const c10::Device owner(kDeviceType, static_cast<c10::DeviceIndex>(block.device));
  TORCH_CHECK_VALUE(!device || *device == owner, "expected memory of ", *device, ", got ", address,
                    ", which is memory of ", owner);
  const size_t room =
      block.bytes - static_cast<size_t>(static_cast<const char*>(address) - static_cast<const char*>(block.base));
  TORCH_CHECK_VALUE(bytes <= room, "expected at most ", room, " bytes, which the block has from ", address,
                    " on, got a tensor of ", bytes, " bytes");
  const size_t align = c10::elementSize(c10::isComplexType(dtype) ? c10::toRealValueType(dtype) : dtype);
  TORCH_CHECK_VALUE(reinterpret_cast<uintptr_t>(address) % align == 0, "expected an address that is a multiple of ",
                    align, " for ", dtype, ", got ", address);
  return owner;
}

}  // namespace

// %% foreign-tensor
at::Tensor from_foreign(void* address, c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                        std::optional<c10::Device> device, ForeignOwner owner) {
  TORCH_CHECK_VALUE(sizes.size() == strides.size(), "expected as many strides as sizes, got ", strides.size(), " and ",
                    sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    TORCH_CHECK_VALUE(sizes[i] >= 0 && strides[i] >= 0, "expected no negative size or stride, got sizes ", sizes,
                      " and strides ", strides);
  }
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  const c10::Device found = check_range(address, bytes, dtype, device);
  const OnDevice guard(found);
  collect_foreign();
  const auto begin = reinterpret_cast<uintptr_t>(address);
  StreamUse* home = new_use(current_stream(found.index()));
  Foreign* foreign = nullptr;
  try {
    const std::lock_guard lock(books().lock);
    foreign = &books()
                   .alive
                   .emplace(std::piecewise_construct, std::forward_as_tuple(begin),
                            std::forward_as_tuple(begin, bytes, std::move(owner)))
                   ->second;
    foreign->uses = home;
    books().count.fetch_add(1);
  } catch (...) {
    drop_use(home);
    throw;
  }
  return at::for_blob(address, sizes)
      .strides(strides)
      .context(foreign, &free_foreign)
      .options(at::TensorOptions().dtype(dtype).device(found))
      .target_device(found)
      .make_tensor();
}

// %% foreign-adopt
at::Tensor adopt_foreign(const at::Tensor& imported) {
  TORCH_CHECK_VALUE(imported.device().is_privateuseone(), "expected a tensor of a ", kDeviceType,
                    " device, got one of ", imported.device());
  void* const address = imported.storage().data_ptr().get();
  const size_t bytes = imported.storage().nbytes();
  if (bytes == 0) return imported;
  const c10::Device device = check_range(address, bytes, imported.scalar_type(), imported.device());
  if (device_cache(device.index()).find(address) != nullptr) return imported;
  auto kept = std::make_unique<at::Tensor>(imported);
  return from_foreign(imported.mutable_data_ptr(), imported.sizes(), imported.strides(), imported.scalar_type(), device,
                      {kept.release(), [](void* tensor) { delete static_cast<at::Tensor*>(tensor); }});
}

// %% foreign-record
bool record_foreign(const c10::DataPtr& data, const c10::Stream& stream) {
  if (books().count.load(std::memory_order_relaxed) == 0) return false;
  const auto address = reinterpret_cast<uintptr_t>(data.get());
  bool found = false;
  const std::lock_guard guard(books().lock);
  const auto behind = books().alive.upper_bound(address);
  for (auto entry = books().alive.begin(); entry != behind; ++entry) {
    Foreign& foreign = entry->second;
    if (address - foreign.begin >= foreign.bytes) continue;
    found = true;
    StreamUse* known = foreign.uses;
    while (known != nullptr && known->stream != handle(stream)) known = known->next;
    if (known != nullptr) continue;
    StreamUse* const use = new_use(stream);
    use->next = foreign.uses;
    foreign.uses = use;
  }
  return found;
}

}  // namespace cookbook
