// chapter 2
// %% foreach-wire
#include "operators/foreach.h"

#include "operators/address.h"

namespace cookbook {

void Wire<FlatList>::write(Writer& writer, const FlatList& flat) {
  writer.put(flat.list.size());
  writer.put(flat.list.empty() ? c10::ScalarType::Float : flat.list[0].scalar_type());
  for (const at::Tensor& tensor : flat.list) {
    writer.put(tensor.numel());
    writer.put(address_of(tensor));
  }
}

std::vector<at::Tensor> Wire<FlatList>::read(Reader& reader) {
  std::vector<at::Tensor> tensors(reader.get<size_t>());
  const auto dtype = reader.get<c10::ScalarType>();
  Scratch& scratch = Scratch::of_this_thread();
  for (at::Tensor& tensor : tensors) {
    const auto numel = reader.get<int64_t>();
    const auto* address = reader.get<const void*>();
    const size_t bytes = static_cast<size_t>(numel) * c10::elementSize(dtype);
    void* data = address == nullptr ? nullptr : cookbookTranslate(reader.context(), address, bytes);
    TORCH_CHECK(data != nullptr || address == nullptr, "illegal address: ", bytes, " bytes at ", address,
                " are not on device ", reader.context()->device);
    tensor = scratch.view(data, bytes, dtype, numel, 1);
  }
  return tensors;
}

void Wire<at::ArrayRef<at::Scalar>>::write(Writer& writer, at::ArrayRef<at::Scalar> scalars) {
  writer.put(scalars.size());
  for (const at::Scalar& scalar : scalars) Wire<at::Scalar>::write(writer, scalar);
}

std::vector<at::Scalar> Wire<at::ArrayRef<at::Scalar>>::read(Reader& reader) {
  std::vector<at::Scalar> scalars(reader.get<size_t>());
  for (at::Scalar& scalar : scalars) scalar = Wire<at::Scalar>::read(reader);
  return scalars;
}

// %% foreach-one-launch
bool is_one_launch(at::ArrayRef<at::TensorList> lists, at::ArrayRef<at::Scalar> scalars, const at::Tensor* number) {
  const at::TensorList self = lists[0];
  if (self.empty() || !self[0].is_privateuseone() || !c10::isFloatingType(self[0].scalar_type())) return false;
  for (const at::TensorList list : lists) {
    if (list.size() != self.size()) return false;
  }
  for (const at::Scalar& scalar : scalars) {
    if (scalar.isComplex()) return false;
  }
  if (scalars.size() > 1 && scalars.size() != self.size()) return false;
  if (number != nullptr && (number->dim() != 0 || number->scalar_type() != self[0].scalar_type() ||
                            !(number->is_cpu() || number->device() == self[0].device()))) {
    return false;
  }
  return at::native::can_use_fast_route(lists);
}

}  // namespace cookbook
