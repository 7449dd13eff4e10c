// chapter 4
// %% generator-take
#include "runtime/generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

namespace cookbook {

PhiloxCell PhiloxState::get() const {
  const std::lock_guard guard(lock_);
  return now_;
}

void PhiloxState::set(PhiloxCell now) {
  TORCH_CHECK(now.offset % kPhiloxBlock == 0, "offset must be a multiple of ", kPhiloxBlock, ", got ", now.offset);
  const std::lock_guard guard(lock_);
  now_ = now;
}

PhiloxArguments PhiloxState::take(uint64_t columns, CaptureId capture) {
  const uint64_t whole = (columns + kPhiloxBlock - 1) / kPhiloxBlock * kPhiloxBlock;
  const std::lock_guard guard(lock_);
  if (capture != 0) {
    Capture& graph = *find(capture);
    return {0, std::exchange(graph.taken, graph.taken + whole), graph.cell};
  }
  return {now_.seed, std::exchange(now_.offset, now_.offset + whole), nullptr};
}

// %% generator-graphs
std::vector<PhiloxState::Capture>::iterator PhiloxState::find(CaptureId capture) {
  const auto found =
      std::find_if(captures_.begin(), captures_.end(), [&](const Capture& graph) { return graph.id == capture; });
  TORCH_CHECK(found != captures_.end(),
              "this generator is not part of the graph that is being captured: register it with the graph first, or "
              "use the device's default generator");
  return found;
}

void PhiloxState::begin_capture(CaptureId capture, const PhiloxCell* cell) {
  TORCH_CHECK(capture != 0 && cell != nullptr, "a capture needs an id and a cell in device memory");
  const std::lock_guard guard(lock_);
  captures_.push_back({capture, cell, 0});
}

uint64_t PhiloxState::end_capture(CaptureId capture) {
  const std::lock_guard guard(lock_);
  const auto graph = find(capture);
  const uint64_t taken = graph->taken;
  captures_.erase(graph);
  return taken;
}

PhiloxCell PhiloxState::replay(uint64_t columns) {
  const PhiloxArguments start = take(columns);
  return {start.seed, start.offset};
}

// %% generator-seed
PhiloxGenerator::PhiloxGenerator(c10::DeviceIndex index, std::shared_ptr<PhiloxState> state)
    : GeneratorImpl(c10::Device(kDeviceType, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      state_(std::move(state)) {}

std::shared_ptr<PhiloxState> PhiloxGenerator::state() const {
  const std::lock_guard guard(state_lock_);
  return state_;
}

void PhiloxGenerator::set_current_seed(uint64_t seed) { state()->set({seed, 0}); }

uint64_t PhiloxGenerator::seed() {
  const uint64_t seed = c10::detail::getNonDeterministicRandom();
  set_current_seed(seed);
  return seed;
}

void PhiloxGenerator::set_offset(uint64_t offset) { state()->set({current_seed(), offset}); }

// %% generator-bytes
c10::intrusive_ptr<c10::TensorImpl> PhiloxGenerator::get_state() const {
  const PhiloxCell now = state()->get();
  const at::Tensor bytes = at::detail::empty_cpu({sizeof(now)}, c10::kByte);
  std::memcpy(bytes.mutable_data_ptr(), &now, sizeof(now));
  return bytes.getIntrusivePtr();
}

void PhiloxGenerator::set_state(const c10::TensorImpl& bytes) {
  at::detail::check_rng_state(bytes);
  PhiloxCell now;
  TORCH_CHECK(bytes.numel() == sizeof(now), "RNG state is wrong size: expected ", sizeof(now),
              " bytes (uint64 seed, uint64 offset), got ", bytes.numel());
  std::memcpy(&now, bytes.data(), sizeof(now));
  state()->set(now);
}

// %% generator-copies
PhiloxGenerator* PhiloxGenerator::clone_impl() const {
  return new PhiloxGenerator(device_.index(), std::make_shared<PhiloxState>(state()->get()));
}

c10::intrusive_ptr<c10::GeneratorImpl> PhiloxGenerator::graphsafe_get_state() const {
  return c10::make_intrusive<PhiloxGenerator>(device_.index(), state());
}

void PhiloxGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) {
  const auto* generator = dynamic_cast<const PhiloxGenerator*>(other.get());
  TORCH_CHECK(generator != nullptr && generator->device() == device_, "expected a generator of ", device_,
              other ? ", got one of " + other->device().str() : std::string(", got none"));
  std::shared_ptr<PhiloxState> state = generator->state();
  const std::lock_guard guard(state_lock_);
  state_ = std::move(state);
}

// %% generator-defaults
const at::Generator& default_generator(c10::DeviceIndex index) {
  static const std::vector<at::Generator>& all = *[] {
    auto* const generators = new std::vector<at::Generator>;
    for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
      generators->push_back(at::make_generator<PhiloxGenerator>(device));
      generators->back().seed();
    }
    return generators;
  }();
  return all.at(resolve(c10::Device(kDeviceType, index)));
}

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<PhiloxGenerator>(resolve(c10::Device(kDeviceType, index)));
}

// A generator takes part in dispatch like a tensor: with one of this device, a call about CPU tensors comes here too.
// PyTorch's helper compares device types only, so a generator of cookbook:1 would pass for cookbook:0. The texts are
// PyTorch's, the last one that of its `randperm`.
PhiloxGenerator& generator_for(const std::optional<at::Generator>& generator, c10::Device device) {
  TORCH_CHECK(device.type() == kDeviceType, "Expected a '", device.type(), "' device type for generator but found '",
              kDeviceType, "'");
  auto* const found = at::get_generator_or_default<PhiloxGenerator>(generator, default_generator(device.index()));
  TORCH_CHECK(found->device() == device, "Expected a '", device, "' generator device but found '", found->device(),
              "'");
  return *found;
}

}  // namespace cookbook
