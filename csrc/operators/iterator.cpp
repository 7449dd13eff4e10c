// chapter 2
// %% iterator-write
#include "operators/iterator.h"

namespace cookbook {
namespace {

using Dims = c10::SmallVector<int64_t, 6>;

// An iterator's first dimension is the fastest one, a tensor's is the slowest.
Dims reversed(c10::IntArrayRef values) { return Dims(values.rbegin(), values.rend()); }

}  // namespace

size_t IteratorWire::bytes(const at::TensorIteratorBase& iter) {
  const auto dims = static_cast<size_t>(iter.ndim());
  // Each operand is a tensor record of these dimensions, or one with a number in it.
  return 8 + static_cast<size_t>(iter.ntensors()) * (24 + std::max(size_t{16}, 16 * dims));
}

void IteratorWire::write(Writer& writer, const at::TensorIteratorBase& iter) {
  const Dims sizes = reversed(iter.shape());
  writer.put(int64_t{iter.ntensors()});
  for (const int i : c10::irange(iter.ntensors())) {
    const at::Tensor& tensor = iter.tensor(i);
    if (tensor.is_cpu()) {
      TensorWire::write(writer, tensor);
      continue;
    }
    Dims strides = reversed(iter.strides(i));
    for (int64_t& stride : strides) stride /= static_cast<int64_t>(tensor.itemsize());
    TensorWire::write_view(writer, tensor, sizes, strides);
  }
}

// %% iterator-read
Operands IteratorWire::read(Reader& reader) {
  Operands operands(reader.get<int64_t>());
  for (at::Tensor& tensor : operands) tensor = TensorWire::read(reader);
  return operands;
}

// %% iterator-trial-operands
Operands IteratorWire::stand_ins(const at::TensorIteratorBase& iter) {
  Operands operands;
  for (const int i : c10::irange(iter.ntensors())) operands.push_back(stand_in(iter.tensor(i)));
  return operands;
}

uint64_t IteratorWire::trial_key(const at::TensorIteratorBase& iter) {
  uint64_t key = 1;
  for (const int i : c10::irange(iter.ntensors())) key = key * 53 + cookbook::trial_key(iter.tensor(i));
  return key;
}

}  // namespace cookbook
