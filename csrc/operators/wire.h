// chapter 2
// %% wire-io
// How an operator's arguments travel to its kernel: as bytes in the stream's queue. Addresses and numbers travel, never
// a tensor: a reference to a tensor would free memory on the stream's thread, and need a destructor in the queue.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <cookbook_driver.h>

#include <cstring>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "operators/kernel_scope.h"

namespace cookbook {

// Everything is a multiple of 8 bytes, so that 64-bit numbers are aligned.
class Writer {
 public:
  Writer(std::byte* begin, c10::Device device) : position_(begin), device_(device) {}
  c10::Device device() const { return device_; }
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memcpy(position_, &value, sizeof(T));
    position_ += (sizeof(T) + 7) & ~size_t{7};
  }
  template <class T>
  void put_array(const T* values, size_t count) {
    static_assert(sizeof(T) == 8);
    if (count != 0) std::memcpy(position_, values, count * sizeof(T));
    position_ += count * sizeof(T);
  }

 private:
  std::byte* position_;
  c10::Device device_;
};

// %% wire-reader
class Reader {
 public:
  Reader(const cookbookKernelContext* context, void* begin)
      : context_(context), position_(static_cast<std::byte*>(begin)) {}
  const cookbookKernelContext* context() const { return context_; }
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, position_, sizeof(T));
    position_ += (sizeof(T) + 7) & ~size_t{7};
    return value;
  }
  // The array stays where it is: the queue keeps a record until its kernel has returned.
  template <class T>
  c10::ArrayRef<T> get_array(size_t count) {
    const auto* first = reinterpret_cast<const T*>(position_);
    position_ += count * sizeof(T);
    return {first, count};
  }

 private:
  const cookbookKernelContext* context_;
  std::byte* position_;
};

// %% wire-tensor
// Wire<T>: how many bytes a T needs, how it is written, as what it is read. `Held` lives in the kernel's frame.
template <class T, class = void>
struct Wire;

// The tensors of one launch are on one device, but for a 0-dimensional CPU tensor, which travels by value.
struct TensorWire {
  using Held = at::Tensor&;
  static size_t bytes(const at::Tensor& tensor);
  static void write(Writer& writer, const at::Tensor& tensor);
  // As a view of the same memory with other sizes and strides: a kernel that does not care gets one dimension.
  static void write_view(Writer& writer, const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides);
  static at::Tensor& read(Reader& reader);
};
template <>
struct Wire<at::Tensor> : TensorWire {};

template <>
struct Wire<std::optional<at::Tensor>> {
  using Held = std::optional<at::Tensor>;
  static size_t bytes(const std::optional<at::Tensor>& tensor);
  static void write(Writer& writer, const std::optional<at::Tensor>& tensor);
  static Held read(Reader& reader);
};

// %% wire-list
template <>
struct Wire<at::ITensorListRef> {
  using Held = std::vector<at::Tensor>;
  static size_t bytes(const at::ITensorListRef& list);
  static void write(Writer& writer, const at::ITensorListRef& list);
  static Held read(Reader& reader);
};
template <>
struct Wire<at::TensorList> : Wire<at::ITensorListRef> {};

// %% wire-numbers
// Points at memory of the caller's, which is gone when the kernel runs. Such a type needs a Wire of its own, below.
template <class T>
inline constexpr bool kBorrows = std::is_pointer_v<T>;
template <class T>
inline constexpr bool kBorrows<c10::ArrayRef<T>> = true;
template <class T>
inline constexpr bool kBorrows<std::optional<c10::ArrayRef<T>>> = true;
template <class T>
inline constexpr bool kBorrows<c10::OptionalArrayRef<T>> = true;
template <class T>
inline constexpr bool kBorrows<std::basic_string_view<T>> = true;
template <class T>
inline constexpr bool kBorrows<std::optional<std::basic_string_view<T>>> = true;

template <class T>
struct Wire<T, std::enable_if_t<std::is_trivially_copyable_v<T> && !kBorrows<T> &&
                                !std::is_base_of_v<at::TensorBase, T> && sizeof(T) <= 64>> {
  using Held = T;
  static size_t bytes(const T&) { return (sizeof(T) + 7) & ~size_t{7}; }
  static void write(Writer& writer, const T& value) { writer.put(value); }
  static T read(Reader& reader) { return reader.get<T>(); }
};

template <>
struct Wire<c10::Scalar> {
  using Held = c10::Scalar;
  static size_t bytes(const c10::Scalar&) { return 24; }
  static void write(Writer& writer, const c10::Scalar& scalar);
  static c10::Scalar read(Reader& reader);
};
template <>
struct Wire<std::optional<c10::Scalar>> {
  using Held = std::optional<c10::Scalar>;
  static size_t bytes(const Held&) { return 32; }
  static void write(Writer& writer, const Held& scalar);
  static Held read(Reader& reader);
};

// %% wire-arrays
// c10::ArrayRef is trivially copyable, but it points at the caller's memory: its elements must travel.
template <>
struct Wire<c10::IntArrayRef> {
  using Held = c10::IntArrayRef;
  static size_t bytes(c10::IntArrayRef array) { return 8 + array.size() * 8; }
  static void write(Writer& writer, c10::IntArrayRef array) {
    writer.put(array.size());
    writer.put_array(array.data(), array.size());
  }
  static Held read(Reader& reader) {
    const auto count = reader.get<size_t>();
    return reader.get_array<int64_t>(count);
  }
};
template <>
struct Wire<at::OptionalIntArrayRef> {
  using Held = at::OptionalIntArrayRef;
  static size_t bytes(const Held& array) { return 8 + (array ? Wire<c10::IntArrayRef>::bytes(*array) : 0); }
  static void write(Writer& writer, const Held& array) {
    writer.put<int64_t>(array.has_value());
    if (array) Wire<c10::IntArrayRef>::write(writer, *array);
  }
  static Held read(Reader& reader) {
    if (reader.get<int64_t>() == 0) return std::nullopt;
    return Held(Wire<c10::IntArrayRef>::read(reader));
  }
};

// %% wire-string
template <>
struct Wire<std::string_view> {
  using Held = std::string_view;
  static size_t bytes(std::string_view text) { return 8 + ((text.size() + 7) & ~size_t{7}); }
  static void write(Writer& writer, std::string_view text);
  static Held read(Reader& reader);
};
template <>
struct Wire<std::optional<std::string_view>> {
  using Held = std::optional<std::string_view>;
  static size_t bytes(const Held& text) { return 8 + (text ? Wire<std::string_view>::bytes(*text) : 0); }
  static void write(Writer& writer, const Held& text) {
    writer.put<int64_t>(text.has_value());
    if (text) Wire<std::string_view>::write(writer, *text);
  }
  static Held read(Reader& reader) {
    if (reader.get<int64_t>() == 0) return std::nullopt;
    return Held(Wire<std::string_view>::read(reader));
  }
};

}  // namespace cookbook
