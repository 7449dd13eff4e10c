// Gives entries of the table out and takes them back.
#include "exports.h"

#include "address_space.h"
#include "process.h"

namespace cookbook::driver {

uint32_t Exports::add() {
  uint32_t entry;
  if (!free_.empty()) {
    entry = free_.back();
    free_.pop_back();
  } else {
    if (used_ == kExports) return kNone;
    if (free_.capacity() <= used_) free_.reserve(2 * used_ + 16);  // so that remove() needs no memory
    entry = used_++;
  }
  table_[entry].store(unique_number(), std::memory_order_release);
  return entry;
}

void Exports::remove(uint32_t entry) {
  table_[entry].store(0, std::memory_order_release);
  free_.push_back(entry);
}

}  // namespace cookbook::driver
