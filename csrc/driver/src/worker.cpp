// The thread of a stream: how it runs, and how it rests.
//
// A wake-up costs the producer a system call of 1 to 5 us, a polling thread costs everybody else a core. So an idle
// worker first polls (100 us, less when polling has not paid or when its core was taken away), then takes timed naps
// that producers do not interrupt unless 64 launches wait, and only after 5 ms without work sleeps until a producer
// wakes it. A launch pays for a wake-up only after an idle period; a host thread that waits never waits for a nap, it
// runs the queue itself.
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "device.h"
#include "shared_event.h"
#include "stream.h"

namespace cookbook::driver {
namespace {

thread_local bool on_stream_thread = false;

constexpr int64_t kPoll = 100'000;
constexpr int64_t kNap = 50'000;
constexpr int64_t kLongNap = 1'000'000;
constexpr int kNaps = 100;

// Signals are for the application's threads: a handler (Python's, a profiler's) must not run on a stream's thread,
// where only faults of the running kernel belong.
void block_signals() {
  sigset_t signals;
  sigfillset(&signals);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF}) sigdelset(&signals, fault);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

}  // namespace

void Stream::work() {
  on_stream_thread = true;
  block_signals();
  pthread_setname_np(pthread_self(), "cookbook-stream");
  // An urgent stream's thread gets a better nice value where the process may do that; elsewhere priorities are equal.
  if (const int urgency = priority(); urgency < 0) {
    const auto self = static_cast<id_t>(gettid());
    errno = 0;
    if (const int nice = getpriority(PRIO_PROCESS, self); errno == 0)
      setpriority(PRIO_PROCESS, self, nice + 4 * urgency);
  }
  int64_t poll_ns = kPoll;
  Dependency last_blocker{};
  for (;;) {
    if (has_work() && running_.try_lock()) {
      Dependency blocker{};
      bool ran = true;
      while (ran && has_work()) ran = run(tail(), blocker);
      running_.unlock();
      if (!ran) {
        // I5: wait without the right, so that a host thread can look as well. Poll only once for one wait.
        const bool again = blocker.stream == last_blocker.stream && blocker.remote == last_blocker.remote &&
                           blocker.ticket == last_blocker.ticket;
        if (blocker.remote) {
          const RemoteEventRef remote(blocker.remote);
          remote->await(blocker.ticket, !again);
        } else if (!blocker.stream->done(blocker.ticket)) {
          blocker.stream->await(blocker.ticket, !again, false);
        }
        last_blocker = blocker;  // to compare only
      }
      continue;
    }
    if (stop_.load(std::memory_order_seq_cst) && !has_work()) return;
    idle(poll_ns);
  }
}

void Stream::idle(int64_t& poll_ns) {
  // Work that a host thread is running is none of ours.
  auto ready = [this] { return has_work() ? !running_.is_locked() : stop_.load(std::memory_order_seq_cst); };
  switch (poll_for(poll_ns, ready)) {
    case Poll::kReady:
      poll_ns = std::min(kPoll, poll_ns + poll_ns / 2 + 1000);
      return;
    case Poll::kPreempted:
      poll_ns = 1000;
      break;
    case Poll::kTimeout:
      poll_ns = std::max(poll_ns * 3 / 4, kPoll / 8);
      break;
  }
  bool found = false;
  for (int i = 0; i < kNaps && !found; ++i) {
    rest_.store(kNapping, std::memory_order_seq_cst);
    if (!(found = ready())) {
      futex_wait(rest_, kNapping, kNap);
      found = ready();
    }
  }
  while (!found) {
    // A host thread runs a long record: nap on, longer. Sleep for good only with an empty queue (I6).
    const bool busy = has_work();
    rest_.store(busy ? kNapping : kAsleep, std::memory_order_seq_cst);
    if (ready()) break;
    if (busy) {
      futex_wait(rest_, kNapping, kLongNap);
    } else if (!has_work()) {
      futex_wait(rest_, kAsleep, 0);
    }
    found = ready();
  }
  rest_.store(kAwake, std::memory_order_seq_cst);
}

void Stream::wake_worker() {
  if (rest_.exchange(kAwake, std::memory_order_seq_cst) != kAwake) futex_wake_all(rest_);
}

}  // namespace cookbook::driver

int cookbookOnStreamThread(void) { return cookbook::driver::on_stream_thread; }
