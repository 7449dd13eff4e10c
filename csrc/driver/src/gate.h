// The gate that every call passes: reads the environment at first use, and shuts the driver in a forked child.
//
// Locks: setup_mutex() guards the first reading of the environment and the creation of contexts (device.cpp). fork()
// takes it, so that a child never sees one of them half done.
#pragma once
#include <atomic>
#include <mutex>

#include "cookbook_driver.h"
#include "environment.h"

namespace cookbook::driver {

enum class GateState : int { kUnread, kOpen, kBadEnvironment, kForked };
extern std::atomic<GateState> gate_state;
extern std::atomic<bool> launch_blocking;

std::mutex& setup_mutex();
// Valid once the gate is open.
const Environment& environment();

cookbookError_t enter_slowly() noexcept;
// First line of every call that uses the driver. One load when all is well.
inline cookbookError_t enter() noexcept {
  if (gate_state.load(std::memory_order_acquire) == GateState::kOpen) [[likely]]
    return cookbookSuccess;
  return enter_slowly();
}
// For the few calls that also work in a forked child.
cookbookError_t enter_in_any_process() noexcept;
// Called with the first context: from then on a forked child is shut out. Needs setup_mutex().
void note_context();

}  // namespace cookbook::driver
