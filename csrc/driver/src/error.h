// How a call fails: an error code for the caller and a longer text for the calling thread.
#pragma once
#include <cstddef>
#include <new>

#include "cookbook_driver.h"

namespace cookbook::driver {

// Keeps the text for cookbookGetLastErrorMessage() of this thread and returns `error`.
[[gnu::format(printf, 2, 3)]] cookbookError_t fail(cookbookError_t error, const char* format, ...) noexcept;

// "1.50 GiB"; lives inside the object so that it can stand in a printf argument list.
class ByteText {
 public:
  explicit ByteText(size_t bytes) noexcept;
  const char* c_str() const { return text_; }

 private:
  char text_[32];
};

// The body of a call. The API never throws, but the containers behind it may run out of host memory.
template <class Body>
cookbookError_t guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(cookbookErrorOutOfMemory, "the driver ran out of ordinary host memory");
  } catch (...) {
    return fail(cookbookErrorUnknown, "an unexpected C++ exception inside the driver");
  }
}

}  // namespace cookbook::driver
