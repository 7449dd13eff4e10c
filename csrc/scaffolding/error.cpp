// chapter 1
// %% error-message
#include "scaffolding/error.h"

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

namespace cookbook {
namespace {

std::string message(cookbookError_t error) {
  // The driver keeps the long text of the calling thread's last failure: sizes, names, the kernel that failed.
  std::string text = cookbookGetLastErrorMessage();
  if (text.empty()) text = cookbookGetErrorString(error);
  return std::string(cookbookGetErrorName(error)) + ": " + text;
}

// %% error-throw
[[noreturn]] void raise(cookbookError_t error, const std::source_location& where) {
  const c10::SourceLocation source{where.function_name(), where.file_name(), where.line()};
  switch (error) {
    case cookbookErrorOutOfMemory:
      throw c10::OutOfMemoryError(source, message(error));
    case cookbookErrorNotSupported:
      throw c10::NotImplementedError(source, message(error));
    default:
      throw c10::AcceleratorError(source, static_cast<int32_t>(error), message(error));
  }
}

}  // namespace

void check(cookbookError_t error, std::source_location where) {
  if (error != cookbookSuccess) [[unlikely]] {
    raise(error, where);
  }
}

// %% error-warn
void warn(cookbookError_t error, std::source_location where) noexcept {
  if (error == cookbookSuccess) return;
#if COOKBOOK_CHAPTER >= 4
  // A forked child drops what it inherited. All of it is the parent's: there is nothing to give back, and nothing to
  // say.
  if (error == cookbookErrorForked) return;
#endif
  try {
    // A warning can throw too: Python may have been told to turn warnings into errors.
    TORCH_WARN(message(error), " (in ", where.function_name(), ")");
  } catch (...) {
  }
}

}  // namespace cookbook
