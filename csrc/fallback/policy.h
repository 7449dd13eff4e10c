// chapter 3
// %% policy-header
// What happens when an operator has no kernel on the device, and what has happened so far.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cookbook {

enum class FallbackPolicy : int {
  Allow,  // run on the CPU, count it
  Warn,   // the same, and warn once per operator
  Error,  // refuse
};

FallbackPolicy fallback_policy();
// Returns the earlier policy. For the whole process: autograd's threads must see it too.
FallbackPolicy set_fallback_policy(FallbackPolicy policy);

struct FallbackRecord {
  std::string name;  // "aten::erfinv.out"
  uint64_t calls = 0;
  uint64_t bytes_to_cpu = 0;
  uint64_t bytes_to_device = 0;
};

// One record an operator, most bytes first.
std::vector<FallbackRecord> fallback_report();
void reset_fallback_report();

// %% policy-note
// Counts a call of `name`. Throws c10::NotImplementedError under FallbackPolicy::Error; warns under Warn.
void note_fallback(const std::string& name, uint64_t bytes_to_cpu);
void note_fallback_result(const std::string& name, uint64_t bytes_to_device);

}  // namespace cookbook
