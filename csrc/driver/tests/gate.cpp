// What fork() does: a child of a process that used the driver is shut out, any other child is free.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "support.h"

using namespace support;

namespace {
// Runs `body` in a forked child and returns its exit code. The body must not allocate when the parent has threads: GCC
// 12's AddressSanitizer has no fork handlers, so its allocator's lock may be held by a thread that the child lacks.
template <class Body>
int in_fork(Body body) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(kChildSeconds);
    _exit(body());
  }
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
}

int use_driver() {
  void* pointer = nullptr;
  int64_t value = 41;
  CHILD_EXPECT(cookbookIsForkedChild() == 0);
  CHILD_EXPECT(cookbookMalloc(&pointer, 64) == cookbookSuccess);
  CHILD_EXPECT(cookbookMemcpy(pointer, &value, 8, cookbookMemcpyHostToDevice, nullptr) == cookbookSuccess);
  CHILD_EXPECT(add_value(nullptr, pointer, 1) == cookbookSuccess);
  CHILD_EXPECT(cookbookMemcpy(&value, pointer, 8, cookbookMemcpyDeviceToHost, nullptr) == cookbookSuccess);
  CHILD_EXPECT(value == 42);
  CHILD_EXPECT(cookbookFree(pointer) == cookbookSuccess);
  return 0;
}
}  // namespace

COOKBOOK_CHILD(fork_after_use) {
  CHILD_EXPECT(use_driver() == 0);
  cookbookStream_t stream;
  cookbookEvent_t event;
  void* pointer;
  CHILD_EXPECT(cookbookStreamCreate(&stream, 0) == cookbookSuccess);
  CHILD_EXPECT(cookbookEventCreate(&event, 0) == cookbookSuccess);
  CHILD_EXPECT(cookbookMalloc(&pointer, 64) == cookbookSuccess);
  const int code = in_fork([&] {
    int value = -1;
    void* other = nullptr;
    size_t bytes = 0;
    cookbookCounters counters;
    CHILD_EXPECT(cookbookIsForkedChild() == 1);
    CHILD_EXPECT(cookbookGetDeviceCount(&value) == cookbookSuccess && value == 2);
    CHILD_EXPECT(std::strcmp(cookbookGetErrorName(cookbookErrorForked), "cookbookErrorForked") == 0);
    CHILD_EXPECT(cookbookGetDevice(&value) == cookbookErrorForked);
    CHILD_EXPECT(std::strstr(cookbookGetLastErrorMessage(), "forked") != nullptr);
    CHILD_EXPECT(cookbookSetDevice(0) == cookbookErrorForked);
    CHILD_EXPECT(cookbookDeviceHasContext(0, &value) == cookbookErrorForked);
    CHILD_EXPECT(cookbookMalloc(&other, 8) == cookbookErrorForked);
    CHILD_EXPECT(cookbookMallocAsync(&other, 8, stream) == cookbookErrorForked);
    CHILD_EXPECT(cookbookFree(pointer) == cookbookErrorForked);
    CHILD_EXPECT(cookbookFreeAsync(pointer, stream) == cookbookErrorForked);
    CHILD_EXPECT(cookbookMallocHost(&other, 8) == cookbookErrorForked);
    CHILD_EXPECT(cookbookMemGetInfo(&bytes, &bytes, 0) == cookbookErrorForked);
    CHILD_EXPECT(cookbookGetDefaultStream(&stream, 0) == cookbookErrorForked);
    CHILD_EXPECT(add_value(stream, pointer, 1) == cookbookErrorForked);
    CHILD_EXPECT(cookbookStreamSynchronize(stream) == cookbookErrorForked);
    CHILD_EXPECT(cookbookStreamQuery(stream) == cookbookErrorForked);
    CHILD_EXPECT(cookbookStreamDestroy(stream) == cookbookErrorForked);
    CHILD_EXPECT(cookbookEventRecord(event, stream) == cookbookErrorForked);
    CHILD_EXPECT(cookbookEventSynchronize(event) == cookbookErrorForked);
    CHILD_EXPECT(cookbookEventDestroy(event) == cookbookErrorForked);
    CHILD_EXPECT(cookbookMemcpy(&value, pointer, 4, cookbookMemcpyDefault, stream) == cookbookErrorForked);
    CHILD_EXPECT(cookbookGetCounters(&counters, 0) == cookbookErrorForked);
    CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookErrorForked);
    cookbookGraph_t graph = nullptr;
    cookbookGraphExec_t exec = nullptr;
    cookbookCaptureStatus status;
    CHILD_EXPECT(cookbookStreamBeginCapture(stream, cookbookCaptureGlobal) == cookbookErrorForked);
    CHILD_EXPECT(cookbookStreamEndCapture(stream, &graph) == cookbookErrorForked);
    CHILD_EXPECT(cookbookStreamIsCapturing(stream, &status) == cookbookErrorForked);
    uint64_t id = 0;
    CHILD_EXPECT(cookbookStreamGetCaptureInfo(stream, &status, &id) == cookbookErrorForked);
    CHILD_EXPECT(cookbookGraphInstantiate(&exec, graph) == cookbookErrorForked);
    CHILD_EXPECT(cookbookGraphLaunch(exec, stream) == cookbookErrorForked);
    CHILD_EXPECT(cookbookGraphDestroy(graph) == cookbookErrorForked);
    CHILD_EXPECT(cookbookGraphExecDestroy(exec) == cookbookErrorForked);
    CHILD_EXPECT(cookbookShutdown() == cookbookErrorForked);
    return 0;
  });
  CHILD_EXPECT(code == 0);
  CHILD_EXPECT(cookbookIsForkedChild() == 0);  // the parent goes on
  CHILD_EXPECT(use_driver() == 0);
  return 0;
}

COOKBOOK_CHILD(fork_before_use) {
  // Knowing the devices is no use of one.
  int value = 0;
  cookbookDeviceProperties properties;
  CHILD_EXPECT(cookbookGetDeviceCount(&value) == cookbookSuccess);
  CHILD_EXPECT(cookbookSetDevice(1) == cookbookSuccess);
  CHILD_EXPECT(cookbookGetDeviceProperties(&properties, 1) == cookbookSuccess);
  CHILD_EXPECT(in_fork(use_driver) == 0);
  CHILD_EXPECT(use_driver() == 0);
  return 0;
}

TEST_CASE("after a fork the child gets cookbookErrorForked from every call, the parent goes on") {
  CHECK(run_child("fork_after_use").exit_code == 0);
}

TEST_CASE("a fork before the first use leaves the child fully usable") {
  CHECK(run_child("fork_before_use").exit_code == 0);
}

TEST_CASE("a subprocess of a process that used the driver is usable") {
  void* pointer = nullptr;
  REQUIRE_OK(cookbookMalloc(&pointer, 64));
  CHECK(run_child("fork_before_use").exit_code == 0);
  CHECK_OK(cookbookFree(pointer));
}
