// Environment variables: what is understood, what is refused, and what a refused one does to the calls.
#include "environment.h"

#include <cstdio>
#include <cstdlib>

#include "support.h"

using namespace support;
using cookbook::driver::Environment;

namespace {
bool read(const char* name, const char* value, Environment& environment, std::string& why) {
  char text[512] = "";
  environment = Environment{};
  setenv(name, value, 1);
  const bool good = read_environment(environment, text, sizeof(text));
  unsetenv(name);
  why = text;
  return good;
}
}  // namespace

TEST_CASE("memory sizes take the suffixes K, M and G") {
  Environment environment;
  std::string why;
  const std::pair<const char*, size_t> good[] = {{"1048576", size_t{1} << 20},
                                                 {"2048K", size_t{2} << 20},
                                                 {"64M", size_t{64} << 20},
                                                 {"3g", size_t{3} << 30},
                                                 {"1024G", size_t{1} << 40}};
  for (const auto& [text, bytes] : good) {
    CAPTURE(text);
    CHECK(read("COOKBOOK_DEVICE_MEMORY", text, environment, why));
    CHECK(environment.device_memory == bytes);
  }
  for (const char* text : {"", "x", "-1", "1.5G", "4GB", "64 M", "1025G", "1048575", "0", "99999999999999999999"}) {
    CAPTURE(text);
    CHECK_FALSE(read("COOKBOOK_DEVICE_MEMORY", text, environment, why));
    CHECK(contains(why, "COOKBOOK_DEVICE_MEMORY"));
    CHECK(contains(why, std::string("\"") + text + "\""));
  }
}

TEST_CASE("device count, name and blocking are read strictly") {
  Environment environment;
  std::string why;
  CHECK(read("COOKBOOK_DEVICE_COUNT", "0", environment, why));
  CHECK(environment.device_count == 0);
  CHECK(read("COOKBOOK_DEVICE_COUNT", "16", environment, why));
  CHECK(environment.device_count == 16);
  for (const char* text : {"", "17", "-1", "2x", " 2", "two"}) {
    CAPTURE(text);
    CHECK_FALSE(read("COOKBOOK_DEVICE_COUNT", text, environment, why));
    CHECK(contains(why, "COOKBOOK_DEVICE_COUNT"));
  }
  CHECK(read("COOKBOOK_DEVICE_NAME", "My Chip", environment, why));
  CHECK(std::string(environment.device_name) == "My Chip");
  CHECK_FALSE(read("COOKBOOK_DEVICE_NAME", std::string(64, 'n').c_str(), environment, why));
  CHECK_FALSE(read("COOKBOOK_DEVICE_NAME", "", environment, why));
  CHECK(read("COOKBOOK_LAUNCH_BLOCKING", "1", environment, why));
  CHECK(environment.launch_blocking);
  CHECK_FALSE(read("COOKBOOK_LAUNCH_BLOCKING", "yes", environment, why));
}

COOKBOOK_CHILD(no_device) {
  int count = -1, value = 0;
  void* pointer = &value;
  cookbookStream_t stream = nullptr;
  cookbookEvent_t event = nullptr;
  CHILD_EXPECT(cookbookGetDeviceCount(&count) == cookbookSuccess && count == 0);
  CHILD_EXPECT(cookbookGetDevice(&value) == cookbookErrorNoDevice);
  CHILD_EXPECT(cookbookSetDevice(0) == cookbookErrorNoDevice);
  CHILD_EXPECT(cookbookMalloc(&pointer, 16) == cookbookErrorNoDevice && !pointer);
  CHILD_EXPECT(cookbookMallocHost(&pointer, 16) == cookbookErrorNoDevice);
  CHILD_EXPECT(cookbookStreamCreate(&stream, 0) == cookbookErrorNoDevice);
  CHILD_EXPECT(cookbookEventCreate(&event, 0) == cookbookErrorNoDevice);
  CHILD_EXPECT(cookbookStreamSynchronize(nullptr) == cookbookErrorNoDevice);
  CHILD_EXPECT(cookbookDeviceSynchronize(0) == cookbookErrorNoDevice);
  CHILD_EXPECT(contains(cookbookGetLastErrorMessage(), "no device"));
  cookbookPointerAttributes attributes;
  CHILD_EXPECT(cookbookPointerGetAttributes(&attributes, &value) == cookbookSuccess);
  CHILD_EXPECT(attributes.type == cookbookMemoryUnregistered);
  CHILD_EXPECT(cookbookShutdown() == cookbookSuccess);
  return 0;
}

TEST_CASE("a machine without a device") {
  CHECK(run_child("no_device", {{"COOKBOOK_DEVICE_COUNT", "0"}}).exit_code == 0);
}

COOKBOOK_CHILD(bad_environment) {
  int value = 0;
  void* pointer = nullptr;
  cookbookStream_t stream = nullptr;
  CHILD_EXPECT(cookbookGetDeviceCount(&value) == cookbookErrorInvalidValue);
  CHILD_EXPECT(contains(cookbookGetLastErrorMessage(), "COOKBOOK_DEVICE_MEMORY"));
  CHILD_EXPECT(contains(cookbookGetLastErrorMessage(), "a lot"));
  CHILD_EXPECT(cookbookGetDevice(&value) == cookbookErrorInvalidValue);
  CHILD_EXPECT(cookbookMalloc(&pointer, 16) == cookbookErrorInvalidValue);
  CHILD_EXPECT(cookbookStreamCreate(&stream, 0) == cookbookErrorInvalidValue);
  CHILD_EXPECT(cookbookStreamSynchronize(nullptr) == cookbookErrorInvalidValue);
  CHILD_EXPECT(cookbookShutdown() == cookbookErrorInvalidValue);
  CHILD_EXPECT(contains(cookbookGetLastErrorMessage(), "COOKBOOK_DEVICE_MEMORY"));
  return 0;
}

TEST_CASE("a value that cannot be parsed fails every call and names the variable") {
  CHECK(run_child("bad_environment", {{"COOKBOOK_DEVICE_MEMORY", "a lot"}}).exit_code == 0);
}

COOKBOOK_CHILD(settings) {
  cookbookDeviceProperties properties;
  CHILD_EXPECT(cookbookGetDeviceProperties(&properties, 1) == cookbookSuccess);
  CHILD_EXPECT(std::string(properties.name) == "My Chip");
  CHILD_EXPECT(properties.total_memory == size_t{64} << 20);
  CHILD_EXPECT(cookbookGetDeviceProperties(&properties, 3) == cookbookErrorInvalidDevice);
  CHILD_EXPECT(cookbookSetLaunchBlocking(0) == 1);
  CHILD_EXPECT(cookbookSetLaunchBlocking(1) == 0);
  return 0;
}

TEST_CASE("settings reach the device") {
  const auto result = run_child("settings", {{"COOKBOOK_DEVICE_COUNT", "3"},
                                             {"COOKBOOK_DEVICE_MEMORY", "64M"},
                                             {"COOKBOOK_DEVICE_NAME", "My Chip"},
                                             {"COOKBOOK_LAUNCH_BLOCKING", "1"}});
  CHECK(result.exit_code == 0);
}
