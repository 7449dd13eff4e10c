// chapter 4
// Sharing memory between processes, under threads: the ledger's counts, and storages that many threads receive and
// drop.
#include "runtime/ipc.h"

#include <c10/core/StorageImpl.h>

#include <cstring>
#include <optional>

#include "runtime/graph.h"
#include "runtime/ipc_ledger.h"
#include "runtime/streams.h"
#include "scaffolding/allocator.h"
#include "scaffolding/device.h"
#include "scaffolding/stream.h"
#include "support.h"
#include "threads.h"

namespace {

using namespace cookbook;
using namespace tests;

constexpr size_t kBytes = 4096;

c10::Storage new_storage(uint64_t mark) {
  c10::Storage storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), kBytes, allocator().allocate(kBytes), &allocator(), /*resizable=*/true);
  fill(current_handle(current_device()), storage.mutable_data(), kBytes, mark);
  return storage;
}

// A message, as it goes through a pipe.
struct Message {
  char text[256];
  size_t bytes;
};
Message packed(const std::string& text) {
  Message message{};
  message.bytes = text.size();
  std::memcpy(message.text, text.data(), std::min(text.size(), sizeof(message.text)));
  return message;
}

}  // namespace

// Both sides of a ledger in one process: its threads take, give back and settle at the same time.
TEST_CASE("ipc: the ledger's entries settle once, whoever holds them") {
  std::atomic<int> settled{0};
  constexpr int kThreads = 6, kRounds = 60;
  const std::string failure = in_threads(kThreads, [&](int) {
    OwnLedger& own = OwnLedger::instance();
    for (int round = 0; round < kRounds; ++round) {
      const LedgerEntry entry = own.acquire();
      expect(OwnLedger::is_own(entry), "an entry of this process's ledger");
      own.slot(entry.slot).sent.fetch_add(2);
      expect(!own.settled(entry.slot), "an entry with a message under way that is not settled");
      const auto foreign = ForeignLedger::of(entry);
      foreign->take(entry);
      foreign->take(entry);
      expect(!own.settled(entry.slot), "an entry that is held not to be settled");
      foreign->give_back(entry.slot);
      expect(!own.settled(entry.slot), "an entry that is held once more not to be settled");
      foreign->give_back(entry.slot);
      expect(own.settled(entry.slot), "an entry that nobody holds to be settled");
      bool refused = false;
      try {
        foreign->take(entry);
      } catch (const c10::Error&) {
        refused = true;
      }
      expect(refused, "a message that came twice to be refused");
      own.release(entry.slot);
      ++settled;
    }
  });
  CHECK(failure == "");
  CHECK(settled == kThreads * kRounds);
}

// Receives messages in several threads, looks at the memory on streams of each, and lets go.
COOKBOOK_CHILD(receiver) {
  constexpr int kThreads = 4;
  int count = 0;
  CHILD_EXPECT(support::receive(count));
  std::vector<Message> messages(static_cast<size_t>(count));
  for (Message& message : messages) CHILD_EXPECT(support::receive(message));
  std::atomic<int> wrong{0};
  const std::string failure = in_threads(kThreads, [&](int i) {
    exchange_stream(new_stream(0));
    for (int k = i; k < count; k += kThreads) {
      const Message& message = messages[static_cast<size_t>(k)];
      const c10::Storage storage = receive_storage({message.text, message.bytes});
      const c10::Stream other = new_stream(0);
      verify(handle(other), storage.data(), kBytes, static_cast<uint64_t>(k), wrong);
      expect(record_received(storage.data_ptr(), other), "received memory");
      verify(current_handle(0), storage.data(), kBytes, static_cast<uint64_t>(k), wrong);
    }
  });
  if (!failure.empty()) std::fprintf(stderr, "%s\n", failure.c_str());
  CHILD_EXPECT(failure.empty());
  CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookSuccess);
  CHILD_EXPECT(wrong == 0);
  CHILD_EXPECT(ipc_stats().received == 0);
  ipc_collect();
  CHILD_EXPECT(ipc_stats().opened == 0);
  CHILD_EXPECT(support::send(0));
  int end = 0;
  CHILD_EXPECT(support::receive(end));  // until the producer has looked
  return 0;
}

TEST_CASE("ipc: threads send, and threads of another process receive") {
  constexpr int kThreads = 4, kEach = 6;
  std::vector<Message> messages(kThreads * kEach);
  {
    std::mutex lock;  // guards `kept`
    std::vector<c10::Storage> kept;
    const std::string failure = in_threads(kThreads, [&](int i) {
      exchange_stream(new_stream(0));
      for (int k = 0; k < kEach; ++k) {
        const size_t number = static_cast<size_t>(i * kEach + k);
        c10::Storage storage = new_storage(number);
        messages[number] = packed(share_storage(storage));
        if (k % 2 != 0) continue;  // dropped before it comes
        const std::lock_guard guard(lock);
        kept.push_back(std::move(storage));
      }
    });
    CHECK(failure == "");
    CHECK(ipc_stats().sent == kThreads * kEach);
    support::Peer peer("receiver");
    peer.send(kThreads * kEach);
    for (const Message& message : messages) peer.send(message);
    CHECK(peer.receive<int>() == 0);
    kept.clear();
    ipc_collect();
    CHECK(ipc_stats().sent == 0);  // all that came was let go of, by a process that still runs
    peer.send(0);
    const auto result = peer.wait();
    CHECK(result.signal == 0);
    CHECK(result.exit_code == 0);
  }
  check(cookbookDeviceSynchronize(0));
  CHECK(allocator().getDeviceStats(0).allocated_bytes[0].current == 0);
}

// Drops received memory while its stream is captured. What lets go must not become a part of the graph: it would run,
// on an object that is gone, each time that the graph does.
COOKBOOK_CHILD(receiver_in_a_capture) {
  Message message{};
  CHILD_EXPECT(support::receive(message));
  const c10::DataPtr target = allocator().allocate(kBytes);
  const c10::Stream stream = new_stream(0);
  exchange_stream(stream);
  std::optional<c10::Storage> storage = receive_storage({message.text, message.bytes});
  {
    Graph graph(at::GraphImplArgs{});
    graph.capture_begin({}, at::GraphCaptureMode::Default);
    fill(handle(stream), target.get(), kBytes, 1);
    storage.reset();
    graph.capture_end();
    CHILD_EXPECT(ipc_stats().received == 1);  // kept: nobody knows yet when the stream has passed
    for (int i = 0; i < 3; ++i) graph.replay();
    CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookSuccess);
  }
  ipc_collect();
  CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookSuccess);
  CHILD_EXPECT(ipc_stats().received == 0);
  ipc_collect();
  CHILD_EXPECT(ipc_stats().opened == 0);
  return 0;
}

TEST_CASE("ipc: memory that is dropped during a capture is let go once, after it") {
  c10::Storage storage = new_storage(1);
  support::Peer peer("receiver_in_a_capture");
  peer.send(packed(share_storage(storage)));
  const auto result = peer.wait();
  CHECK(result.signal == 0);
  CHECK(result.exit_code == 0);
}
