// The gate's states, the fork handlers and the environment that was read.
#include "gate.h"

#include <pthread.h>

#include "error.h"

namespace cookbook::driver {

std::atomic<GateState> gate_state{GateState::kUnread};
std::atomic<bool> launch_blocking{false};

namespace {

// All of this is written under setup_mutex() before gate_state says that it may be read.
Environment read_values;
char bad_environment[512];
bool context_made = false;

void before_fork() { setup_mutex().lock(); }
void after_fork_in_parent() { setup_mutex().unlock(); }
void after_fork_in_child() {
  // The parent's workers do not exist here, and its locks may be held by threads that do not exist either. A child of a
  // parent that never used a device starts clean.
  if (context_made) gate_state.store(GateState::kForked, std::memory_order_release);
  setup_mutex().unlock();
}

// At load time, not at first use: a fork() that runs beside the first use must already find the handlers.
[[gnu::constructor]] void register_fork_handlers() {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

}  // namespace

std::mutex& setup_mutex() {
  // Constant-initialized and never destroyed: exit handlers of other libraries may still call the driver.
  static std::mutex mutex;
  return mutex;
}

const Environment& environment() { return read_values; }

void note_context() { context_made = true; }

cookbookError_t enter_in_any_process() noexcept {
  const GateState state = gate_state.load(std::memory_order_acquire);
  return state == GateState::kForked ? cookbookSuccess : enter();
}

cookbookError_t enter_slowly() noexcept {
  GateState state = gate_state.load(std::memory_order_acquire);
  if (state == GateState::kUnread) {
    const std::lock_guard lock(setup_mutex());
    state = gate_state.load(std::memory_order_relaxed);
    if (state == GateState::kUnread) {
      state = read_environment(read_values, bad_environment, sizeof(bad_environment)) ? GateState::kOpen
                                                                                      : GateState::kBadEnvironment;
      launch_blocking.store(read_values.launch_blocking, std::memory_order_relaxed);
      gate_state.store(state, std::memory_order_release);
    }
  }
  switch (state) {
    case GateState::kBadEnvironment:
      return fail(cookbookErrorInvalidValue, "%s", bad_environment);
    case GateState::kForked:
      return fail(cookbookErrorForked,
                  "the process was forked after the driver was used: a forked child has no device. Start processes "
                  "with exec (spawn, forkserver), or fork before the first use");
    default:
      return cookbookSuccess;
  }
}

}  // namespace cookbook::driver

int cookbookIsForkedChild(void) {
  using namespace cookbook::driver;
  return gate_state.load(std::memory_order_acquire) == GateState::kForked;
}

int cookbookSetLaunchBlocking(int on) {
  using namespace cookbook::driver;
  if (enter_in_any_process() != cookbookSuccess) return 0;
  return launch_blocking.exchange(on != 0, std::memory_order_relaxed);
}
