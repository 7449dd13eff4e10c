// chapter 4
// %% ipc-sides
// What the two sides of sharing need of each other: one process may be both.
#pragma once

#include <c10/core/Storage.h>

#include <optional>
#include <string>

#include "runtime/ipc.h"
#include "runtime/ipc_message.h"

namespace cookbook {

// ipc_send.cpp: a message of this process that came back to it.
c10::Storage receive_own(const IpcMessage& message);
void collect_sent();
void count_sent(IpcStats& stats);

// ipc_receive.cpp: a message about memory that was received here; nothing when it was not.
std::optional<std::string> send_on(const c10::DataPtr& data);
void collect_opened();
void count_received(IpcStats& stats);

c10::Storage make_storage(const IpcMessage& message, c10::DataPtr data);

}  // namespace cookbook
