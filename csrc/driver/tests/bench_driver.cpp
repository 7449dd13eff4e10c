// What the driver's hot calls cost: prints the smallest and the median of many rounds, in nanoseconds a call.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cookbook_driver.h"

namespace {

void check(cookbookError_t error) {
  if (error == cookbookSuccess) return;
  std::fprintf(stderr, "%s: %s\n", cookbookGetErrorName(error), cookbookGetLastErrorMessage());
  std::exit(1);
}

struct Args {
  long numbers[14];  // a record of 128 bytes
};
const cookbookKernel_t kernel{"count", [](cookbookKernelContext*, void* args) {
                                static_cast<Args*>(args)->numbers[0] += 1;
                                return cookbookSuccess;
                              }};

template <class Body, class Between>
void measure(const char* name, int rounds, int calls, Body body, Between between) {
  std::vector<double> ns;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) body();
    const auto end = std::chrono::steady_clock::now();
    between();
    ns.push_back(std::chrono::duration<double, std::nano>(end - begin).count() / calls);
  }
  std::sort(ns.begin(), ns.end());
  std::printf("%-44s min %7.1f  median %7.1f\n", name, ns.front(), ns[ns.size() / 2]);
}

}  // namespace

int main() {
  cookbookStream_t stream;
  check(cookbookStreamCreate(&stream, 0));
  const Args args{};
  auto nothing = [] {};
  auto drain = [&] { check(cookbookStreamSynchronize(stream)); };
  measure(
      "launch (112 bytes of arguments)", 300, 1000,
      [&] { check(cookbookLaunchKernel(stream, &kernel, &args, sizeof(args))); }, drain);
  measure(
      "launch and synchronize", 300, 1000,
      [&] {
        check(cookbookLaunchKernel(stream, &kernel, &args, sizeof(args)));
        check(cookbookStreamSynchronize(stream));
      },
      nothing);
  void* pointer;
  for (size_t bytes : {size_t{512}, size_t{4096}, size_t{1} << 20}) {
    char name[64];
    std::snprintf(name, sizeof(name), "MallocAsync and FreeAsync, %zu bytes", bytes);
    measure(
        name, 300, 1000,
        [&] {
          check(cookbookMallocAsync(&pointer, bytes, stream));
          check(cookbookFreeAsync(pointer, stream));
        },
        nothing);
  }
  measure(
      "the same, 512 bytes, behind a launch each", 300, 1000,
      [&] {
        check(cookbookMallocAsync(&pointer, 512, stream));
        check(cookbookLaunchKernel(stream, &kernel, &args, sizeof(args)));
        check(cookbookFreeAsync(pointer, stream));
      },
      drain);
  measure(
      "Malloc and Free, idle device", 300, 1000,
      [&] {
        check(cookbookMalloc(&pointer, 512));
        check(cookbookFree(pointer));
      },
      nothing);
  cookbookEvent_t event;
  check(cookbookEventCreate(&event, cookbookEventDefault));
  measure("event record", 300, 1000, [&] { check(cookbookEventRecord(event, stream)); }, nothing);
  return 0;
}
