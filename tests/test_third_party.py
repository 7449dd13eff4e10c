# chapter 6
"""Programs that ask a device questions: what works with them, what needs a hook, and what they refuse.

A refusal is tested too: the day a library opens its list of devices, the test fails and the page can be mended.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import cookbook_backend

pytestmark = pytest.mark.usefixtures("time_limit")


def library(name: str) -> ModuleType:
    """Import a package of the group `recipes`; a machine without it skips the test, but CI does not."""
    if os.environ.get("CI"):
        return importlib.import_module(name)
    return pytest.importorskip(name)


# DataLoader


class Numbers(Dataset[torch.Tensor]):
    """The numbers 0 to 15, each in a tensor of two; on the CPU unless told otherwise."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index), device=self.device)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"},
    ],
    ids=["no worker", "forked", "persistent", "spawned"],
)
def test_workers_and_pinned_batches(options: dict[str, Any]) -> None:
    torch.zeros(1, device="cookbook")  # the device is in use before the workers start
    loader = DataLoader(Numbers(), batch_size=4, pin_memory=True, **options)
    for _ in range(2):
        batches = []
        for batch in loader:
            assert batch.is_pinned()
            batches.append(batch.to("cookbook", non_blocking=True))
        assert torch.cat(batches)[:, 1].tolist() == [float(i) for i in range(16)]


def test_copies_of_pinned_batches_do_not_wait() -> None:
    loader = DataLoader(TensorDataset(torch.randn(64, 256)), batch_size=16, num_workers=2, pin_memory=True)
    total = torch.zeros(256, device="cookbook")
    cookbook_backend.synchronize()
    before = cookbook_backend._C.counters(0)
    for (batch,) in loader:
        total += batch.to("cookbook", non_blocking=True).sum(0)
    after = cookbook_backend._C.counters(0)
    assert after["synchronizations"] == before["synchronizations"]
    assert after["bytes_host_to_device"] - before["bytes_host_to_device"] == 64 * 256 * 4


def test_the_argument_for_the_device_is_ignored() -> None:
    with pytest.warns(UserWarning, match="pin_memory_device is deprecated"):
        batch = next(iter(DataLoader(Numbers(), batch_size=4, pin_memory=True, pin_memory_device="cookbook")))
    assert batch.is_pinned()


def test_a_forked_worker_that_uses_the_device_says_what_to_do() -> None:
    torch.zeros(1, device="cookbook")
    with pytest.raises(RuntimeError, match="spawn"):
        next(iter(DataLoader(Numbers("cookbook"), num_workers=1)))


# safetensors


def test_safetensors(tmp_path: Path) -> None:
    safetensors = library("safetensors")
    from safetensors.torch import load_file, load_model, safe_open, save_file, save_model

    file = tmp_path / "weights.safetensors"
    base = torch.arange(12.0, device="cookbook:1").reshape(3, 4)
    saved = {
        "plain": base.contiguous(),
        "half": base.bfloat16(),
        "whole": torch.arange(5, device="cookbook"),
        "none": torch.empty(0, 3, device="cookbook"),
    }
    save_file(saved, file)
    for where in ("cpu", 0, 1):
        loaded = load_file(file, device=where)
        for name, tensor in saved.items():
            assert loaded[name].device == torch.device("cpu" if where == "cpu" else f"cookbook:{where}")
            assert loaded[name].dtype == tensor.dtype
            assert torch.equal(loaded[name].cpu(), tensor.cpu())
    with safe_open(file, framework="pt", device=1) as opened:
        part = opened.get_slice("plain")[1:, :2]
        assert part.device == torch.device("cookbook:1")
        assert part.tolist() == [[4.0, 5.0], [8.0, 9.0]]
    for name in ("cookbook", "cookbook:1"):
        with pytest.raises(safetensors.SafetensorError, match=f"device {name} is invalid"):
            load_file(file, device=name)

    model, again = (torch.nn.Linear(3, 3, device="cookbook") for _ in range(2))
    save_model(model, tmp_path / "model.safetensors")
    assert load_model(again, tmp_path / "model.safetensors") == (set(), [])
    assert again.weight.device == model.weight.device
    assert torch.equal(again.weight.cpu(), model.weight.cpu())


# transformers


@pytest.fixture(params=["Llama", "GPT2"])
def language_model(request: pytest.FixtureRequest) -> Any:
    """A causal language model with random weights, on the CPU."""
    transformers = library("transformers")
    sizes = {"vocab_size": 97, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if request.param == "Llama":
        sizes |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 64}
    else:
        sizes |= {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    torch.manual_seed(0)
    config = getattr(transformers, f"{request.param}Config")(**sizes)
    return getattr(transformers, f"{request.param}LMHeadModel" if request.param == "GPT2" else "LlamaForCausalLM")(
        config
    )


def test_transformers_trains_as_on_the_cpu(language_model: Any) -> None:
    """Without dropout, whose masks differ between devices. GPT-2's first and last matrix are one."""
    import copy

    tokens = torch.randint(3, 97, (4, 10), generator=torch.Generator().manual_seed(1))
    curves = []
    for device in ("cpu", "cookbook"):
        model = copy.deepcopy(language_model).eval()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)  # before the move
        model.to(device)
        there = tokens.to(device)
        losses = []
        with cookbook_backend.fallback.policy("error"):
            for _ in range(5):
                loss = model(input_ids=there, labels=there).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        curves.append(torch.stack(losses).cpu())
    assert curves[0][-1] < 0.9 * curves[0][0]
    torch.testing.assert_close(curves[1], curves[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_transformers_generates_the_cpus_tokens(language_model: Any, options: dict[str, Any]) -> None:
    prompt = torch.randint(3, 97, (2, 5), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(prompt)
    mask[0, :2] = 0  # padded on the left
    results = []
    for device in ("cpu", "cookbook"):
        model = language_model.eval().to(device)
        made = model.generate(
            prompt.to(device), attention_mask=mask.to(device), max_new_tokens=8, do_sample=False, **options
        )
        assert made.device.type == device
        results.append(made.cpu())
    assert results[0].shape[1] > prompt.shape[1]
    assert torch.equal(results[0], results[1])


def test_transformers_samples_by_the_seed(language_model: Any) -> None:
    prompt = torch.randint(3, 97, (2, 5), generator=torch.Generator().manual_seed(2)).to("cookbook")
    model, made = language_model.eval().to("cookbook"), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        made.append(model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=True))
    assert made[0].tolist() == made[1].tolist()
    assert made[0].tolist() != made[2].tolist()


def test_transformers_loads_to_the_device(language_model: Any, tmp_path: Path) -> None:
    library("accelerate")
    language_model.to("cookbook").save_pretrained(tmp_path)
    found = []
    for device_map in ("cookbook", {"": "cookbook:1"}, "auto"):
        loaded = type(language_model).from_pretrained(tmp_path, device_map=device_map)
        found.append(str(loaded.device))
        for a, b in zip(loaded.parameters(), language_model.parameters(), strict=True):
            assert torch.equal(a.cpu(), b.cpu())
    assert found == ["cookbook:0", "cookbook:1", "cpu"]  # "auto" plans with a closed list of devices


def trainer(folder: Path, **options: Any) -> Any:
    """A `transformers.Trainer` of a small model that has 16 tokens to learn by heart."""
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32, **sizes))
    data = [{"input_ids": torch.arange(3, 19), "labels": torch.arange(3, 19)} for _ in range(32)]
    settings = {"max_steps": 8, "logging_steps": 4, "learning_rate": 1e-2, "save_strategy": "no", "report_to": []}
    arguments = transformers.TrainingArguments(str(folder), disable_tqdm=True, **settings, **options)
    return transformers.Trainer(model=model, args=arguments, train_dataset=data)


def test_the_trainer_of_transformers(accelerate: ModuleType, tmp_path: Path) -> None:
    """It asks accelerate for the device, so that library's hook is its too; bfloat16 has one more closed list."""
    library("transformers")
    trains = trainer(tmp_path)
    trains.train()
    first, second = (entry["loss"] for entry in trains.state.log_history if "loss" in entry)
    assert trains.model.device.type == "cookbook"
    assert float(second) < float(first)
    with pytest.raises(ValueError, match="Your setup doesn't support bf16/gpu"):
        trainer(tmp_path, bf16=True)


# accelerate


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The library without a state from before, told which device to take."""
    module = library("accelerate")
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cookbook:1")
    module.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield module
    module.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate_trains(accelerate: ModuleType, precision: str) -> None:
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(mixed_precision=precision)
    x = torch.randn(128, 8)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    seen: set[tuple[str, torch.dtype]] = set()
    model[0].register_forward_hook(lambda _, __, output: seen.add((str(output.device), output.dtype)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, fused=True)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).tanh()), batch_size=32, pin_memory=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _ in range(8):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert seen == {("cookbook:1", torch.bfloat16 if precision == "bf16" else torch.float32)}
    assert losses[-1] < 0.5 * losses[0]


def test_accelerate_without_the_hook_takes_the_cpu(accelerate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCELERATE_TORCH_DEVICE")
    assert accelerate.Accelerator().device == torch.device("cpu")


def test_accelerate_refuses_float16(accelerate: ModuleType) -> None:
    with pytest.raises(ValueError, match="fp16 mixed precision requires a device in .* \\(not 'cookbook'\\)"):
        accelerate.Accelerator(mixed_precision="fp16")


class Generators:
    """What a program registers so that the devices' generators are saved."""

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        return {"states": cookbook_backend.get_rng_state_all()}

    def load_state_dict(self, state: dict[str, list[torch.Tensor]]) -> None:
        cookbook_backend.set_rng_state_all(state["states"])


@pytest.mark.parametrize("registered", [True, False])
def test_accelerate_saves_the_generators_only_when_told(
    accelerate: ModuleType, tmp_path: Path, registered: bool
) -> None:
    accelerator = accelerate.Accelerator()
    model = accelerator.prepare(torch.nn.Linear(2, 2))
    if registered:
        accelerator.register_for_checkpointing(Generators())
    accelerator.save_state(str(tmp_path))
    weight, first = model.weight.detach().cpu().clone(), torch.rand(4, device="cookbook:1").tolist()
    with torch.no_grad():
        model.weight.zero_()
    accelerator.load_state(str(tmp_path))
    assert torch.equal(model.weight.detach().cpu(), weight)
    assert (torch.rand(4, device="cookbook:1").tolist() == first) is registered


# Ignite


def ignite_run(**options: Any) -> tuple[torch.nn.Module, list[float], float]:
    from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Accuracy

    torch.default_generator.manual_seed(0)
    x = torch.randn(256, 2)
    y = (x.norm(dim=1) > 1.1).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=64, pin_memory=True)
    model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)).to("cookbook")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    trainer = create_supervised_trainer(
        model, optimizer, torch.nn.CrossEntropyLoss(), device="cookbook", non_blocking=True, **options
    )
    losses: list[float] = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
    trainer.run(loader, max_epochs=10)
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy(device="cookbook")}, device="cookbook")
    return model, losses, evaluator.run(loader).metrics["accuracy"]


def test_ignite_trains_and_measures() -> None:
    library("ignite")
    model, losses, accuracy = ignite_run()
    assert next(model.parameters()).device.type == "cookbook"
    assert losses[-1] < losses[0]
    assert accuracy > 0.9


def test_ignites_mixed_precision_is_cudas() -> None:
    """Its step enters autocast("cuda"), which warns and casts nothing: the losses are those of float32."""
    library("ignite")
    _, plain, _ = ignite_run()
    with pytest.warns(UserWarning, match="CUDA is not available"):
        _, mixed, _ = ignite_run(amp_mode="amp")
    assert mixed == plain
