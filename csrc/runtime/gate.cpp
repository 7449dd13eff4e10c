// chapter 4
// %% gate-state
#include "runtime/gate.h"

#include <c10/util/Exception.h>
#include <cookbook_driver.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "scaffolding/error.h"
#include "scaffolding/stream.h"

namespace cookbook {

// Shared by the gate and the queue, whichever lives longer. The lock guards all of it.
struct Gate::State {
  std::mutex lock;
  std::condition_variable changed;
  bool reached = false, open = false, gave_up = false;

  void wait() {
    std::unique_lock guard(lock);
    reached = true;
    gave_up = !changed.wait_for(guard, std::chrono::seconds(20), [this] { return open; });
    open = true;
  }
};

// %% gate
// A host function and no kernel: it changes no count of launches. The queue owns a reference; should the device fail
// before the stream gets here, the queue drops the function and these few bytes with it.
Gate::Gate(const c10::Stream& stream) : state_(std::make_shared<State>()) {
  auto owned = std::make_unique<std::shared_ptr<State>>(state_);
  check(cookbookLaunchHostFunc(
      handle(stream),
      [](void* data) {
        const std::unique_ptr<std::shared_ptr<State>> mine(static_cast<std::shared_ptr<State>*>(data));
        (*mine)->wait();
      },
      owned.get()));
  static_cast<void>(owned.release());
}

Gate::~Gate() {
  const std::lock_guard guard(state_->lock);
  state_->open = true;
  state_->changed.notify_all();
}

void Gate::open() {
  const std::lock_guard guard(state_->lock);
  TORCH_CHECK(!state_->gave_up,
              "the gate was closed for 20 seconds and opened by itself: a call that must not wait for "
              "the work behind it did");
  state_->open = true;
  state_->changed.notify_all();
}

bool Gate::reached() const {
  const std::lock_guard guard(state_->lock);
  return state_->reached;
}

}  // namespace cookbook
