// A capture: the time in which work that is pushed to some streams is recorded as a graph instead of queued.
//
// Words: the *origin* is the stream that the capture was begun on. A stream *joins* when it waits for an event that was
// recorded in the capture. A *front* is a list of nodes: what the next node of a stream comes after. An event that is
// recorded in a capture stands for the front of its stream at that moment.
//
// Invariants
//  C1  A stream is in at most one capture. While it is, its state is kCapturing, and push() records (stream.h); what
//  was
//      queued before runs on as ever.
//  C2  A capture is valid, invalid or over, in this order. The first illegal call makes it invalid and is remembered:
//      all that follows reports it, up to cookbookStreamEndCapture.
//  C3  After the end no stream is in the capture, however it ended. So a program that caught the error goes on.
//
// Locks: mutex_ guards a capture's contents; the registry's the list of captures that are open. Order: a stream's
// producer lock is never held while one of them is taken; the registry's before mutex_.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cookbook_driver.h"
#include "graph.h"

namespace cookbook::driver {

class Capture {
 public:
  Capture(Stream& origin, cookbookCaptureMode mode);
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  uint64_t id() const { return id_; }
  Stream& origin() const { return origin_; }
  Device& device() const { return origin_.device(); }
  // Whether the calling thread may not make calls that concern the device as a whole.
  bool forbids_this_thread() const;
  bool ends_here() const { return mode_ == cookbookCaptureRelaxed || std::this_thread::get_id() == thread_; }
  bool valid();

  // Appends a node to `stream`, which is in the capture; write(payload, counters) fills it in under the lock.
  template <class Write>
  cookbookError_t record(Stream& stream, RecordKind kind, const void* target, size_t payload_bytes, Write&& write) {
    const std::lock_guard lock(mutex_);
    Record* record = nullptr;
    if (cookbookError_t error = add(stream, kind, target, payload_bytes, record); error != cookbookSuccess) {
      return error;
    }
    write(record->payload(), graph_->counters);
    return cookbookSuccess;
  }
  // What an event stands for when it is recorded on `stream`.
  cookbookError_t mark(Stream& stream, uint64_t& mark);
  // `stream` waits for a mark; it joins if it is not in the capture yet.
  cookbookError_t wait(const std::shared_ptr<Capture>& self, Stream& stream, uint64_t mark);

  // Makes the capture invalid and reports why: cookbookErrorStreamCaptureUnsupported with this text, or the earlier
  // reason when it is invalid already.
  [[gnu::format(printf, 2, 3)]] cookbookError_t refuse(const char* format, ...);
  // Takes all streams out of the capture. The graph, if the capture was valid and its branches have been joined.
  cookbookError_t end(std::shared_ptr<const Graph>& graph);

 private:
  // All need mutex_.
  cookbookError_t check_valid() const;
  cookbookError_t add(Stream& stream, RecordKind kind, const void* target, size_t payload_bytes, Record*& record);
  const Stream* find_unjoined();

  const uint64_t id_;
  Stream& origin_;
  const cookbookCaptureMode mode_;
  const std::thread::id thread_;

  std::mutex mutex_;
  std::shared_ptr<Graph> graph_;
  std::map<Stream*, NodeList> fronts_;  // of the streams in the capture
  std::vector<NodeList> marks_;
  std::string invalid_;  // why; empty while valid
  bool over_ = false;
};

// The open capture with this number; null when it is over.
std::shared_ptr<Capture> find_capture(uint64_t id);

// First lines of calls. Each returns success at once when nothing is captured; otherwise it makes the capture that the
// call disturbs invalid and returns the error.
//
// `call` on a stream that must not be in a capture; `advice` ends the sentence.
cookbookError_t refuse_on_captured_stream(Stream& stream, const char* call, const char* advice);
// `call` waits for a device, or concerns all of it.
cookbookError_t refuse_on_captured_device(Device& device, const char* call);
// Before work is queued on a stream: the device's sticky error, and a default stream that is used beside a capture.
cookbookError_t may_queue(Stream& stream, const char* call);

}  // namespace cookbook::driver
