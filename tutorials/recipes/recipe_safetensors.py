"""Save and load with safetensors
==============================

Files of `safetensors <https://github.com/huggingface/safetensors>`_ are how weights travel between programs. Saving tensors
of your device works as it is. Loading *to* it by name does not: the library has a closed list of device names, compiled
into it. You need not wait for a new release, since two other ways are open.
"""

# %%
# Saving
# ------
# The library asks a tensor for its bytes on the CPU, so it needs nothing from you but the copy.

import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, safe_open, save_file, save_model

import cookbook_backend

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to("cookbook")
folder = Path(tempfile.mkdtemp())
save_file(model.state_dict(), folder / "weights.safetensors")
print(sorted(load_file(folder / "weights.safetensors")))

# %%
# Loading by name is refused
# --------------------------

try:
    load_file(folder / "weights.safetensors", device="cookbook")
except SafetensorError as error:
    print(f"SafetensorError: {error}")

# %%
# Loading by index works
# ----------------------
# An integer is a device *index* to PyTorch, of whichever accelerator there is, and the library passes it on.

on_second = load_file(folder / "weights.safetensors", device=1)
print({name: str(tensor.device) for name, tensor in on_second.items()})
with safe_open(folder / "weights.safetensors", framework="pt", device=0) as file:
    print(file.get_slice("0.weight")[:2].device)

# %%
# Or load to the CPU and copy
# ---------------------------
# ``load_model`` fills the parameters of a model where they are. The copy to the device is PyTorch's.

save_model(model, folder / "model.safetensors")
again = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to("cookbook:1")
missing, unexpected = load_model(again, folder / "model.safetensors")
same = all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(model.parameters(), again.parameters(), strict=True))
print(f"missing {sorted(missing)}, unexpected {unexpected}, the same weights: {same}")
assert same
assert cookbook_backend.device_count() >= 2
