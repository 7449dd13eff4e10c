// Memory of other processes: handles, and what makes one invalid.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "support.h"

using namespace support;

namespace {

// A block of this process with its handle, in device memory that begins on no page's start.
struct Block {
  explicit Block(int64_t value, size_t bytes = 1000) {
    REQUIRE_OK(cookbookMalloc(&before, 512));
    REQUIRE_OK(cookbookMalloc(&pointer, bytes));
    REQUIRE_OK(cookbookIpcGetMemHandle(&handle, pointer));
    REQUIRE_OK(store_value(nullptr, pointer, value));
    REQUIRE_OK(cookbookDeviceSynchronize(0));
  }
  ~Block() {
    if (pointer) CHECK_OK(cookbookFree(pointer));
    CHECK_OK(cookbookFree(before));
  }
  void *before = nullptr, *pointer = nullptr;
  cookbookIpcMemHandle_t handle;
};

bool same(const cookbookIpcMemHandle_t& a, const cookbookIpcMemHandle_t& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

bool fails_with(cookbookError_t error, cookbookError_t expected, const char* part) {
  return error == expected && std::strstr(cookbookGetLastErrorMessage(), part);
}

}  // namespace

// ---- using a block -------------------------------------------------------------------------------------------------

COOKBOOK_CHILD(use_block) {
  cookbookIpcMemHandle_t handle;
  CHILD_EXPECT(receive(handle));
  size_t free_before = 0, free_after = 0, total = 0;
  CHILD_EXPECT(cookbookMemGetInfo(&free_before, &total, 0) == cookbookSuccess);
  void* pointer = nullptr;
  CHILD_EXPECT(cookbookIpcOpenMemHandle(&pointer, &handle, 0) == cookbookSuccess);
  cookbookPointerAttributes attributes;
  CHILD_EXPECT(cookbookPointerGetAttributes(&attributes, static_cast<char*>(pointer) + 999) == cookbookSuccess);
  CHILD_EXPECT(attributes.type == cookbookMemoryDevice && attributes.device == 0);
  CHILD_EXPECT(attributes.base == pointer && attributes.bytes == 1000);
  CHILD_EXPECT(cookbookMemGetInfo(&free_after, &total, 0) == cookbookSuccess);
  CHILD_EXPECT(free_after == free_before);
  // A kernel writes where the other process reads.
  CHILD_EXPECT(add_value(nullptr, pointer, 1) == cookbookSuccess);
  CHILD_EXPECT(store_value(nullptr, static_cast<char*>(pointer) + 992, 7) == cookbookSuccess);
  CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookSuccess);
  cookbookCounters counters;
  CHILD_EXPECT(cookbookGetCounters(&counters, 0) == cookbookSuccess);
  CHILD_EXPECT(counters.copies == 0 && counters.allocations == 0);
  CHILD_EXPECT(send(counters.launches));
  // Copies reach it, also from another device.
  int64_t value = 0;
  CHILD_EXPECT(receive(value));
  CHILD_EXPECT(cookbookMemcpy(&value, pointer, 8, cookbookMemcpyDeviceToHost, nullptr) == cookbookSuccess);
  CHILD_EXPECT(value == 50);
  CHILD_EXPECT(cookbookSetDevice(1) == cookbookSuccess);
  void* other = nullptr;
  CHILD_EXPECT(cookbookMalloc(&other, 8) == cookbookSuccess);
  CHILD_EXPECT(cookbookMemcpy(other, pointer, 8, cookbookMemcpyDeviceToDevice, nullptr) == cookbookSuccess);
  CHILD_EXPECT(add_value(nullptr, other, 1) == cookbookSuccess);
  CHILD_EXPECT(cookbookMemcpy(&value, other, 8, cookbookMemcpyDeviceToHost, nullptr) == cookbookSuccess);
  CHILD_EXPECT(value == 51);
  CHILD_EXPECT(add_value(nullptr, pointer, 1) == cookbookSuccess);  // a kernel of device 1 on memory of device 0
  CHILD_EXPECT(cookbookDeviceSynchronize(1) == cookbookErrorIllegalAddress);
  CHILD_EXPECT(cookbookDeviceReset(1) == cookbookSuccess);
  CHILD_EXPECT(cookbookIpcCloseMemHandle(pointer) == cookbookSuccess);
  return 0;
}

TEST_CASE("another process reads and writes a block, without a copy and without memory of its own") {
  reset_devices();
  Block block(41);
  Peer peer("use_block");
  peer.send(block.handle);
  CHECK(peer.receive<uint64_t>() == 2);  // launches
  CHECK(load_value(block.pointer, nullptr) == 42);
  CHECK(load_value(static_cast<char*>(block.pointer) + 992, nullptr) == 7);
  REQUIRE_OK(store_value(nullptr, block.pointer, 50));
  REQUIRE_OK(cookbookDeviceSynchronize(0));
  peer.send(int64_t{0});
  CHECK(peer.wait().exit_code == 0);
}

TEST_CASE("a block has one handle, from any address in it") {
  Block block(0);
  cookbookIpcMemHandle_t again, middle;
  REQUIRE_OK(cookbookIpcGetMemHandle(&again, block.pointer));
  REQUIRE_OK(cookbookIpcGetMemHandle(&middle, static_cast<char*>(block.pointer) + 999));
  CHECK(same(block.handle, again));
  CHECK(same(block.handle, middle));
  REQUIRE_OK(cookbookIpcGetMemHandle(&again, block.before));
  CHECK(!same(block.handle, again));
  int local = 0;
  CHECK(cookbookIpcGetMemHandle(&again, &local) == cookbookErrorInvalidAddress);
  CHECK(cookbookIpcGetMemHandle(&again, nullptr) == cookbookErrorInvalidAddress);
  CHECK(cookbookIpcGetMemHandle(nullptr, block.pointer) == cookbookErrorInvalidValue);
  REQUIRE_OK(cookbookFree(block.pointer));
  CHECK(cookbookIpcGetMemHandle(&again, block.pointer) == cookbookErrorInvalidAddress);
  block.pointer = nullptr;
}

COOKBOOK_CHILD(close_waits) {
  cookbookIpcMemHandle_t handle;
  void* pointer = nullptr;
  CHILD_EXPECT(receive(handle));
  CHILD_EXPECT(cookbookIpcOpenMemHandle(&pointer, &handle, 0) == cookbookSuccess);
  CHILD_EXPECT(work_for(nullptr, 5000) == cookbookSuccess);
  CHILD_EXPECT(add_value(nullptr, pointer, 1) == cookbookSuccess);
  CHILD_EXPECT(cookbookIpcCloseMemHandle(pointer) == cookbookSuccess);
  CHILD_EXPECT(cookbookStreamQuery(nullptr) == cookbookSuccess);
  return 0;
}

TEST_CASE("closing waits for the device") {
  Block block(1);
  Peer peer("close_waits");
  peer.send(block.handle);
  CHECK(peer.wait().exit_code == 0);
  CHECK(load_value(block.pointer, nullptr) == 2);
}

// ---- what is refused -----------------------------------------------------------------------------------------------

COOKBOOK_CHILD(misuse_block) {
  cookbookIpcMemHandle_t handle;
  void *pointer = nullptr, *again = nullptr;
  CHILD_EXPECT(receive(handle));
  CHILD_EXPECT(cookbookIpcOpenMemHandle(&pointer, &handle, 0) == cookbookSuccess);
  auto* bytes = static_cast<char*>(pointer);
  int64_t value = 0;
  // Addresses around it are as invalid as any, though their pages are mapped.
  for (char* wrong : {bytes - 8, bytes + 996, bytes + 1000, bytes + (1 << 20)}) {
    CHILD_EXPECT(store_value(nullptr, wrong, 1) == cookbookSuccess);
    CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookErrorIllegalAddress);
    CHILD_EXPECT(cookbookDeviceReset(0) == cookbookSuccess);
    CHILD_EXPECT(cookbookMemcpy(&value, wrong, 8, cookbookMemcpyDefault, nullptr) == cookbookErrorInvalidAddress);
  }
  // It is not this process's to free or to give away.
  CHILD_EXPECT(fails_with(cookbookFree(pointer), cookbookErrorInvalidAddress, "cookbookIpcCloseMemHandle"));
  CHILD_EXPECT(fails_with(cookbookFreeAsync(pointer, nullptr), cookbookErrorInvalidAddress, "IpcCloseMemHandle"));
  CHILD_EXPECT(fails_with(cookbookIpcGetMemHandle(&handle, pointer), cookbookErrorInvalidAddress, "another process"));
  CHILD_EXPECT(cookbookIpcCloseMemHandle(bytes + 8) == cookbookErrorInvalidAddress);
  CHILD_EXPECT(cookbookIpcCloseMemHandle(&value) == cookbookErrorInvalidAddress);
  // Open twice, close twice.
  CHILD_EXPECT(cookbookIpcOpenMemHandle(&again, &handle, 0) == cookbookSuccess && again == pointer);
  CHILD_EXPECT(cookbookIpcCloseMemHandle(pointer) == cookbookSuccess);
  CHILD_EXPECT(add_value(nullptr, pointer, 1) == cookbookSuccess);
  CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookSuccess);
  CHILD_EXPECT(cookbookIpcCloseMemHandle(pointer) == cookbookSuccess);
  CHILD_EXPECT(fails_with(cookbookIpcCloseMemHandle(pointer), cookbookErrorInvalidAddress, "closed before?"));
  // Closed, its addresses are invalid for kernels, for copies, and for questions.
  CHILD_EXPECT(add_value(nullptr, pointer, 1) == cookbookSuccess);
  CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookErrorIllegalAddress);
  CHILD_EXPECT(cookbookDeviceReset(0) == cookbookSuccess);
  CHILD_EXPECT(cookbookMemcpy(&value, pointer, 8, cookbookMemcpyDefault, nullptr) == cookbookErrorInvalidAddress);
  cookbookPointerAttributes attributes;
  CHILD_EXPECT(cookbookPointerGetAttributes(&attributes, pointer) == cookbookSuccess);
  CHILD_EXPECT(attributes.type == cookbookMemoryUnregistered);
  // Opened once more it is somewhere else, so a stale address stays invalid.
  CHILD_EXPECT(cookbookIpcOpenMemHandle(&again, &handle, 0) == cookbookSuccess && again != pointer);
  CHILD_EXPECT(cookbookIpcCloseMemHandle(again) == cookbookSuccess);
  return 0;
}

TEST_CASE("an opened block is valid from its start to its end, until it is closed as often as it was opened") {
  Block block(1);
  Peer peer("misuse_block");
  peer.send(block.handle);
  CHECK(peer.wait().exit_code == 0);
  CHECK(load_value(block.pointer, nullptr) == 2);
}

COOKBOOK_CHILD(host_reads_opened) {
  cookbookIpcMemHandle_t handle;
  void* pointer = nullptr;
  CHILD_EXPECT(receive(handle));
  CHILD_EXPECT(cookbookIpcOpenMemHandle(&pointer, &handle, 0) == cookbookSuccess);
  return *static_cast<volatile char*>(pointer);  // must not come back
}

TEST_CASE("the host cannot read an opened block") {
  Block block(1);
  Peer peer("host_reads_opened");
  peer.send(block.handle);
  CHECK(peer.wait().signal == SIGSEGV);
}

COOKBOOK_CHILD(open_wrong_handles) {
  cookbookIpcMemHandle_t handle, freed;
  void* pointer = nullptr;
  CHILD_EXPECT(receive(handle));
  CHILD_EXPECT(receive(freed));
  for (size_t byte = 0; byte < sizeof(handle); ++byte) {
    cookbookIpcMemHandle_t damaged = handle;
    damaged.bytes[byte] ^= 1;
    CHILD_EXPECT(fails_with(cookbookIpcOpenMemHandle(&pointer, &damaged, 0), cookbookErrorInvalidHandle, "64 bytes"));
    CHILD_EXPECT(pointer == nullptr);
  }
  const cookbookIpcMemHandle_t zero{};
  CHILD_EXPECT(cookbookIpcOpenMemHandle(&pointer, &zero, 0) == cookbookErrorInvalidHandle);
  CHILD_EXPECT(fails_with(cookbookIpcOpenMemHandle(&pointer, &freed, 0), cookbookErrorInvalidHandle, "was freed"));
  CHILD_EXPECT(fails_with(cookbookIpcOpenMemHandle(&pointer, &handle, 1), cookbookErrorInvalidDevice, "on device 0"));
  CHILD_EXPECT(cookbookIpcOpenMemHandle(&pointer, &handle, 9) == cookbookErrorInvalidDevice);
  CHILD_EXPECT(cookbookIpcOpenMemHandle(&pointer, nullptr, 0) == cookbookErrorInvalidValue);
  CHILD_EXPECT(cookbookIpcOpenMemHandle(nullptr, &handle, 0) == cookbookErrorInvalidValue);
  cookbookIpcEventHandle_t event_handle;
  cookbookEvent_t event = nullptr;
  std::memcpy(&event_handle, &handle, sizeof(handle));
  CHILD_EXPECT(cookbookIpcOpenEventHandle(&event, &event_handle) == cookbookErrorInvalidHandle);
  CHILD_EXPECT(cookbookIpcOpenMemHandle(&pointer, &handle, 0) == cookbookSuccess);  // it was good all the time
  return 0;
}

TEST_CASE("a handle that is damaged, of a freed block, or opened on another device is refused") {
  Block block(1), reused(2);
  const cookbookIpcMemHandle_t freed = reused.handle;
  // The same memory again, for another block: the old handle must not reach it.
  void* const address = reused.pointer;
  REQUIRE_OK(cookbookFree(reused.pointer));
  REQUIRE_OK(cookbookMalloc(&reused.pointer, 1000));
  CHECK(reused.pointer == address);
  cookbookIpcMemHandle_t fresh;
  REQUIRE_OK(cookbookIpcGetMemHandle(&fresh, reused.pointer));
  CHECK(!same(freed, fresh));
  Peer peer("open_wrong_handles");
  peer.send(block.handle);
  peer.send(freed);
  CHECK(peer.wait().exit_code == 0);
  void* pointer = nullptr;
  CHECK(cookbookIpcOpenMemHandle(&pointer, &block.handle, 0) == cookbookErrorInvalidHandle);
  CHECK(contains(last_message(), "made by this process"));
}

// ---- producers that end --------------------------------------------------------------------------------------------

COOKBOOK_CHILD(produce) {
  void* pointer = nullptr;
  cookbookIpcMemHandle_t handle;
  char go = 0;
  CHILD_EXPECT(cookbookMalloc(&pointer, 64) == cookbookSuccess);
  CHILD_EXPECT(store_value(nullptr, pointer, 77) == cookbookSuccess);
  CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookSuccess);
  CHILD_EXPECT(cookbookIpcGetMemHandle(&handle, pointer) == cookbookSuccess);
  CHILD_EXPECT(send(handle));
  CHILD_EXPECT(receive(go));
  CHILD_EXPECT(cookbookFree(pointer) == cookbookSuccess);
  CHILD_EXPECT(send(go));
  CHILD_EXPECT(receive(go));
  return 0;
}

TEST_CASE("a producer that has ended leaves opened blocks valid and handles invalid") {
  void *pointer = nullptr, *again = nullptr;
  cookbookIpcMemHandle_t handle;
  {
    Peer peer("produce");
    handle = peer.receive<cookbookIpcMemHandle_t>();
    REQUIRE_OK(cookbookIpcOpenMemHandle(&pointer, &handle, 0));
    peer.kill();
  }
  CHECK(load_value(pointer, nullptr) == 77);
  REQUIRE_OK(add_value(nullptr, pointer, 1));
  CHECK(load_value(pointer, nullptr) == 78);
  CHECK(cookbookIpcOpenMemHandle(&again, &handle, 0) == cookbookErrorInvalidHandle);
  CHECK(contains(last_message(), "has ended"));
  CHECK(load_value(pointer, nullptr) == 78);
  CHECK_OK(cookbookIpcCloseMemHandle(pointer));
}

TEST_CASE("a producer that frees first makes its handle invalid and nobody crash") {
  Peer peer("produce");
  const auto handle = peer.receive<cookbookIpcMemHandle_t>();
  void *pointer = nullptr, *again = nullptr;
  REQUIRE_OK(cookbookIpcOpenMemHandle(&pointer, &handle, 0));
  peer.send('f');
  (void)peer.receive<char>();
  CHECK(cookbookIpcOpenMemHandle(&again, &handle, 0) == cookbookErrorInvalidHandle);
  CHECK(contains(last_message(), "was freed"));
  REQUIRE_OK(add_value(nullptr, pointer, 1));  // against the rule; the memory is still there
  CHECK_OK(cookbookDeviceSynchronize(0));
  CHECK_OK(cookbookIpcCloseMemHandle(pointer));
  peer.send('e');
  CHECK(peer.wait().exit_code == 0);
}

COOKBOOK_CHILD(opened_then_forked) {
  cookbookIpcMemHandle_t handle;
  void* pointer = nullptr;
  CHILD_EXPECT(receive(handle));
  CHILD_EXPECT(cookbookIpcOpenMemHandle(&pointer, &handle, 0) == cookbookSuccess);
  const pid_t pid = fork();
  if (pid == 0) {
    void* other = nullptr;
    const bool refused = cookbookIpcOpenMemHandle(&other, &handle, 0) == cookbookErrorForked &&
                         cookbookIpcGetMemHandle(&handle, pointer) == cookbookErrorForked &&
                         cookbookIpcCloseMemHandle(pointer) == cookbookErrorForked;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  CHILD_EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
  CHILD_EXPECT(cookbookIpcCloseMemHandle(pointer) == cookbookSuccess);
  return 0;
}

TEST_CASE("a forked child opens, exports and closes nothing") {
  Block block(1);
  Peer peer("opened_then_forked");
  peer.send(block.handle);
  CHECK(peer.wait().exit_code == 0);
}
