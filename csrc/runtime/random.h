// chapter 4
// %% random-reserve
// How an operator gets its random numbers: it reserves columns on the host, and the arguments travel to the kernel like
// any other number.
#pragma once

#include "operators/launch.h"
#include "runtime/generator.h"

namespace cookbook {

using MaybeGenerator = std::optional<at::Generator>;

// `columns` of the generator's table, of the device's default one if the program gave none. Holds the generator's mutex
// for the reservation alone. The one place that decides where random numbers come from: a stream that is being captured
// takes them from its graph.
PhiloxArguments reserve(const MaybeGenerator& generator, c10::Device device, int64_t columns);

// Queues the write of a graph's cell on the device's current stream.
void write_cell(c10::DeviceIndex index, PhiloxCell* cell, PhiloxCell value);

// %% random-wire
// Read on the stream's thread when the kernel runs: at a replay, long after the launch was captured.
template <>
struct Wire<PhiloxArguments> {
  using Held = PhiloxArguments;
  static size_t bytes(const PhiloxArguments&) { return sizeof(PhiloxArguments); }
  static void write(Writer& writer, const PhiloxArguments& random) { writer.put(random); }
  static PhiloxArguments read(Reader& reader);
};

// %% random-fill
// fill<"uniform", &uniform>(self, generator, from, to): the kernel gets the tensor, one column for each of its
// elements, and the numbers.
template <Name name, auto Kernel, class... A>
void fill(const at::Tensor& self, const MaybeGenerator& generator, const A&... arguments) {
  launch<name, Kernel>(self, reserve(generator, self.device(), self.numel()), arguments...);
}

}  // namespace cookbook
