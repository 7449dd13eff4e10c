// The settings that the driver takes from environment variables.
#pragma once
#include <cstddef>

namespace cookbook::driver {

constexpr int kMaxDevices = 16;

struct Environment {
  int device_count = 2;
  size_t device_memory = size_t{4} << 30;
  char device_name[64] = "Cookbook Simulated Accelerator";
  bool launch_blocking = false;
};

// False when a variable cannot be understood: `why` then names it, what it holds and what was expected.
bool read_environment(Environment& environment, char* why, size_t why_bytes) noexcept;

}  // namespace cookbook::driver
