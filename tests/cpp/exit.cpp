// chapter 4
// The end of a process, and fork, while other threads are in the middle of the runtime.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "runtime/events.h"
#include "runtime/generator.h"
#include "runtime/streams.h"
#include "scaffolding/allocator.h"
#include "scaffolding/device.h"
#include "scaffolding/pinned.h"
#include "scaffolding/stream.h"
#include "support.h"
#include "threads.h"

namespace {

using namespace cookbook;
using namespace tests;

// One round of all that a program does with the runtime.
void use_everything(const c10::Stream& other) {
  const c10::DataPtr data = allocator().allocate(64 << 10);
  fill(current_handle(0), data.get(), 64 << 10, 1);
  allocator().recordStream(data, other);
  const c10::DataPtr host = pinned_allocator().allocate(4096);
  check(cookbookMemcpyAsync(host.get(), data.get(), 4096, cookbookMemcpyDeviceToHost, current_handle(0)));
  pinned_allocator().record_event(host.get(), host.get_context(), current_stream(0));
  void* event = nullptr;
  record_event(&event, current_stream(0), -1, c10::EventFlag::PYTORCH_DEFAULT);
  block_stream(event, other);
  destroy_event(event);
  default_generator(0);
}

}  // namespace

// Threads that nobody joins run on while main() returns, exit handlers run and static objects are destroyed. What they
// use must not be among these.
COOKBOOK_CHILD(exit_with_threads) {
  static std::atomic<int> rounds{0};
  for (int i = 0; i < 4; ++i) {
    std::thread([] {
      exchange_stream(new_stream(0));
      const c10::Stream other = new_stream(0);
      while (true) {
        use_everything(other);
        ++rounds;
      }
    }).detach();
  }
  while (rounds < 40) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return 0;
}

TEST_CASE("exit: threads in the middle of their work") {
  for (int i = 0; i < 3; ++i) {
    const auto result = support::run_child("exit_with_threads");
    CHECK(result.signal == 0);
    CHECK(result.exit_code == 0);
  }
}

// ThreadSanitizer of GCC 12 does not support a child that goes on after a fork of several threads.
#if !defined(__SANITIZE_THREAD__)
// A child drops what it inherited, though another thread was inside the allocator at the fork. It must find no lock
// taken, and ends by SIGALRM if it does.
TEST_CASE("fork: beside threads that allocate and free") {
  std::atomic<bool> done{false};
  std::thread busy[2];
  for (std::thread& thread : busy) {
    thread = std::thread([&] {
      exchange_stream(new_stream(0));
      const c10::Stream other = new_stream(0);
      while (!done) use_everything(other);
    });
  }
  for (int i = 0; i < 30; ++i) {
    auto* data = new c10::DataPtr(allocator().allocate(4096));
    allocator().recordStream(*data, new_stream(0));
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      data->clear();
      _exit(cookbookIsForkedChild() == 1 ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    delete data;
  }
  done = true;
  for (std::thread& thread : busy) thread.join();
}
#endif
