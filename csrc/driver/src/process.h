// Other processes: who they are, whether they live, and how a file of theirs is opened.
//
// A handle that one process gives to another names a file of the first, a memfd. The other opens it by way of
// /proc/PID/fd/N. That needs no thread, no socket and no state in the process that made the handle. Linux allows it
// where a debugger may read (PTRACE_MODE_READ_FSCREDS): for the same user in the same PID namespace, unless the process
// has made itself undumpable. Yama's ptrace_scope restricts attaching only, not this. The alternative, a socket that
// passes descriptors, would need a thread in every process that exports, and a check of the peer's user in place of the
// system's own.
//
// A number is reused: a PID by another process, a descriptor by another file. So a process is named with its start time
// as well, and a file with its inode.
#pragma once
#include <sys/types.h>

#include <cstdint>

#include "cookbook_driver.h"

namespace cookbook::driver {

struct ProcessId {
  int32_t pid = 0;
  uint64_t start = 0;  // clock ticks after boot
  bool operator==(const ProcessId&) const = default;
};

// The calling process; in a forked child the child.
ProcessId this_process();
// False when no process has this number. A process that has ended but was not waited for counts as ended.
bool read_process(int32_t pid, ProcessId& process);

// A descriptor, for reading and writing, of the file that `process` has open as `file`. Fails when the process has
// ended, is the calling one, may not be looked into, or has another file there than the one with this inode.
cookbookError_t open_file_of(const ProcessId& process, int32_t file, uint64_t inode, int& opened);

// A descriptor that tells cheaply whether the process lives; -1 when the system has none to give.
int watch_process(const ProcessId& process);
// False once the process has ended. `watch` is what watch_process() returned.
bool still_runs(const ProcessId& process, int watch);

uint64_t inode_of(int file);
// Unlike any number that this or another process has made, and not 0.
uint64_t unique_number();

}  // namespace cookbook::driver
