// chapter 4
// %% generator-state
// The device's random number generator: a seed, and how many columns of its table (philox.h) have been given away. It
// lives on the host and makes no number itself; having one, seeding it or saving its state does not touch the device.
#pragma once

#include <ATen/core/Generator.h>

#include <memory>
#include <mutex>
#include <vector>

#include "runtime/capture.h"
#include "runtime/philox.h"
#include "scaffolding/device.h"

namespace cookbook {

// Shared by all generators that graphsafe_set_state has tied together. Every method may be called from any thread.
class PhiloxState {
 public:
  PhiloxState() = default;
  explicit PhiloxState(PhiloxCell now) : now_(now) {}

  PhiloxCell get() const;
  void set(PhiloxCell now);

  // Gives away `columns` of them (rounded up to whole blocks). During a capture they are counted from the start of the
  // graph, and the arguments point to its cell.
  PhiloxArguments take(uint64_t columns, CaptureId capture = 0);

  // %% generator-capture
  // For graph capture, in this order:
  //   begin_capture   the graph owns `cell`, device memory that lives as long as it can be replayed
  //   take            in every random operator that is captured
  //   end_capture     returns how many columns the graph reads in one run
  //   replay          before each run: gives the graph that many columns and returns what must stand in the cell.
  //                   write_cell (random.h) puts it there in the stream's order, so that a run that is still queued
  //                   keeps its own numbers
  // A replay then draws what the same calls would have drawn without a graph.
  void begin_capture(CaptureId capture, const PhiloxCell* cell);
  uint64_t end_capture(CaptureId capture);
  PhiloxCell replay(uint64_t columns);

 private:
  struct Capture {
    CaptureId id;
    const PhiloxCell* cell;
    uint64_t taken;
  };
  std::vector<Capture>::iterator find(CaptureId capture);

  mutable std::mutex lock_;  // guards what follows
  PhiloxCell now_{c10::default_rng_seed_val, 0};
  std::vector<Capture> captures_;
};

// %% generator-impl
// PyTorch's side of it. As with all its generators, GeneratorImpl::mutex_ is the caller's to hold: Python's methods
// hold it around each of these, and so does reserve().
class PhiloxGenerator final : public c10::GeneratorImpl {
 public:
  explicit PhiloxGenerator(c10::DeviceIndex index,
                           std::shared_ptr<PhiloxState> state = std::make_shared<PhiloxState>());
  static c10::DeviceType device_type() { return kDeviceType; }

  void set_current_seed(uint64_t seed) override;  // and offset 0
  uint64_t current_seed() const override { return state()->get().seed; }
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override { return state()->get().offset; }

  // A CPU tensor of 16 bytes: the seed, then the offset, both uint64 in the machine's order. torch.distributed reads
  // and writes these bytes itself (torch/distributed/tensor/_random.py, _PhiloxState), as CUDA's generator has them.
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void set_state(const c10::TensorImpl& state) override;

  // A second generator on the same state, and its reverse: this one continues on the other's state.
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override;

  // Where an operator's random numbers lie; they are the operator's alone.
  PhiloxArguments philox_arguments(uint64_t columns, CaptureId capture = 0) { return state()->take(columns, capture); }
  std::shared_ptr<PhiloxState> state() const;

 private:
  PhiloxGenerator* clone_impl() const override;  // on a copy of the state

  mutable std::mutex state_lock_;  // guards the pointer; another generator may ask for it without our mutex_
  std::shared_ptr<PhiloxState> state_;
};

// %% generator-devices
// The generator that an operator uses when the program names none; a negative index means the current device. Made with
// an unpredictable seed, as the CPU's is, and never destroyed.
const at::Generator& default_generator(c10::DeviceIndex index);
// torch.Generator(device): a new one with PyTorch's fixed default seed.
at::Generator new_generator(c10::DeviceIndex index);
// The generator that the program gave, or the default one. Throws when it is another device's.
PhiloxGenerator& generator_for(const std::optional<at::Generator>& generator, c10::Device device);

}  // namespace cookbook
