"""Train a transformer on both devices
======================================

You train the same small transformer on the CPU and on your device, compare the two loss curves, and read in the
fallback report which operators still run on the CPU. Keep this script: after each change of your backend it answers in
a few seconds whether training still works, and natively.

The task is one that needs attention. The model sees a word of eight random letters, and then has to spell it backwards,
one letter at a time; each letter that it writes stands at another distance from the one that it must look up. A model
without attention knows only the first of the eight, the letter that it has just read. For the others it can but guess,
and its loss stays above 7/8 ln 16 = 2.43.
"""

# %%
# The model
# ---------
# Nothing in it knows about your device. The only sign of one is ``letters.device``, which every program needs
# that makes tensors inside a model.

import math

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn import functional

import cookbook_backend

LETTERS, WORD = 16, 8
LENGTH = 2 * WORD - 1  # the word and its reverse; the last letter is never read


class Reverser(nn.Module):
    """Letters, (batch, LENGTH) -> scores of the next letter, (batch, LENGTH, LETTERS)."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.letter = nn.Embedding(LETTERS, width)
        self.position = nn.Embedding(LENGTH, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, LETTERS)

    def forward(self, letters: Tensor) -> Tensor:
        device = letters.device
        positions = torch.arange(LENGTH, device=device)
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=device)
        x = self.letter(letters) + self.position(positions)
        return self.head(self.block(x, src_mask=mask, is_causal=True))


# %%
# The training
# ------------
# Weights and data come from one seed on the CPU and are moved, so that both devices start from the same numbers. The
# losses stay on the device until the end: ``loss.item()`` in the loop would make the host wait for the device once a
# step, and the two would never work at the same time.

torch.set_num_threads(1)  # the matrices are too small to share


def words(count: int) -> tuple[Tensor, Tensor]:
    """Random words and their reverse, (count, LENGTH); the letters to predict, (count, WORD)."""
    word = torch.randint(LETTERS, (count, WORD))
    both = torch.cat([word, word.flip(1)], 1)
    return both[:, :-1], both[:, WORD:]


def train(device: str, steps: int = 120) -> tuple[Reverser, Tensor]:
    """Return the trained model and the loss of each step, both on the CPU in the end."""
    torch.default_generator.manual_seed(0)  # the CPU's; the device has none yet
    model = Reverser().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    losses = []
    for _ in range(steps):
        seen, wanted = (tensor.to(device) for tensor in words(64))
        scores = model(seen)[:, WORD - 1 :]
        loss = functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return model, torch.stack(losses).cpu()


# %%
# On the device, the policy ``"error"`` makes every operator without a kernel an exception that names it. So when this
# cell ends, the whole training step is native: nothing left the device but the losses at the end.

fallback = cookbook_backend.fallback
_, on_cpu = train("cpu")
with fallback.policy("error"):
    model, on_device = train("cookbook")

print(f"first loss {on_cpu[0]:.4f} on the CPU, {on_device[0]:.4f} on the device")
print(f"last loss  {on_cpu[-1]:.4f} on the CPU, {on_device[-1]:.4f} on the device")
print(f"largest difference of a step: {(on_cpu - on_device).abs().max():.1e}")
torch.testing.assert_close(on_device, on_cpu, rtol=1e-2, atol=1e-3)

# %%
# The two curves
# --------------
# They cover each other. If yours part at the first step, a kernel of the forward pass is wrong; if they part at the
# second, one of the backward pass or of the optimizer. If they drift apart slowly, look for a sum in another order or
# in another precision before you look for an error.

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
guessing = (WORD - 1) / WORD * math.log(LETTERS)
axes.axhline(guessing, color="0.6", linestyle=":", label="without attention")
axes.plot(on_cpu, linewidth=6, color="tab:orange", alpha=0.5, label="CPU")
axes.plot(on_device, linewidth=1.5, color="black", linestyle="--", label="cookbook")
axes.set(xlabel="step", ylabel="loss", title="A transformer learns to spell backwards")
axes.set_ylim(bottom=0)
axes.legend()
plt.show()

# %%
# The fallback report
# -------------------
# Training is not all that a program does. Here you test the trained model on new words: how many letters are right, and
# how often each letter was written. Now operators may fall back, and the report says what that cost.

fallback.reset()
model.eval()
with torch.no_grad(), fallback.policy("allow"):
    seen, wanted = (tensor.to("cookbook") for tensor in words(256))
    written = model(seen)[:, WORD - 1 :].argmax(-1)
    right = (written == wanted).float().mean()
    often = torch.bincount(written.flatten(), minlength=LETTERS)

print(f"{right.item():.1%} of the letters are right")
print(f"letter 0 was written {often[0]} times, letter {LETTERS - 1} {often[-1]} times")
print()
print(fallback.format_report())

# %%
# How to read it: a line is an operator without a kernel on your device. Its arguments went to the CPU, its result came
# back, and the host waited for both. Here it is one call an evaluation, so you leave it where it is. An operator that
# stands in this table after a *training step* is the next one to write, the one that moves the most bytes first.
# :doc:`Chapter 3 </tutorials/chapter-3>` shows how the report is made, and which operators must never be in it.
