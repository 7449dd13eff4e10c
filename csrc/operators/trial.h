// chapter 2
// %% trial-stand-ins
// A trial on the host: before a kernel is queued for dtypes that it has not seen, the host runs it once on CPU tensors
// of one element. A kernel of the chip's library says itself which dtypes it takes; asked only on the stream's thread,
// its answer would come later, at a line of the program that has nothing to do with it.
#pragma once

#include <array>
#include <atomic>

#include "operators/structured.h"

namespace cookbook {

// What the kernel gets in a trial: the argument itself, or for a tensor one of the same dtype and number of dimensions
// whose only element is 1 (a 0 would be divided by).
at::Tensor stand_in(const at::Tensor& tensor);
std::optional<at::Tensor> stand_in(const std::optional<at::Tensor>& tensor);
std::vector<at::Tensor> stand_in(at::TensorList list);
template <class T>
const T& stand_in(const T& value) {
  return value;
}

// %% trial-key
// A number for the dtypes of the arguments. Scalars count: `x < 1j` fails where `x < 1` does not.
inline uint64_t trial_key(const at::Tensor& tensor) {
  if (!tensor.defined()) return 1;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return 2 + 2 * static_cast<uint64_t>(c10::typeMetaToScalarType(impl->dtype())) + impl->is_wrapped_number();
}
inline uint64_t trial_key(const c10::Scalar& scalar) { return 2 + static_cast<uint64_t>(scalar.type()); }
inline uint64_t trial_key(const std::optional<at::Tensor>& tensor) { return tensor ? trial_key(*tensor) : 1; }
inline uint64_t trial_key(const std::optional<c10::Scalar>& scalar) { return scalar ? trial_key(*scalar) : 1; }
inline uint64_t trial_key(at::TensorList list) { return list.empty() ? 1 : trial_key(list.front()); }
template <class T>
uint64_t trial_key(const T&) {
  return 0;
}
// Eleven tensors fit without a collision.
template <class... A>
uint64_t trial_keys(const A&... arguments) {
  uint64_t key = 1;
  ((key = trial_key(arguments) == 0 ? key : key * 53 + trial_key(arguments)), ...);
  return key;
}

// The keys that passed. Lost entries cost a second trial, so plain stores are enough.
class TrialsPassed {
 public:
  bool has(uint64_t key) const {
    for (const auto& slot : slots_) {
      if (slot.load(std::memory_order_relaxed) == key) return true;
    }
    return false;
  }
  void add(uint64_t key) { slots_[next_.fetch_add(1, std::memory_order_relaxed) % slots_.size()].store(key); }

 private:
  std::array<std::atomic<uint64_t>, 16> slots_{};
  std::atomic<size_t> next_{0};
};

// %% trial-run
// Swallows PyTorch's warnings on this thread: a kernel's are about one element, or come from a thread without Python.
class QuietWarnings final : c10::WarningHandler {
 public:
  QuietWarnings() : guard_(this) {}
  void process(const c10::Warning&) override {}

 private:
  c10::WarningUtils::WarningHandlerGuard guard_;
};

// Runs `body` as a kernel would run. Only the refusal of a dtype comes out: what else fails, fails because of the one
// element, or will fail in the real run too.
void run_trial(void (*body)(void*), void* state);

template <auto Kernel, class Signature = decltype(+Kernel)>
struct Trial;
template <auto Kernel, class R, class... P>
struct Trial<Kernel, R (*)(P...)> {
  static void check(const std::decay_t<P>&... arguments) {
    const uint64_t key = trial_keys(arguments...);
    if (passed.has(key)) [[likely]]
      return;
    auto stand_ins = std::tuple<decltype(stand_in(arguments))...>(stand_in(arguments)...);
    run_trial(
        [](void* state) {
          std::apply([](auto&... argument) { static_cast<void>(Kernel(argument...)); },
                     *static_cast<decltype(stand_ins)*>(state));
        },
        &stand_ins);
    passed.add(key);
  }
  inline static TrialsPassed passed;
};

// %% trial-operator
// A meta function, and after it the trial: by then the outputs and their dtypes are known.
enum class Empty { Tried, Passes };  // a kernel may refuse a dtype even for no elements, or look at elements first
template <auto MetaFunction, auto Kernel, size_t N, Empty empty, class F = decltype(MetaFunction)>
struct TriedMeta;
template <auto MetaFunction, auto Kernel, size_t N, Empty empty, class R, class Meta, class... A>
struct TriedMeta<MetaFunction, Kernel, N, empty, R (Meta::*)(A...)> : Meta {
  void meta(A... arguments) {
    static_cast<void>((this->*MetaFunction)(arguments...));
    if (empty == Empty::Passes && this->maybe_get_output(0).numel() == 0) return;
    [&]<size_t... I>(std::index_sequence<I...>) {
      Trial<Kernel>::check(this->maybe_get_output(I)..., arguments...);
    }(std::make_index_sequence<N>());
  }
};

// Operator<"exp", &at::meta::structured_exp::meta, &at::cpu::exp_out>: a structured operator that refuses a dtype
// exactly where the chip's kernel does, and with its words.
template <Name name, auto MetaFunction, auto Kernel, size_t N = 1, Empty empty = Empty::Tried>
using Operator = Structured<name, &TriedMeta<MetaFunction, Kernel, N, empty>::meta, Kernel, N>;

}  // namespace cookbook
