// chapter 1
// %% error-header
// Turns a driver's error code into the exception that a PyTorch user expects, with the driver's own text.
#pragma once

#include <cookbook_driver.h>

#include <source_location>

namespace cookbook {

// Throws unless `error` is cookbookSuccess:
//   cookbookErrorOutOfMemory   -> c10::OutOfMemoryError    torch.OutOfMemoryError
//   cookbookErrorNotSupported  -> c10::NotImplementedError NotImplementedError
//   any other                  -> c10::AcceleratorError    torch.AcceleratorError, `error_code` is the driver's number
// The first and the last are RuntimeErrors in Python.
void check(cookbookError_t error, std::source_location where = std::source_location::current());

// For noexcept functions and deleters: says the same as a warning and goes on.
void warn(cookbookError_t error, std::source_location where = std::source_location::current()) noexcept;

}  // namespace cookbook
