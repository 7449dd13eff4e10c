// chapter 4
// %% random-reserve-code
#include "runtime/random.h"

#include "runtime/capture.h"

namespace cookbook {

PhiloxArguments reserve(const MaybeGenerator& generator, c10::Device device, int64_t columns) {
  PhiloxGenerator& source = generator_for(generator, device);
  const CaptureId capture = join_capture(source, device.index());
  const std::lock_guard guard(source.mutex_);
  return source.philox_arguments(static_cast<uint64_t>(columns), capture);
}

// %% random-cell
namespace {

PhiloxCell* translate(const Reader& reader, const PhiloxCell* cell) {
  void* const there = cookbookTranslate(reader.context(), cell, sizeof(*cell));
  TORCH_CHECK(there != nullptr, "illegal address: a graph's cell is not on device ", reader.context()->device);
  return static_cast<PhiloxCell*>(there);
}

struct CellWrite {
  PhiloxCell* cell;
  PhiloxCell value;
};
cookbookError_t run_cell_write(cookbookKernelContext* context, void* args) {
  return run_kernel(context, args, [](cookbookKernelContext* context, void* args) {
    Reader reader(context, args);
    const auto write = reader.get<CellWrite>();
    *translate(reader, write.cell) = write.value;
  });
}
constexpr cookbookKernel_t kCellWrite{"philox_cell", &run_cell_write};

}  // namespace

PhiloxArguments Wire<PhiloxArguments>::read(Reader& reader) {
  auto random = reader.get<PhiloxArguments>();
  if (random.cell != nullptr) {
    const PhiloxCell now = *translate(reader, random.cell);
    random = {now.seed, now.offset + random.offset, nullptr};
  }
  return random;
}

// The value travels with the launch: host memory that a copy would read could be gone, or hold a later replay's value.
void write_cell(c10::DeviceIndex index, PhiloxCell* cell, PhiloxCell value) {
  const CellWrite write{cell, value};
  enqueue(c10::Device(kDeviceType, index), kCellWrite, &write, sizeof(write));
}

}  // namespace cookbook
