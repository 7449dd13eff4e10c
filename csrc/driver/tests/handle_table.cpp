// Handles: garbage is recognized without being touched, and a destroyed one is not reused soon.
#include "handle_table.h"

#include "support.h"

using namespace support;

namespace {
struct Thing {
  explicit Thing(size_t number) : number(number) {}
  size_t number;
};
using Table = cookbook::driver::HandleTable<Thing, 8, 3>;
}  // namespace

TEST_CASE("a table hands out each slot once, then the longest unused") {
  Table table;
  auto make = [](void* place, size_t index) { return new (place) Thing(index); };
  CHECK(table.slot(&table) == nullptr);
  CHECK(table.slot(nullptr) == nullptr);
  Thing* first = table.acquire(make);
  Thing* second = table.acquire(make);
  CHECK(table.slot(first) == first);
  CHECK(table.slot(reinterpret_cast<char*>(first) + 1) == nullptr);
  CHECK(table.slot(second + 1) == nullptr);  // not handed out yet
  table.give_back(first);
  table.give_back(second);
  Thing* third = table.acquire(make);  // two free slots are too few to reuse one
  CHECK(third->number == 2);
  table.give_back(third);
  CHECK(table.acquire(make) == first);
  while (Thing* more = table.acquire(make)) CHECK(table.slot(more) == more);
  CHECK(table.used() == 8);
}

TEST_CASE("calls refuse garbage and destroyed handles") {
  int value = 0;
  auto* garbage_stream = reinterpret_cast<cookbookStream_t>(&value);
  auto* garbage_event = reinterpret_cast<cookbookEvent_t>(uintptr_t{0xdeadbeef});
  CHECK(cookbookStreamQuery(garbage_stream) == cookbookErrorInvalidHandle);
  CHECK(cookbookStreamDestroy(garbage_stream) == cookbookErrorInvalidHandle);
  CHECK(work_for(garbage_stream, 0) == cookbookErrorInvalidHandle);
  CHECK(cookbookEventQuery(garbage_event) == cookbookErrorInvalidHandle);
  CHECK(cookbookEventDestroy(nullptr) == cookbookErrorInvalidHandle);

  cookbookStream_t stream = nullptr;
  cookbookEvent_t event = nullptr;
  REQUIRE_OK(cookbookStreamCreate(&stream, 0));
  REQUIRE_OK(cookbookEventCreate(&event, cookbookEventDefault));
  REQUIRE_OK(cookbookEventDestroy(event));
  CHECK(cookbookEventDestroy(event) == cookbookErrorInvalidHandle);
  CHECK(cookbookEventRecord(event, stream) == cookbookErrorInvalidHandle);
  CHECK(cookbookStreamWaitEvent(stream, event) == cookbookErrorInvalidHandle);
  REQUIRE_OK(cookbookStreamDestroy(stream));
  CHECK(cookbookStreamDestroy(stream) == cookbookErrorInvalidHandle);
  CHECK(cookbookStreamSynchronize(stream) == cookbookErrorInvalidHandle);
  CHECK(work_for(stream, 0) == cookbookErrorInvalidHandle);
  CHECK(contains(last_message(), "destroyed"));
}
