// chapter 4
// What the runtime's C++ tests share beside the driver's own support: threads that start together, and kernels that
// mark memory and look whether the mark is still there.
#pragma once

#include <cookbook_driver.h>

#include <atomic>
#include <barrier>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "scaffolding/error.h"

namespace tests {

// For threads, where doctest's checks are not at home: in_threads() hands the text to the test.
inline void expect(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(std::string("expected ") + what);
}

// Runs body(0) ... body(count - 1), each in a thread, and starts them together. Returns what the first failure said.
template <class Body>
std::string in_threads(int count, const Body& body) {
  std::barrier start(count);
  std::mutex lock;  // guards `failure`
  std::string failure;
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      try {
        body(i);
      } catch (const std::exception& error) {
        const std::lock_guard guard(lock);
        if (failure.empty()) failure = "thread " + std::to_string(i) + ": " + error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failure;
}

// Some words of a block, the first and the last among them: plain reads and writes, so that ThreadSanitizer complains
// about two uses of a block that no lock, event or stream puts in order.
struct MarkArgs {
  void* pointer;
  size_t bytes;
  uint64_t mark;
  std::atomic<int>* wrong;  // host memory

  template <class Each>
  cookbookError_t each(cookbookKernelContext* context, Each each) const {
    auto* words = static_cast<uint64_t*>(cookbookTranslate(context, pointer, bytes));
    if (words == nullptr) return cookbookKernelFail(context, cookbookErrorIllegalAddress, "not on this device");
    const size_t count = bytes / sizeof(uint64_t);
    for (size_t i = 0; i < count; i += 1 + count / 64) each(words[i]);
    each(words[count - 1]);
    return cookbookSuccess;
  }
};

inline cookbookError_t run_fill(cookbookKernelContext* context, void* raw) {
  const auto& args = *static_cast<const MarkArgs*>(raw);
  return args.each(context, [&](uint64_t& word) { word = args.mark; });
}
inline cookbookError_t run_verify(cookbookKernelContext* context, void* raw) {
  const auto& args = *static_cast<const MarkArgs*>(raw);
  return args.each(context, [&](const uint64_t& word) { args.wrong->fetch_add(word != args.mark); });
}
inline constexpr cookbookKernel_t kFill{"fill", &run_fill};
inline constexpr cookbookKernel_t kVerify{"verify", &run_verify};

// At least eight bytes.
inline void fill(cookbookStream_t stream, void* pointer, size_t bytes, uint64_t mark) {
  const MarkArgs args{pointer, bytes, mark, nullptr};
  cookbook::check(cookbookLaunchKernel(stream, &kFill, &args, sizeof(args)));
}
// Counts in `wrong` what is not the mark any more.
inline void verify(cookbookStream_t stream, const void* pointer, size_t bytes, uint64_t mark, std::atomic<int>& wrong) {
  const MarkArgs args{const_cast<void*>(pointer), bytes, mark, &wrong};
  cookbook::check(cookbookLaunchKernel(stream, &kVerify, &args, sizeof(args)));
}

}  // namespace tests
