// chapter 6
// %% metadata
#include "runtime/metadata.h"

#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <string_view>

#include "scaffolding/device.h"

namespace cookbook {
namespace {

// Never changed once it is made, so that a view, a detached tensor and its origin may share it; setting replaces it.
struct TensorMetadata final : c10::BackendMeta {
  explicit TensorMetadata(Metadata values) : values(std::move(values)) {}
  const Metadata values;
};

}  // namespace

void set_metadata(const at::Tensor& tensor, Metadata metadata) {
  TORCH_CHECK_VALUE(tensor.device().type() == kDeviceType, "expected a tensor on the device, got one on ",
                    tensor.device(), ": PyTorch keeps metadata of other devices, but saves none of it");
  for (const auto& [name, value] : metadata) {
    TORCH_CHECK_VALUE(!name.empty() && name.find('=') == std::string::npos,
                      "expected names that are not empty and have no '=', got '", name, "'");
  }
  tensor.unsafeGetTensorImpl()->set_backend_meta(
      metadata.empty() ? nullptr : c10::make_intrusive<TensorMetadata>(std::move(metadata)));
}

Metadata metadata_of(const at::Tensor& tensor) {
  // Another library's tensor may carry another class.
  const auto* meta = dynamic_cast<const TensorMetadata*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
  return meta ? meta->values : Metadata();
}

// %% metadata-save
namespace {

// PyTorch stores names with a bool each and nothing else, next to its own "conj" and "neg": so the value is in the
// name.
constexpr std::string_view kPrefix = "cookbook.";
using Saved = std::unordered_map<std::string, bool>;

void save(const at::Tensor& tensor, Saved& saved) {
  for (const auto& [name, value] : metadata_of(tensor)) saved[std::string(kPrefix) + name + "=" + value] = true;
}

void load(const at::Tensor& tensor, Saved& saved) {
  Metadata metadata;
  for (const auto& [entry, present] : saved) {
    const size_t equals = entry.find('=');
    // Whatever another backend has noted may change what the bytes mean.
    TORCH_CHECK(present && entry.starts_with(kPrefix) && equals != std::string::npos, "the file's tensor carries '",
                entry, "', which this backend does not know: it was saved by another one. Load it there, or with ",
                "map_location='cpu', and save it without.");
    metadata[entry.substr(kPrefix.size(), equals - kPrefix.size())] = entry.substr(equals + 1);
  }
  set_metadata(tensor, std::move(metadata));
}

}  // namespace

// %% metadata-register
void register_serialization() {
  static const bool registered = [] {
    torch::jit::TensorBackendMetaRegistry(kDeviceType, &save, &load);
    return true;
  }();
  static_cast<void>(registered);
}

}  // namespace cookbook
