// Events that processes share: order without the host, versions, and processes that end.
#include <chrono>
#include <cstdio>
#include <thread>

#include "support.h"

using namespace support;

namespace {

cookbookIpcEventHandle_t handle_of_event(cookbookEvent_t event) {
  cookbookIpcEventHandle_t handle{};
  REQUIRE_OK(cookbookIpcGetEventHandle(&handle, event));
  return handle;
}

}  // namespace

// ---- order ---------------------------------------------------------------------------------------------------------

// Owns the block and the first event; takes turns with the test.
COOKBOOK_CHILD(ping_pong) {
  void* block = nullptr;
  cookbookEvent_t mine = nullptr, theirs = nullptr;
  cookbookIpcMemHandle_t memory;
  cookbookIpcEventHandle_t ping, pong;
  CHILD_EXPECT(cookbookMalloc(&block, 64) == cookbookSuccess);
  CHILD_EXPECT(cookbookMemsetAsync(block, 0, 64, nullptr) == cookbookSuccess);
  CHILD_EXPECT(cookbookEventCreate(&mine, cookbookEventInterprocess) == cookbookSuccess);
  CHILD_EXPECT(cookbookIpcGetMemHandle(&memory, block) == cookbookSuccess);
  CHILD_EXPECT(cookbookIpcGetEventHandle(&ping, mine) == cookbookSuccess);
  CHILD_EXPECT(receive(pong));
  CHILD_EXPECT(cookbookIpcOpenEventHandle(&theirs, &pong) == cookbookSuccess);
  CHILD_EXPECT(send(memory) && send(ping));
  int rounds = 0;
  char turn;
  CHILD_EXPECT(receive(rounds));
  for (int round = 0; round < rounds; ++round) {
    // The host passes the turn as soon as its part is queued; only the events make the kernels alternate.
    if (round) CHILD_EXPECT(receive(turn));
    CHILD_EXPECT(cookbookStreamWaitEvent(nullptr, theirs) == cookbookSuccess);
    CHILD_EXPECT(add_value(nullptr, block, 1) == cookbookSuccess);
    CHILD_EXPECT(cookbookEventRecord(mine, nullptr) == cookbookSuccess);
    CHILD_EXPECT(send(turn = 't'));
  }
  CHILD_EXPECT(receive(turn));
  CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookSuccess);
  CHILD_EXPECT(cookbookEventDestroy(mine) == cookbookSuccess);
  CHILD_EXPECT(cookbookEventDestroy(theirs) == cookbookSuccess);
  return 0;
}

TEST_CASE("two processes add to one number in turn, ordered by events alone") {
  reset_devices();
  constexpr int kRounds = 150;
  TestEvent mine(cookbookEventInterprocess);
  Peer peer("ping_pong");
  peer.send(handle_of_event(mine));
  const auto memory = peer.receive<cookbookIpcMemHandle_t>();
  const auto ping = peer.receive<cookbookIpcEventHandle_t>();
  void* block = nullptr;
  cookbookEvent_t theirs = nullptr;
  REQUIRE_OK(cookbookIpcOpenMemHandle(&block, &memory, 0));
  REQUIRE_OK(cookbookIpcOpenEventHandle(&theirs, &ping));
  // Doubling and adding one do not commute, so a round out of turn changes the result.
  static const cookbookKernel_t twice{
      "twice", [](cookbookKernelContext* context, void* raw) {
        auto* value = static_cast<uint64_t*>(cookbookTranslate(context, *static_cast<void**>(raw), 8));
        if (!value) return cookbookErrorIllegalAddress;
        *value = *value * 2 % 1'000'003;
        return cookbookSuccess;
      }};
  peer.send(kRounds);
  uint64_t expected = 0;
  for (int round = 0; round < kRounds; ++round) {
    (void)peer.receive<char>();
    REQUIRE_OK(cookbookStreamWaitEvent(nullptr, theirs));
    REQUIRE_OK(cookbookLaunchKernel(nullptr, &twice, &block, sizeof(block)));
    REQUIRE_OK(cookbookEventRecord(mine, nullptr));
    peer.send('t');
    expected = (expected + 1) * 2 % 1'000'003;
  }
  REQUIRE_OK(cookbookDeviceSynchronize(0));
  CHECK(peer.wait().exit_code == 0);
  CHECK(load_value(block, nullptr) == static_cast<int64_t>(expected));
  CHECK_OK(cookbookEventDestroy(theirs));
  CHECK_OK(cookbookIpcCloseMemHandle(block));
}

// ---- versions ------------------------------------------------------------------------------------------------------

// Does what it is told with events of its own, gates included.
COOKBOOK_CHILD(record_on_command) {
  cookbookEvent_t event = nullptr;
  CHILD_EXPECT(cookbookEventCreate(&event, cookbookEventInterprocess) == cookbookSuccess);
  cookbookIpcEventHandle_t handle;
  CHILD_EXPECT(cookbookIpcGetEventHandle(&handle, event) == cookbookSuccess);
  CHILD_EXPECT(send(handle));
  TestStream streams[2];
  TestGate gates[2];
  for (char command = 0; receive(command) && command != 'e';) {
    switch (command) {
      case 'a':  // behind a gate, on one stream or the other
      case 'b':
        gates[command - 'a'].queue(streams[command - 'a']);
        CHILD_EXPECT(cookbookEventRecord(event, streams[command - 'a']) == cookbookSuccess);
        break;
      case 'A':
      case 'B':
        gates[command - 'A'].open();
        CHILD_EXPECT(cookbookStreamSynchronize(streams[command - 'A']) == cookbookSuccess);
        break;
      case 'd':
        CHILD_EXPECT(cookbookEventDestroy(event) == cookbookSuccess);
        break;
      case 'f':  // the device fails before the record
        CHILD_EXPECT(fail_kernel(streams[0], "broken") == cookbookSuccess);
        CHILD_EXPECT(cookbookStreamSynchronize(streams[0]) == cookbookErrorLaunchFailure);
        CHILD_EXPECT(cookbookEventRecord(event, streams[0]) == cookbookSuccess);
        break;
      default:
        return 2;
    }
    CHILD_EXPECT(send(command));
  }
  return 0;
}

namespace {
class Recorder {
 public:
  Recorder() : peer("record_on_command") {
    handle = peer.receive<cookbookIpcEventHandle_t>();
    REQUIRE_OK(cookbookIpcOpenEventHandle(&event, &handle));
  }
  ~Recorder() { cookbookEventDestroy(event); }
  void operator()(char command) {
    peer.send(command);
    REQUIRE(peer.receive<char>() == command);
  }
  void end() {
    peer.send('e');
    CHECK(peer.wait().exit_code == 0);
  }
  Peer peer;
  cookbookIpcEventHandle_t handle;
  cookbookEvent_t event = nullptr;
};
}  // namespace

TEST_CASE("an opened event tells the newest version of the process that records it") {
  reset_devices();
  Recorder recorder;
  TestStream stream;
  std::vector<int> list;
  CHECK_OK(cookbookEventQuery(recorder.event));  // never recorded
  CHECK_OK(cookbookEventSynchronize(recorder.event));
  CHECK_OK(cookbookStreamWaitEvent(stream, recorder.event));
  CHECK_OK(cookbookStreamSynchronize(stream));
  recorder('a');
  CHECK(cookbookEventQuery(recorder.event) == cookbookErrorNotReady);
  REQUIRE_OK(cookbookStreamWaitEvent(stream, recorder.event));
  REQUIRE_OK(append(stream, &list, 1));
  TestEvent behind;
  REQUIRE_OK(cookbookEventRecord(behind, stream));
  TestStream other;  // what waits for the waiting stream waits along
  REQUIRE_OK(cookbookStreamWaitEvent(other, behind));
  REQUIRE_OK(append(other, &list, 2));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(cookbookStreamQuery(stream) == cookbookErrorNotReady);
  CHECK(cookbookStreamQuery(other) == cookbookErrorNotReady);
  recorder('A');
  REQUIRE_OK(cookbookStreamSynchronize(other));
  CHECK(list == std::vector<int>{1, 2});
  CHECK_OK(cookbookEventQuery(recorder.event));
  CHECK_OK(cookbookEventSynchronize(recorder.event));
  recorder.end();
}

TEST_CASE("a version has finished when all before it have, also on another stream") {
  Recorder recorder;
  recorder('a');
  recorder('b');
  recorder('B');
  CHECK(cookbookEventQuery(recorder.event) == cookbookErrorNotReady);  // the second ran, the first did not
  recorder('A');
  CHECK_OK(cookbookEventQuery(recorder.event));
  recorder.end();
}

TEST_CASE("a wait stays when its event is destroyed, and passes when the record has run") {
  Recorder recorder;
  TestStream stream;
  std::vector<int> list;
  recorder('a');
  REQUIRE_OK(cookbookStreamWaitEvent(stream, recorder.event));
  REQUIRE_OK(append(stream, &list, 1));
  recorder('d');
  CHECK_OK(cookbookEventDestroy(recorder.event));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(cookbookStreamQuery(stream) == cookbookErrorNotReady);
  recorder('A');
  CHECK_OK(cookbookStreamSynchronize(stream));
  CHECK(list == std::vector<int>{1});
  cookbookEvent_t again = nullptr;
  CHECK(cookbookIpcOpenEventHandle(&again, &recorder.handle) == cookbookErrorInvalidHandle);
  CHECK(contains(last_message(), "was destroyed"));
  recorder.end();
}

TEST_CASE("an event of a failed device comes all the same") {
  Recorder recorder;
  TestStream stream;
  recorder('f');
  REQUIRE_OK(cookbookStreamWaitEvent(stream, recorder.event));
  CHECK_OK(cookbookStreamSynchronize(stream));
  recorder.end();
}

// ---- processes that end --------------------------------------------------------------------------------------------

TEST_CASE("who waits for a process that ended is told, and nobody hangs") {
  reset_devices();
  Recorder recorder;
  TestStream stream;
  std::vector<int> list;
  recorder('a');
  REQUIRE_OK(cookbookStreamWaitEvent(stream, recorder.event));
  REQUIRE_OK(append(stream, &list, 1));
  const std::string pid = std::to_string(recorder.peer.pid());
  recorder.peer.kill();
  CHECK(cookbookEventSynchronize(recorder.event) == cookbookErrorInvalidHandle);
  CHECK(contains(last_message(), "process " + pid + " ended"));
  CHECK(cookbookStreamSynchronize(stream) == cookbookErrorLaunchFailure);
  CHECK(contains(last_message(), "process " + pid));
  CHECK(list.empty());  // it must not run without its input
  CHECK_OK(cookbookDeviceReset(0));
  cookbookEvent_t again = nullptr;
  CHECK(cookbookIpcOpenEventHandle(&again, &recorder.handle) == cookbookErrorInvalidHandle);
  CHECK(contains(last_message(), "has ended"));
}

TEST_CASE("a version that came before its process ended has come") {
  reset_devices();
  Recorder recorder;
  TestStream stream;
  recorder('a');
  recorder('A');
  recorder.peer.kill();
  CHECK_OK(cookbookEventQuery(recorder.event));
  CHECK_OK(cookbookEventSynchronize(recorder.event));
  CHECK_OK(cookbookStreamWaitEvent(stream, recorder.event));
  CHECK_OK(cookbookStreamSynchronize(stream));
}

// ---- what is refused -----------------------------------------------------------------------------------------------

TEST_CASE("interprocess events are checked") {
  Recorder recorder;
  TestStream stream;
  TestEvent plain, shared(cookbookEventInterprocess);
  cookbookIpcEventHandle_t handle;
  cookbookEvent_t event = nullptr;
  CHECK(cookbookEventRecord(recorder.event, stream) == cookbookErrorNotSupported);
  CHECK(contains(last_message(), "make one here"));
  CHECK(cookbookIpcGetEventHandle(&handle, recorder.event) == cookbookErrorInvalidHandle);
  CHECK(cookbookIpcGetEventHandle(&handle, plain) == cookbookErrorInvalidHandle);
  CHECK(contains(last_message(), "cookbookEventInterprocess"));
  CHECK(cookbookIpcGetEventHandle(nullptr, shared) == cookbookErrorInvalidValue);
  handle = handle_of_event(shared);
  CHECK(cookbookIpcOpenEventHandle(&event, &handle) == cookbookErrorInvalidHandle);  // of this process
  handle = recorder.handle;
  handle.bytes[40] ^= 1;
  CHECK(cookbookIpcOpenEventHandle(&event, &handle) == cookbookErrorInvalidHandle);
  CHECK(cookbookIpcOpenEventHandle(&event, nullptr) == cookbookErrorInvalidValue);
  float ms = 0;
  CHECK(cookbookEventElapsedTime(&ms, recorder.event, recorder.event) == cookbookErrorInvalidHandle);
  CHECK(cookbookEventCreate(&event, cookbookEventTiming | cookbookEventInterprocess) == cookbookErrorInvalidValue);
  // Here it is an event as any other.
  TestGate gate;
  gate.queue(stream);
  REQUIRE_OK(cookbookEventRecord(shared, stream));
  CHECK(cookbookEventQuery(shared) == cookbookErrorNotReady);
  gate.open();
  CHECK_OK(cookbookEventSynchronize(shared));
  recorder.end();
}

COOKBOOK_CHILD(wait_for_many) {
  cookbookIpcEventHandle_t handle;
  CHILD_EXPECT(receive(handle));
  cookbookEvent_t event = nullptr;
  CHILD_EXPECT(cookbookIpcOpenEventHandle(&event, &handle) == cookbookSuccess);
  char go = 'g';
  CHILD_EXPECT(send(go));
  TestStream streams[2];
  for (int i = 0; i < 500; ++i) {
    CHILD_EXPECT(cookbookStreamWaitEvent(streams[i % 2], event) == cookbookSuccess);
    CHILD_EXPECT(work_for(streams[i % 2], 0) == cookbookSuccess);
    if (i % 50 == 49) CHILD_EXPECT(cookbookEventSynchronize(event) == cookbookSuccess);
  }
  CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookSuccess);
  CHILD_EXPECT(cookbookEventDestroy(event) == cookbookSuccess);
  return 0;
}

TEST_CASE("threads record one interprocess event on two streams while another process waits for it") {
  TestStream first, second;
  TestEvent event(cookbookEventInterprocess);
  Peer peer("wait_for_many");
  peer.send(handle_of_event(event));
  (void)peer.receive<char>();
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 500; ++i) {
        cookbookStream_t stream = (i + thread) % 2 ? first : second;
        if (work_for(stream, 20) != cookbookSuccess || cookbookEventRecord(event, stream) != cookbookSuccess) ++failed;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(failed.load() == 0);
  CHECK_OK(cookbookEventSynchronize(event));
  CHECK(peer.wait().exit_code == 0);
}

COOKBOOK_CHILD(all_events) {
  std::vector<cookbookEvent_t> events(4096, nullptr);
  for (auto& event : events) CHILD_EXPECT(cookbookEventCreate(&event, cookbookEventInterprocess) == cookbookSuccess);
  cookbookEvent_t more = nullptr;
  CHILD_EXPECT(cookbookEventCreate(&more, cookbookEventInterprocess) == cookbookErrorOutOfMemory);
  CHILD_EXPECT(cookbookEventCreate(&more, cookbookEventDefault) == cookbookSuccess);
  CHILD_EXPECT(cookbookEventDestroy(events[7]) == cookbookSuccess);
  CHILD_EXPECT(cookbookEventCreate(&events[7], cookbookEventInterprocess) == cookbookSuccess);
  return 0;
}

TEST_CASE("a process has 4096 interprocess events, and places are used again") {
  CHECK(run_child("all_events").exit_code == 0);
}
