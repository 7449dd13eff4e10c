// chapter 1
// %% hooks-state
#include "scaffolding/hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

#if COOKBOOK_CHAPTER >= 4
#include "runtime/generator.h"
#endif
#include "scaffolding/device.h"
#include "scaffolding/error.h"
#if COOKBOOK_CHAPTER >= 2
#include "scaffolding/pinned.h"
#include "scaffolding/storage.h"
#endif

namespace cookbook {
namespace {

using c10::DeviceIndex;

struct Hooks final : at::PrivateUse1HooksInterface {
  // These two must never throw; core's PrivateUse1 defaults do.
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }

  // Asked by the autograd engine and by pin_memory to find out which devices are in use: the true answer, and asking
  // must not bring a device to life.
  bool hasPrimaryContext(DeviceIndex index) const override {
    int has_context = 0;
    check(cookbookDeviceHasContext(index, &has_context));
    return has_context != 0;
  }
  // The driver brings a device up at its first use, so there is nothing to do early.
  void init() const override {
    TORCH_CHECK(!cookbookIsForkedChild(),
                "Cannot re-initialize the cookbook device in a forked subprocess: its threads "
                "did not survive the fork. Use the 'spawn' start method of multiprocessing.");
  }

  // %% hooks-device
  DeviceIndex deviceCount() const override { return device_count(); }
  DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(DeviceIndex index) const override { set_device(index); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return exchange_device(index); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return maybe_exchange_device(index); }

  // %% hooks-pointers
  bool isPinnedPtr(const void* data) const override {
    cookbookPointerAttributes attributes{};
    // PyTorch asks for any CPU pointer; one that the driver does not know is simply not pinned.
    if (cookbookPointerGetAttributes(&attributes, data) != cookbookSuccess) return false;
    return attributes.type == cookbookMemoryHost;
  }
  c10::Device getDeviceFromPtr(void* data) const override {
    cookbookPointerAttributes attributes{};
    check(cookbookPointerGetAttributes(&attributes, data));
    TORCH_CHECK(
        attributes.type == cookbookMemoryDevice, "expected a pointer to device memory, got ", data,
        attributes.type == cookbookMemoryHost ? ", which is pinned host memory" : ", which is not device memory");
    return c10::Device(kDeviceType, static_cast<DeviceIndex>(attributes.device));
  }

#if COOKBOOK_CHAPTER >= 2
  // %% hooks-memory
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  // `UntypedStorage.resize_`, also as FSDP and activation offloading use it: to 0 and back.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), bytes);
  }
#endif
#if COOKBOOK_CHAPTER >= 4
  // %% hooks-generators
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override { return new_generator(index); }
#endif
  // %% hooks-end
};

}  // namespace

// %% hooks-register
void register_hooks() {
  static const bool registered = [] {
    TORCH_CHECK(!at::isPrivateUse1HooksRegistered(),
                "another PrivateUse1 backend is loaded in this process, and PyTorch has room for one. Set "
                "TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import the backend you want by name.");
    // PyTorch keeps the pointer for ever.
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    return true;
  }();
  static_cast<void>(registered);
}

}  // namespace cookbook
