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

// What a stream records while `body` runs, ready to be launched. Destroyed at the end of the scope.
class TestGraph {
 public:
  template <class Body>
  TestGraph(cookbookStream_t stream, Body&& body, cookbookCaptureMode mode = cookbookCaptureThreadLocal) {
    REQUIRE_OK(cookbookStreamBeginCapture(stream, mode));
    body();
    REQUIRE_OK(cookbookStreamEndCapture(stream, &graph_));
    REQUIRE_OK(cookbookGraphInstantiate(&exec_, graph_));
  }
  ~TestGraph() {
    cookbookGraphDestroy(graph_);
    cookbookGraphExecDestroy(exec_);
  }
  TestGraph(const TestGraph&) = delete;
  TestGraph& operator=(const TestGraph&) = delete;
  cookbookError_t launch(cookbookStream_t stream) const { return cookbookGraphLaunch(exec_, stream); }
  cookbookGraphInfo info() const {
    cookbookGraphInfo info{};
    REQUIRE_OK(cookbookGraphGetInfo(graph_, &info));
    return info;
  }
  cookbookGraph_t graph() const { return graph_; }
  cookbookGraphExec_t exec() const { return exec_; }

 private:
  cookbookGraph_t graph_ = nullptr;
  cookbookGraphExec_t exec_ = nullptr;
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

// A child that runs beside the test. Both send each other plain values.
class Peer {
 public:
  explicit Peer(const char* name, std::vector<std::pair<std::string, std::string>> environment = {});
  ~Peer();  // ends a child that still runs
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  template <class T>
  void send(const T& value) {
    REQUIRE(transfer(&value, sizeof(value), true));
  }
  template <class T>
  T receive() {
    T value{};
    REQUIRE_MESSAGE(transfer(&value, sizeof(value), false), "the child ended: see its message above");
    return value;
  }
  int pid() const { return pid_; }
  ChildResult wait();
  void kill();

 private:
  bool transfer(const void* bytes, size_t count, bool out);
  int pid_ = -1, in_ = -1, out_ = -1;
};
// The same in the child. False when the parent has ended.
bool send_bytes(const void* bytes, size_t count);
bool receive_bytes(void* bytes, size_t count);
template <class T>
bool send(const T& value) {
  return send_bytes(&value, sizeof(value));
}
template <class T>
bool receive(T& value) {
  return receive_bytes(&value, sizeof(value));
}

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
