# chapter 4
"""`torch.accelerator.Graph`: a step that is captured once and replayed, against the same steps without a graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import models
import pytest
import torch
from torch import Tensor, nn

import cookbook_backend

_C = cookbook_backend._C
CloseGate = Callable[[torch.Stream], _C.Gate]
pytestmark = pytest.mark.usefixtures("time_limit")

DEVICE = torch.device("cookbook:0")


def captured(function: Callable[[], Tensor], **options: object) -> tuple[torch.accelerator.Graph, Tensor]:
    """Capture a function on a stream of its own; return the graph and the tensor that each replay fills."""
    graph = torch.accelerator.Graph(**options)
    with torch.Stream(DEVICE), graph:
        result = function()
    return graph, result


def launches() -> int:
    return _C.counters(0)["launches"]


# ---- replays equal eager ---------------------------------------------------------------------------------------------


def trainer(workload: models.Workload, rule: torch.optim.Optimizer) -> Callable[[], Tensor]:
    def step() -> Tensor:
        rule.zero_grad(set_to_none=True)
        loss = workload.loss()
        loss.backward()
        rule.step()
        return loss.detach()

    return step


def warm_up(step: Callable[[], Tensor]) -> None:
    """Two steps on a side stream, so that the optimizer's state exists before the capture."""
    side = torch.Stream(DEVICE)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        for _ in range(2):
            step()
    torch.accelerator.current_stream().wait_stream(side)


def trains_as_eager(name: str, optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer]) -> None:
    """Train two copies of a model, one by calls and one by replays: the same losses, and the same state at the end."""
    runs = [models.make(name).to(DEVICE) for _ in range(2)]
    rules = [optimizer(run.model.parameters()) for run in runs]
    eager, step = (trainer(run, rule) for run, rule in zip(runs, rules, strict=True))
    for _ in range(2):
        eager()
    warm_up(step)
    graph, loss = captured(step)
    for _ in range(4):
        graph.replay()
        assert torch.equal(loss.cpu(), eager().cpu())
    for a, b in zip(runs[0].model.state_dict().values(), runs[1].model.state_dict().values(), strict=True):
        assert torch.equal(a.cpu(), b.cpu())


@pytest.mark.parametrize("name", models.MODELS)
def test_replayed_training_equals_eager(name: str) -> None:
    trains_as_eager(name, lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9))


def test_adam_with_capturable_equals_eager() -> None:
    trains_as_eager("mlp", lambda parameters: torch.optim.Adam(parameters, lr=0.01, capturable=True))


def test_a_replay_launches_what_a_step_launches_and_does_not_wait() -> None:
    workload = models.make("mlp").to(DEVICE)
    step = trainer(workload, torch.optim.SGD(workload.model.parameters(), lr=0.05))
    warm_up(step)
    _C.reset_counters(0)
    step()
    eager = _C.counters(0)
    _C.reset_counters(0)
    graph, _ = captured(step)
    assert launches() == 0
    _C.reset_counters(0)
    for _ in range(3):
        graph.replay()
    replayed = _C.counters(0)
    assert eager["launches"] > 0
    assert replayed["launches"] == 3 * eager["launches"]
    assert replayed["synchronizations"] == 0
    assert replayed["allocations"] == 0


def test_input_and_weights_are_read_anew() -> None:
    weight = torch.ones(4, 4, device=DEVICE)
    x = torch.zeros(2, 4, device=DEVICE)
    graph, y = captured(lambda: x @ weight)
    for value in (1.0, 2.0):
        x.fill_(value)
        weight.fill_(value)
        graph.replay()
        assert torch.equal(y.cpu(), torch.full((2, 4), 4 * value * value))


def test_captured_work_does_not_run_and_replay_returns_at_once(gate: CloseGate) -> None:
    x = torch.zeros(8, device=DEVICE)
    graph, _ = captured(lambda: x.add_(1))
    assert x.sum().item() == 0
    stream = torch.accelerator.current_stream()
    closed = gate(stream)
    graph.replay()
    assert not stream.query()
    closed.open()
    assert x.sum().item() == 8


def test_a_side_stream_joins_and_is_joined_back() -> None:
    x = torch.ones(8, device=DEVICE)
    stream, side, graph = torch.Stream(DEVICE), torch.Stream(DEVICE), torch.accelerator.Graph()
    with stream, graph:
        a = x * 2
        side.wait_stream(stream)
        with side:
            b = a + 1
        stream.wait_stream(side)
        c = a + b
    x.fill_(5)
    graph.replay()
    assert torch.equal(c.cpu(), torch.full((8,), 21.0))


def test_a_branch_that_is_not_joined_is_an_error() -> None:
    x = torch.ones(8, device=DEVICE)
    stream, side, graph = torch.Stream(DEVICE), torch.Stream(DEVICE), torch.accelerator.Graph()
    graph.capture_error_mode = "thread_local"
    with pytest.raises(RuntimeError, match="does not wait for"), stream, graph:  # noqa: PT012
        y = x * 2
        side.wait_stream(stream)
        with side:
            y.add_(1)
    assert not side.is_capturing()
    assert (x + 1).sum().item() == 16


# ---- random numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True], ids=["default generator", "own generator"])
def test_random_numbers_differ_each_replay_and_equal_eager(own: bool) -> None:
    generator = torch.Generator(DEVICE) if own else None

    def seed() -> None:
        generator.manual_seed(5) if generator is not None else cookbook_backend.manual_seed_all(5)

    def draw() -> Tensor:
        return torch.cat([torch.rand(37, device=DEVICE, generator=generator) for _ in range(2)])

    seed()
    expected = [draw().cpu() for _ in range(4)]
    seed()
    graph, numbers = captured(draw)
    results = []
    for turn in range(4):  # a draw without the graph in between counts like any other
        if turn == 2:
            results.append(draw().cpu())
        else:
            graph.replay()
            results.append(numbers.cpu())
    for result, wanted in zip(results, expected, strict=True):
        assert torch.equal(result, wanted)
    assert len({tuple(result.tolist()) for result in results}) == 4


def test_dropout_in_a_replayed_step_equals_eager() -> None:
    layer = nn.Dropout(0.5)
    x = torch.ones(64, device=DEVICE)
    cookbook_backend.manual_seed_all(1)
    expected = [layer(x).cpu() for _ in range(3)]
    cookbook_backend.manual_seed_all(1)
    graph, y = captured(lambda: layer(x))
    for wanted in expected:
        graph.replay()
        assert torch.equal(y.cpu(), wanted)


def test_replays_on_two_streams_keep_their_numbers(gate: CloseGate) -> None:
    cookbook_backend.manual_seed_all(9)
    expected = [torch.rand(16, device=DEVICE).cpu() for _ in range(2)]
    cookbook_backend.manual_seed_all(9)
    kept = torch.zeros(2, 16, device=DEVICE)
    turn = torch.zeros((), dtype=torch.int64, device=DEVICE)

    def draw() -> Tensor:
        kept.index_copy_(0, turn.reshape(1), torch.rand(1, 16, device=DEVICE))
        return turn.add_(1)

    graph, _ = captured(draw)
    first, second = torch.Stream(DEVICE), torch.Stream(DEVICE)
    closed = gate(first)
    with first:
        graph.replay()
    with second:  # idle: without an order it would overwrite the first replay's numbers
        graph.replay()
    assert not second.query()
    closed.open()
    torch.accelerator.synchronize()
    assert torch.equal(kept.cpu(), torch.stack(expected))


# ---- memory ----------------------------------------------------------------------------------------------------------


def segments(pool: tuple[int, int]) -> int:
    return sum(segment["segment_pool_id"] == pool for segment in cookbook_backend.memory_snapshot(0))


def test_the_graphs_memory_is_handed_to_nobody_else() -> None:
    x = torch.ones(1 << 16, device=DEVICE)
    graph, y = captured(lambda: (x * 2) + 1)
    address = y.data_ptr()
    graph.replay()
    others = [torch.full((1 << 16,), 7.0, device=DEVICE) for _ in range(20)]
    graph.replay()
    assert all((other == 7).all().item() for other in others)
    assert (y == 3).all().item()
    assert y.data_ptr() == address


def test_graphs_share_a_pool() -> None:
    x = torch.ones(1 << 16, device=DEVICE)
    first, a = captured(lambda: x + 1)
    second, b = captured(lambda: x + 2, pool=first.pool())
    assert first.pool() == second.pool()
    first.replay()
    second.replay()
    assert (a == 2).all().item()
    assert (b == 3).all().item()
    other, _ = captured(lambda: x + 1)
    assert other.pool() != first.pool()


def test_reset_gives_the_memory_back_and_allows_a_new_capture() -> None:
    x = torch.ones(1 << 16, device=DEVICE)
    graph, y = captured(lambda: x + 1)
    pool = graph.pool()
    graph.replay()
    torch.accelerator.synchronize()
    assert segments(pool) > 0
    del y
    torch.accelerator.empty_cache()
    assert segments(pool) > 0  # the graph may still be replayed
    graph.reset()
    torch.accelerator.empty_cache()
    assert segments(pool) == 0
    with pytest.raises(RuntimeError, match="capture first"):
        graph.replay()
    with torch.Stream(DEVICE), graph:
        z = x * 3
    graph.replay()
    assert (z == 3).all().item()


def test_a_graph_goes_while_its_replay_is_queued(gate: CloseGate) -> None:
    x = torch.zeros(1 << 16, device=DEVICE)
    graph, y = captured(lambda: (x + 1) * 2)
    closed = gate(torch.accelerator.current_stream())
    graph.replay()
    result = y.clone()
    del graph, y
    torch.accelerator.empty_cache()
    others = [torch.zeros(1 << 16, device=DEVICE) for _ in range(4)]
    closed.open()
    assert (result == 2).all().item()
    assert all((other == 0).all().item() for other in others)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("illegal", "named"),
    [
        (lambda x: x.sum().item(), "cookbookMemcpy"),
        (lambda x: x.cpu(), "cookbookMemcpy"),
        (lambda x: x.copy_(torch.ones(8)), "cookbookMemcpy"),
        (lambda x: torch.nonzero(x), "cookbookMemcpy"),
        (lambda x: torch.accelerator.current_stream().synchronize(), "cookbookStreamSynchronize"),
        (lambda x: torch.accelerator.current_stream().query(), "cookbookStreamQuery"),
        (lambda x: torch.accelerator.synchronize(), "cookbookDeviceSynchronize"),
    ],
    ids=["item", "cpu", "copy of pageable memory", "nonzero", "stream synchronize", "stream query", "synchronize"],
)
def test_an_illegal_call_says_so_and_leaves_the_process_usable(illegal: Callable[[Tensor], object], named: str) -> None:
    x = torch.ones(8, device=DEVICE)
    stream, graph = torch.Stream(DEVICE), torch.accelerator.Graph()
    caught: list[BaseException] = []
    with pytest.raises(RuntimeError, match=named), stream, graph:  # noqa: PT012
        x.add_(1)
        try:
            illegal(x)
        except RuntimeError as error:
            caught.append(error)
            raise
    assert "being captured" in str(caught[0])
    assert not stream.is_capturing()
    with pytest.raises(RuntimeError, match="capture first"):
        graph.replay()
    assert x.sum().item() == 8  # nothing of the capture ran
    with stream, graph:
        x.mul_(2)
    graph.replay()
    assert x.sum().item() == 16


def test_the_default_stream_is_refused_with_advice() -> None:
    with pytest.raises(RuntimeError, match="torch.Stream"), torch.accelerator.Graph():
        pass
    assert not cookbook_backend.is_current_stream_capturing()


def test_another_thread_goes_on_unless_the_mode_is_global() -> None:
    x = torch.ones(8, device=DEVICE)

    def elsewhere() -> list[object]:
        results: list[object] = []

        def run() -> None:
            try:
                torch.accelerator.synchronize()
                results.append(torch.ones(3, device=DEVICE).sum().item())
            except RuntimeError as error:
                results.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return results

    graph = torch.accelerator.Graph()
    with torch.Stream(DEVICE), graph:
        x.add_(1)
        assert elsewhere() == [3.0]
    graph.replay()
    assert x.sum().item() == 16
    strict = torch.accelerator.Graph(capture_error_mode="global")
    with pytest.raises(RuntimeError, match="cookbookDeviceSynchronize"), torch.Stream(DEVICE), strict:
        assert isinstance(elsewhere()[0], RuntimeError)


def test_a_step_without_capturable_is_refused() -> None:
    workload = models.make("mlp").to(DEVICE)
    rule = torch.optim.Adam(workload.model.parameters())
    step = trainer(workload, rule)
    warm_up(step)
    with pytest.raises(RuntimeError, match="capturable"):
        captured(step)
    step()  # without a graph it goes on


def test_a_kernel_that_fails_in_a_replay_is_reported_with_its_name() -> None:
    x = torch.ones(8, device=DEVICE)
    graph, _ = captured(lambda: x.add_(1).mul_(2))
    _C.inject_fault(0, "launch", 4, 0)
    graph.replay()
    graph.replay()
    with pytest.raises(RuntimeError, match="mul"):
        torch.accelerator.synchronize()


# ---- keeping and drawing ---------------------------------------------------------------------------------------------


def test_keep_graph_is_instantiated_by_hand_or_by_the_first_replay() -> None:
    x = torch.zeros(8, device=DEVICE)
    graph, _ = captured(lambda: x.add_(1), keep_graph=True)
    graph.replay()
    graph.instantiate()  # again, from the graph that was kept
    graph.replay()
    assert x.sum().item() == 16
    plain, _ = captured(lambda: x.add_(1))
    with pytest.raises(RuntimeError, match="keep_graph"):
        plain.instantiate()


def test_debug_dump_writes_the_kernels(tmp_path: Path) -> None:
    x = torch.zeros(8, device=DEVICE)
    graph = torch.accelerator.Graph()
    with pytest.raises(RuntimeError, match="enable_debug_mode"):
        graph.debug_dump(str(tmp_path / "graph.dot"))
    graph.enable_debug_mode()
    with torch.Stream(DEVICE), graph:
        x.add_(1).mul_(2)
    graph.debug_dump(str(tmp_path / "graph.dot"))
    text = (tmp_path / "graph.dot").read_text()
    assert text.startswith("digraph")
    assert text.count("n0 -> n1;") == 1
    with pytest.raises(RuntimeError, match="no/such"):
        graph.debug_dump("/no/such/folder/graph.dot")


def test_streams_say_whether_they_are_captured() -> None:
    stream, other, graph = torch.Stream(DEVICE), torch.Stream(DEVICE), torch.accelerator.Graph()
    with stream, graph:
        assert stream.is_capturing()
        assert cookbook_backend.is_current_stream_capturing()
        assert not other.is_capturing()
    assert not stream.is_capturing()
