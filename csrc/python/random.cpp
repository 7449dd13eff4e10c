// chapter 4
// %% bind-random
#include "python/random.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "operators/on_device.h"
#include "runtime/columns.h"
#include "runtime/random.h"

namespace py = pybind11;

namespace cookbook {
namespace {

PhiloxState& state_of(const at::Generator& generator) { return *generator_for(generator, generator.device()).state(); }

// What a graph does with its cell, for tests: a tensor of two int64 stands for the graph's memory.
PhiloxCell* cell_in(const at::Tensor& memory) { return static_cast<PhiloxCell*>(memory.data_ptr()); }

void begin_capture(const at::Generator& generator, CaptureId capture, const at::Tensor& memory) {
  state_of(generator).begin_capture(capture, cell_in(memory));
}
uint64_t end_capture(const at::Generator& generator, CaptureId capture) {
  return state_of(generator).end_capture(capture);
}
void replay(const at::Generator& generator, uint64_t columns, const at::Tensor& memory) {
  write_cell(memory.device().index(), cell_in(memory), state_of(generator).replay(columns));
}

// A launch as a captured one would be: its arguments hold the cell. Writes each column's first 64 bits.
void captured_bits(const at::Tensor& out, const at::Generator& generator, CaptureId capture) {
  const OnDevice guard(out.device());
  launch<"captured_bits", [](at::Tensor& out, const PhiloxArguments& random) {
    draw<int64_t>(random, [](Column& column, int64_t& x) { x = static_cast<int64_t>(column.random64()); }, out);
  }>(out, generator_for(generator, out.device()).philox_arguments(static_cast<uint64_t>(out.numel()), capture));
}

}  // namespace

// %% bind-random-module
void bind_random(py::module_& m) {
  m.def("default_generator",
        torch::wrap_pybind_function([](int index) { return default_generator(static_cast<c10::DeviceIndex>(index)); }));
  m.def("begin_random_capture", torch::wrap_pybind_function(&begin_capture));
  m.def("end_random_capture", torch::wrap_pybind_function(&end_capture));
  m.def("replay_random", torch::wrap_pybind_function_no_gil(&replay));
  m.def("captured_bits", torch::wrap_pybind_function_no_gil(&captured_bits));
}

}  // namespace cookbook
