"""Load data with workers and pinned memory
========================================

A ``DataLoader`` asks your device three questions: may a worker process use it, which device is pinned memory for, and does
a copy from pinned memory really not wait. Here you see the answers as numbers.
"""

# %%
# Workers
# -------
# Two worker processes make the batches. They are forked from this process, and the device does not survive a fork: its
# threads stay behind. So a dataset works on the CPU, and the copy to the device belongs into the training loop.

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import cookbook_backend

torch.manual_seed(0)
torch.zeros(1, device="cookbook")  # the device is in use before the workers start
data = TensorDataset(torch.randn(96, 4, 64, 64), torch.arange(96))
loader = DataLoader(data, batch_size=16, num_workers=2, pin_memory=True)

# %%
# Pinned batches
# --------------
# With ``pin_memory=True`` a thread of this process copies each batch into memory that the device can read by itself.
# PyTorch asks ``torch.accelerator`` for the device; the older argument ``pin_memory_device`` is ignored with a warning.

images, labels = next(iter(loader))
print(f"images {tuple(images.shape)}, pinned: {images.is_pinned()}; labels pinned: {labels.is_pinned()}")

# %%
# The copies
# ----------
# From pinned memory, ``non_blocking=True`` returns at once. The counter of synchronizations shows it: the epoch has none,
# although each batch is copied and used. The loss stays on the device until the end.

counters = cookbook_backend._C.counters
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4 * 64 * 64, 8)).to("cookbook")
torch.cookbook.synchronize()
before = counters(0)
total = torch.zeros((), device="cookbook")
with torch.no_grad():
    for images, _ in loader:
        total += model(images.to("cookbook", non_blocking=True)).square().mean()
after = counters(0)
waits = after["synchronizations"] - before["synchronizations"]
megabytes = (after["bytes_host_to_device"] - before["bytes_host_to_device"]) / 2**20
print(f"{megabytes:.1f} MiB copied in {len(loader)} batches, {waits} waits, mean {total.item() / len(loader):.4f}")
assert waits == 0

# %%
# A worker that touches the device
# --------------------------------
# This is the mistake that every device's users make once. It ends with an error that says what to do, not with a process
# that hangs. With ``multiprocessing_context="spawn"`` a worker is a new process, and could use the device.


class OnDevice(Dataset):
    """A dataset that makes its items on the device."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index), device="cookbook")


try:
    next(iter(DataLoader(OnDevice(), num_workers=1)))
except RuntimeError as error:
    print(str(error).strip().splitlines()[-1])
else:
    raise AssertionError("a forked worker used the device")
