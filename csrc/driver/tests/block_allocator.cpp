// Cutting and joining blocks: what the allocator gives, that it gives all of it back, and that it finds blocks.
#include "block_allocator.h"

#include <algorithm>
#include <random>
#include <set>

#include "support.h"

using namespace cookbook::driver;

namespace {
// The invariants of block_allocator.h, by a walk over all blocks.
void check_tiling(const BlockAllocator& blocks) {
  size_t offset = 0;
  const Block* before = nullptr;
  for (const Block* block = blocks.find(0); block; block = block->after) {
    REQUIRE(block->offset == offset);
    REQUIRE(block->bytes > 0);
    REQUIRE(block->bytes % kGranule == 0);
    REQUIRE(block->before == before);
    if (before) REQUIRE_FALSE((before->state == Block::State::kFree && block->state == Block::State::kFree));
    REQUIRE(blocks.find(block->offset) == block);
    REQUIRE(blocks.find(block->offset + block->bytes - 1) == block);
    offset += block->bytes;
    before = block;
  }
  REQUIRE(offset == blocks.capacity());
}
}  // namespace

TEST_CASE("the whole capacity is one block, before and after use") {
  for (size_t granules : {size_t{1}, size_t{7}, size_t{8}, size_t{15}, size_t{100}, size_t{1000003}}) {
    CAPTURE(granules);
    BlockAllocator blocks(granules * kGranule);
    Block* all = blocks.take(granules * kGranule);
    REQUIRE(all);
    CHECK(blocks.take(kGranule) == nullptr);
    CHECK(blocks.largest_free() == 0);
    blocks.give(all);
    CHECK(blocks.largest_free() == granules * kGranule);
    check_tiling(blocks);
  }
}

TEST_CASE("freeing in any order joins everything again") {
  constexpr size_t kBlocks = 64;
  std::mt19937 random(1);
  for (int order = 0; order < 3; ++order) {
    BlockAllocator blocks(kBlocks * 1024);
    std::vector<Block*> live;
    for (size_t i = 0; i < kBlocks; ++i) live.push_back(blocks.take(1024));
    CHECK(blocks.take(512) == nullptr);
    if (order == 1) std::reverse(live.begin(), live.end());
    if (order == 2) std::shuffle(live.begin(), live.end(), random);
    for (Block* block : live) {
      blocks.give(block);
      check_tiling(blocks);
    }
    CHECK(blocks.largest_free() == kBlocks * 1024);
    CHECK(blocks.take(kBlocks * 1024));
  }
}

TEST_CASE("fragments do not serve a larger request, their joined neighbours do") {
  BlockAllocator blocks(16 * 4096);
  std::vector<Block*> live;
  for (int i = 0; i < 16; ++i) live.push_back(blocks.take(4096));
  for (int i = 0; i < 16; i += 2) blocks.give(live[static_cast<size_t>(i)]);
  CHECK(blocks.largest_free() == 4096);
  CHECK(blocks.take(8192) == nullptr);
  blocks.give(live[1]);
  CHECK(blocks.largest_free() == 3 * 4096);
  Block* joined = blocks.take(3 * 4096);
  REQUIRE(joined);
  CHECK(joined->offset == 0);
}

TEST_CASE("a thorough search finds a fitting block behind smaller ones of its bin") {
  // 64 to 71 granules share a bin. Put the one that fits behind many that do not.
  BlockAllocator blocks(size_t{4096} * kGranule);
  std::vector<Block*> small, walls;
  Block* fits = blocks.take(70 * kGranule);
  walls.push_back(blocks.take(kGranule));
  for (int i = 0; i < 20; ++i) {
    small.push_back(blocks.take(64 * kGranule));
    walls.push_back(blocks.take(kGranule));
  }
  while (Block* rest = blocks.take(kGranule)) walls.push_back(rest);
  const size_t offset = fits->offset;
  blocks.give(fits);
  for (Block* block : small) blocks.give(block);
  CHECK(blocks.take(70 * kGranule, false) == nullptr);
  Block* found = blocks.take(70 * kGranule);
  REQUIRE(found);
  CHECK(found->offset == offset);
}

TEST_CASE("random use: blocks tile, do not overlap, are found by any address, and all comes back") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 4; ++round) {
    const size_t capacity = (size_t{1} << (18 + 2 * round)) + kGranule * static_cast<size_t>(round);
    BlockAllocator blocks(capacity);
    std::vector<Block*> live;
    size_t used = 0;
    for (int step = 0; step < 4000; ++step) {
      if (random() % 5 < 3) {
        const size_t most = size_t{1} << (random() % 8);
        const size_t bytes = BlockAllocator::round(1 + random() % (most * 1024));
        Block* block = blocks.take(bytes);
        if (!block) {
          CHECK(blocks.largest_free() < bytes);  // fails only when it must
          continue;
        }
        CHECK(block->bytes == bytes);
        const size_t inside = block->offset + random() % bytes;
        CHECK(blocks.find(inside) == block);
        live.push_back(block);
        used += bytes;
      } else if (!live.empty()) {
        const size_t i = random() % live.size();
        used -= live[i]->bytes;
        blocks.give(live[i]);
        live[i] = live.back();
        live.pop_back();
      }
      if (step % 200 == 0) check_tiling(blocks);
    }
    CHECK(used <= capacity);
    for (Block* block : live) blocks.give(block);
    check_tiling(blocks);
    CHECK(blocks.largest_free() == blocks.capacity());
    CHECK(blocks.find(blocks.capacity()) == nullptr);
    CHECK(blocks.find(SIZE_MAX) == nullptr);
  }
}

TEST_CASE("the start map agrees with a set") {
  constexpr size_t kGranules = 300000;
  StartMap map(kGranules);
  std::set<size_t> members{0};
  map.insert(0);
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    const size_t granule = random() % kGranules;
    if (random() % 2) {
      map.insert(granule);
      members.insert(granule);
    } else if (!members.empty()) {
      auto member = members.lower_bound(granule);
      if (member != members.end() && *member) {
        map.erase(*member);
        members.erase(member);
      }
    }
    const size_t asked = random() % kGranules;
    REQUIRE(map.last_at_or_before(asked) == *std::prev(members.upper_bound(asked)));
  }
}
