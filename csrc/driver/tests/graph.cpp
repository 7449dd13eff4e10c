// Graphs: launches of recorded work, their order, counters, faults and lifetimes.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <thread>

#include "support.h"

using namespace support;

namespace {

cookbookCounters counters_of(int device) {
  cookbookCounters counters;
  REQUIRE_OK(cookbookGetCounters(&counters, device));
  return counters;
}

}  // namespace

// ---- launching -----------------------------------------------------------------------------------------------------

TEST_CASE("a launch runs all nodes in their order, each time, and counts like single launches") {
  reset_devices();
  TestStream stream;
  std::vector<int> list;
  void *block = nullptr, *other = nullptr, *pinned = nullptr;
  REQUIRE_OK(cookbookMalloc(&block, 64));
  REQUIRE_OK(cookbookMalloc(&other, 64));
  REQUIRE_OK(cookbookMallocHost(&pinned, 64));
  auto* host = static_cast<int64_t*>(pinned);
  int calls = 0;
  TestGraph graph(stream, [&] {
    REQUIRE_OK(cookbookMemsetAsync(block, 0, 64, stream));
    REQUIRE_OK(cookbookMemcpyAsync(block, host, 8, cookbookMemcpyDefault, stream));
    REQUIRE_OK(add_value(stream, block, 1));
    REQUIRE_OK(append(stream, &list, 7));
    REQUIRE_OK(cookbookMemcpyAsync(other, block, 8, cookbookMemcpyDefault, stream));
    REQUIRE_OK(cookbookMemcpyAsync(host + 1, other, 8, cookbookMemcpyDefault, stream));
    REQUIRE_OK(cookbookMemcpyAsync(host + 1, other, 0, cookbookMemcpyDefault, stream));
    REQUIRE_OK(cookbookLaunchHostFunc(stream, [](void* count) { ++*static_cast<int*>(count); }, &calls));
  });
  const cookbookGraphInfo info = graph.info();
  CHECK(info.device == 0);
  CHECK(info.nodes == 7);
  CHECK(info.edges == 6);
  CHECK(info.kernels == 2);
  CHECK(info.copies == 3);
  CHECK(info.fills == 1);
  CHECK(info.host_functions == 1);
  CHECK(info.bytes == 7 * 64);
  REQUIRE_OK(cookbookResetCounters(0));
  for (int64_t round = 1; round <= 3; ++round) {
    *host = 100 * round;  // the graph reads what is there when it runs
    REQUIRE_OK(graph.launch(stream));
    REQUIRE_OK(cookbookStreamSynchronize(stream));
    CHECK(host[1] == 100 * round + 1);
    CHECK(calls == round);
  }
  CHECK(list == std::vector<int>{7, 7, 7});
  const cookbookCounters counters = counters_of(0);
  CHECK(counters.launches == 6);
  CHECK(counters.copies == 9);
  CHECK(counters.fills == 3);
  CHECK(counters.host_functions == 3);
  CHECK(counters.bytes_host_to_device == 24);
  CHECK(counters.bytes_device_to_host == 24);
  CHECK(counters.bytes_device_to_device == 24);
  CHECK(counters.synchronizations == 3);
  CHECK_OK(cookbookFree(block));
  CHECK_OK(cookbookFree(other));
  CHECK_OK(cookbookFreeHost(pinned));
}

TEST_CASE("a launch is asynchronous and one unit: a query sees it as a whole") {
  TestStream stream, other;
  std::vector<int> list;
  TestGate gate;
  TestGraph graph(stream, [&] {
    REQUIRE_OK(append(stream, &list, 1));
    gate.queue(stream);
    REQUIRE_OK(append(stream, &list, 2));
  });
  REQUIRE_OK(append(stream, &list, 0));
  REQUIRE_OK(graph.launch(stream));
  REQUIRE_OK(append(stream, &list, 3));
  TestEvent event;
  REQUIRE_OK(cookbookEventRecord(event, stream));
  REQUIRE_OK(cookbookStreamWaitEvent(other, event));
  REQUIRE_OK(append(other, &list, 4));
  gate.wait_until_reached();
  CHECK(cookbookStreamQuery(stream) == cookbookErrorNotReady);
  CHECK(cookbookStreamQuery(other) == cookbookErrorNotReady);
  gate.open();
  REQUIRE_OK(cookbookStreamSynchronize(other));
  CHECK(list == std::vector<int>{0, 1, 2, 3, 4});
}

TEST_CASE("arguments belong to the graph: many, large, and gone from the caller") {
  constexpr int kKernels = 40;
  struct Header {
    uint32_t seed, bytes;
    int* good;
  };
  static const cookbookKernel_t verify{"verify", [](cookbookKernelContext*, void* raw) {
                                         const auto* header = static_cast<const Header*>(raw);
                                         if (reinterpret_cast<uintptr_t>(raw) % 16) return cookbookErrorUnknown;
                                         const auto* bytes = static_cast<const unsigned char*>(raw);
                                         for (uint32_t i = sizeof(Header); i < header->bytes; ++i)
                                           if (bytes[i] != static_cast<unsigned char>(header->seed + i))
                                             return cookbookErrorUnknown;
                                         ++*header->good;
                                         return cookbookSuccess;
                                       }};
  TestStream stream;
  int good = 0;
  cookbookGraph_t graph = nullptr;
  cookbookGraphExec_t exec = nullptr;
  REQUIRE_OK(cookbookStreamBeginCapture(stream, cookbookCaptureThreadLocal));
  std::vector<unsigned char> args(cookbookMaxKernelArgs);
  for (uint32_t i = 0; i < kKernels; ++i) {
    const uint32_t bytes =
        i % 4 == 3 ? uint32_t{cookbookMaxKernelArgs} : static_cast<uint32_t>(sizeof(Header)) + i * 977;
    const Header header{i, bytes, &good};
    std::memcpy(args.data(), &header, sizeof(header));
    for (uint32_t j = sizeof(Header); j < bytes; ++j) args[j] = static_cast<unsigned char>(i + j);
    REQUIRE_OK(cookbookLaunchKernel(stream, &verify, args.data(), bytes));
  }
  std::fill(args.begin(), args.end(), static_cast<unsigned char>(0xcc));
  REQUIRE_OK(cookbookStreamEndCapture(stream, &graph));
  REQUIRE_OK(cookbookGraphInstantiate(&exec, graph));
  REQUIRE_OK(cookbookGraphDestroy(graph));  // what was instantiated stays good
  for (int round = 0; round < 3; ++round) REQUIRE_OK(cookbookGraphLaunch(exec, stream));
  REQUIRE_OK(cookbookStreamSynchronize(stream));
  CHECK(good == 3 * kKernels);
  CHECK_OK(cookbookGraphExecDestroy(exec));
}

TEST_CASE("launches of one graph on two streams run one after the other") {
  TestStream first, second;
  std::vector<int> list;
  TestGate gate;
  TestGraph graph(first, [&] {
    REQUIRE_OK(append(first, &list, 1));
    REQUIRE_OK(work_for(first, 200));
    REQUIRE_OK(append(first, &list, 2));
  });
  gate.queue(first);
  REQUIRE_OK(graph.launch(first));
  REQUIRE_OK(graph.launch(second));  // idle, but behind the launch that the gate holds up
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(cookbookStreamQuery(second) == cookbookErrorNotReady);
  gate.open();
  for (int round = 0; round < 20; ++round) {
    REQUIRE_OK(graph.launch(first));
    REQUIRE_OK(graph.launch(second));
  }
  REQUIRE_OK(cookbookDeviceSynchronize(0));
  REQUIRE(list.size() == 84);
  for (size_t i = 0; i < list.size(); ++i) CHECK(list[i] == (i % 2 ? 2 : 1));
}

TEST_CASE("a graph may be instantiated twice, and an empty one launched") {
  TestStream stream;
  std::vector<int> list;
  TestGraph graph(stream, [&] { REQUIRE_OK(append(stream, &list, 1)); });
  cookbookGraphExec_t second = nullptr;
  REQUIRE_OK(cookbookGraphInstantiate(&second, graph.graph()));
  REQUIRE_OK(graph.launch(stream));
  REQUIRE_OK(cookbookGraphLaunch(second, stream));
  REQUIRE_OK(cookbookStreamSynchronize(stream));
  CHECK(list.size() == 2);
  CHECK_OK(cookbookGraphExecDestroy(second));
  TestGraph empty(stream, [] {});
  CHECK_OK(empty.launch(stream));
  CHECK_OK(cookbookStreamSynchronize(stream));
}

TEST_CASE("a graph is destroyed while its launches are queued") {
  TestStream stream;
  std::vector<int> list;
  TestGate gate;
  gate.queue(stream);
  {
    TestGraph graph(stream, [&] {
      for (int i = 0; i < 3; ++i) REQUIRE_OK(append(stream, &list, i));
    });
    REQUIRE_OK(graph.launch(stream));
    REQUIRE_OK(graph.launch(stream));
  }
  gate.open();
  REQUIRE_OK(cookbookStreamSynchronize(stream));
  CHECK(list == std::vector<int>{0, 1, 2, 0, 1, 2});
}

TEST_CASE("a full queue of launches makes the host wait, not fail") {
  TestStream stream;
  int64_t sum = 0;
  static const cookbookKernel_t add{"add", [](cookbookKernelContext*, void* raw) {
                                      ++**static_cast<int64_t**>(raw);
                                      return cookbookSuccess;
                                    }};
  int64_t* target = &sum;
  TestGraph graph(stream, [&] {
    for (int i = 0; i < 10; ++i) REQUIRE_OK(cookbookLaunchKernel(stream, &add, &target, sizeof(target)));
  });
  REQUIRE_OK(work_for(stream, 20000));
  for (int i = 0; i < 30000; ++i) REQUIRE(graph.launch(stream) == cookbookSuccess);
  REQUIRE_OK(cookbookStreamSynchronize(stream));
  CHECK(sum == 300000);
}

// ---- faults --------------------------------------------------------------------------------------------------------

TEST_CASE("an injected fault counts a graph's kernels one by one, over launches") {
  reset_devices();
  TestStream stream;
  std::vector<int> list;
  TestGraph graph(stream, [&] {
    REQUIRE_OK(append(stream, &list, 1));
    REQUIRE_OK(cookbookLaunchHostFunc(stream, [](void*) {}, nullptr));  // no kernel
    REQUIRE_OK(append(stream, &list, 2));
    REQUIRE_OK(append(stream, &list, 3));
  });
  for (uint64_t nth = 1; nth <= 7; ++nth) {
    CAPTURE(nth);
    reset_devices();
    list.clear();
    REQUIRE_OK(cookbookInjectFault(0, cookbookFaultLaunch, nth, 0));
    std::vector<int> expected;
    for (uint64_t launched = 1; launched < nth; ++launched)
      expected.push_back(static_cast<int>((launched - 1) % 3) + 1);
    {
      TestGate gate;
      gate.queue(stream);
      for (int round = 0; round < 3; ++round) REQUIRE_OK(graph.launch(stream));
      gate.open();
      CHECK(cookbookStreamSynchronize(stream) == cookbookErrorLaunchFailure);
    }
    CHECK(contains(last_message(), "kernel 'append'"));
    CHECK(contains(last_message(), "injected fault"));
    CHECK(list == expected);
    CHECK(counters_of(0).launches == 9);
    REQUIRE_OK(cookbookDeviceReset(0));
    list.clear();
    REQUIRE_OK(graph.launch(stream));
    REQUIRE_OK(cookbookStreamSynchronize(stream));
    CHECK(list == std::vector<int>{1, 2, 3});
  }
}

TEST_CASE("recording does not use up an injected fault, launching does; a delay is one too") {
  reset_devices();
  TestStream stream;
  std::vector<int> list;
  REQUIRE_OK(cookbookInjectFault(0, cookbookFaultDelay, 2, 200000));
  TestGraph graph(stream, [&] {
    for (int i = 1; i <= 3; ++i) REQUIRE_OK(append(stream, &list, i));
  });
  const auto begin = std::chrono::steady_clock::now();
  auto passed = [&] { return std::chrono::steady_clock::now() - begin; };
  REQUIRE_OK(graph.launch(stream));
  CHECK(passed() < std::chrono::milliseconds(200));
  REQUIRE_OK(cookbookStreamSynchronize(stream));
  CHECK(passed() >= std::chrono::milliseconds(200));
  CHECK(list == std::vector<int>{1, 2, 3});
}

TEST_CASE("a kernel that fails in a graph is sticky, names itself, and drops the rest") {
  reset_devices();
  TestStream stream;
  std::vector<int> list;
  TestGraph graph(stream, [&] {
    REQUIRE_OK(append(stream, &list, 1));
    REQUIRE_OK(fail_kernel(stream, "overheated"));
    REQUIRE_OK(append(stream, &list, 2));
  });
  {
    TestGate gate;
    gate.queue(stream);
    REQUIRE_OK(graph.launch(stream));
    REQUIRE_OK(graph.launch(stream));
    gate.open();
    CHECK(cookbookStreamSynchronize(stream) == cookbookErrorLaunchFailure);
  }
  CHECK(contains(last_message(), "kernel 'fails' on device 0"));
  CHECK(contains(last_message(), "overheated"));
  CHECK(list == std::vector<int>{1});
  CHECK(graph.launch(stream) == cookbookErrorLaunchFailure);
  REQUIRE_OK(cookbookDeviceReset(0));
}

TEST_CASE("with blocking launches a graph's launch returns its own error") {
  reset_devices();
  TestStream stream;
  std::vector<int> list;
  const int before = cookbookSetLaunchBlocking(1);
  TestGraph good(stream, [&] { REQUIRE_OK(append(stream, &list, 1)); });
  TestGraph bad(stream, [&] { REQUIRE_OK(fail_kernel(stream, "at once")); });
  CHECK(list.empty());
  CHECK_OK(good.launch(stream));
  CHECK(list == std::vector<int>{1});
  CHECK(bad.launch(stream) == cookbookErrorLaunchFailure);
  CHECK(contains(last_message(), "at once"));
  cookbookSetLaunchBlocking(before);
  REQUIRE_OK(cookbookDeviceReset(0));
}

// ---- what is checked -----------------------------------------------------------------------------------------------

TEST_CASE("graphs are checked: garbage, destroyed ones, other devices, captures") {
  reset_devices();
  TestStream stream, foreign(1), captured;
  std::vector<int> list;
  auto* garbage = reinterpret_cast<cookbookGraph_t>(&list);
  auto* garbage_exec = reinterpret_cast<cookbookGraphExec_t>(uintptr_t{0xdeadbeef});
  cookbookGraphExec_t exec = nullptr;
  cookbookGraphInfo info;
  CHECK(cookbookGraphDestroy(garbage) == cookbookErrorInvalidHandle);
  CHECK(cookbookGraphGetInfo(nullptr, &info) == cookbookErrorInvalidHandle);
  CHECK(cookbookGraphInstantiate(&exec, garbage) == cookbookErrorInvalidHandle);
  CHECK(cookbookGraphLaunch(garbage_exec, stream) == cookbookErrorInvalidHandle);
  CHECK(cookbookGraphExecDestroy(nullptr) == cookbookErrorInvalidHandle);
  TestGraph graph(stream, [&] { REQUIRE_OK(append(stream, &list, 1)); });
  CHECK(cookbookGraphGetInfo(graph.graph(), nullptr) == cookbookErrorInvalidValue);
  CHECK(cookbookGraphInstantiate(nullptr, graph.graph()) == cookbookErrorInvalidValue);
  CHECK(graph.launch(foreign) == cookbookErrorInvalidHandle);
  CHECK(contains(last_message(), "device 1"));
  // Another table's handle is no graph.
  CHECK(cookbookGraphDestroy(reinterpret_cast<cookbookGraph_t>(graph.exec())) == cookbookErrorInvalidHandle);
  REQUIRE_OK(cookbookStreamBeginCapture(captured, cookbookCaptureThreadLocal));
  CHECK(graph.launch(captured) == cookbookErrorStreamCaptureUnsupported);
  CHECK(contains(last_message(), "a graph in a graph"));
  cookbookGraph_t none = nullptr;
  CHECK(cookbookStreamEndCapture(captured, &none) == cookbookErrorStreamCaptureInvalidated);
  REQUIRE_OK(cookbookGraphInstantiate(&exec, graph.graph()));
  REQUIRE_OK(cookbookGraphExecDestroy(exec));
  CHECK(cookbookGraphExecDestroy(exec) == cookbookErrorInvalidHandle);
  CHECK(cookbookGraphLaunch(exec, stream) == cookbookErrorInvalidHandle);
  CHECK(contains(last_message(), "destroyed"));
}

TEST_CASE("a graph is written as text for Graphviz") {
  TestStream first, second;
  TestEvent fork, join;
  std::vector<int> list;
  void* block = nullptr;
  REQUIRE_OK(cookbookMalloc(&block, 64));
  TestGraph graph(first, [&] {
    REQUIRE_OK(append(first, &list, 1));
    REQUIRE_OK(cookbookEventRecord(fork, first));
    REQUIRE_OK(cookbookStreamWaitEvent(second, fork));
    REQUIRE_OK(cookbookMemsetAsync(block, 0, 64, second));
    REQUIRE_OK(cookbookEventRecord(join, second));
    REQUIRE_OK(append(first, &list, 2));
    REQUIRE_OK(cookbookStreamWaitEvent(first, join));
    REQUIRE_OK(append(first, &list, 3));
  });
  const std::filesystem::path name = "cookbook_graph_" + std::to_string(getpid()) + ".dot";
  const std::string path = (std::filesystem::temp_directory_path() / name).string();
  REQUIRE_OK(cookbookGraphDebugDotPrint(graph.graph(), path.c_str()));
  std::string text;
  FILE* file = std::fopen(path.c_str(), "r");
  REQUIRE(file);
  for (int c; (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
  std::fclose(file);
  std::remove(path.c_str());
  for (const char* line : {"n0 [label=\"0: append\\nstream ", "n1 [label=\"1: fill 64 bytes\\nstream ", "n0 -> n1;",
                           "n0 -> n2;", "n1 -> n3;", "n2 -> n3;"})
    CHECK_MESSAGE(contains(text, line), text);
  CHECK(!contains(text, "n1 -> n2;"));
  CHECK(cookbookGraphDebugDotPrint(graph.graph(), "/no/such/folder/graph.dot") == cookbookErrorInvalidValue);
  CHECK(contains(last_message(), "/no/such/folder"));
  CHECK(cookbookGraphDebugDotPrint(graph.graph(), nullptr) == cookbookErrorInvalidValue);
  CHECK_OK(cookbookFree(block));
}
