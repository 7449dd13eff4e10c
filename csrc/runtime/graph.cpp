// chapter 4
// %% graph-mode
#include "runtime/graph.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <utility>

#include "operators/kernel_scope.h"
#include "operators/on_device.h"
#include "scaffolding/stream.h"

namespace cookbook {
namespace {

cookbookCaptureMode driver_mode(at::GraphCaptureMode mode) {
  switch (mode) {
    case at::GraphCaptureMode::Global:
      return cookbookCaptureGlobal;
    case at::GraphCaptureMode::Relaxed:
      return cookbookCaptureRelaxed;
    case at::GraphCaptureMode::Default:
    case at::GraphCaptureMode::ThreadLocal:
      break;
  }
  return cookbookCaptureThreadLocal;
}

c10::MempoolId_t new_pool() {
  static std::atomic<uint64_t> last{0};
  return {++last, 0};
}

}  // namespace

// %% graph-begin
void Graph::capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) {
  TORCH_CHECK(resources_ == nullptr, "this graph holds a capture already: reset() it first, or make another graph");
  const c10::DeviceIndex index = current_device();
  const c10::Stream stream = current_stream(index);
  TORCH_CHECK(stream.id() != 0, "expected a current stream other than the default one of ", stream.device(),
              ", which cannot be captured: `with torch.Stream(\"", stream.device(), "\"), graph:`");
  if (last_replay_ == nullptr || index != index_) {
    if (last_replay_ != nullptr) warn(cookbookEventDestroy(std::exchange(last_replay_, nullptr)));
    check(cookbookEventCreate(&last_replay_, cookbookEventDefault));
  }
  index_ = index;
  pool_ = pool == c10::MempoolId_t{} ? new_pool() : pool;
  cookbookError_t begun = cookbookSuccess;
  {
    const std::lock_guard guard(capture_lock());
    begun = cookbookStreamBeginCapture(handle(stream), driver_mode(mode));
  }
  check(begun);
  stream_ = handle(stream);
  resources_ = std::make_shared<GraphResources>(index_, pool_);
  try {
    resources_->begin(capture_of(stream_));
  } catch (...) {
    abandon();
    throw;
  }
}

// %% graph-end
void Graph::capture_end() {
  TORCH_CHECK(stream_ != nullptr, "this graph is not capturing: capture_begin() comes first");
  const cookbookError_t error = cookbookStreamEndCapture(stream_, &captured_);
  // By the wrong thread: nothing has ended.
  if (error != cookbookSuccess && capture_of(stream_) == resources_->capture()) check(error);
  stream_ = nullptr;
  try {
    check(error);  // at once: the driver keeps the text until this thread's next failure
    resources_->end();
    if (!keep_) instantiate();
  } catch (...) {
    if (captured_ == nullptr) resources_->end();
    abandon();
    throw;
  }
}

void Graph::instantiate() {
  TORCH_CHECK(captured_ != nullptr, resources_ == nullptr ? "nothing was captured: capture first"
                                                          : "the graph is capturing, or was made with "
                                                            "keep_graph=False and is instantiated already");
  cookbookGraphExec_t made = nullptr;
  check(cookbookGraphInstantiate(&made, captured_));
  if (ready_ != nullptr) warn(cookbookGraphExecDestroy(ready_));
  ready_ = made;
  if (!keep_ && !debug_) check(cookbookGraphDestroy(std::exchange(captured_, nullptr)));
}

// %% graph-replay
void Graph::replay() {
  TORCH_CHECK(stream_ == nullptr && resources_ != nullptr, "nothing to replay: capture first");
  if (ready_ == nullptr) instantiate();
  const OnDevice guard(c10::Device(kDeviceType, index_));
  const cookbookStream_t stream = current_handle(index_);
  TORCH_CHECK(capture_of(stream) == 0, "a graph cannot be replayed on a stream that is being captured");
  note_intraop_threads();
  // Behind the replay before, on whatever stream that was: it reads the random numbers' cells until its end.
  check(cookbookStreamWaitEvent(stream, last_replay_));
  resources_->draw();
  check(cookbookGraphLaunch(ready_, stream));
  check(cookbookEventRecord(last_replay_, stream));
}

// %% graph-reset
// Nothing here waits for queued replays: the driver keeps what they need.
void Graph::abandon() noexcept {
  if (stream_ != nullptr) {
    // Invalid or valid, the capture must end, or its stream would be lost to the program.
    cookbookGraph_t captured = nullptr;
    if (cookbookStreamEndCapture(std::exchange(stream_, nullptr), &captured) == cookbookSuccess) {
      warn(cookbookGraphDestroy(captured));
    }
    resources_->end();
  }
  if (captured_ != nullptr) warn(cookbookGraphDestroy(std::exchange(captured_, nullptr)));
  if (ready_ != nullptr) warn(cookbookGraphExecDestroy(std::exchange(ready_, nullptr)));
  if (resources_ != nullptr) std::exchange(resources_, nullptr)->release(last_replay_);
}

void Graph::reset() { abandon(); }

Graph::~Graph() {
  if (cookbookIsForkedChild()) return;  // all of it is the parent's
  abandon();
  if (last_replay_ != nullptr) warn(cookbookEventDestroy(last_replay_));
}

// %% graph-ask
c10::MempoolId_t Graph::pool() const {
  TORCH_CHECK(pool_ != c10::MempoolId_t{}, "the graph has no pool yet: capture first");
  return pool_;
}

void Graph::debug_dump(const std::string& path) {
  TORCH_CHECK(debug_, "call enable_debug_mode() before the capture: without it the graph is not kept to be drawn");
  TORCH_CHECK(captured_ != nullptr, "nothing to draw: capture first, after enable_debug_mode()");
  check(cookbookGraphDebugDotPrint(captured_, path.c_str()));
}

}  // namespace cookbook

// %% graph-register
// The key is the device's name in capitals: PyTorch looks up what c10::DeviceTypeName gives after the renaming, so
// PRIVATEUSEONE would not be found. The macro needs to stand in this namespace.
namespace at {
REGISTER_GRAPH_IMPL(COOKBOOK, ::cookbook::Graph)
}
