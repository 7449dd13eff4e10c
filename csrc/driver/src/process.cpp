// Reads /proc, opens files of other processes, watches them.
#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "error.h"
#include "spin.h"

namespace cookbook::driver {

bool read_process(int32_t pid, ProcessId& process) {
  char path[32], text[1024];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t bytes = read(file, text, sizeof(text) - 1);
  close(file);
  if (bytes <= 0) return false;
  text[bytes] = '\0';
  // The name in parentheses may itself hold blanks and parentheses; the state follows the last one, and the start time
  // is the 22nd field of the line (proc(5)).
  const char* field = std::strrchr(text, ')');
  if (!field || std::strlen(field) < 3) return false;
  field += 2;
  if (*field == 'Z' || *field == 'X') return false;
  for (int number = 3; number < 22; ++number) {
    field = std::strchr(field, ' ');
    if (!field) return false;
    ++field;
  }
  process = {pid, std::strtoull(field, nullptr, 10)};
  return true;
}

ProcessId this_process() {
  ProcessId process;
  const int32_t pid = getpid();
  // Without /proc the start time is unknown: handles then cannot be opened either.
  if (!read_process(pid, process)) process.pid = pid;
  return process;
}

cookbookError_t open_file_of(const ProcessId& process, int32_t file, uint64_t inode, int& opened) {
  opened = -1;
  if (process == this_process()) {
    return fail(cookbookErrorInvalidHandle,
                "the handle was made by this process: use the pointer or the event itself, a handle is for others");
  }
  ProcessId now;
  if (!read_process(process.pid, now) || !(now == process)) {
    return fail(cookbookErrorInvalidHandle, "process %d, which made the handle, has ended", process.pid);
  }
  char path[48];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", process.pid, file);
  opened = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (opened < 0) {
    const int error = errno;
    const char* const hint =
        error == EACCES || error == EPERM
            ? ": both processes must belong to one user, and the one that made the handle must be dumpable"
            : "";
    return fail(cookbookErrorInvalidHandle, "cannot open %s, the memory of the process that made the handle: %s%s",
                path, std::strerror(error), hint);
  }
  if (inode_of(opened) != inode) {
    close(opened);
    opened = -1;
    return fail(cookbookErrorInvalidHandle, "process %d, which made the handle, has ended", process.pid);
  }
  return cookbookSuccess;
}

int watch_process(const ProcessId& process) {
#ifdef SYS_pidfd_open
  const auto watch = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));  // closed on exec by itself
  ProcessId now;
  if (watch >= 0 && read_process(process.pid, now) && now == process) return watch;
  if (watch >= 0) close(watch);
#endif
  return -1;
}

bool still_runs(const ProcessId& process, int watch) {
  if (watch < 0) {
    ProcessId now;
    return read_process(process.pid, now) && now == process;
  }
  pollfd look{watch, POLLIN, 0};
  return poll(&look, 1, 0) == 0 || !(look.revents & POLLIN);
}

uint64_t inode_of(int file) {
  struct stat status{};
  return fstat(file, &status) == 0 ? status.st_ino : 0;
}

uint64_t unique_number() {
  static std::atomic<uint64_t> next{0};
  if (next.load(std::memory_order_relaxed) == 0) {
    uint64_t first = 0, zero = 0;
    if (getrandom(&first, sizeof(first), 0) != sizeof(first)) first = static_cast<uint64_t>(now_ns());
    next.compare_exchange_strong(zero, first | 1, std::memory_order_relaxed);
  }
  return next.fetch_add(2, std::memory_order_relaxed);  // odd, so never 0
}

}  // namespace cookbook::driver
