// The policy of device_memory.h.
#include "device_memory.h"

#include <algorithm>
#include <mutex>

#include "address_space.h"
#include "device.h"
#include "error.h"

namespace cookbook::driver {

using Guard = std::lock_guard<SpinLock>;

DeviceMemory::DeviceMemory(Device& device, size_t capacity)
    : device_(device), blocks_(capacity), exports_(address_space().exports(device.index())), held_(kMaxStreams) {}

// ---- held blocks ---------------------------------------------------------------------------------------------------

DeviceMemory::Held& DeviceMemory::held_by(int stream) {
  auto& held = held_[static_cast<size_t>(stream)];
  if (!held) held = std::make_unique<Held>();
  return *held;
}

void DeviceMemory::hold(Block* block, int stream, uint64_t ticket) {
  Held& held = held_by(stream);  // may throw: first
  block->state = Block::State::kHeld;
  block->holder = stream;
  block->ticket = ticket;
  block->newer = nullptr;
  block->older = held.newest;
  (held.newest ? held.newest->newer : held.oldest) = block;
  held.newest = block;
  held.bins.insert(block);
}

void DeviceMemory::unhold(Block* block) {
  Held& held = *held_[static_cast<size_t>(block->holder)];
  held.bins.erase(block);
  (block->older ? block->older->newer : held.oldest) = block->newer;
  (block->newer ? block->newer->older : held.newest) = block->older;
  block->older = block->newer = nullptr;
}

// Makes `bytes` of a held block live; the rest stays held, at the same place in the order.
Block* DeviceMemory::take_held(Block* block, size_t bytes) {
  Held& held = *held_[static_cast<size_t>(block->holder)];
  held.bins.erase(block);
  Block* rest = nullptr;
  try {
    rest = blocks_.split(block, bytes);
  } catch (...) {
    held.bins.insert(block);
    throw;
  }
  if (rest) {
    rest->holder = block->holder;
    rest->ticket = block->ticket;
    rest->older = block->older;
    rest->newer = block->newer;
    (rest->older ? rest->older->newer : held.oldest) = rest;
    (rest->newer ? rest->newer->older : held.newest) = rest;
    held.bins.insert(rest);
  } else {
    (block->older ? block->older->newer : held.oldest) = block->newer;
    (block->newer ? block->newer->older : held.newest) = block->older;
  }
  block->older = block->newer = nullptr;
  block->state = Block::State::kLive;
  return block;
}

Block* DeviceMemory::find_held(int stream, size_t bytes) const {
  const Held* held = held_[static_cast<size_t>(stream)].get();
  return held ? held->bins.find(bytes, false) : nullptr;
}

void DeviceMemory::reap(int stream, int limit) {
  Held* held = held_[static_cast<size_t>(stream)].get();
  if (!held) return;
  const Stream* owner = device_.stream_number(stream);
  while (limit-- > 0 && held->oldest && owner->done(held->oldest->ticket)) {
    Block* block = held->oldest;
    unhold(block);
    blocks_.give(block);
  }
}

void DeviceMemory::reap_all() {
  for (size_t i = 0; i < held_.size(); ++i) reap(static_cast<int>(i), INT_MAX);
}

bool DeviceMemory::joins(const Block* block, int stream) const {
  return block &&
         (block->state == Block::State::kFree || (block->state == Block::State::kHeld && block->holder == stream));
}

// Joins the held blocks of a stream with each other and with free neighbours. The result is held: it becomes free for
// others with the last of its parts.
void DeviceMemory::join_held(int stream) {
  auto take_out = [this](Block* block) -> uint64_t {
    if (block->state == Block::State::kFree) {
      blocks_.withdraw(block);
      return 0;
    }
    unhold(block);
    return block->ticket;
  };
  for (Block* block = blocks_.find(0); block; block = block->after) {
    if (!joins(block, stream) || !joins(block->after, stream)) continue;
    uint64_t ticket = take_out(block);
    while (joins(block->after, stream)) {
      ticket = std::max(ticket, take_out(block->after));
      blocks_.absorb_next(block);
    }
    hold(block, stream, ticket);
  }
}

std::vector<Dependency> DeviceMemory::unfinished_holders() {
  std::vector<Dependency> holders;
  for (size_t i = 0; i < held_.size(); ++i) {
    if (!held_[i] || !held_[i]->oldest) continue;
    uint64_t last = 0;
    for (const Block* block = held_[i]->oldest; block; block = block->newer) last = std::max(last, block->ticket);
    holders.push_back({device_.stream_number(static_cast<int>(i)), last});
  }
  return holders;
}

// ---- allocating ----------------------------------------------------------------------------------------------------

cookbookError_t DeviceMemory::allocate(size_t bytes, Stream* stream, void*& pointer) {
  pointer = nullptr;
  if (bytes == 0) return cookbookSuccess;
  if (device_.next_allocation_fails()) return out_of_memory(bytes, true);
  if (bytes > blocks_.capacity()) return out_of_memory(bytes, false);
  const size_t rounded = BlockAllocator::round(bytes);
  Block* block = nullptr;
  {
    const Guard lock(lock_);
    Block* own = nullptr;
    if (stream) {
      // A loop that frees and allocates the same sizes ends here, without a look at how far the stream is.
      own = find_held(stream->id(), rounded);
      if (own && own->bytes <= 2 * rounded) {
        block = take_held(own, rounded);
      } else {
        reap(stream->id(), 4);  // a little with each call keeps the lists short
        own = find_held(stream->id(), rounded);
      }
    }
    if (!block) block = blocks_.take(rounded, false);
    if (!block && own) block = take_held(own, rounded);
    if (block) pointer = finish(block, bytes);
  }
  if (!block) {
    cookbookError_t error = cookbookSuccess;
    block = allocate_slowly(rounded, stream, error);
    if (error != cookbookSuccess) return error;
    if (!block) return out_of_memory(bytes, false);
    const Guard lock(lock_);
    pointer = finish(block, bytes);
  }
  // Nobody else knows the block yet, so its numbers may be used without the lock.
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - address_space().range(device_.index());
  if (cookbookError_t error = address_space().populate(device_.index(), offset, rounded); error != cookbookSuccess) {
    (void)free(pointer);
    pointer = nullptr;
    return error;
  }
  return cookbookSuccess;
}

Block* DeviceMemory::allocate_slowly(size_t bytes, Stream* stream, cookbookError_t& error) {
  std::vector<Dependency> holders;
  Dependency dependency{};
  Block* block = nullptr;
  {
    const Guard lock(lock_);
    if (stream) held_by(stream->id());  // may throw: before blocks are on their way
    reap_all();
    if ((block = blocks_.take(bytes))) return block;
    if (stream) {
      join_held(stream->id());
      for (int pass = 0; pass < 2 && !block; ++pass) {  // first our own, then those of others
        for (size_t i = 0; i < held_.size() && !block; ++i) {
          const bool own = i == static_cast<size_t>(stream->id());
          if (!held_[i] || own != (pass == 0)) continue;
          Block* candidate = held_[i]->bins.find(bytes, true);
          if (!candidate) continue;
          dependency = {device_.stream_number(static_cast<int>(i)), candidate->ticket};
          block = take_held(candidate, bytes);
          if (own) return block;
        }
      }
    }
    if (!block) holders = unfinished_holders();
  }
  auto wait_in_order = [&](const Dependency& on) {
    return stream->push(RecordKind::kWait, nullptr, sizeof(Dependency),
                        [&](void* payload, StreamCounters&) { std::memcpy(payload, &on, sizeof(on)); });
  };
  if (block) {
    error = wait_in_order(dependency);
    if (error == cookbookSuccess) return block;
    const Guard lock(lock_);
    hold(block, dependency.stream->id(), dependency.ticket);
    return nullptr;
  }
  if (holders.empty()) return nullptr;
  if (!stream) {
    for (const Dependency& holder : holders) holder.stream->wait(holder.ticket);
    const Guard lock(lock_);
    reap_all();
    return blocks_.take(bytes);
  }
  for (const Dependency& holder : holders) {
    if (holder.stream == stream) continue;
    if ((error = wait_in_order(holder)) != cookbookSuccess) return nullptr;
  }
  // From here on whatever those streams held is behind us in the order of `stream`, so `stream` may hold it.
  const uint64_t ticket = stream->tail();
  const Guard lock(lock_);
  for (const Dependency& holder : holders) {
    if (holder.stream == stream) continue;
    for (Block* held = held_by(holder.stream->id()).oldest; held;) {
      Block* const next = held->newer;
      if (held->ticket <= holder.ticket) {
        unhold(held);
        hold(held, stream->id(), ticket);
      }
      held = next;
    }
  }
  join_held(stream->id());
  Block* const joined = held_by(stream->id()).bins.find(bytes, true);
  return joined ? take_held(joined, bytes) : nullptr;
}

cookbookError_t DeviceMemory::out_of_memory(size_t bytes, bool injected) {
  size_t live, largest;
  {
    const Guard lock(lock_);
    ++stats_.out_of_memory;
    live = stats_.live_bytes;
    largest = blocks_.largest_free();
  }
  return fail(cookbookErrorOutOfMemory, "device %d: out of memory%s: %s asked, %s of %s free, largest free block %s",
              device_.index(), injected ? " (injected fault)" : "", ByteText(bytes).c_str(),
              ByteText(blocks_.capacity() - live).c_str(), ByteText(blocks_.capacity()).c_str(),
              ByteText(largest).c_str());
}

// ---- freeing -------------------------------------------------------------------------------------------------------

Block* DeviceMemory::live_block(void* pointer) {
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - address_space().range(device_.index());
  Block* block = blocks_.find(offset);
  return block && block->state == Block::State::kLive && block->offset == offset ? block : nullptr;
}

// The only two places that change the numbers of blocks in use are here and finish().
Block* DeviceMemory::withdraw(void* pointer) {
  Block* block = live_block(pointer);
  if (!block) return nullptr;
  if (block->exported != Exports::kNone) [[unlikely]]
    exports_.remove(block->exported);
  ++stats_.frees;
  ++calls_.frees;
  --stats_.live_blocks;
  stats_.live_bytes -= block->bytes;
  stats_.requested_bytes -= block->requested;
  stats_.freed_bytes_total += block->bytes;
  stats_.requested_freed_total += block->requested;
  return block;
}

void* DeviceMemory::finish(Block* block, size_t requested) {
  block->requested = requested;
  block->exported = Exports::kNone;
  ++stats_.allocations;
  ++calls_.allocations;
  stats_.live_blocks_peak = std::max(stats_.live_blocks_peak, ++stats_.live_blocks);
  stats_.live_bytes_peak = std::max<uint64_t>(stats_.live_bytes_peak, stats_.live_bytes += block->bytes);
  stats_.requested_bytes_peak = std::max<uint64_t>(stats_.requested_bytes_peak, stats_.requested_bytes += requested);
  stats_.allocated_bytes_total += block->bytes;
  stats_.requested_bytes_total += requested;
  return reinterpret_cast<void*>(address_space().range(device_.index()) + block->offset);
}

cookbookError_t DeviceMemory::not_a_block(const void* pointer) const {
  return fail(cookbookErrorInvalidAddress, "device %d: %p is not the start of a block in use: freed before?",
              device_.index(), pointer);
}

cookbookError_t DeviceMemory::free(void* pointer) {
  {
    const Guard lock(lock_);
    Block* block = withdraw(pointer);
    if (!block) return not_a_block(pointer);
    blocks_.give(block);
  }
  return cookbookSuccess;
}

cookbookError_t DeviceMemory::free_in_order(void* pointer, Stream& stream) {
  {
    const Guard lock(lock_);
    held_by(stream.id());  // may throw: before anything changes
    Block* block = withdraw(pointer);
    if (!block) return not_a_block(pointer);
    const uint64_t ticket = stream.tail();
    if (stream.done(ticket)) {
      blocks_.give(block);
    } else {
      hold(block, stream.id(), ticket);
    }
    reap(stream.id(), 4);
  }
  return cookbookSuccess;
}

void DeviceMemory::forget(Stream& stream) {
  const Guard lock(lock_);
  reap(stream.id(), INT_MAX);
}

// ---- asking --------------------------------------------------------------------------------------------------------

bool DeviceMemory::find(const void* pointer, Found& found) {
  const uintptr_t range = address_space().range(device_.index());
  const Guard lock(lock_);
  const Block* block = blocks_.find(reinterpret_cast<uintptr_t>(pointer) - range);
  if (!block || block->state != Block::State::kLive) return false;
  found = {reinterpret_cast<void*>(range + block->offset), block->requested};
  return true;
}

cookbookError_t DeviceMemory::export_block(const void* pointer, Exported& exported) {
  const Guard lock(lock_);
  Block* block = blocks_.find(reinterpret_cast<uintptr_t>(pointer) - address_space().range(device_.index()));
  if (!block || block->state != Block::State::kLive) {
    return fail(cookbookErrorInvalidAddress, "device %d: %p is in no block in use: freed?", device_.index(), pointer);
  }
  if (block->exported == Exports::kNone) {
    block->exported = exports_.add();
    if (block->exported == Exports::kNone) {
      return fail(cookbookErrorOutOfMemory, "device %d: %zu blocks are exported, its limit: free some", device_.index(),
                  kExports);
    }
  }
  exported = {block->offset, block->requested, block->exported, exports_.number(block->exported)};
  return cookbookSuccess;
}

DeviceMemory::Calls DeviceMemory::calls() {
  const Guard lock(lock_);
  return calls_;
}

cookbookMemoryStats DeviceMemory::stats() {
  const Guard lock(lock_);
  return stats_;
}

void DeviceMemory::reset_stats(bool peaks, bool totals) {
  const Guard lock(lock_);
  if (peaks) {
    stats_.live_blocks_peak = stats_.live_blocks;
    stats_.live_bytes_peak = stats_.live_bytes;
    stats_.requested_bytes_peak = stats_.requested_bytes;
  }
  if (totals) {
    stats_.allocations = stats_.frees = stats_.out_of_memory = 0;
    stats_.allocated_bytes_total = stats_.freed_bytes_total = 0;
    stats_.requested_bytes_total = stats_.requested_freed_total = 0;
  }
}

}  // namespace cookbook::driver
