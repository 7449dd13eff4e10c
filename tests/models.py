# chapter 2
"""Four small models and one training step each: the workloads whose whole path the operators of chapter 2 serve.

All weights and data are made on the CPU from one seed and then moved, so that a device and the CPU start from the same
numbers. Sizes are small enough for a step in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions with batch norm and a skip connection. Input and output: (batch, channels, height, width)."""

    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.skip = nn.Conv2d(channels, channels, 1, stride) if stride != 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.skip(x))


class ConvNet(nn.Module):
    """A small ResNet: stem, pooling, two residual blocks, global average. (8, 3, 16, 16) -> (8, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1)
        self.blocks = nn.Sequential(Residual(16), Residual(16, 2))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.stem(x)), 2)
        x = functional.adaptive_avg_pool2d(self.blocks(x), 1)
        return self.head(x.flatten(1))


class Transformer(nn.Module):
    """Token and position embeddings, one encoder block with attention, a linear head. (8, 16) int64 -> (8, 16, 64)."""

    def __init__(self, vocabulary: int = 64, width: int = 32, length: int = 16) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.block = nn.TransformerEncoderLayer(
            width, 4, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.block(x, src_mask=mask, is_causal=True)))


class Recurrent(nn.Module):
    """An embedding, an LSTM, a GRU, a linear head. (8, 12) int64 -> (8, 12, 32)."""

    def __init__(self, vocabulary: int = 32, width: int = 24) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.gru = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.lstm(self.token(tokens))
        x, _ = self.gru(x)
        return self.head(x)


@dataclass
class Workload:
    """A model, one batch, and how to get the loss of the two."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor

    def loss(self) -> Tensor:
        output = self.model(self.inputs)
        return functional.cross_entropy(output.flatten(0, -2), self.targets.flatten())

    def to(self, device: str | torch.device) -> Workload:
        return Workload(self.model.to(device), self.inputs.to(device), self.targets.to(device))


def make(name: str, seed: int = 0) -> Workload:
    """Return a workload on the CPU. Names: mlp, convnet, transformer, recurrent."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "mlp":
            model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
            return Workload(model, torch.randn(32, 32), torch.randint(10, (32,)))
        if name == "convnet":
            return Workload(ConvNet(), torch.randn(8, 3, 16, 16), torch.randint(10, (8,)))
        if name == "transformer":
            return Workload(Transformer(), torch.randint(64, (8, 16)), torch.randint(64, (8, 16)))
        if name == "recurrent":
            return Workload(Recurrent(), torch.randint(32, (8, 12)), torch.randint(32, (8, 12)))
    raise ValueError(f"expected mlp, convnet, transformer or recurrent, got {name!r}")


MODELS = ("mlp", "convnet", "transformer", "recurrent")

Optimizer = Callable[..., torch.optim.Optimizer]
# Name -> class and arguments: each algorithm one parameter at a time, batched (foreach) and in one kernel (fused).
OPTIMIZERS: dict[str, tuple[Optimizer, dict[str, object]]] = {
    f"{name}-{kind}": (cls, {**options, "foreach": kind == "foreach", "fused": kind == "fused"})
    for name, cls, options in (
        ("sgd", torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}),
        ("adam", torch.optim.Adam, {"lr": 0.01}),
        ("adamw", torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    )
    for kind in ("single", "foreach", "fused")
}


def train(workload: Workload, optimizer: str, steps: int) -> list[Tensor]:
    """Run training steps; return the losses, still on the device, so that no step waits for it."""
    cls, options = OPTIMIZERS[optimizer]
    step_rule = cls(workload.model.parameters(), **options)
    losses = []
    for _ in range(steps):
        step_rule.zero_grad()
        loss = workload.loss()
        loss.backward()
        step_rule.step()
        losses.append(loss.detach())
    return losses
