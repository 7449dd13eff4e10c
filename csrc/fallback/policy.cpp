// chapter 3
// %% policy-state
#include "fallback/policy.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

namespace cookbook {
namespace {

std::atomic<FallbackPolicy> policy{FallbackPolicy::Allow};

// Guards `records` and nothing else. Held for a look-up and a few additions: no call of PyTorch, no warning, no GIL
// under it.
std::mutex mutex;

std::map<std::string, FallbackRecord>& records() {
  // Never destroyed: an autograd thread may still fall back while statics end.
  static auto* const map = new std::map<std::string, FallbackRecord>;
  return *map;
}

}  // namespace

FallbackPolicy fallback_policy() { return policy.load(std::memory_order_relaxed); }
FallbackPolicy set_fallback_policy(FallbackPolicy wanted) { return policy.exchange(wanted, std::memory_order_relaxed); }

// %% policy-count
void note_fallback(const std::string& name, uint64_t bytes_to_cpu) {
  const FallbackPolicy now = fallback_policy();
  TORCH_CHECK_NOT_IMPLEMENTED(now != FallbackPolicy::Error, "'", name,
                              "' has no kernel on the cookbook device, and the "
                              "fallback policy is 'error'. Set it to 'allow' to run the operator on the CPU "
                              "(torch.cookbook.fallback.set_policy), or register a kernel for it.");
  bool first = false;
  {
    const std::lock_guard lock(mutex);
    FallbackRecord& record = records()[name];
    first = record.calls++ == 0;
    record.name = name;
    record.bytes_to_cpu += bytes_to_cpu;
  }
  if (first && now == FallbackPolicy::Warn) {
    TORCH_WARN("'", name,
               "' has no kernel on the cookbook device and runs on the CPU: its tensors are copied there and "
               "back, and the host waits for the device. torch.cookbook.fallback.report() counts such calls.");
  }
}

void note_fallback_result(const std::string& name, uint64_t bytes_to_device) {
  const std::lock_guard lock(mutex);
  records()[name].bytes_to_device += bytes_to_device;
}

// %% policy-report
std::vector<FallbackRecord> fallback_report() {
  std::vector<FallbackRecord> report;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [name, record] : records()) report.push_back(record);
  }
  std::stable_sort(report.begin(), report.end(), [](const FallbackRecord& a, const FallbackRecord& b) {
    return a.bytes_to_cpu + a.bytes_to_device > b.bytes_to_cpu + b.bytes_to_device;
  });
  return report;
}

void reset_fallback_report() {
  const std::lock_guard lock(mutex);
  records().clear();
}

}  // namespace cookbook
