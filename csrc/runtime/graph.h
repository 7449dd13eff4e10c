// chapter 4
// %% graph-header
// torch.accelerator.Graph on this device: a step that is recorded once and then replayed by one call of the driver.
#pragma once

#include <ATen/core/GraphImplInterface.h>
#include <cookbook_driver.h>

#include <memory>

#include "runtime/capture.h"

namespace cookbook {

// Empty, capturing, captured, ready: reset() leads back to empty, and so does a capture that fails. One thread at a
// time, as with PyTorch's graphs of other devices; it need not hold the GIL.
class Graph final : public at::GraphImplInterface {
 public:
  explicit Graph(const at::GraphImplArgs& args) : keep_(args.keep_graph) {}
  ~Graph() override;

  // Records the current stream of the current device, which must not be the default one. `pool` is another graph's, or
  // {0, 0} for a new one. The default mode lets other threads, autograd's and data loaders', go on with the device.
  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) override;
  // Throws when the capture has become invalid, with the reason; the graph is empty then and the stream usable.
  void capture_end() override;
  void instantiate() override;
  // On the current stream of the capture's device, behind the replay before. Waits only for room in the queue.
  void replay() override;
  void reset() override;
  c10::MempoolId_t pool() const override;
  // Keeps what debug_dump() needs; before the capture.
  void enable_debug_mode() override { debug_ = true; }
  // Writes the captured graph for Graphviz.
  void debug_dump(const std::string& path) override;

 private:
  // %% graph-state
  void abandon() noexcept;  // back to empty

  const bool keep_;
  bool debug_ = false;
  c10::DeviceIndex index_ = -1;
  cookbookStream_t stream_ = nullptr;  // while capturing
  c10::MempoolId_t pool_{0, 0};
  std::shared_ptr<GraphResources> resources_;
  cookbookGraph_t captured_ = nullptr;
  cookbookGraphExec_t ready_ = nullptr;
  cookbookEvent_t last_replay_ = nullptr;
};

}  // namespace cookbook
