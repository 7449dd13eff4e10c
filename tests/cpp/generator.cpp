// chapter 4
// The generator under threads: what two operators draw never overlaps, and a state is read whole.
#include "runtime/generator.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "runtime/random.h"
#include "support.h"
#include "threads.h"

namespace {

using namespace cookbook;
using namespace tests;

struct Range {
  uint64_t begin, end;
};

// The ranges tile [0, sum): none overlaps another, none is lost.
void check_tiles(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  uint64_t at = 0;
  for (const Range& range : ranges) {
    REQUIRE(range.begin == at);
    at = range.end;
  }
}

}  // namespace

TEST_CASE("generator: concurrent operators reserve ranges of their own") {
  constexpr int kThreads = 6, kDraws = 300;
  // Two generators on one state: each has its own mutex, so only the state's lock is between them.
  at::Generator first = new_generator(0);
  at::Generator second(first.get<PhiloxGenerator>()->graphsafe_get_state());
  for (at::Generator generator : {first, second}) {
    const std::lock_guard guard(generator.mutex());
    REQUIRE(generator.current_seed() == c10::default_rng_seed_val);
  }
  std::vector<Range> ranges[kThreads];
  const std::string failure = in_threads(kThreads + 1, [&](int i) {
    if (i == kThreads) {  // reads the state, as torch.get_rng_state does, and makes copies
      for (int k = 0; k < kDraws; ++k) {
        const std::lock_guard guard(first.mutex());
        const auto* generator = first.get<PhiloxGenerator>();
        const at::Tensor bytes(generator->get_state());
        PhiloxCell cell;
        std::memcpy(&cell, bytes.const_data_ptr(), sizeof(cell));
        expect(cell.seed == c10::default_rng_seed_val && cell.offset % kPhiloxBlock == 0, "a state that is whole");
        expect(first.clone().current_seed() == c10::default_rng_seed_val, "a copy of it");
      }
      return;
    }
    for (int k = 0; k < kDraws; ++k) {
      const int64_t columns = 1 + (k * 7 + i) % 100;
      const auto arguments = reserve(i % 2 == 0 ? first : second, c10::Device(kDeviceType, 0), columns);
      const uint64_t whole = (static_cast<uint64_t>(columns) + kPhiloxBlock - 1) / kPhiloxBlock * kPhiloxBlock;
      ranges[i].push_back({arguments.offset, arguments.offset + whole});
    }
  });
  CHECK(failure == "");
  std::vector<Range> all;
  for (const auto& some : ranges) all.insert(all.end(), some.begin(), some.end());
  CHECK(all.size() == kThreads * kDraws);
  check_tiles(all);
}

// A seed and its offset change together: nobody gets the old seed with the new offset. The offset that comes with a
// seed is far from the other's.
TEST_CASE("generator: seeding beside draws") {
  constexpr uint64_t kFar = uint64_t{1} << 40;
  at::Generator generator = new_generator(1);
  auto* const philox = generator.get<PhiloxGenerator>();
  const std::string failure = in_threads(4, [&](int i) {
    for (int k = 0; k < 300; ++k) {
      if (i == 0) {
        const std::lock_guard guard(generator.mutex());
        const uint64_t seed = static_cast<uint64_t>(k % 2);
        const at::Tensor state(philox->get_state());
        const PhiloxCell cell{seed, seed * kFar};
        std::memcpy(state.mutable_data_ptr(), &cell, sizeof(cell));
        philox->set_state(*state.unsafeGetTensorImpl());
      } else {
        const auto arguments = reserve(generator, c10::Device(kDeviceType, 1), 8);
        expect(arguments.seed == c10::default_rng_seed_val || arguments.offset / kFar == arguments.seed,
               "an offset that belongs to its seed");
      }
    }
  });
  CHECK(failure == "");
}

TEST_CASE("generator: threads that ask for the default generators first") {
  std::atomic<const at::Generator*> seen[2]{};
  const std::string failure = in_threads(6, [&](int i) {
    const at::Generator& mine = default_generator(static_cast<c10::DeviceIndex>(i % 2));
    const at::Generator* other = seen[i % 2].exchange(&mine);
    expect(other == nullptr || other == &mine, "one default generator a device");
  });
  CHECK(failure == "");
}
