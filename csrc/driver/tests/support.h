// What the driver's tests share: checks, small kernels, a gate that a test opens, and tests that run in a fresh
// process.
#pragma once
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cookbook_driver.h"

#define CHECK_OK(call) CHECK_MESSAGE((call) == cookbookSuccess, cookbookGetLastErrorMessage())
#define REQUIRE_OK(call) REQUIRE_MESSAGE((call) == cookbookSuccess, cookbookGetLastErrorMessage())

namespace support {

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
inline std::string last_message() { return cookbookGetLastErrorMessage(); }

// A stream that lives as long as the scope.
class TestStream {
 public:
  explicit TestStream(int device = 0, int priority = 0);
  ~TestStream();
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  operator cookbookStream_t() const { return stream_; }

 private:
  cookbookStream_t stream_ = nullptr;
};

class TestEvent {
 public:
  explicit TestEvent(unsigned flags = cookbookEventDefault) { REQUIRE_OK(cookbookEventCreate(&event_, flags)); }
  ~TestEvent() { cookbookEventDestroy(event_); }
  TestEvent(const TestEvent&) = delete;
  TestEvent& operator=(const TestEvent&) = delete;
  operator cookbookEvent_t() const { return event_; }

 private:
  cookbookEvent_t event_ = nullptr;
};

// Holds a stream up until open(). Opens itself at the end of the scope, so that a failed check does not hang the run.
class TestGate {
 public:
  ~TestGate() {
    open();
    while (passed_.load() < queued_) {
    }
  }
  void queue(cookbookStream_t stream);
  void open() { open_.store(true); }
  void wait_until_reached(int times = 1) const;

 private:
  friend void pass(TestGate& gate);
  std::atomic<bool> open_{false};
  std::atomic<int> reached_{0}, passed_{0};
  int queued_ = 0;
};

// Kernels. Each returns cookbookErrorIllegalAddress when an address is not its device's.
cookbookError_t store_value(cookbookStream_t stream, void* pointer, int64_t value);   // *pointer = value
cookbookError_t add_value(cookbookStream_t stream, void* pointer, int64_t value);     // *pointer += value, not atomic
int64_t load_value(const void* pointer, cookbookStream_t stream);                     // waits
cookbookError_t append(cookbookStream_t stream, std::vector<int>* list, int number);  // host list, in stream order
cookbookError_t fail_kernel(cookbookStream_t stream, const char* message,
                            cookbookError_t error = cookbookErrorLaunchFailure);
cookbookError_t work_for(cookbookStream_t stream, int microseconds);

// Forgets errors, faults and counters of all devices: the first line of tests that look at them.
void reset_devices();

// A child that takes longer hangs, and is ended by SIGALRM.
inline constexpr unsigned kChildSeconds = 60;
// A function that runs in a process of its own: child_main() calls it there.
struct Child {
  Child(const char* name, int (*run)());
};
struct ChildResult {
  int exit_code = -1;  // -1: killed
  int signal = 0;
};
ChildResult run_child(const char* name, std::vector<std::pair<std::string, std::string>> environment = {});
// For main(): the exit code when the arguments ask for a child, else -1.
int child_main(int argc, char** argv);

}  // namespace support

// In a child there is no doctest: say what was wrong and fail.
#define CHILD_EXPECT(condition)                                                                           \
  do {                                                                                                    \
    if (!(condition)) {                                                                                   \
      std::fprintf(stderr, "%s:%d: child expected %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
                   cookbookGetLastErrorMessage());                                                        \
      return 1;                                                                                           \
    }                                                                                                     \
  } while (0)

#define COOKBOOK_CHILD(name)                                        \
  static int child_##name();                                        \
  static const support::Child register_##name{#name, child_##name}; \
  static int child_##name()
