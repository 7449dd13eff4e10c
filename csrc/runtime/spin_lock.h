// chapter 4
// %% spin-lock
// A lock for a few dozen instructions: taking a free one costs one atomic exchange.
#pragma once

#include <atomic>
#include <thread>

namespace cookbook {

// For code that cannot block, throw while it matters, or call anybody. It yields after a while, since the holder may
// have lost its core. Use it with std::lock_guard.
class SpinLock {
 public:
  void lock() noexcept {
    while (locked_.exchange(true, std::memory_order_acquire)) [[unlikely]] {
      wait();
    }
  }
  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

 private:
  void wait() const noexcept {
    for (int i = 0; i < 100; ++i) {
      if (!locked_.load(std::memory_order_relaxed)) return;
    }
    std::this_thread::yield();
  }

  std::atomic<bool> locked_{false};
};

}  // namespace cookbook
