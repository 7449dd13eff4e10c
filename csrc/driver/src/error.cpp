// Names and sentences of the error codes, and the thread's last error text.
#include "error.h"

#include <cstdarg>
#include <cstdio>

namespace cookbook::driver {
namespace {
// Plain storage: a failing call must not allocate, and a thread that ends has nothing to destroy.
thread_local char last_message[1024] = "";
}  // namespace

cookbookError_t fail(cookbookError_t error, const char* format, ...) noexcept {
  // By way of a second buffer, since an argument may be the last message itself.
  char text[sizeof(last_message)];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  std::snprintf(last_message, sizeof(last_message), "%s", text);
  return error;
}

ByteText::ByteText(size_t bytes) noexcept {
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) {
    std::snprintf(text_, sizeof(text_), "%zu bytes", bytes);
    return;
  }
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  for (; value >= 1024 && unit < 3; ++unit) value /= 1024;
  std::snprintf(text_, sizeof(text_), "%.2f %s", value, units[unit]);
}

}  // namespace cookbook::driver

const char* cookbookGetErrorName(cookbookError_t error) {
  switch (error) {
    case cookbookSuccess:
      return "cookbookSuccess";
    case cookbookErrorInvalidValue:
      return "cookbookErrorInvalidValue";
    case cookbookErrorOutOfMemory:
      return "cookbookErrorOutOfMemory";
    case cookbookErrorNotReady:
      return "cookbookErrorNotReady";
    case cookbookErrorInvalidDevice:
      return "cookbookErrorInvalidDevice";
    case cookbookErrorNoDevice:
      return "cookbookErrorNoDevice";
    case cookbookErrorInvalidHandle:
      return "cookbookErrorInvalidHandle";
    case cookbookErrorInvalidAddress:
      return "cookbookErrorInvalidAddress";
    case cookbookErrorLaunchFailure:
      return "cookbookErrorLaunchFailure";
    case cookbookErrorIllegalAddress:
      return "cookbookErrorIllegalAddress";
    case cookbookErrorForked:
      return "cookbookErrorForked";
    case cookbookErrorNotSupported:
      return "cookbookErrorNotSupported";
    case cookbookErrorStreamCaptureUnsupported:
      return "cookbookErrorStreamCaptureUnsupported";
    case cookbookErrorStreamCaptureInvalidated:
      return "cookbookErrorStreamCaptureInvalidated";
    case cookbookErrorStreamCaptureUnjoined:
      return "cookbookErrorStreamCaptureUnjoined";
    case cookbookErrorUnknown:
      return "cookbookErrorUnknown";
  }
  return "cookbookErrorUnknown";
}

const char* cookbookGetErrorString(cookbookError_t error) {
  switch (error) {
    case cookbookSuccess:
      return "No error.";
    case cookbookErrorInvalidValue:
      return "An argument is out of range or null.";
    case cookbookErrorOutOfMemory:
      return "Out of memory.";
    case cookbookErrorNotReady:
      return "The work has not finished yet.";
    case cookbookErrorInvalidDevice:
      return "No device has this index.";
    case cookbookErrorNoDevice:
      return "The machine has no device.";
    case cookbookErrorInvalidHandle:
      return "The handle is not valid: destroyed, of another device, or of a process that has ended.";
    case cookbookErrorInvalidAddress:
      return "The pointer was not given out by this driver.";
    case cookbookErrorLaunchFailure:
      return "A kernel reported a failure.";
    case cookbookErrorIllegalAddress:
      return "A kernel used an address that is not on its device.";
    case cookbookErrorForked:
      return "The process was forked after the driver was used.";
    case cookbookErrorNotSupported:
      return "This device does not support the call.";
    case cookbookErrorStreamCaptureUnsupported:
      return "The call is not allowed while a stream is being captured.";
    case cookbookErrorStreamCaptureInvalidated:
      return "An earlier call has made the capture invalid.";
    case cookbookErrorStreamCaptureUnjoined:
      return "A stream that joined the capture was not joined back.";
    case cookbookErrorUnknown:
      return "An unknown error.";
  }
  return "An unknown error.";
}

const char* cookbookGetLastErrorMessage(void) { return cookbook::driver::last_message; }
