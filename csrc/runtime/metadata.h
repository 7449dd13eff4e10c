// chapter 6
// %% metadata-header
// What the backend knows about a tensor and PyTorch does not: a private layout, the scale of its integers, an origin.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace cookbook {

using Metadata = std::map<std::string, std::string>;

// Throws unless the tensor is on this device, and for a name that is empty or has a '=' in it.
void set_metadata(const at::Tensor& tensor, Metadata metadata);
// Empty when the tensor has none.
Metadata metadata_of(const at::Tensor& tensor);

// From now on torch.save writes it and torch.load restores it. Throws when another backend has registered its own.
void register_serialization();

}  // namespace cookbook
