// Memory is really separate: the host faults, and so does a kernel that uses another device's address, checked or not.
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "support.h"

using namespace support;

namespace {

struct Window {
  uintptr_t base;
  size_t size;
  intptr_t to_store;
};
struct WindowArgs {
  Window* window;
};
const cookbookKernel_t window_kernel{"window", [](cookbookKernelContext* context, void* raw) {
                                       *static_cast<WindowArgs*>(raw)->window = {context->base, context->size,
                                                                                 context->to_store};
                                       return cookbookSuccess;
                                     }};

// Translates without a check, as a kernel with a bug would.
const cookbookKernel_t unchecked_kernel{
    "unchecked", [](cookbookKernelContext* context, void* raw) {
      auto* pointer = *static_cast<char**>(raw);
      *reinterpret_cast<volatile char*>(reinterpret_cast<intptr_t>(pointer) + context->to_store) = 1;
      return cookbookSuccess;
    }};

// Asks the system, so that the answer is no signal.
bool readable(uintptr_t address) {
  int ends[2];
  if (pipe(ends) != 0) return true;
  const bool result = write(ends[1], reinterpret_cast<const void*>(address), 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return result;
}

}  // namespace

COOKBOOK_CHILD(host_reads) {
  void* pointer = nullptr;
  CHILD_EXPECT(cookbookMalloc(&pointer, 64) == cookbookSuccess);
  CHILD_EXPECT(cookbookMemsetAsync(pointer, 1, 64, nullptr) == cookbookSuccess);
  CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookSuccess);
  return *static_cast<volatile char*>(pointer);  // must not come back
}

COOKBOOK_CHILD(host_writes) {
  void* pointer = nullptr;
  CHILD_EXPECT(cookbookMalloc(&pointer, 64) == cookbookSuccess);
  *static_cast<volatile char*>(pointer) = 1;
  return 0;
}

COOKBOOK_CHILD(unchecked_foreign) {
  void* pointer = nullptr;
  CHILD_EXPECT(cookbookMalloc(&pointer, 64) == cookbookSuccess);
  CHILD_EXPECT(cookbookSetDevice(1) == cookbookSuccess);
  CHILD_EXPECT(cookbookLaunchKernel(nullptr, &unchecked_kernel, &pointer, sizeof(pointer)) == cookbookSuccess);
  CHILD_EXPECT(cookbookDeviceSynchronize(1) == cookbookSuccess);
  return 0;
}

COOKBOOK_CHILD(unchecked_own) {
  void* pointer = nullptr;
  CHILD_EXPECT(cookbookMalloc(&pointer, 64) == cookbookSuccess);
  CHILD_EXPECT(cookbookLaunchKernel(nullptr, &unchecked_kernel, &pointer, sizeof(pointer)) == cookbookSuccess);
  CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookSuccess);
  return 0;
}

TEST_CASE("the host cannot read or write device memory") {
  CHECK(run_child("host_reads").signal == SIGSEGV);
  CHECK(run_child("host_writes").signal == SIGSEGV);
}

TEST_CASE("an unchecked kernel dies on another device's memory, and only there") {
  CHECK(run_child("unchecked_foreign").signal == SIGSEGV);
  CHECK(run_child("unchecked_own").exit_code == 0);
}

TEST_CASE("a checked kernel reports another device's address as a sticky error with its name") {
  reset_devices();
  void* pointer = nullptr;
  REQUIRE_OK(cookbookMalloc(&pointer, 64));
  TestStream other(1);
  REQUIRE_OK(store_value(other, pointer, 1));
  CHECK(cookbookStreamSynchronize(other) == cookbookErrorIllegalAddress);
  CHECK(contains(last_message(), "kernel 'store_value' on device 1, stream"));
  CHECK(contains(last_message(), "failed: not an address of this device"));
  CHECK_OK(cookbookDeviceSynchronize(0));  // the other device has no failure
  CHECK_OK(cookbookDeviceReset(1));
  CHECK_OK(cookbookFree(pointer));
}

TEST_CASE("translate takes whole ranges of its device only") {
  cookbookKernelContext context{};
  context.base = 4096;
  context.size = 1024;
  context.to_store = 1 << 20;
  auto translate = [&](uintptr_t address, size_t bytes) {
    return reinterpret_cast<uintptr_t>(cookbookTranslate(&context, reinterpret_cast<void*>(address), bytes));
  };
  CHECK(translate(4096, 1024) == 4096 + (1 << 20));
  CHECK(translate(5119, 1) == 5119 + (1 << 20));
  CHECK(translate(5120, 0) == 5120 + (1 << 20));
  CHECK(translate(5120, 1) == 0);
  CHECK(translate(4095, 1) == 0);
  CHECK(translate(4096, 1025) == 0);
  CHECK(translate(4097, SIZE_MAX) == 0);
  CHECK(translate(0, 8) == 0);
}

COOKBOOK_CHILD(sixteen_devices) {
  int count = 0;
  CHILD_EXPECT(cookbookGetDeviceCount(&count) == cookbookSuccess && count == 16);
  Window windows[16];
  void* pointers[16];
  for (int device = 0; device < count; ++device) {
    CHILD_EXPECT(cookbookSetDevice(device) == cookbookSuccess);
    CHILD_EXPECT(cookbookMalloc(&pointers[device], 4096) == cookbookSuccess);
    CHILD_EXPECT(store_value(nullptr, pointers[device], device) == cookbookSuccess);
    const WindowArgs args{&windows[device]};
    CHILD_EXPECT(cookbookLaunchKernel(nullptr, &window_kernel, &args, sizeof(args)) == cookbookSuccess);
    CHILD_EXPECT(cookbookDeviceSynchronize(device) == cookbookSuccess);
  }
  for (int device = 0; device < count; ++device) {
    cookbookPointerAttributes attributes;
    CHILD_EXPECT(cookbookPointerGetAttributes(&attributes, pointers[device]) == cookbookSuccess);
    CHILD_EXPECT(attributes.device == device);
    for (int owner = 0; owner < count; ++owner) {
      for (const size_t offset : {size_t{0}, windows[owner].size / 2, windows[owner].size - 1}) {
        const uintptr_t pointer = windows[owner].base + offset;
        CHILD_EXPECT(!readable(pointer));
        const uintptr_t unchecked = pointer + static_cast<uintptr_t>(windows[device].to_store);
        CHILD_EXPECT(readable(unchecked) == (device == owner));
        cookbookKernelContext context{};
        context.base = windows[device].base;
        context.size = windows[device].size;
        context.to_store = windows[device].to_store;
        void* translated = cookbookTranslate(&context, reinterpret_cast<void*>(pointer), 1);
        CHILD_EXPECT((translated != nullptr) == (device == owner));
      }
    }
  }
  for (int device = 0; device < count; ++device) {  // each store is its own
    int64_t value = -1;
    CHILD_EXPECT(cookbookSetDevice(device) == cookbookSuccess);
    CHILD_EXPECT(cookbookMemcpy(&value, pointers[device], 8, cookbookMemcpyDefault, nullptr) == cookbookSuccess);
    CHILD_EXPECT(value == device);
  }
  return 0;
}

TEST_CASE("16 devices: for every pair an unchecked translation lands where nothing is mapped") {
  CHECK(run_child("sixteen_devices", {{"COOKBOOK_DEVICE_COUNT", "16"}, {"COOKBOOK_DEVICE_MEMORY", "8M"}}).exit_code ==
        0);
  CHECK(run_child("sixteen_devices", {{"COOKBOOK_DEVICE_COUNT", "16"}, {"COOKBOOK_DEVICE_MEMORY", "1G"}}).exit_code ==
        0);
}
