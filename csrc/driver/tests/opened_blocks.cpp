// Where opened blocks lie: many at once, in and out of order, until the addresses run out.
#include <cstdio>
#include <random>

#include "support.h"

using namespace support;

namespace {
constexpr int kBlocks = 24;
}

COOKBOOK_CHILD(many_blocks) {
  // Sizes of all kinds, so that gaps do not fit; each block knows its number.
  for (int i = 0; i < kBlocks; ++i) {
    void* pointer = nullptr;
    const size_t bytes = 8 + static_cast<size_t>(i) * 40'000;
    CHILD_EXPECT(cookbookMalloc(&pointer, bytes) == cookbookSuccess);
    CHILD_EXPECT(store_value(nullptr, pointer, i) == cookbookSuccess);
    CHILD_EXPECT(store_value(nullptr, static_cast<char*>(pointer) + bytes - 8, i) == cookbookSuccess);
    CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookSuccess);
    cookbookIpcMemHandle_t handle;
    CHILD_EXPECT(cookbookIpcGetMemHandle(&handle, pointer) == cookbookSuccess);
    CHILD_EXPECT(send(handle));
  }
  char go;
  CHILD_EXPECT(receive(go));
  return 0;
}

TEST_CASE("many blocks are opened and closed in any order, and none lies on another") {
  Peer peer("many_blocks");
  std::vector<cookbookIpcMemHandle_t> handles(kBlocks);
  for (auto& handle : handles) handle = peer.receive<cookbookIpcMemHandle_t>();
  std::vector<void*> open(kBlocks, nullptr);
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const auto i = static_cast<size_t>(random() % kBlocks);
    if (open[i]) {
      REQUIRE_OK(cookbookIpcCloseMemHandle(open[i]));
      open[i] = nullptr;
    } else {
      REQUIRE_OK(cookbookIpcOpenMemHandle(&open[i], &handles[i], 0));
    }
    if (round % 50 != 49) continue;
    for (size_t j = 0; j < kBlocks; ++j) {
      if (!open[j]) continue;
      cookbookPointerAttributes attributes;
      REQUIRE_OK(cookbookPointerGetAttributes(&attributes, open[j]));
      CHECK(attributes.base == open[j]);
      CHECK(attributes.bytes == 8 + j * 40'000);
      CHECK(load_value(open[j], nullptr) == static_cast<int64_t>(j));
      CHECK(load_value(static_cast<char*>(open[j]) + attributes.bytes - 8, nullptr) == static_cast<int64_t>(j));
    }
  }
  for (void* pointer : open)
    if (pointer) CHECK_OK(cookbookIpcCloseMemHandle(pointer));
  peer.send('e');
  CHECK(peer.wait().exit_code == 0);
}

COOKBOOK_CHILD(big_blocks) {
  for (int i = 0; i < 2; ++i) {  // too large to be populated: only addresses count
    void* pointer = nullptr;
    cookbookIpcMemHandle_t handle;
    CHILD_EXPECT(cookbookMalloc(&pointer, size_t{1200} << 20) == cookbookSuccess);
    CHILD_EXPECT(cookbookIpcGetMemHandle(&handle, pointer) == cookbookSuccess);
    CHILD_EXPECT(send(handle));
  }
  char go;
  CHILD_EXPECT(receive(go));
  return 0;
}

COOKBOOK_CHILD(open_big_blocks) {
  cookbookIpcMemHandle_t handles[2];
  void *first = nullptr, *second = nullptr;
  CHILD_EXPECT(receive(handles));
  CHILD_EXPECT(cookbookIpcOpenMemHandle(&first, &handles[0], 0) == cookbookSuccess);
  CHILD_EXPECT(cookbookIpcOpenMemHandle(&second, &handles[1], 0) == cookbookErrorOutOfMemory && !second);
  CHILD_EXPECT(std::strstr(cookbookGetLastErrorMessage(), "1.17 GiB"));
  CHILD_EXPECT(store_value(nullptr, first, 5) == cookbookSuccess);
  CHILD_EXPECT(cookbookIpcCloseMemHandle(first) == cookbookSuccess);
  CHILD_EXPECT(cookbookIpcOpenMemHandle(&second, &handles[1], 0) == cookbookSuccess);
  CHILD_EXPECT(cookbookIpcCloseMemHandle(second) == cookbookSuccess);
  return 0;
}

TEST_CASE("a device has addresses for as much of others' memory as it has itself, then an error, then room again") {
  Peer producer("big_blocks", {{"COOKBOOK_DEVICE_MEMORY", "4G"}});
  const auto first = producer.receive<cookbookIpcMemHandle_t>();
  const auto second = producer.receive<cookbookIpcMemHandle_t>();
  Peer consumer("open_big_blocks", {{"COOKBOOK_DEVICE_MEMORY", "1G"}});  // windows of 2 GiB
  consumer.send(first);
  consumer.send(second);
  CHECK(consumer.wait().exit_code == 0);
  producer.send('e');
  CHECK(producer.wait().exit_code == 0);
}
