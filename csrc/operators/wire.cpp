// chapter 2
// %% wire-tensor-record
#include "operators/wire.h"

#include <array>

#include "operators/address.h"
#include "scaffolding/device.h"

namespace cookbook {
namespace {

enum class Kind : int8_t { Undefined, Device, HostScalar };
struct TensorRecord {
  uint64_t data = 0;
  Kind kind = Kind::Undefined;
  c10::ScalarType dtype{};
  bool wrapped_number = false;
  int32_t dim = 0;
};
using HostValue = std::array<std::byte, 16>;  // the largest element: complex128

bool is_host_scalar(const c10::TensorImpl* tensor) { return tensor->is_cpu() && tensor->dim() == 0; }

}  // namespace

// %% wire-tensor-bytes
size_t TensorWire::bytes(const at::Tensor& tensor) {
  if (!tensor.defined()) return sizeof(TensorRecord);
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (is_host_scalar(impl)) return sizeof(TensorRecord) + sizeof(HostValue);
  return sizeof(TensorRecord) + 16 * static_cast<size_t>(impl->dim());
}

// %% wire-tensor-write
void TensorWire::write(Writer& writer, const at::Tensor& tensor) {
  if (!tensor.defined()) return writer.put(TensorRecord());
  write_view(writer, tensor, tensor.sizes(), tensor.strides());
}

void TensorWire::write_view(Writer& writer, const at::Tensor& tensor, c10::IntArrayRef sizes,
                            c10::IntArrayRef strides) {
  TensorRecord record;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  record.dtype = c10::typeMetaToScalarType(impl->dtype());
  if (is_host_scalar(impl)) {
    record.kind = Kind::HostScalar;
    record.wrapped_number = impl->is_wrapped_number();
    writer.put(record);
    HostValue value{};
    std::memcpy(value.data(), impl->data(), impl->itemsize());
    return writer.put(value);
  }
  TORCH_CHECK(impl->device() == writer.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", writer.device(),
              " and ", impl->device(), "!");
  record.kind = Kind::Device;
  record.dim = static_cast<int32_t>(sizes.size());
  record.data = address_of(tensor);
  writer.put(record);
  writer.put_array(sizes.data(), sizes.size());
  writer.put_array(strides.data(), strides.size());
}

// %% wire-tensor-read
namespace {

size_t reach(c10::IntArrayRef sizes, c10::IntArrayRef strides, size_t itemsize) {
  int64_t last = 0;
  for (const auto d : c10::irange(sizes.size())) {
    if (sizes[d] == 0) return 0;
    last += (sizes[d] - 1) * strides[d];
  }
  return static_cast<size_t>(last + 1) * itemsize;
}

}  // namespace

at::Tensor& TensorWire::read(Reader& reader) {
  static thread_local at::Tensor undefined;
  const auto record = reader.get<TensorRecord>();
  Scratch& scratch = Scratch::of_this_thread();
  switch (record.kind) {
    case Kind::Undefined:
      return undefined = at::Tensor();
    case Kind::HostScalar: {
      const auto value = reader.get_array<std::array<std::byte, 16>>(1);
      at::Tensor& tensor =
          scratch.view(const_cast<std::byte*>(value[0].data()), sizeof(HostValue), record.dtype, {}, {});
      // It decides type promotion: 2 in `x * 2` must not widen x.
      tensor.unsafeGetTensorImpl()->set_wrapped_number(record.wrapped_number);
      return tensor;
    }
    case Kind::Device:
      break;
  }
  const auto sizes = reader.get_array<int64_t>(record.dim);
  const auto strides = reader.get_array<int64_t>(record.dim);
  const size_t bytes = reach(sizes, strides, c10::elementSize(record.dtype));
  void* data = nullptr;
  if (record.data != 0) {
    data = cookbookTranslate(reader.context(), reinterpret_cast<const void*>(record.data), bytes);
    TORCH_CHECK(data != nullptr, "illegal address: ", bytes, " bytes at ", reinterpret_cast<const void*>(record.data),
                " are not on device ", reader.context()->device);
  }
  return scratch.view(data, bytes, record.dtype, sizes, strides);
}

// %% wire-optional-tensor
size_t Wire<std::optional<at::Tensor>>::bytes(const std::optional<at::Tensor>& tensor) {
  return TensorWire::bytes(tensor.value_or(at::Tensor()));
}
void Wire<std::optional<at::Tensor>>::write(Writer& writer, const std::optional<at::Tensor>& tensor) {
  TensorWire::write(writer, tensor.value_or(at::Tensor()));
}
std::optional<at::Tensor> Wire<std::optional<at::Tensor>>::read(Reader& reader) {
  const at::Tensor& tensor = TensorWire::read(reader);
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

// %% wire-tensor-list
size_t Wire<at::ITensorListRef>::bytes(const at::ITensorListRef& list) {
  size_t total = 8;
  for (const at::Tensor& tensor : list) total += TensorWire::bytes(tensor);
  return total;
}
void Wire<at::ITensorListRef>::write(Writer& writer, const at::ITensorListRef& list) {
  writer.put(list.size());
  for (const at::Tensor& tensor : list) TensorWire::write(writer, tensor);
}
std::vector<at::Tensor> Wire<at::ITensorListRef>::read(Reader& reader) {
  std::vector<at::Tensor> list(reader.get<size_t>());
  for (at::Tensor& tensor : list) tensor = TensorWire::read(reader);
  return list;
}

// %% wire-scalar
namespace {
enum class Number : int64_t { Bool, Int, UInt, Double, Complex };
}
void Wire<c10::Scalar>::write(Writer& writer, const c10::Scalar& scalar) {
  struct {
    Number number;
    double real, imag;
  } record{};
  static_assert(sizeof(record) == 24);
  if (scalar.isBoolean()) {
    record.number = Number::Bool;
    record.real = scalar.toBool() ? 1 : 0;
  } else if (scalar.isComplex()) {
    const auto value = scalar.toComplexDouble();
    record = {Number::Complex, value.real(), value.imag()};
  } else if (scalar.isFloatingPoint()) {
    record = {Number::Double, scalar.toDouble(), 0};
  } else if (scalar.type() == c10::ScalarType::UInt64) {
    record.number = Number::UInt;
    const uint64_t value = scalar.toUInt64();
    std::memcpy(&record.real, &value, 8);
  } else {
    record.number = Number::Int;
    const int64_t value = scalar.toLong();
    std::memcpy(&record.real, &value, 8);
  }
  writer.put(record);
}

// %% wire-scalar-read
c10::Scalar Wire<c10::Scalar>::read(Reader& reader) {
  const auto number = reader.get<Number>();
  const auto bits = reader.get<int64_t>();
  const auto imag = reader.get<double>();
  double real = 0;
  std::memcpy(&real, &bits, 8);
  switch (number) {
    case Number::Bool:
      return c10::Scalar(real != 0);
    case Number::Int:
      return c10::Scalar(bits);
    case Number::UInt:
      return c10::Scalar(static_cast<uint64_t>(bits));
    case Number::Double:
      return c10::Scalar(real);
    case Number::Complex:
      break;
  }
  return c10::Scalar(c10::complex<double>(real, imag));
}
void Wire<std::optional<c10::Scalar>>::write(Writer& writer, const Held& scalar) {
  writer.put<int64_t>(scalar.has_value());
  Wire<c10::Scalar>::write(writer, scalar.value_or(0));
}
std::optional<c10::Scalar> Wire<std::optional<c10::Scalar>>::read(Reader& reader) {
  const bool present = reader.get<int64_t>() != 0;
  const c10::Scalar scalar = Wire<c10::Scalar>::read(reader);
  return present ? Held(scalar) : std::nullopt;
}

// %% wire-string-code
void Wire<std::string_view>::write(Writer& writer, std::string_view text) {
  writer.put(text.size());
  for (size_t i = 0; i < text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
    writer.put(word);
  }
}
std::string_view Wire<std::string_view>::read(Reader& reader) {
  const auto size = reader.get<size_t>();
  const auto words = reader.get_array<uint64_t>((size + 7) / 8);
  return {reinterpret_cast<const char*>(words.data()), size};
}

}  // namespace cookbook
