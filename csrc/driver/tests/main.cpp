// The test program: doctest's main, or one child (support.h).
#define DOCTEST_CONFIG_IMPLEMENT
#include <sys/resource.h>

#include <csignal>

#include "support.h"

int main(int argc, char** argv) {
  const rlimit no_core{0, 0};  // death tests
  setrlimit(RLIMIT_CORE, &no_core);
  signal(SIGPIPE, SIG_IGN);  // a child that ended early is a failed check, not the end of the tests
  if (const int code = support::child_main(argc, argv); code >= 0) return code;
  doctest::Context context(argc, argv);
  return context.run();
}
