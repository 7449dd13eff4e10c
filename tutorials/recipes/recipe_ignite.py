"""Train with PyTorch Ignite
=========================

`Ignite <https://github.com/pytorch/ignite>`_ leaves the device to you, so float32 training needs no hook. Its helpers for
mixed precision name CUDA; with an update function of your own you do not need them.
"""

# %%
# Without mixed precision
# -----------------------

from itertools import pairwise

import torch
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from torch.utils.data import DataLoader, TensorDataset

import cookbook_backend

torch.manual_seed(0)
points = torch.randn(512, 2)
rings = (points.norm(dim=1) > 1.1).long()
train_loader = DataLoader(TensorDataset(points[:384], rings[:384]), batch_size=64, pin_memory=True)
test_loader = DataLoader(TensorDataset(points[384:], rings[384:]), batch_size=64)


def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model of 2 inputs and 2 classes, with its optimizer, on the device."""
    torch.default_generator.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)).to("cookbook")
    return model, torch.optim.AdamW(model.parameters(), lr=2e-2, fused=True)


criterion = torch.nn.CrossEntropyLoss()
model, optimizer = make()
trainer = create_supervised_trainer(model, optimizer, criterion, device="cookbook", non_blocking=True)
metrics = {"accuracy": Accuracy(device="cookbook"), "loss": Loss(criterion, device="cookbook")}
evaluator = create_supervised_evaluator(model, metrics=metrics, device="cookbook")


@trainer.on(Events.EPOCH_COMPLETED(every=5))
def report(engine: Engine) -> None:
    """Print the metrics on data that the model has not seen."""
    evaluator.run(test_loader)
    result = evaluator.state.metrics
    print(f"epoch {engine.state.epoch:2}: loss {result['loss']:.3f}, accuracy {result['accuracy']:.1%}")


with cookbook_backend.fallback.policy("error"):
    trainer.run(train_loader, max_epochs=10)
assert evaluator.state.metrics["accuracy"] > 0.9

# %%
# With mixed precision
# --------------------
# ``create_supervised_trainer(..., amp_mode="amp")`` enters ``autocast("cuda")`` whatever the device is
# (``supervised_training_step_amp`` in ``ignite/engine/__init__.py``): on your device it trains in float32, after a warning.
# An ``Engine`` takes any function of a batch, which is the place for your own step.

model, optimizer = make()
scaler = torch.amp.GradScaler("cookbook", init_scale=2.0**40, growth_interval=20)
scales = []


def update(_: Engine, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """One step in float16. The fused optimizer reads on the device whether it must skip, so nothing here waits."""
    x, y = (tensor.to("cookbook", non_blocking=True) for tensor in batch)
    optimizer.zero_grad()
    with torch.autocast("cookbook", dtype=torch.float16):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


mixed = Engine(update)
mixed.add_event_handler(Events.ITERATION_COMPLETED, lambda _: scales.append(scaler.get_scale()))
evaluator = create_supervised_evaluator(model, metrics=metrics, device="cookbook")
mixed.add_event_handler(Events.EPOCH_COMPLETED(every=5), report)
mixed.run(train_loader, max_epochs=15)
assert evaluator.state.metrics["accuracy"] > 0.9

# %%
# The first scale was far too large on purpose. Each step that found an infinite gradient changed no parameter and halved
# it, until the steps were finite; after 20 of those in a row it was doubled.

skipped = sum(b < a for a, b in pairwise([2.0**40, *scales]))
grown = sum(b > a for a, b in pairwise(scales))
print(f"{len(scales)} steps, {skipped} skipped, the scale grew {grown} times and ended at {scales[-1]:.0f}")
assert skipped > 0
assert grown > 0
