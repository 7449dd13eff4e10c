// Maps and unmaps blocks of other processes.
#include "opened_blocks.h"

#include <algorithm>

#include "address_space.h"
#include "device.h"
#include "error.h"

namespace cookbook::driver {

using Guard = std::lock_guard<SpinLock>;

void* OpenedBlocks::address(const Blocks::value_type& block) const {
  return reinterpret_cast<void*>(address_space().range(device_) + block.first + block.second.lead);
}

OpenedBlocks::Blocks::iterator OpenedBlocks::find_same(const ForeignBlock& block) {
  return std::find_if(blocks_.begin(), blocks_.end(), [&](const auto& entry) {
    return entry.second.foreign.inode == block.inode && entry.second.foreign.number == block.number;
  });
}

OpenedBlocks::Blocks::iterator OpenedBlocks::find_start(const void* pointer) {
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - address_space().range(device_);
  const auto entry = blocks_.find(offset / kPage * kPage);
  return entry != blocks_.end() && address(*entry) == pointer ? entry : blocks_.end();
}

bool OpenedBlocks::find_gap(size_t bytes, size_t& offset) const {
  const size_t begin = address_space().opened_begin(), end = address_space().opened_end();
  const auto search = [&](size_t from, size_t to) {
    auto after = blocks_.lower_bound(from);
    if (after != blocks_.begin()) {
      const auto& [first, before] = *std::prev(after);
      from = std::max(from, first + before.pages_bytes);
    }
    for (; from < to && bytes <= to - from; ++after) {
      const size_t gap_end = after == blocks_.end() ? to : std::min(to, after->first);
      if (gap_end >= from && gap_end - from >= bytes) {
        offset = from;
        return true;
      }
      if (after == blocks_.end()) return false;
      from = after->first + after->second.pages_bytes;
    }
    return false;
  };
  return search(std::max(begin, next_), end) || search(begin, end);
}

cookbookError_t OpenedBlocks::open(const ForeignBlock& block, int file, void*& pointer) {
  const std::lock_guard opening(opening_);
  {
    const Guard lock(lock_);
    if (const auto entry = find_same(block); entry != blocks_.end()) {
      ++entry->second.openings;
      pointer = address(*entry);
      return cookbookSuccess;
    }
  }
  const size_t lead = block.offset % kPage;
  const size_t bytes = (lead + block.bytes + kPage - 1) / kPage * kPage;
  size_t offset = 0;
  if (!find_gap(bytes, offset)) {
    return fail(cookbookErrorOutOfMemory,
                "device %d: no room to open %s of another process: close handles, or raise COOKBOOK_DEVICE_MEMORY, "
                "which decides how much can be open",
                device_, ByteText(block.bytes).c_str());
  }
  Blocks fresh;  // so that what may throw comes before what must be undone
  fresh.emplace(offset, Block{block, lead, bytes, 1});
  const cookbookError_t error = address_space().map_opened(device_, offset, bytes, file, block.offset - lead);
  if (error != cookbookSuccess) return error;
  next_ = offset + bytes;
  const Guard lock(lock_);
  const auto entry = blocks_.insert(fresh.extract(fresh.begin())).position;
  pointer = address(*entry);
  return cookbookSuccess;
}

bool OpenedBlocks::is_open(const void* pointer) {
  const Guard lock(lock_);
  return find_start(pointer) != blocks_.end();
}

cookbookError_t OpenedBlocks::close(const void* pointer) {
  const std::lock_guard opening(opening_);
  Blocks closed;  // freed without the spin lock
  {
    const Guard lock(lock_);
    const auto entry = find_start(pointer);
    if (entry == blocks_.end()) {
      return fail(cookbookErrorInvalidAddress,
                  "device %d: %p is not the start of an opened block of another process: closed before?", device_,
                  pointer);
    }
    if (--entry->second.openings) return cookbookSuccess;
    closed.insert(blocks_.extract(entry));
  }
  const auto& [offset, block] = *closed.begin();
  address_space().unmap_opened(device_, offset, block.pages_bytes);
  return cookbookSuccess;
}

bool OpenedBlocks::find(const void* pointer, DeviceMemory::Found& found) {
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - address_space().range(device_);
  const Guard lock(lock_);
  auto entry = blocks_.upper_bound(offset);
  if (entry == blocks_.begin()) return false;
  --entry;
  const size_t start = entry->first + entry->second.lead;
  if (offset < start || offset - start >= entry->second.foreign.bytes) return false;
  found = {address(*entry), entry->second.foreign.bytes};
  return true;
}

}  // namespace cookbook::driver

void* cookbookTranslateOpened(const cookbookKernelContext* context, const void* pointer, size_t bytes) {
  using namespace cookbook::driver;
  // The context is the driver's own, so its device exists. A pointer that is not in the device's window at all is an
  // offset behind every block.
  Device* const device = device_or_null(context->device);
  DeviceMemory::Found found{};
  if (!device || !device->opened().find(pointer, found)) return nullptr;
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(found.base);
  if (bytes > found.bytes - offset) return nullptr;
  return reinterpret_cast<void*>(reinterpret_cast<intptr_t>(pointer) + context->to_store);
}
