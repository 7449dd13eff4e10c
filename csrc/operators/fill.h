// chapter 2
// %% fill-header
// What operators share that put one value into many elements.
#pragma once

#include <c10/core/Scalar.h>

namespace cookbook {

// Raises core's error when the value does not fit the dtype ("value cannot be converted to type uint8_t without
// overflow"), on the host, where the program's line is known.
void check_fits(const c10::Scalar& value, c10::ScalarType dtype);

}  // namespace cookbook
