// chapter 4
// %% gate-header
// A gate in a stream: work queued behind it waits until the gate is opened. What tests of asynchrony stand on: with a
// closed gate in flight, a missing wait gives a wrong result every time, and not on a bad day.
#pragma once

#include <c10/core/Stream.h>

#include <memory>

namespace cookbook {

class Gate {
 public:
  // Queues the gate, closed, on `stream`.
  explicit Gate(const c10::Stream& stream);
  // Opens it: a test that fails in front of a closed gate must not stop the next one.
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // May be called often. Throws if the gate had opened by itself: whoever had to open it was waiting for it.
  void open();
  // Whether the stream has come to the gate.
  bool reached() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace cookbook
