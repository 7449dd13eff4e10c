// chapter 4
// %% ipc-message
// What travels between two processes of one machine and one build for a storage.
#pragma once

#include <c10/util/Exception.h>
#include <cookbook_driver.h>

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "runtime/ipc_ledger.h"

namespace cookbook {

struct IpcMessage {
  static constexpr uint64_t kMark = 0x3153434950434243;  // "CBCPICS1"
  uint64_t mark = kMark;
  cookbookIpcMemHandle_t block{};  // of the driver's block, in which the storage is a part
  uint64_t offset = 0, bytes = 0;  // of the storage in the block
  int64_t device = 0;
  LedgerEntry entry;

  std::string pack() const { return std::string(reinterpret_cast<const char*>(this), sizeof(*this)); }
  static IpcMessage unpack(std::string_view text) {
    IpcMessage message;
    TORCH_CHECK_VALUE(text.size() == sizeof(message), "expected ", sizeof(message),
                      " bytes that share_storage() made, got ", text.size());
    std::memcpy(&message, text.data(), sizeof(message));
    TORCH_CHECK_VALUE(message.mark == kMark, "expected the bytes that share_storage() made");
    return message;
  }
};
static_assert(std::is_trivially_copyable_v<IpcMessage>);

}  // namespace cookbook
