// Kernels and child processes for the tests.
#include "support.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

extern char** environ;

namespace support {

// For what also runs in children, where doctest's checks do not work.
static void must(cookbookError_t error) {
  if (error == cookbookSuccess) return;
  std::fprintf(stderr, "test support: %s: %s\n", cookbookGetErrorName(error), cookbookGetLastErrorMessage());
  std::abort();
}

TestStream::TestStream(int device, int priority) {
  int before = 0;
  must(cookbookGetDevice(&before));
  must(cookbookSetDevice(device));
  must(cookbookStreamCreate(&stream_, priority));
  must(cookbookSetDevice(before));
}

TestStream::~TestStream() { cookbookStreamDestroy(stream_); }

// ---- the gate ------------------------------------------------------------------------------------------------------

void pass(TestGate& gate) {
  gate.reached_.fetch_add(1);
  while (!gate.open_.load()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  gate.passed_.fetch_add(1);
}

void TestGate::queue(cookbookStream_t stream) {
  ++queued_;
  must(cookbookLaunchHostFunc(stream, [](void* gate) { pass(*static_cast<TestGate*>(gate)); }, this));
}

void TestGate::wait_until_reached(int times) const {
  while (reached_.load() < times) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

// ---- kernels -------------------------------------------------------------------------------------------------------

namespace {

struct ValueArgs {
  void* pointer;
  int64_t value;
};
struct AppendArgs {
  std::vector<int>* list;
  int number;
};
struct FailArgs {
  char message[64];
  cookbookError_t error;
};

template <bool kAdd>
cookbookError_t run_value(cookbookKernelContext* context, void* raw) {
  const auto* args = static_cast<const ValueArgs*>(raw);
  auto* place = static_cast<int64_t*>(cookbookTranslate(context, args->pointer, sizeof(int64_t)));
  if (!place) return cookbookKernelFail(context, cookbookErrorIllegalAddress, "not an address of this device");
  *place = kAdd ? *place + args->value : args->value;
  return cookbookSuccess;
}

const cookbookKernel_t store_kernel{"store_value", run_value<false>};
const cookbookKernel_t add_kernel{"add_value", run_value<true>};
const cookbookKernel_t append_kernel{"append", [](cookbookKernelContext*, void* raw) {
                                       const auto* args = static_cast<const AppendArgs*>(raw);
                                       args->list->push_back(args->number);
                                       return cookbookSuccess;
                                     }};
const cookbookKernel_t fail_kernel_object{"fails", [](cookbookKernelContext* context, void* raw) {
                                            const auto* args = static_cast<const FailArgs*>(raw);
                                            return cookbookKernelFail(context, args->error, args->message);
                                          }};
const cookbookKernel_t work_kernel{"work_for", [](cookbookKernelContext*, void* raw) {
                                     const auto time = std::chrono::microseconds(*static_cast<int*>(raw));
                                     const auto end = std::chrono::steady_clock::now() + time;
                                     while (std::chrono::steady_clock::now() < end) {
                                     }
                                     return cookbookSuccess;
                                   }};

}  // namespace

cookbookError_t store_value(cookbookStream_t stream, void* pointer, int64_t value) {
  const ValueArgs args{pointer, value};
  return cookbookLaunchKernel(stream, &store_kernel, &args, sizeof(args));
}

cookbookError_t add_value(cookbookStream_t stream, void* pointer, int64_t value) {
  const ValueArgs args{pointer, value};
  return cookbookLaunchKernel(stream, &add_kernel, &args, sizeof(args));
}

int64_t load_value(const void* pointer, cookbookStream_t stream) {
  int64_t value = -1;
  CHECK_OK(cookbookMemcpy(&value, pointer, sizeof(value), cookbookMemcpyDeviceToHost, stream));
  return value;
}

cookbookError_t append(cookbookStream_t stream, std::vector<int>* list, int number) {
  const AppendArgs args{list, number};
  return cookbookLaunchKernel(stream, &append_kernel, &args, sizeof(args));
}

cookbookError_t fail_kernel(cookbookStream_t stream, const char* message, cookbookError_t error) {
  FailArgs args{};
  std::snprintf(args.message, sizeof(args.message), "%s", message);
  args.error = error;
  return cookbookLaunchKernel(stream, &fail_kernel_object, &args, sizeof(args));
}

cookbookError_t work_for(cookbookStream_t stream, int microseconds) {
  return cookbookLaunchKernel(stream, &work_kernel, &microseconds, sizeof(microseconds));
}

void reset_devices() {
  int count = 0;
  REQUIRE_OK(cookbookGetDeviceCount(&count));
  for (int device = 0; device < count; ++device) {
    REQUIRE_OK(cookbookInjectFault(device, cookbookFaultNone, 0, 0));
    REQUIRE_OK(cookbookDeviceReset(device));
    REQUIRE_OK(cookbookResetCounters(device));
  }
  REQUIRE_OK(cookbookSetDevice(0));
}

// ---- children ------------------------------------------------------------------------------------------------------

namespace {
std::map<std::string, int (*)()>& children() {
  static std::map<std::string, int (*)()> map;
  return map;
}
}  // namespace

Child::Child(const char* name, int (*run)()) { children()[name] = run; }

int child_main(int argc, char** argv) {
  const std::string prefix = "--child=";
  if (argc != 2 || std::strncmp(argv[1], prefix.c_str(), prefix.size()) != 0) return -1;
  const auto child = children().find(argv[1] + prefix.size());
  if (child == children().end()) {
    std::fprintf(stderr, "no child %s\n", argv[1]);
    return 120;
  }
  alarm(kChildSeconds);
  return child->second();
}

namespace {

constexpr int kChildIn = 100, kChildOut = 101;  // a child's ends of the pipes

pid_t start_child(const char* name, std::vector<std::pair<std::string, std::string>> changes,
                  const posix_spawn_file_actions_t* actions) {
  // A sanitizer would turn the expected SIGSEGV into a report; TSan waits a second at each exit for late reports.
  for (const char* options : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
    const char* before = std::getenv(options);
    changes.emplace_back(options, std::string(before ? before : "") + ":handle_segv=0:atexit_sleep_ms=100");
  }
  std::vector<std::string> texts;
  for (const auto& [key, value] : changes) texts.push_back(key + "=" + value);
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    bool changed = false;
    for (const auto& change : changes)
      changed = changed || text.compare(0, change.first.size() + 1, change.first + "=") == 0;
    if (!changed) texts.push_back(text);
  }
  std::vector<char*> child_environment;
  for (std::string& text : texts) child_environment.push_back(text.data());
  child_environment.push_back(nullptr);

  std::string program = "/proc/self/exe", argument = std::string("--child=") + name;
  char* arguments[] = {program.data(), argument.data(), nullptr};
  pid_t pid = -1;
  REQUIRE(posix_spawn(&pid, "/proc/self/exe", actions, nullptr, arguments, child_environment.data()) == 0);
  return pid;
}

ChildResult wait_for_child(pid_t pid) {
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  ChildResult result;
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

bool write_all(int file, const void* bytes, size_t count) {
  for (const char* at = static_cast<const char*>(bytes); count;) {
    const ssize_t done = write(file, at, count);
    if (done <= 0) return false;
    at += done;
    count -= static_cast<size_t>(done);
  }
  return true;
}

bool read_all(int file, void* bytes, size_t count) {
  for (char* at = static_cast<char*>(bytes); count;) {
    const ssize_t done = read(file, at, count);
    if (done <= 0) return false;
    at += done;
    count -= static_cast<size_t>(done);
  }
  return true;
}

}  // namespace

ChildResult run_child(const char* name, std::vector<std::pair<std::string, std::string>> changes) {
  return wait_for_child(start_child(name, std::move(changes), nullptr));
}

Peer::Peer(const char* name, std::vector<std::pair<std::string, std::string>> changes) {
  int to_child[2], from_child[2];
  REQUIRE(pipe2(to_child, O_CLOEXEC) == 0);
  REQUIRE(pipe2(from_child, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_child[0], kChildIn);
  posix_spawn_file_actions_adddup2(&actions, from_child[1], kChildOut);
  pid_ = start_child(name, std::move(changes), &actions);
  posix_spawn_file_actions_destroy(&actions);
  close(to_child[0]);
  close(from_child[1]);
  out_ = to_child[1];
  in_ = from_child[0];
}

Peer::~Peer() {
  if (pid_ > 0) kill();
  close(in_);
  close(out_);
}

bool Peer::transfer(const void* bytes, size_t count, bool out) {
  return out ? write_all(out_, bytes, count) : read_all(in_, const_cast<void*>(bytes), count);
}

ChildResult Peer::wait() { return wait_for_child(std::exchange(pid_, -1)); }

void Peer::kill() {
  ::kill(pid_, SIGKILL);
  wait();
}

bool send_bytes(const void* bytes, size_t count) { return write_all(kChildOut, bytes, count); }
bool receive_bytes(void* bytes, size_t count) { return read_all(kChildIn, bytes, count); }

}  // namespace support
