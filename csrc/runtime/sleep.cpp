// chapter 6
// %% sleep
#include "runtime/sleep.h"

#include <cookbook_driver.h>

#include <chrono>
#include <thread>

#include "scaffolding/device.h"
#include "scaffolding/error.h"
#include "scaffolding/stream.h"

namespace cookbook {
namespace {

// The stream's thread sleeps, so that a test's long kernel costs the other streams nothing.
cookbookError_t run(cookbookKernelContext*, void* arguments) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(*static_cast<const uint64_t*>(arguments)));
  return cookbookSuccess;
}
constexpr cookbookKernel_t kernel{"sleep", &run};

}  // namespace

void sleep(uint64_t cycles) {
  check(cookbookLaunchKernel(current_handle(current_device()), &kernel, &cycles, sizeof(cycles)));
}

}  // namespace cookbook
