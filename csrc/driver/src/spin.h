// Short waits: a spin lock for a few dozen instructions, polling that notices a lost core, and the futex behind longer
// waits.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>
#include <thread>

namespace cookbook::driver {

inline void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

inline int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// Yields after a while, since the holder may have lost its core.
class SpinLock {
 public:
  void lock() {
    while (locked_.exchange(true, std::memory_order_acquire)) [[unlikely]] {
      for (int i = 0; i < 200 && locked_.load(std::memory_order_relaxed); ++i) cpu_pause();
      if (locked_.load(std::memory_order_relaxed)) std::this_thread::yield();
    }
  }
  bool try_lock() {
    return !locked_.load(std::memory_order_relaxed) && !locked_.exchange(true, std::memory_order_acquire);
  }
  void unlock() { locked_.store(false, std::memory_order_release); }
  bool is_locked() const { return locked_.load(std::memory_order_seq_cst); }

 private:
  std::atomic<bool> locked_{false};
};

enum class Poll { kReady, kTimeout, kPreempted };

// Looks at ready() until the time is up. Two looks that are far apart mean that the core was taken away: somebody else
// needs it, so polling on would only hurt.
template <class Ready>
Poll poll_for(int64_t ns, Ready ready) {
  constexpr int64_t kGap = 30'000;
  const int64_t begin = now_ns();
  for (int64_t last = begin;;) {
    for (int i = 0; i < 4; ++i) {
      if (ready()) return Poll::kReady;
      cpu_pause();
    }
    const int64_t now = now_ns();
    if (now - begin >= ns) return Poll::kTimeout;
    if (now - last > kGap) return ready() ? Poll::kReady : Poll::kPreempted;
    last = now;
  }
}

// Who wakes the sleepers: threads of this process, or of any that maps the word.
enum FutexScope : int { kPrivate = FUTEX_PRIVATE_FLAG, kShared = 0 };

// Sleeps while `word` is `value`, at most `ns` nanoseconds (0: without limit). May return early.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t value, int64_t ns, FutexScope scope = kPrivate) {
  static_assert(sizeof(word) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
  timespec time{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  syscall(SYS_futex, &word, FUTEX_WAIT | scope, value, ns ? &time : nullptr, nullptr, 0);
}
inline void futex_wake_all(std::atomic<uint32_t>& word, FutexScope scope = kPrivate) {
  syscall(SYS_futex, &word, FUTEX_WAKE | scope, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace cookbook::driver
