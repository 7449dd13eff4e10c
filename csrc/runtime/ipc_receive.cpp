// chapter 4
// %% ipc-opened
// The consumer's side: other processes' memory is opened once and held until the streams that use it have passed.
#include <c10/core/Event.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "operators/on_device.h"
#include "runtime/capture.h"
#include "runtime/ipc_sides.h"
#include "runtime/stream_uses.h"
#include "scaffolding/stream.h"

namespace cookbook {
namespace {

// A block of another process that is mapped here. Closing one waits for the devices, so a few stay open without a
// storage: the next message is most often about the same block.
struct Opened {
  void* base = nullptr;
  size_t bytes = 0;
  unsigned users = 0;
  uint64_t last_use = 0;
};

// A storage's hold on another process's memory.
struct Received {
  IpcMessage message;
  std::shared_ptr<ForeignLedger> ledger;
  std::string block;  // its key in `opened`
  uintptr_t begin = 0;
  c10::Stream home;                // was current when it came
  std::vector<c10::Stream> users;  // the others
  Received* next_late = nullptr;
};

// %% ipc-holdings
// The lock guards everything in here. The driver is called under it only where it does not wait: a stream's thread
// takes the lock too.
struct Holdings {
  static constexpr size_t kKeepOpen = 4;
  std::mutex lock;
  std::map<std::string, Opened> opened;            // by the driver's handle
  std::multimap<uintptr_t, Received*> by_address;  // with a storage
  Received* late = nullptr;                        // dropped while a stream was captured; a list
  uint64_t uses = 0;
  std::atomic<uint64_t> received{0};  // written under the lock
};
Holdings& holdings() {
  static auto* const instance = new Holdings;  // never destroyed: storages outlive static destructors
  return *instance;
}

// %% ipc-open
std::string key_of(const cookbookIpcMemHandle_t& block) {
  return std::string(reinterpret_cast<const char*>(block.bytes), sizeof(block.bytes));
}

// The block of the message, open, with one user more. Needs the lock.
const Opened& use_block(const IpcMessage& message, const std::string& key) {
  const auto [place, fresh] = holdings().opened.try_emplace(key);
  Opened& opened = place->second;
  if (fresh) {
    const cookbookError_t error =
        cookbookIpcOpenMemHandle(&opened.base, &message.block, static_cast<int>(message.device));
    if (error != cookbookSuccess) holdings().opened.erase(place);
    check(error);
    cookbookPointerAttributes attributes{};
    check(cookbookPointerGetAttributes(&attributes, opened.base));
    opened.bytes = attributes.bytes;
  }
  TORCH_CHECK(message.offset <= opened.bytes && message.bytes <= opened.bytes - message.offset, "the message says ",
              message.bytes, " bytes from ", message.offset, " on, the block has ", opened.bytes);
  ++opened.users;
  opened.last_use = ++holdings().uses;
  return opened;
}

// %% ipc-let-go
// On a stream's thread, behind the last use: the producer may have its memory back at once, nobody has to come by and
// look. It calls no driver, as a host function must not. A device that fails while this is queued drops it; the block
// is then held until this process ends.
void let_go(void* context) noexcept {
  const std::unique_ptr<Received> received(static_cast<Received*>(context));
  received->ledger->give_back(received->message.entry.slot);
  const std::lock_guard guard(holdings().lock);
  --holdings().opened.at(received->block).users;
  holdings().received.fetch_sub(1);
}

// A stream for these functions alone: one on a program's stream would become a part of the graph that is captured
// there, and let go again each time that the graph runs.
c10::Stream last_stream(c10::DeviceIndex index) {
  static std::array<std::atomic<cookbookStream_t>, kMostDevices> made{};
  cookbookStream_t stream = made.at(index).load();
  if (stream == nullptr) {
    const OnDevice guard(c10::Device(kDeviceType, index));
    cookbookStream_t mine = nullptr;
    check(cookbookStreamCreate(&mine, 0));
    if (made.at(index).compare_exchange_strong(stream, mine)) {
      stream = mine;
    } else {
      warn(cookbookStreamDestroy(mine));  // another thread was faster
    }
  }
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, index), reinterpret_cast<c10::StreamId>(stream));
}

// %% ipc-let-go-behind
// Makes the last stream wait for what is queued on `user` now. False when that is captured and runs nothing.
bool wait_for(const c10::Stream& user, const c10::Stream& last) {
  c10::Event passed(kDeviceType);
  {
    const std::lock_guard no_capture(capture_lock());
    if (capture_of(handle(user)) != 0) return false;
    passed.record(user);
  }
  passed.block(last);
  return true;
}

void let_go_behind_uses(Received* received) noexcept {
  try {
    const c10::Stream last = last_stream(static_cast<c10::DeviceIndex>(received->message.device));
    bool passed = wait_for(received->home, last);
    for (const c10::Stream& user : received->users) passed = passed && wait_for(user, last);
    if (passed) return check(cookbookLaunchHostFunc(handle(last), &let_go, received));
  } catch (const std::exception&) {
    // The device has failed and drops what is queued. Once it is idle nothing uses the memory.
    warn(cookbookDeviceSynchronize(static_cast<int>(received->message.device)));
    return let_go(received);
  }
  const std::lock_guard guard(holdings().lock);
  received->next_late = std::exchange(holdings().late, received);
}

// Tries again those for which a capture was in the way.
void let_go_late() noexcept {
  Received* late = nullptr;
  {
    const std::lock_guard guard(holdings().lock);
    late = std::exchange(holdings().late, nullptr);
  }
  while (late != nullptr) let_go_behind_uses(std::exchange(late, late->next_late));
}

// %% ipc-received-free
// The deleter of received storages.
void free_received(void* context) noexcept {
  if (cookbookIsForkedChild()) return;
  Received* const received = static_cast<Received*>(context);
  {
    const std::lock_guard guard(holdings().lock);
    const auto [first, last] = holdings().by_address.equal_range(received->begin);
    holdings().by_address.erase(
        std::find_if(first, last, [received](const auto& item) { return item.second == received; }));
  }
  let_go_behind_uses(received);
}

// %% ipc-close
// Closes what no storage uses, the oldest first, until `keep` of them are left. Waits for the devices if there is any.
void close_unused(size_t keep) {
  let_go_late();
  std::vector<void*> closing;
  {
    const std::lock_guard guard(holdings().lock);
    auto& opened = holdings().opened;
    std::map<uint64_t, std::string> unused;  // by the time of its last use
    for (const auto& [key, block] : opened) {
      if (block.users == 0) unused.emplace(block.last_use, key);
    }
    while (unused.size() > keep) {
      const auto place = opened.find(unused.begin()->second);
      closing.push_back(place->second.base);
      opened.erase(place);
      unused.erase(unused.begin());
    }
  }
  for (void* base : closing) warn(cookbookIpcCloseMemHandle(base));
}

}  // namespace

// %% ipc-receive
c10::Storage make_storage(const IpcMessage& message, c10::DataPtr data) {
  // Not resizable: a larger one would be a copy that is no longer shared.
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), message.bytes, std::move(data),
                                               /*allocator=*/nullptr, /*resizable=*/false);
}

c10::Storage receive_storage(std::string_view text) {
  const IpcMessage message = IpcMessage::unpack(text);
  if (OwnLedger::is_own(message.entry)) return receive_own(message);
  const c10::Device device(kDeviceType, static_cast<c10::DeviceIndex>(message.device));
  auto received = std::make_unique<Received>(Received{
      message, ForeignLedger::of(message.entry), key_of(message.block), 0, current_stream(resolve(device)), {}});
  close_unused(Holdings::kKeepOpen);
  received->ledger->take(message.entry);  // first: from here on the producer keeps the block
  try {
    const std::lock_guard guard(holdings().lock);
    received->begin =
        reinterpret_cast<uintptr_t>(use_block(message, received->block).base) + static_cast<uintptr_t>(message.offset);
    holdings().by_address.emplace(received->begin, received.get());
    holdings().received.fetch_add(1);
  } catch (...) {
    received->ledger->give_back(message.entry.slot);
    throw;
  }
  void* const data = reinterpret_cast<void*>(received->begin);
  return make_storage(message, {data, received.release(), &free_received, device});
}

// %% ipc-again
void acknowledge_storage(std::string_view text) {
  const LedgerEntry entry = IpcMessage::unpack(text).entry;
  if (OwnLedger::is_own(entry)) return note_received(OwnLedger::instance().slot(entry.slot), entry);
  ForeignLedger::of(entry)->acknowledge(entry);
}

std::string storage_key(std::string_view text) {
  LedgerEntry entry = IpcMessage::unpack(text).entry;
  entry.pid = entry.file = 0;
  return std::string(reinterpret_cast<const char*>(&entry), sizeof(entry));
}

std::optional<std::string> send_on(const c10::DataPtr& data) {
  if (data.get_deleter() != &free_received) return std::nullopt;
  const auto* received = static_cast<const Received*>(data.get_context());
  received->ledger->forward(received->message.entry);
  return received->message.pack();
}

// %% ipc-record
bool record_received(const c10::DataPtr& data, c10::Stream stream) {
  if (holdings().received.load(std::memory_order_relaxed) == 0) return false;
  const auto address = reinterpret_cast<uintptr_t>(data.get());
  const std::lock_guard guard(holdings().lock);
  auto& by_address = holdings().by_address;
  const auto behind = by_address.upper_bound(address);
  if (behind == by_address.begin()) return false;
  bool found = false;
  const auto [first, last] = by_address.equal_range(std::prev(behind)->first);
  for (auto item = first; item != last; ++item) {
    Received& received = *item->second;
    if (address - received.begin >= received.message.bytes) continue;
    found = true;
    const auto& users = received.users;
    if (stream != received.home && std::find(users.begin(), users.end(), stream) == users.end()) {
      received.users.push_back(stream);
    }
  }
  return found;
}

// %% ipc-received-collect
void collect_opened() { close_unused(0); }

void count_received(IpcStats& stats) {
  const std::lock_guard guard(holdings().lock);
  stats.received = holdings().received.load();
  stats.opened = holdings().opened.size();
  for (const auto& [key, block] : holdings().opened) stats.unused += block.users == 0;
}

void ipc_collect() {
  collect_sent();
  collect_opened();
}

IpcStats ipc_stats() {
  IpcStats stats;
  count_sent(stats);
  count_received(stats);
  return stats;
}

}  // namespace cookbook
