"""Train with Hugging Face accelerate
==================================

`accelerate <https://github.com/huggingface/accelerate>`_ chooses the device for you, out of a closed list (``default_device``
in ``accelerate/state.py``) that yours is not in: without a word from you, it takes the CPU. An environment variable is
the hook that it offers.
"""

# %%
# The hook
# --------
# The variable is read when the first object of the library is made. From a shell it is
# ``ACCELERATE_TORCH_DEVICE=cookbook python train.py``.

import os
import tempfile

os.environ["ACCELERATE_TORCH_DEVICE"] = "cookbook"

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.utils.data import DataLoader, TensorDataset

import cookbook_backend

accelerator = Accelerator(mixed_precision="bf16")
print(accelerator.device)

# %%
# What the library does not know
# ------------------------------
# ``save_state`` writes the states of the random number generators of the devices on its list
# (``accelerate/checkpointing.py``). Yours is not saved, nobody says so, and a resumed run draws other numbers. Register
# an object that has the state, and it is saved with the rest.


class DeviceGenerators:
    """The state of every device's generator, for ``register_for_checkpointing``."""

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        return {"states": cookbook_backend.get_rng_state_all()}

    def load_state_dict(self, state: dict[str, list[torch.Tensor]]) -> None:
        cookbook_backend.set_rng_state_all(state["states"])


accelerator.register_for_checkpointing(DeviceGenerators())

# %%
# The training
# ------------
# The usual loop: ``prepare`` moves the model, and the loader's batches arrive on the device. Note that the optimizer exists
# before the model moves. It goes on with the same parameters only because your backend says that a move may keep them;
# PyTorch's own answer for a device like yours is no, and the loss would stay where it is, without an error
# (``csrc/operators/set_data.cpp``). The hook looks at a layer's output, since the library turns the model's result back
# into float32.

torch.manual_seed(0)
x = torch.randn(256, 8)
data = TensorDataset(x, x.sum(1, keepdim=True).tanh())
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
seen = set()
model[0].register_forward_hook(lambda _, __, output: seen.add((str(output.device), output.dtype)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
loader = DataLoader(data, batch_size=32, shuffle=True, pin_memory=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

means = []
for _ in range(6):
    losses = []
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    means.append(torch.stack(losses).mean().item())
print(", ".join(f"{mean:.3f}" for mean in means))
assert means[-1] < means[0] / 2
print(seen)
assert seen == {("cookbook:0", torch.bfloat16)}

# %%
# Saving and resuming
# -------------------

with tempfile.TemporaryDirectory() as folder:
    accelerator.save_state(folder)
    first = torch.rand(3, device="cookbook")
    accelerator.load_state(folder)
    again = torch.rand(3, device="cookbook")
print(f"the same random numbers after loading: {torch.equal(first.cpu(), again.cpu())}")
assert torch.equal(first.cpu(), again.cpu())

# %%
# What is refused
# ---------------
# float16 is: the library has another closed list for it, in the constructor of ``Accelerator``. Use bfloat16, or write the
# loop with ``torch.autocast`` and ``torch.amp.GradScaler("cookbook")`` yourself.

AcceleratorState._reset_state(reset_partial_state=True)
try:
    Accelerator(mixed_precision="fp16")
except ValueError as error:
    print(f"ValueError: {error}")
AcceleratorState._reset_state(reset_partial_state=True)
del os.environ["ACCELERATE_TORCH_DEVICE"]
