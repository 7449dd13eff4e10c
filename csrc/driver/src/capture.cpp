// Captures, what they refuse, and the calls about them.
#include "capture.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "device.h"
#include "error.h"
#include "gate.h"

namespace cookbook::driver {
namespace {

// The captures that are open. The mutex guards the list, and the devices' kCapturing bit.
struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<Capture>> open;

  void update_attention(Device& device) {
    device.set_capturing(
        std::any_of(open.begin(), open.end(), [&](const auto& capture) { return &capture->device() == &device; }));
  }
};

Registry& registry() {
  static auto* all = new Registry;  // never destroyed: exit handlers may still call the driver
  return *all;
}

void merge(NodeList& front, const NodeList& other) {
  NodeList both;
  both.reserve(front.size() + other.size());
  std::set_union(front.begin(), front.end(), other.begin(), other.end(), std::back_inserter(both));
  front = std::move(both);
}

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

Capture::Capture(Stream& origin, cookbookCaptureMode mode)
    : id_(next_id()),
      origin_(origin),
      mode_(mode),
      thread_(std::this_thread::get_id()),
      graph_(std::make_shared<Graph>(origin.device())) {
  fronts_.emplace(&origin, NodeList{});
}

bool Capture::forbids_this_thread() const {
  return mode_ == cookbookCaptureGlobal ||
         (mode_ == cookbookCaptureThreadLocal && std::this_thread::get_id() == thread_);
}

bool Capture::valid() {
  const std::lock_guard lock(mutex_);
  return invalid_.empty();
}

cookbookError_t Capture::check_valid() const {
  if (invalid_.empty()) return cookbookSuccess;
  return fail(cookbookErrorStreamCaptureInvalidated, "the capture is invalid since an earlier call: %s",
              invalid_.c_str());
}

cookbookError_t Capture::refuse(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  {
    const std::lock_guard lock(mutex_);
    if (cookbookError_t error = check_valid(); error != cookbookSuccess) return error;
    if (!over_) invalid_ = text;
  }
  return fail(cookbookErrorStreamCaptureUnsupported, "%s", text);
}

// ---- recording -----------------------------------------------------------------------------------------------------

cookbookError_t Capture::add(Stream& stream, RecordKind kind, const void* target, size_t payload_bytes,
                             Record*& record) {
  if (cookbookError_t error = check_valid(); error != cookbookSuccess) return error;
  const auto front = fronts_.find(&stream);
  const bool work = kind == RecordKind::kKernel || kind == RecordKind::kHostFunction || kind == RecordKind::kCopy ||
                    kind == RecordKind::kFill;
  if (over_ || !work || front == fronts_.end()) {  // two threads, one of which began or ended the capture meanwhile
    return fail(cookbookErrorStreamCaptureUnsupported, "the stream's capture began or ended while the call ran");
  }
  NodeList next{static_cast<uint32_t>(graph_->nodes.size())};
  record = graph_->records.add(kind, target, payload_bytes);
  graph_->nodes.push_back({record, stream.id(), front->second});
  front->second = std::move(next);  // what may throw came before
  return cookbookSuccess;
}

cookbookError_t Capture::mark(Stream& stream, uint64_t& mark) {
  const std::lock_guard lock(mutex_);
  if (cookbookError_t error = check_valid(); error != cookbookSuccess) return error;
  mark = marks_.size();
  marks_.push_back(fronts_[&stream]);
  return cookbookSuccess;
}

cookbookError_t Capture::wait(const std::shared_ptr<Capture>& self, Stream& stream, uint64_t mark) {
  const std::lock_guard lock(mutex_);
  if (cookbookError_t error = check_valid(); error != cookbookSuccess) return error;
  if (over_) return fail(cookbookErrorStreamCaptureUnsupported, "the event's capture ended while the call ran");
  if (!fronts_.count(&stream)) {
    NodeList& front = fronts_[&stream];
    if (!stream.enter_capture(self)) {
      fronts_.erase(&stream);
      return fail(cookbookErrorInvalidHandle, "the stream was destroyed");
    }
    front = marks_[mark];
    return cookbookSuccess;
  }
  merge(fronts_[&stream], marks_[mark]);
  return cookbookSuccess;
}

// ---- the end -------------------------------------------------------------------------------------------------------

const Stream* Capture::find_unjoined() {
  std::vector<bool> joined(graph_->nodes.size(), false);
  for (const uint32_t node : fronts_[&origin_]) joined[node] = true;
  // Nodes come after earlier ones only, so one pass from the last to the first sees all.
  for (size_t node = graph_->nodes.size(); node-- > 0;) {
    if (!joined[node]) continue;
    for (const uint32_t before : graph_->nodes[node].after) joined[before] = true;
  }
  for (const auto& [stream, front] : fronts_)
    for (const uint32_t node : front)
      if (!joined[node]) return stream;
  return nullptr;
}

cookbookError_t Capture::end(std::shared_ptr<const Graph>& graph) {
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    std::erase_if(all.open, [this](const auto& capture) { return capture.get() == this; });
    all.update_attention(device());
  }
  const std::lock_guard lock(mutex_);
  over_ = true;
  for (const auto& [stream, front] : fronts_) stream->leave_capture();
  if (cookbookError_t error = check_valid(); error != cookbookSuccess) return error;
  if (const Stream* stream = find_unjoined()) {
    return fail(cookbookErrorStreamCaptureUnjoined,
                "stream %d joined the capture and has work that stream %d, which it was begun on, does not wait for: "
                "record an event on the former and let the latter wait for it before the end",
                stream->id(), origin_.id());
  }
  // A kernel that was refused because the device has failed is missing in the graph.
  if (cookbookError_t error = device().status(); error != cookbookSuccess) return error;
  graph = std::move(graph_);
  return cookbookSuccess;
}

// ---- what a capture refuses ----------------------------------------------------------------------------------------

std::shared_ptr<Capture> find_capture(uint64_t id) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const auto& capture : all.open)
    if (capture->id() == id) return capture;
  return nullptr;
}

cookbookError_t refuse_on_captured_stream(Stream& stream, const char* call, const char* advice) {
  const std::shared_ptr<Capture> capture = stream.capture();
  if (!capture) [[likely]]
    return cookbookSuccess;
  return capture->refuse("%s on stream %d of device %d, which is being captured: %s", call, stream.id(),
                         stream.device().index(), advice);
}

namespace {

// A capture of the device that forbids the calling thread what concerns the whole device.
std::shared_ptr<Capture> forbidding_capture(const Device& device) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const auto& capture : all.open)
    if (&capture->device() == &device && capture->forbids_this_thread()) return capture;
  return nullptr;
}

}  // namespace

cookbookError_t refuse_on_captured_device(Device& device, const char* call) {
  if (!device.capturing()) [[likely]]
    return cookbookSuccess;
  const std::shared_ptr<Capture> capture = forbidding_capture(device);
  if (!capture) return cookbookSuccess;
  return capture->refuse(
      "%s waits for device %d while its stream %d is being captured: call it before or after the "
      "capture",
      call, device.index(), capture->origin().id());
}

cookbookError_t may_queue(Stream& stream, const char* call) {
  Device& device = stream.device();
  if (!device.attention()) [[likely]]
    return cookbookSuccess;
  if (cookbookError_t error = device.status(); error != cookbookSuccess) return error;
  if (stream.id() != 0 || !device.capturing()) return cookbookSuccess;
  const std::shared_ptr<Capture> capture = forbidding_capture(device);
  if (!capture) return cookbookSuccess;
  return capture->refuse(
      "%s on the default stream of device %d while stream %d is being captured: the work would not "
      "be in the graph; use the captured stream",
      call, device.index(), capture->origin().id());
}

}  // namespace cookbook::driver

using namespace cookbook::driver;

cookbookError_t cookbookStreamBeginCapture(cookbookStream_t handle, cookbookCaptureMode mode) {
  return guarded([&] {
    Stream* stream;
    if (cookbookError_t error = find_stream(handle, stream); error != cookbookSuccess) return error;
    if (mode != cookbookCaptureGlobal && mode != cookbookCaptureThreadLocal && mode != cookbookCaptureRelaxed) {
      return fail(cookbookErrorInvalidValue, "%d is not a mode of capture", static_cast<int>(mode));
    }
    if (stream->id() == 0) {
      return fail(cookbookErrorStreamCaptureUnsupported,
                  "a device's default stream cannot be captured: make a stream and capture that");
    }
    if (cookbookError_t error = stream->device().status(); error != cookbookSuccess) return error;
    auto capture = std::make_shared<Capture>(*stream, mode);
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    all.open.reserve(all.open.size() + 1);
    if (!stream->enter_capture(capture)) {
      return fail(cookbookErrorInvalidValue, "stream %d is being captured already, or was destroyed", stream->id());
    }
    all.open.push_back(std::move(capture));
    all.update_attention(stream->device());
    return cookbookSuccess;
  });
}

cookbookError_t cookbookStreamEndCapture(cookbookStream_t handle, cookbookGraph_t* graph) {
  return guarded([&] {
    Stream* stream;
    if (cookbookError_t error = find_stream(handle, stream); error != cookbookSuccess) return error;
    if (!graph) return fail(cookbookErrorInvalidValue, "graph is null");
    *graph = nullptr;
    const std::shared_ptr<Capture> capture = stream->capture();
    if (!capture) return fail(cookbookErrorInvalidValue, "stream %d is not being captured", stream->id());
    if (&capture->origin() != stream) {
      return fail(cookbookErrorStreamCaptureUnsupported,
                  "stream %d joined the capture, which was begun on stream %d: end it there", stream->id(),
                  capture->origin().id());
    }
    if (!capture->ends_here()) {
      return fail(cookbookErrorStreamCaptureUnsupported,
                  "the capture was begun by another thread: end it there, or begin it with cookbookCaptureRelaxed");
    }
    std::shared_ptr<const Graph> captured;
    if (cookbookError_t error = capture->end(captured); error != cookbookSuccess) return error;
    return publish(std::move(captured), *graph);
  });
}

cookbookError_t cookbookStreamGetCaptureInfo(cookbookStream_t handle, cookbookCaptureStatus* status, uint64_t* id) {
  return guarded([&] {
    Stream* stream;
    if (cookbookError_t error = find_stream(handle, stream); error != cookbookSuccess) return error;
    if (!status || !id) return fail(cookbookErrorInvalidValue, "%s is null", status ? "id" : "status");
    *status = cookbookCaptureNone;
    *id = 0;
    if (const std::shared_ptr<Capture> capture = stream->capture()) {
      *status = capture->valid() ? cookbookCaptureActive : cookbookCaptureInvalidated;
      *id = capture->id();
    }
    return cookbookSuccess;
  });
}

cookbookError_t cookbookStreamIsCapturing(cookbookStream_t stream, cookbookCaptureStatus* status) {
  uint64_t id;
  return cookbookStreamGetCaptureInfo(stream, status, &id);
}
