// chapter 4
// %% ipc-sent
// The producer's side: a storage that was shared frees its memory once the last holder has let go.
#include <c10/core/StorageImpl.h>

#include <map>
#include <mutex>

#include "operators/on_device.h"
#include "runtime/ipc_sides.h"

namespace cookbook {
namespace {

// A shared storage's memory.
struct Sent {
  c10::DataPtr memory;  // what the storage had before
  IpcMessage message;
  // Storages of this process over it; more than one only when it received its own message.
  unsigned references = 1;
};

// By the slot in the ledger. A node moves from one map to the other without memory and without changing its address, so
// a deleter may do it.
using SentBySlot = std::map<uint32_t, Sent>;

// The lock guards everything in here. Memory is freed without it, since freeing runs other code.
struct Books {
  std::mutex lock;
  SentBySlot alive;
  SentBySlot waiting;  // without a storage here; other processes may use them
};
Books& books() {
  static auto* const instance = new Books;  // never destroyed: storages outlive static destructors
  return *instance;
}

// %% ipc-sent-free
// Moves what nobody holds any more to `freed`. Needs the lock; the caller gives it up before `freed` ends.
void take_settled(SentBySlot& freed) {
  SentBySlot& waiting = books().waiting;
  for (auto sent = waiting.begin(); sent != waiting.end();) {
    const auto next = std::next(sent);
    const uint32_t slot = sent->first;
    if (OwnLedger::instance().settled(slot)) {
      freed.insert(waiting.extract(sent));
      OwnLedger::instance().release(slot);
    }
    sent = next;
  }
}

// The deleter of shared storages. A forked child leaves everything to its parent.
void free_sent(void* context) noexcept {
  if (cookbookIsForkedChild()) return;
  Sent* const sent = static_cast<Sent*>(context);
  SentBySlot freed;
  const std::lock_guard guard(books().lock);
  if (--sent->references > 0) return;
  books().waiting.insert(books().alive.extract(sent->message.entry.slot));
  take_settled(freed);
}

c10::DataPtr pointer_to(Sent& sent, void* data) {
  return {data, &sent, &free_sent, c10::Device(kDeviceType, static_cast<c10::DeviceIndex>(sent.message.device))};
}

// %% ipc-sent-adopt
// Puts the storage's memory into the books. The address does not change, so a thread that reads it meanwhile is right
// either way. Needs the lock.
Sent& adopt(const c10::Storage& storage) {
  if (storage.data_ptr().get_deleter() == &free_sent) return *static_cast<Sent*>(storage.data_ptr().get_context());
  void* const data = storage.data_ptr().get();
  cookbookPointerAttributes attributes{};
  check(cookbookPointerGetAttributes(&attributes, data));
  IpcMessage message;
  check(cookbookIpcGetMemHandle(&message.block, data));
  message.offset = static_cast<uint64_t>(static_cast<char*>(data) - static_cast<char*>(attributes.base));
  message.bytes = storage.nbytes();
  message.device = storage.device().index();
  message.entry = OwnLedger::instance().acquire();
  Sent& sent = books().alive[message.entry.slot];
  sent.message = message;
  sent.memory = storage.set_data_ptr(pointer_to(sent, data));
  return sent;
}

}  // namespace

// %% ipc-share
std::string share_storage(const c10::Storage& storage) {
  TORCH_CHECK(storage.device_type() == kDeviceType, "expected a storage on a ", kDeviceType, " device, got one on ",
              storage.device());
  TORCH_CHECK(storage.data() != nullptr, "expected a storage with memory: an empty one has nothing to share");
  collect_sent();
  // A lazy clone gets its own memory here: its copy is queued before the wait, and the allocation, which tells
  // observers that may take the GIL, is not made under the lock.
  static_cast<void>(storage.mutable_data());
  // The whole device and not a stream: queues pickle on a thread of their own, where no stream of the program's is
  // current.
  check(cookbookDeviceSynchronize(storage.device().index()));
  if (const auto message = send_on(storage.data_ptr())) return *message;
  const std::lock_guard guard(books().lock);
  Sent& sent = adopt(storage);
  OwnLedger::instance().slot(sent.message.entry.slot).sent.fetch_add(1);
  return sent.message.pack();
}

c10::Storage receive_own(const IpcMessage& message) {
  const uint32_t slot = message.entry.slot;
  const std::lock_guard guard(books().lock);
  SentBySlot& waiting = books().waiting;
  if (waiting.count(slot) == 0 && books().alive.count(slot) == 0) {
    TORCH_CHECK(false, "this message with device memory was received before, and the memory is gone");
  }
  note_received(OwnLedger::instance().slot(slot), message.entry);
  if (waiting.count(slot) != 0) books().alive.insert(waiting.extract(slot));
  Sent& sent = books().alive.at(slot);
  ++sent.references;
  return make_storage(message, pointer_to(sent, sent.memory.get()));
}

// %% ipc-sent-collect
void collect_sent() {
  SentBySlot freed;
  const std::lock_guard guard(books().lock);
  take_settled(freed);
}

void count_sent(IpcStats& stats) {
  const std::lock_guard guard(books().lock);
  stats.waiting = books().waiting.size();
  stats.sent = books().alive.size() + stats.waiting;
}

}  // namespace cookbook
