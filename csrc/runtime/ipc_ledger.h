// chapter 4
// %% ipc-ledger-header
// The books of memory that was sent to other processes: how many sendings are under way, and whether anybody still
// holds a block.
//
// A producer has one ledger, a memfd that its consumers map. An entry has two counts, sent and received; the difference
// is under way. A consumer that holds the block has a read lock on the entry's byte of the file. The kernel gives up
// the locks of a process that ends, whichever way it ends: a count would stay wrong for ever.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace cookbook {

// Where an entry is, for another process: plain bytes.
struct LedgerEntry {
  uint64_t ledger = 0;      // a number that no other ledger has
  uint64_t generation = 0;  // entries are used again
  int32_t pid = 0, file = -1;
  uint32_t slot = 0;
  uint32_t unused = 0;
};

// %% ipc-ledger-pages
// The file's content. All zero is an entry that was never used.
struct LedgerPages {
  static constexpr uint32_t kSlots = 16384;
  struct Slot {
    std::atomic<uint64_t> sent, received, generation;
    uint64_t unused;
  };
  std::atomic<uint64_t> ledger;
  Slot slots[kSlots];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// A mapped ledger file. Closing it gives up the locks that were taken through it.
class LedgerFile {
 public:
  LedgerFile() = default;
  // A new one.
  static LedgerFile create(uint64_t ledger);
  // Another process's. Throws when that process has ended or has another file there.
  static LedgerFile open(const LedgerEntry& entry);
  LedgerFile(LedgerFile&& other) noexcept;
  LedgerFile& operator=(LedgerFile&& other) noexcept;
  ~LedgerFile();

  int file() const { return file_; }
  LedgerPages::Slot& slot(uint32_t i) const { return pages_->slots[i]; }
  uint64_t ledger() const { return pages_->ledger.load(std::memory_order_relaxed); }

 private:
  explicit LedgerFile(int file);
  int file_ = -1;
  LedgerPages* pages_ = nullptr;
};

// %% ipc-own-ledger
// The producer's side.
class OwnLedger {
 public:
  static OwnLedger& instance();

  LedgerEntry acquire();
  void release(uint32_t slot);
  // Nothing is under way, and no process holds the block.
  bool settled(uint32_t slot);
  // Makes no ledger where there is none.
  static bool is_own(const LedgerEntry& entry);
  LedgerPages::Slot& slot(uint32_t i) { return file_.slot(i); }

 private:
  OwnLedger();
  const LedgerFile file_;
  std::mutex lock_;  // guards what follows
  std::vector<uint32_t> free_;
  uint32_t used_ = 0;  // slots below it have been in use
};

// %% ipc-foreign-ledger
// The consumer's side of one producer's ledger.
class ForeignLedger {
 public:
  static std::shared_ptr<ForeignLedger> of(const LedgerEntry& entry);

  // Takes hold of the entry's block for something that came. Throws when nothing was under way.
  void take(const LedgerEntry& entry);
  // The same for a process that holds the block already.
  void acknowledge(const LedgerEntry& entry);
  // What is under way goes on to a third process. The caller holds the block.
  void forward(const LedgerEntry& entry);
  // Lets go of what one take() took. On a stream's thread too: it calls no driver and takes no GIL.
  void give_back(uint32_t slot) noexcept;

  explicit ForeignLedger(LedgerFile file) : file_(std::move(file)) {}

 private:
  const LedgerFile file_;
  std::mutex lock_;  // guards held_; system calls that do not wait are made under it
  std::map<uint32_t, unsigned> held_;
};

// Counts one more as received. Throws when `entry` is an older use of the slot, or when all that was sent had come.
void note_received(LedgerPages::Slot& slot, const LedgerEntry& entry);

}  // namespace cookbook
