// chapter 4
// %% ipc-ledger-file
#include "runtime/ipc_ledger.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace cookbook {

LedgerFile::LedgerFile(int file) : file_(file) {
  void* pages = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(LedgerPages), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (pages != MAP_FAILED) {
    pages_ = static_cast<LedgerPages*>(pages);
    return;
  }
  const int reason = errno;
  if (file >= 0) close(file);
  TORCH_CHECK(false, "cannot map the ledger of shared device memory: ", std::strerror(reason));
}

LedgerFile LedgerFile::create(uint64_t ledger) {
  const int file = memfd_create("cookbook-ledger", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, sizeof(LedgerPages)) != 0) {
    close(file);
    TORCH_CHECK(false, "cannot size the ledger of shared device memory: ", std::strerror(errno));
  }
  LedgerFile made(file);
  made.pages_->ledger.store(ledger, std::memory_order_relaxed);
  return made;
}

// %% ipc-ledger-move
LedgerFile::LedgerFile(LedgerFile&& other) noexcept
    : file_(std::exchange(other.file_, -1)), pages_(std::exchange(other.pages_, nullptr)) {}
LedgerFile& LedgerFile::operator=(LedgerFile&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(pages_, other.pages_);
  return *this;
}
LedgerFile::~LedgerFile() {
  if (pages_ != nullptr) munmap(pages_, sizeof(LedgerPages));
  if (file_ >= 0) close(file_);
}

// %% ipc-ledger-open
// By way of /proc, as the driver opens memory. It makes a file description of its own, to which the locks belong.
LedgerFile LedgerFile::open(const LedgerEntry& entry) {
  const std::string path = "/proc/" + std::to_string(entry.pid) + "/fd/" + std::to_string(entry.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  TORCH_CHECK(file >= 0, "cannot reach process ", entry.pid, ", which shared this memory: ", std::strerror(errno),
              ". It must live until what it sent has been received, and belong to the same user");
  const off_t bytes = lseek(file, 0, SEEK_END);
  if (bytes != static_cast<off_t>(sizeof(LedgerPages))) close(file);
  TORCH_CHECK(bytes == static_cast<off_t>(sizeof(LedgerPages)), "process ", entry.pid,
              " is not the one that shared this memory: that one has ended");
  LedgerFile opened(file);
  TORCH_CHECK(opened.ledger() == entry.ledger, "process ", entry.pid,
              " is not the one that shared this memory: that one has ended");
  return opened;
}

// %% ipc-own-settled
namespace {

uint64_t random_number() {
  uint64_t number = 0;
  TORCH_CHECK(getrandom(&number, sizeof(number), 0) == sizeof(number), "the system gives no random numbers");
  return number;
}

// A lock on the entry's byte. It belongs to the open file, not to the thread or process as older locks do.
int lock_entry(int file, int command, short type, uint32_t slot, short* found = nullptr) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = slot;
  lock.l_len = 1;
  const int result = fcntl(file, command, &lock);
  if (found != nullptr) *found = lock.l_type;
  return result;
}

}  // namespace

bool OwnLedger::settled(uint32_t i) {
  const LedgerPages::Slot& slot = file_.slot(i);
  const uint64_t sent = slot.sent.load();
  if (slot.received.load() != sent) return false;
  // A consumer locks before it counts as received, so what came is held or was let go by now ...
  short found = F_UNLCK;
  if (lock_entry(file_.file(), F_OFD_GETLK, F_WRLCK, i, &found) != 0 || found != F_UNLCK) return false;
  // ... unless it was sent on meanwhile; whoever does that counts before it lets go.
  return slot.sent.load() == sent;
}

// %% ipc-own-entries
namespace {
std::atomic<uint64_t> own_number{0};  // 0: no ledger yet
}

OwnLedger::OwnLedger() : file_(LedgerFile::create(random_number())) {
  free_.reserve(LedgerPages::kSlots);  // so that release() needs no memory
  own_number.store(file_.ledger());
}

OwnLedger& OwnLedger::instance() {
  static auto* const ledger = new OwnLedger;  // never destroyed: tensors outlive static destructors
  return *ledger;
}

LedgerEntry OwnLedger::acquire() {
  LedgerEntry entry;
  {
    const std::lock_guard guard(lock_);
    if (!free_.empty()) {
      entry.slot = free_.back();
      free_.pop_back();
    } else {
      TORCH_CHECK(used_ < LedgerPages::kSlots, "this process shares ", LedgerPages::kSlots,
                  " storages with others already: no more fit into its ledger");
      entry.slot = used_++;
    }
  }
  entry.ledger = file_.ledger();
  entry.generation = file_.slot(entry.slot).generation.load();
  entry.pid = getpid();
  entry.file = file_.file();
  return entry;
}

void OwnLedger::release(uint32_t slot) {
  file_.slot(slot).generation.fetch_add(1);
  const std::lock_guard guard(lock_);
  free_.push_back(slot);
}

bool OwnLedger::is_own(const LedgerEntry& entry) { return entry.ledger != 0 && entry.ledger == own_number.load(); }

// %% ipc-foreign-take
void note_received(LedgerPages::Slot& slot, const LedgerEntry& entry) {
  uint64_t received = slot.received.load();
  do {
    TORCH_CHECK(slot.generation.load() == entry.generation && received < slot.sent.load(),
                "this message with device memory was received before: it can be received as often as it was sent");
  } while (!slot.received.compare_exchange_weak(received, received + 1));
}

std::shared_ptr<ForeignLedger> ForeignLedger::of(const LedgerEntry& entry) {
  static auto* const lock = new std::mutex;  // guards `known`
  static auto* const known = new std::map<uint64_t, std::weak_ptr<ForeignLedger>>;
  const std::lock_guard guard(*lock);
  std::weak_ptr<ForeignLedger>& place = (*known)[entry.ledger];
  std::shared_ptr<ForeignLedger> ledger = place.lock();
  if (ledger == nullptr) {
    std::erase_if(*known, [](const auto& item) { return item.second.expired(); });
    ledger = std::make_shared<ForeignLedger>(LedgerFile::open(entry));
    (*known)[entry.ledger] = ledger;
  }
  return ledger;
}

void ForeignLedger::take(const LedgerEntry& entry) {
  TORCH_CHECK(entry.slot < LedgerPages::kSlots, "expected an entry of a ledger, got number ", entry.slot);
  {
    const std::lock_guard guard(lock_);
    unsigned& held = held_[entry.slot];
    TORCH_CHECK(held > 0 || lock_entry(file_.file(), F_OFD_SETLK, F_RDLCK, entry.slot) == 0,
                "cannot lock an entry of the ledger of process ", entry.pid, ": ", std::strerror(errno));
    ++held;
  }
  try {
    note_received(file_.slot(entry.slot), entry);
  } catch (...) {
    give_back(entry.slot);
    throw;
  }
}

// %% ipc-foreign-give-back
void ForeignLedger::give_back(uint32_t slot) noexcept {
  const std::lock_guard guard(lock_);
  const auto held = held_.find(slot);
  if (held == held_.end() || --held->second > 0) return;
  held_.erase(held);
  lock_entry(file_.file(), F_OFD_SETLK, F_UNLCK, slot);
}

void ForeignLedger::acknowledge(const LedgerEntry& entry) { note_received(file_.slot(entry.slot), entry); }

void ForeignLedger::forward(const LedgerEntry& entry) { file_.slot(entry.slot).sent.fetch_add(1); }

}  // namespace cookbook
