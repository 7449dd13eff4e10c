// The calls about memory of other processes.
#include <sys/mman.h>
#include <unistd.h>

#include "address_space.h"
#include "capture.h"
#include "device.h"
#include "error.h"
#include "gate.h"
#include "ipc_handle.h"

namespace cookbook::driver {
namespace {

uint32_t sum_of(HandleData data) {
  data.sum = 0;
  unsigned char bytes[sizeof(data)];
  std::memcpy(bytes, &data, sizeof(data));
  uint32_t sum = 2166136261;  // FNV-1a: a slip of the sender's is to be found, no attack
  for (const unsigned char byte : bytes) sum = (sum ^ byte) * 16777619;
  return sum;
}

// A descriptor that closes itself.
class File {
 public:
  ~File() {
    if (file >= 0) close(file);
  }
  int file = -1;
};

// Whether the producer's table still has the block.
cookbookError_t check_export(const HandleData& data, int file) {
  constexpr size_t kEntries = kPage / sizeof(uint64_t);
  // The producer's capacity need not be ours; its table is behind its memory, to the file's end.
  const off_t end = lseek(file, 0, SEEK_END);
  const size_t at = static_cast<size_t>(end) - kExports * sizeof(uint64_t) + data.entry / kEntries * kPage;
  void* page = mmap(nullptr, kPage, PROT_READ, MAP_SHARED, file, static_cast<off_t>(at));
  if (end < 0 || page == MAP_FAILED) return fail(cookbookErrorOutOfMemory, "cannot map the table of exported blocks");
  const uint64_t number =
      static_cast<std::atomic<uint64_t>*>(page)[data.entry % kEntries].load(std::memory_order_acquire);
  munmap(page, kPage);
  if (number == data.number) return cookbookSuccess;
  return fail(cookbookErrorInvalidHandle, "the block was freed by process %d, which made the handle", data.pid);
}

}  // namespace

void seal(HandleData& data, void* handle) {
  const ProcessId self = this_process();
  data.pid = self.pid;
  data.start = self.start;
  data.sum = sum_of(data);
  std::memcpy(handle, &data, sizeof(data));
}

bool unseal(const void* handle, HandleData::Kind kind, HandleData& data) {
  std::memcpy(&data, handle, sizeof(data));
  return data.kind == kind && data.sum == sum_of(data);
}

}  // namespace cookbook::driver

using namespace cookbook::driver;

cookbookError_t cookbookIpcGetMemHandle(cookbookIpcMemHandle_t* handle, void* pointer) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    if (!handle) return fail(cookbookErrorInvalidValue, "handle is null");
    const int owner = address_space().owner(pointer);
    Device* device = owner < 0 ? nullptr : device_or_null(owner);
    if (!device || !device->has_context()) {
      return fail(cookbookErrorInvalidAddress, "%p is not device memory of this driver", pointer);
    }
    if (DeviceMemory::Found found{}; device->opened().find(pointer, found)) {
      return fail(cookbookErrorInvalidAddress,
                  "%p is in a block that was opened from another process: pass on the handle it was opened with",
                  pointer);
    }
    DeviceMemory::Exported exported{};
    if (cookbookError_t error = device->memory().export_block(pointer, exported); error != cookbookSuccess) {
      return error;
    }
    HandleData data;
    data.kind = HandleData::kMemory;
    data.file = address_space().file(owner);
    data.inode = inode_of(data.file);
    data.number = exported.number;
    data.bytes = exported.bytes;
    data.granules = static_cast<uint32_t>(exported.offset / kGranule);
    data.entry = exported.entry;
    data.device = owner;
    seal(data, handle);
    return cookbookSuccess;
  });
}

cookbookError_t cookbookIpcOpenMemHandle(void** pointer, const cookbookIpcMemHandle_t* handle, int index) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    if (!pointer || !handle) return fail(cookbookErrorInvalidValue, "%s is null", pointer ? "handle" : "pointer");
    *pointer = nullptr;
    Device* device;
    if (cookbookError_t error = find_device(index, device); error != cookbookSuccess) return error;
    HandleData data;
    if (!unseal(handle, HandleData::kMemory, data)) {
      return fail(cookbookErrorInvalidHandle, "these 64 bytes are not a handle from cookbookIpcGetMemHandle()");
    }
    if (data.device != index) {
      return fail(cookbookErrorInvalidDevice, "the block is on device %d: open it there, not on device %d", data.device,
                  index);
    }
    if (cookbookError_t error = device->use(); error != cookbookSuccess) return error;
    File file;
    cookbookError_t error = open_file_of(data.process(), data.file, data.inode, file.file);
    if (error == cookbookSuccess) error = check_export(data, file.file);
    if (error != cookbookSuccess) return error;
    const ForeignBlock block{data.inode, data.number, data.granules * kGranule, data.bytes};
    return device->opened().open(block, file.file, *pointer);
  });
}

cookbookError_t cookbookIpcCloseMemHandle(void* pointer) {
  return guarded([&] {
    if (cookbookError_t error = enter(); error != cookbookSuccess) return error;
    const int owner = address_space().owner(pointer);
    Device* device = owner < 0 ? nullptr : device_or_null(owner);
    if (!device || !device->has_context()) {
      return fail(cookbookErrorInvalidAddress, "%p is not device memory of this driver", pointer);
    }
    if (!device->opened().is_open(pointer)) return device->opened().close(pointer);  // for its error, without waiting
    cookbookError_t error = cookbookSuccess;
    for_each_used_device([&](Device& used) {
      if (error == cookbookSuccess) error = refuse_on_captured_device(used, "cookbookIpcCloseMemHandle");
    });
    if (error != cookbookSuccess) return error;
    // All devices: another one's stream may be copying from or to the block.
    for_each_used_device([](Device& used) {
      used.count_synchronization();
      used.drain();
    });
    error = device->opened().close(pointer);
    return error == cookbookSuccess ? device->status() : error;
  });
}
