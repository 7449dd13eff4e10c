// Pinned memory: attributes, and copies that do not wait.
#include "support.h"

using namespace support;

namespace {
cookbookPointerAttributes attributes_of(const void* pointer) {
  cookbookPointerAttributes attributes;
  REQUIRE_OK(cookbookPointerGetAttributes(&attributes, pointer));
  return attributes;
}
}  // namespace

TEST_CASE("attributes of pinned memory, in the middle and around") {
  void* pinned = nullptr;
  REQUIRE_OK(cookbookMallocHost(&pinned, 1000));
  auto* bytes = static_cast<char*>(pinned);
  std::memset(pinned, 1, 1000);  // the host may use it
  for (size_t offset : {size_t{0}, size_t{1}, size_t{500}, size_t{999}}) {
    const auto attributes = attributes_of(bytes + offset);
    CHECK(attributes.type == cookbookMemoryHost);
    CHECK(attributes.device == -1);
    CHECK(attributes.base == pinned);
    CHECK(attributes.bytes == 1000);
  }
  CHECK(attributes_of(bytes + 1000).type == cookbookMemoryUnregistered);
  CHECK(attributes_of(bytes - 1).type == cookbookMemoryUnregistered);
  REQUIRE_OK(cookbookFreeHost(pinned));
  CHECK(attributes_of(pinned).type == cookbookMemoryUnregistered);
  CHECK(cookbookFreeHost(pinned) == cookbookErrorInvalidAddress);
}

TEST_CASE("attributes of pointers that the driver never saw") {
  int local = 0;
  for (const void* pointer :
       {static_cast<const void*>(&local), static_cast<const void*>(nullptr),
        reinterpret_cast<const void*>(uintptr_t{1}), reinterpret_cast<const void*>(UINTPTR_MAX)}) {
    const auto attributes = attributes_of(pointer);
    CHECK(attributes.type == cookbookMemoryUnregistered);
    CHECK(attributes.device == -1);
    CHECK(attributes.base == nullptr);
    CHECK(attributes.bytes == 0);
  }
  CHECK(cookbookPointerGetAttributes(nullptr, &local) == cookbookErrorInvalidValue);
}

TEST_CASE("size 0 is a null pointer, null is fine to free") {
  void* pinned = &pinned;
  CHECK_OK(cookbookMallocHost(&pinned, 0));
  CHECK(pinned == nullptr);
  CHECK_OK(cookbookFreeHost(nullptr));
  CHECK(cookbookMallocHost(nullptr, 8) == cookbookErrorInvalidValue);
}

TEST_CASE("a copy with pinned memory returns at once") {
  void *pinned = nullptr, *device = nullptr;
  REQUIRE_OK(cookbookMallocHost(&pinned, 64));
  REQUIRE_OK(cookbookMalloc(&device, 64));
  TestStream stream;
  {
    TestGate gate;
    gate.queue(stream);
    *static_cast<int64_t*>(pinned) = 5;
    CHECK_OK(cookbookMemcpyAsync(device, pinned, 8, cookbookMemcpyHostToDevice, stream));
    CHECK(cookbookStreamQuery(stream) == cookbookErrorNotReady);
    *static_cast<int64_t*>(pinned) = 6;  // the copy has not run: it sees this
    gate.open();
    CHECK(load_value(device, stream) == 6);
  }
  CHECK_OK(cookbookFree(device));
  CHECK_OK(cookbookFreeHost(pinned));
}

TEST_CASE("freeing pinned memory waits for the devices") {
  void *pinned = nullptr, *device = nullptr;
  REQUIRE_OK(cookbookMallocHost(&pinned, 64));
  REQUIRE_OK(cookbookMalloc(&device, 64));
  TestStream stream;
  *static_cast<int64_t*>(pinned) = 7;
  REQUIRE_OK(work_for(stream, 5000));
  REQUIRE_OK(cookbookMemcpyAsync(device, pinned, 8, cookbookMemcpyHostToDevice, stream));
  REQUIRE_OK(cookbookFreeHost(pinned));
  CHECK_OK(cookbookStreamQuery(stream));
  CHECK(load_value(device, stream) == 7);
  CHECK_OK(cookbookFree(device));
}
