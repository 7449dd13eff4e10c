// Names, sentences and the thread's own error text.
#include <set>
#include <thread>

#include "support.h"

using namespace support;

TEST_CASE("every error has a name and a sentence of its own") {
  std::set<std::string> names, sentences;
  for (int code : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 999}) {
    names.insert(cookbookGetErrorName(static_cast<cookbookError_t>(code)));
    sentences.insert(cookbookGetErrorString(static_cast<cookbookError_t>(code)));
  }
  CHECK(names.size() == 16);
  CHECK(sentences.size() == 16);
  CHECK(std::string(cookbookGetErrorName(cookbookErrorIllegalAddress)) == "cookbookErrorIllegalAddress");
  CHECK(cookbookGetErrorName(static_cast<cookbookError_t>(998)) != nullptr);
  CHECK(cookbookGetErrorString(static_cast<cookbookError_t>(998)) != nullptr);
}

TEST_CASE("the last error text belongs to the thread that failed") {
  CHECK(cookbookSetDevice(77) == cookbookErrorInvalidDevice);
  CHECK(contains(last_message(), "77"));
  std::string other = "unset";
  std::thread([&] { other = cookbookGetLastErrorMessage(); }).join();
  CHECK(other.empty());
  CHECK_OK(cookbookSetDevice(0));
  CHECK(contains(last_message(), "77"));  // a success keeps it
}
