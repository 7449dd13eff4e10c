// A fixed array of zeroes whose pages cost memory only when they are written: tables that are sized by a device's
// capacity but used only as far as the device's memory is used.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace cookbook::driver {

template <class T>
class LazyArray {
  static_assert(std::is_trivial_v<T>);

 public:
  LazyArray() = default;
  explicit LazyArray(size_t count) : bytes_(count * sizeof(T)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(memory);
  }
  LazyArray(LazyArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  LazyArray& operator=(LazyArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~LazyArray() {
    if (data_) munmap(data_, bytes_);
  }
  T& operator[](size_t index) { return data_[index]; }
  const T& operator[](size_t index) const { return data_[index]; }

 private:
  T* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace cookbook::driver
