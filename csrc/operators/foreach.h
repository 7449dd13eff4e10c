// chapter 2
// %% foreach-list
// Operators on lists of tensors, each as one launch: an optimizer's step over 100 parameters costs as many launches as
// one over a single parameter.
#pragma once

#include <ATen/native/ForeachUtils.h>
#include <torch/library.h>

#include "operators/trial.h"

namespace cookbook {

// A list of dense tensors of one dtype whose elements are only looked at one by one: 16 bytes each in the queue.
struct FlatList {
  FlatList(at::TensorList tensors) : list(tensors) {}
  FlatList(const std::vector<at::Tensor>& tensors) : list(tensors) {}
  at::TensorList list;
};
template <>
struct Wire<FlatList> {
  using Held = std::vector<at::Tensor>;
  static size_t bytes(const FlatList& flat) { return 16 + 16 * flat.list.size(); }
  static void write(Writer& writer, const FlatList& flat);
  static Held read(Reader& reader);
};
template <>
struct Wire<at::ArrayRef<at::Scalar>> {
  using Held = std::vector<at::Scalar>;
  static size_t bytes(at::ArrayRef<at::Scalar> scalars) { return 8 + 24 * scalars.size(); }
  static void write(Writer& writer, at::ArrayRef<at::Scalar> scalars);
  static Held read(Reader& reader);
};

// %% foreach-arguments
// What belongs to the tensor `i` of a list: its partner in another list, or an argument that all share.
inline const at::Tensor& item(const FlatList& flat, size_t i) { return flat.list[i]; }
inline const at::Tensor& item(at::TensorList list, size_t i) { return list[i]; }
inline const at::Scalar& item(at::ArrayRef<at::Scalar> scalars, size_t i) { return scalars[i]; }
template <class T>
const T& item(const T& shared, size_t) {
  return shared;
}
// The part of a list that one launch gets.
inline FlatList part(at::TensorList list, size_t begin, size_t count) { return list.slice(begin, count); }
inline at::ArrayRef<at::Scalar> part(at::ArrayRef<at::Scalar> scalars, size_t begin, size_t count) {
  return scalars.slice(begin, count);
}
template <class T>
const T& part(const T& shared, size_t, size_t) {
  return shared;
}
template <class T>
using Traveling = std::conditional_t<std::is_same_v<T, at::TensorList>, FlatList, T>;

// Whether the lists can be one launch: tensors of the device, dense, of one floating dtype that no scalar promotes,
// and the lists alike in shapes and strides. Everything else, errors included, is core's loop over single operators.
bool is_one_launch(at::ArrayRef<at::TensorList> lists, at::ArrayRef<at::Scalar> scalars, const at::Tensor* number);

// How many tensors fit into one launch, if each takes this many bytes.
inline size_t tensors_per_launch(size_t bytes_each) { return (cookbookMaxKernelArgs - 1024) / bytes_each; }

// %% foreach-collect
// The lists, scalars and the tensor among an operator's arguments.
struct ForeachArguments {
  void add(at::TensorList list) { lists.push_back(list); }
  void add(at::ArrayRef<at::Scalar> list) { scalars.append(list.begin(), list.end()); }
  void add(const at::Scalar& scalar) {
    if (scalars.empty()) scalars.push_back(scalar);
    has_bool |= scalar.isBoolean();
  }
  void add(const at::Tensor& tensor) { number = &tensor; }
  void add(bool) {}
  bool is_one_launch() const { return !has_bool && cookbook::is_one_launch(lists, scalars, number); }

  c10::SmallVector<at::TensorList, 4> lists;
  c10::SmallVector<at::Scalar, 8> scalars;
  const at::Tensor* number = nullptr;
  bool has_bool = false;
};

// %% foreach-operator
// Foreach<"_foreach_add", &add_one, &slow, &slow_>: `One(out, self, ...)` computes one tensor; core's loops `Slow` and
// `SlowInPlace` give the signature, and serve what cannot be one launch.
template <Name name, auto One, auto Slow, auto SlowInPlace, class F = decltype(Slow)>
struct Foreach;

template <Name name, auto One, auto Slow, auto SlowInPlace, class... A>
struct Foreach<name, One, Slow, SlowInPlace, std::vector<at::Tensor> (*)(at::TensorList, A...)> {
  static std::vector<at::Tensor> functional(at::TensorList self, A... arguments) {
    if (!is_one(self, arguments...)) return Slow(self, arguments...);
    const OnDevice guard(self[0].device());
    std::vector<at::Tensor> outs;
    outs.reserve(self.size());
    for (const at::Tensor& tensor : self) {
      outs.push_back(empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
    }
    run(outs, self, arguments...);
    return outs;
  }
  static void in_place(at::TensorList self, A... arguments) {
    if (!is_one(self, arguments...)) return SlowInPlace(self, arguments...);
    run(self, self, arguments...);
  }

  // %% foreach-run
  // On the stream's thread.
  static void kernel(const FlatList& outs, const FlatList& self, const Traveling<std::decay_t<A>>&... arguments) {
    for (const size_t i : c10::irange(outs.list.size())) {
      at::Tensor out = outs.list[i];
      One(out, self.list[i], item(arguments, i)...);
    }
  }

 private:
  static bool is_one(at::TensorList self, const A&... arguments) {
    ForeachArguments all;
    all.add(self);
    (all.add(arguments), ...);
    return all.is_one_launch();
  }
  static void run(at::TensorList outs, at::TensorList self, const std::decay_t<A>&... arguments) {
    Trial<One>::check(outs[0], self[0], item(arguments, 0)...);
    const size_t step = tensors_per_launch(16 * 4 + 24);
    for (size_t begin = 0; begin < self.size(); begin += step) {
      const size_t count = std::min(step, self.size() - begin);
      KernelLaunch<name, &kernel>::launch(self[0].device(), part(outs, begin, count), part(self, begin, count),
                                          part(arguments, begin, count)...);
    }
  }
};

// %% foreach-register
// `_foreach_add.List` and `_foreach_add_.List`.
template <class Op>
void implement_foreach(torch::Library& m, const std::string& name, const std::string& overload = "") {
  const std::string suffix = overload.empty() ? "" : "." + overload;
  m.impl((name + suffix).c_str(), &Op::functional);
  m.impl((name + "_" + suffix).c_str(), &Op::in_place);
}

}  // namespace cookbook
