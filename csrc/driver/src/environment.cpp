// Parses COOKBOOK_DEVICE_COUNT, COOKBOOK_DEVICE_MEMORY, COOKBOOK_DEVICE_NAME and COOKBOOK_LAUNCH_BLOCKING strictly: a
// misspelt setting that silently became a default would make a test prove something else than it says.
#include "environment.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace cookbook::driver {
namespace {

constexpr size_t kSmallestMemory = size_t{1} << 20;
constexpr size_t kLargestMemory = size_t{1} << 40;  // (16 * 16 + 1) windows of it are reserved

// Decimal digits and nothing else; strtoull alone would take signs and blanks.
bool parse_number(const char* text, char** end, uint64_t& number) {
  if (*text < '0' || *text > '9') return false;
  errno = 0;
  number = std::strtoull(text, end, 10);
  return errno == 0;
}

bool parse_memory(const char* text, size_t& bytes) {
  char* end = nullptr;
  uint64_t number = 0;
  if (!parse_number(text, &end, number)) return false;
  int shift = 0;
  if (*end == 'K' || *end == 'k') shift = 10;
  if (*end == 'M' || *end == 'm') shift = 20;
  if (*end == 'G' || *end == 'g') shift = 30;
  if (shift) ++end;
  if (*end || number > (kLargestMemory >> shift)) return false;
  bytes = static_cast<size_t>(number) << shift;
  return bytes >= kSmallestMemory;
}

}  // namespace

bool read_environment(Environment& environment, char* why, size_t why_bytes) noexcept {
  if (const char* text = std::getenv("COOKBOOK_DEVICE_COUNT")) {
    char* end = nullptr;
    uint64_t number = 0;
    if (!parse_number(text, &end, number) || *end || number > kMaxDevices) {
      std::snprintf(why, why_bytes, "COOKBOOK_DEVICE_COUNT is \"%s\": expected a number from 0 to %d", text,
                    kMaxDevices);
      return false;
    }
    environment.device_count = static_cast<int>(number);
  }
  if (const char* text = std::getenv("COOKBOOK_DEVICE_MEMORY")) {
    if (!parse_memory(text, environment.device_memory)) {
      std::snprintf(why, why_bytes,
                    "COOKBOOK_DEVICE_MEMORY is \"%s\": expected bytes from 1M to 1024G, with or without one of the "
                    "suffixes K, M, G",
                    text);
      return false;
    }
  }
  if (const char* text = std::getenv("COOKBOOK_DEVICE_NAME")) {
    if (!*text || std::strlen(text) >= sizeof(environment.device_name)) {
      std::snprintf(why, why_bytes, "COOKBOOK_DEVICE_NAME is \"%s\": expected 1 to %zu characters", text,
                    sizeof(environment.device_name) - 1);
      return false;
    }
    std::snprintf(environment.device_name, sizeof(environment.device_name), "%s", text);
  }
  if (const char* text = std::getenv("COOKBOOK_LAUNCH_BLOCKING")) {
    if (std::strcmp(text, "0") != 0 && std::strcmp(text, "1") != 0) {
      std::snprintf(why, why_bytes, "COOKBOOK_LAUNCH_BLOCKING is \"%s\": expected 0 or 1", text);
      return false;
    }
    environment.launch_blocking = *text == '1';
  }
  return true;
}

}  // namespace cookbook::driver
