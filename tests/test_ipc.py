# chapter 4
"""Device tensors between processes: one memory, kept until the last holder lets go, whichever way that process ends.

The tests talk to a process of their own, the peer. It calls the functions of this file by name, so that a test reads as
"the peer does this".
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from conftest import Run
from torch import Tensor

import cookbook_backend

_C = cookbook_backend._C
spawn = mp.get_context("spawn")
CloseGate = Callable[[torch.Stream], cookbook_backend._C.Gate]


# What the peer can do. `kept` is what it holds on to.

kept: dict[str, Any] = {}


def keep(name: str, value: Any) -> None:
    kept[name] = value


def give(name: str) -> Any:
    return kept[name]


def drop(name: str) -> None:
    del kept[name]
    gc.collect()


def values(name: str) -> list[Any]:
    return kept[name].tolist()


def describe(name: str) -> tuple[Any, ...]:
    t = kept[name]
    return type(t), t.dtype, t.shape, t.stride(), t.storage_offset(), t.device, t.requires_grad


def add(name: str, number: float) -> None:
    kept[name].add_(number)
    torch.accelerator.synchronize(kept[name].device)


def same_storage(a: str, b: str) -> bool:
    return kept[a].untyped_storage()._cdata == kept[b].untyped_storage()._cdata


def close_gate(name: str, device: int) -> None:
    kept[name] = _C.Gate(torch.cookbook.default_stream(device))


def open_gate(name: str, device: int) -> None:
    kept.pop(name).open()
    torch.accelerator.synchronize(device)


def read_later(name: str, result: str) -> None:
    kept[result] = kept[name] * 1


def make(name: str, elements: int, value: float, device: str) -> Tensor:
    kept[name] = torch.full((elements,), value, device=device)
    return kept[name]


def error_of(action: Callable[..., Any], *arguments: Any) -> str:
    try:
        action(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def serve(connection: Connection) -> None:
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        except Exception as error:  # a message that cannot be unpickled
            connection.send((False, error))
            continue
        try:
            connection.send((True, function(*arguments)))
        except Exception as error:
            connection.send((False, error))
        del function, arguments


class Peer:
    """Another process. `peer(function, ...)` calls a function there and returns what it returns."""

    def __init__(self) -> None:
        self.connection, other = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(other,), daemon=True)
        self.process.start()
        other.close()

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.connection.send((function, arguments))
        del arguments
        if not self.connection.poll(60):
            raise TimeoutError(f"the peer did not answer to {function.__name__}")
        worked, result = self.connection.recv()
        if not worked:
            raise result
        return result

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def end(self) -> None:
        self.connection.close()
        self.process.join(20)
        assert self.process.exitcode == 0


@pytest.fixture(scope="module")
def lasting_peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.end()


@pytest.fixture
def peer(lasting_peer: Peer) -> Iterator[Peer]:
    """The peer with nothing in its hands, before and after; nothing of ours is with it either."""
    yield lasting_peer
    lasting_peer(forget)
    collect()
    assert cookbook_backend.ipc_stats() == {"sent": 0, "waiting": 0, "received": 0, "opened": 0, "unused": 0}


def forget() -> None:
    kept.clear()
    collect()
    assert cookbook_backend.ipc_stats() == {"sent": 0, "waiting": 0, "received": 0, "opened": 0, "unused": 0}


def collect() -> None:
    gc.collect()
    for index in range(2):
        torch.accelerator.synchronize(index)
    cookbook_backend.ipc_collect()


@pytest.fixture
def second_peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    if peer.process.is_alive():
        peer.end()


def stats(name: str) -> int:
    return cookbook_backend.ipc_stats()[name]


def waiting_after_collect() -> int:
    cookbook_backend.ipc_collect()
    return stats("waiting")


# One memory.


def test_both_processes_use_the_same_memory(peer: Peer, device: torch.device) -> None:
    x = torch.arange(4.0, device=device)
    torch.accelerator.synchronize(device)
    _C.reset_counters(device.index)
    peer(keep, "x", x)
    counters = _C.counters(device.index)
    assert counters["bytes_device_to_host"] == counters["bytes_device_to_device"] == counters["allocations"] == 0
    peer(add, "x", 10)
    assert x.tolist() == [10, 11, 12, 13]
    x.mul_(2)
    torch.accelerator.synchronize(device)
    assert peer(values, "x") == [20, 22, 24, 26]
    assert peer(cookbook_backend.ipc_stats) == {"sent": 0, "waiting": 0, "received": 1, "opened": 1, "unused": 0}
    assert cookbook_backend.ipc_stats() == {"sent": 1, "waiting": 0, "received": 0, "opened": 0, "unused": 0}


def test_the_peers_device_memory_is_not_used_up(peer: Peer) -> None:
    before = peer(torch.accelerator.memory_allocated, 0)
    peer(keep, "x", torch.zeros(1 << 20, device="cookbook"))
    assert peer(torch.accelerator.memory_allocated, 0) == before


SENT: dict[str, Callable[[], Tensor]] = {
    "int64": lambda: torch.arange(6, device="cookbook"),
    "bool": lambda: torch.tensor([True, False], device="cookbook"),
    "bfloat16": lambda: torch.ones(5, dtype=torch.bfloat16, device="cookbook"),
    "complex64": lambda: torch.arange(4, device="cookbook").to(torch.complex64),
    "transposed": lambda: torch.arange(12.0, device="cookbook").reshape(3, 4).T,
    "slice": lambda: torch.arange(12.0, device="cookbook").reshape(3, 4)[1:, 2],
    "expanded": lambda: torch.arange(3.0, device="cookbook").expand(2, 3),
    "zero-dim": lambda: torch.tensor(7.0, device="cookbook"),
    "empty": lambda: torch.empty(3, 0, device="cookbook:1"),
    "channels last": lambda: torch.ones(1, 2, 3, 3, device="cookbook").contiguous(memory_format=torch.channels_last),
    "requires grad": lambda: torch.ones(3, device="cookbook", requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3, device="cookbook:1")),
    "frozen parameter": lambda: torch.nn.Parameter(torch.ones(3, device="cookbook"), requires_grad=False),
}


@pytest.mark.parametrize("name", sorted(SENT))
def test_what_arrives_is_what_was_sent(name: str, peer: Peer) -> None:
    x = SENT[name]()
    peer(keep, "x", x)
    assert peer(describe, "x") == (
        type(x), x.dtype, x.shape, x.stride(), x.storage_offset(), x.device, x.requires_grad,
    )  # fmt: skip
    assert peer(values, "x") == x.tolist()


def test_views_of_one_storage_stay_views_of_one_storage(peer: Peer) -> None:
    base = torch.zeros(2, 3, device="cookbook")
    peer(keep, "both", [base, base[1]])
    peer(keep, "row", base[0])  # in another message
    peer(split_both)
    assert peer(same_storage, "base", "second row")
    assert peer(same_storage, "base", "row")
    peer(add, "row", 5)
    assert base.tolist() == [[5, 5, 5], [0, 0, 0]]
    assert peer(values, "base") == [[5, 5, 5], [0, 0, 0]]
    assert stats("sent") == 1


def split_both() -> None:
    kept["base"], kept["second row"] = kept.pop("both")


def test_modules_and_state_dicts(peer: Peer) -> None:
    net = torch.nn.Linear(3, 2).to("cookbook")
    peer(keep, "net", net)
    peer(keep, "state", net.state_dict())
    with torch.no_grad():
        net.weight.fill_(3.0)
    torch.accelerator.synchronize(0)
    assert peer(weights) == [[[3.0] * 3] * 2] * 2


def weights() -> list[Any]:
    return [kept["net"].weight.tolist(), kept["state"]["weight"].tolist()]


def test_storages(peer: Peer) -> None:
    x = torch.arange(4.0, device="cookbook")
    typed = torch.storage.TypedStorage(wrap_storage=x.untyped_storage(), dtype=torch.float32, _internal=True)
    for storage in (x.untyped_storage(), typed):
        peer(keep, "storage", storage)
        assert peer(values, "storage") == storage.tolist()
    assert x.share_memory_() is x  # nothing to move


def test_tensors_that_cannot_be_sent(peer: Peer) -> None:
    x = torch.ones(3, device="cookbook", requires_grad=True)
    with pytest.raises(RuntimeError, match="non-leaf"):  # core's own refusal
        peer(keep, "x", x * 2)
    with pytest.raises(RuntimeError, match="expected a storage on a cookbook device, got one on cpu"):
        _C.share_storage(torch.ones(3).untyped_storage())
    with pytest.raises(RuntimeError, match="empty one has nothing to share"):
        _C.share_storage(torch.empty(0, device="cookbook").untyped_storage())


def test_cpu_tensors_travel_as_before(peer: Peer) -> None:
    x = torch.arange(3.0)
    peer(keep, "x", x)
    peer(keep, "y", torch.ones(2).pin_memory())
    peer(add_on_cpu, "x")
    assert x.tolist() == [1, 2, 3]
    assert peer(values, "y") == [1, 1]


def add_on_cpu(name: str) -> None:
    kept[name].add_(1)


def test_received_storage_cannot_grow(peer: Peer) -> None:
    peer(keep, "x", torch.ones(3, device="cookbook"))
    assert "not resizable" in peer(error_of, grow, "x")
    assert peer(values, "x") == [1, 1, 1]


def grow(name: str) -> None:
    kept[name].resize_(1000)


# The memory's lifetime.


def test_memory_is_kept_while_the_peer_uses_it(peer: Peer, device: torch.device) -> None:
    gc.collect()
    before = torch.accelerator.memory_allocated(device.index)
    x = torch.full((1000,), 3.0, device=device)
    address = x.data_ptr()
    peer(keep, "x", x)
    del x
    assert waiting_after_collect() == 1
    assert torch.accelerator.memory_allocated(device.index) == before + 4096
    others = [torch.full((1000,), 9.0, device=device) for _ in range(4)]
    assert address not in [other.data_ptr() for other in others]
    del others
    assert peer(values, "x") == [3.0] * 1000
    peer(drop, "x")
    peer(torch.accelerator.synchronize, device.index)
    assert waiting_after_collect() == 0
    assert torch.accelerator.memory_allocated(device.index) == before


def test_memory_goes_at_once_when_the_peer_was_first(peer: Peer) -> None:
    x = torch.ones(1000, device="cookbook")
    peer(keep, "x", x)
    peer(drop, "x")
    peer(torch.accelerator.synchronize, 0)
    assert stats("sent") == 1
    del x
    assert stats("sent") == 0  # without ipc_collect()


def test_the_next_message_collects(peer: Peer) -> None:
    for i in range(5):
        peer(keep, "x", torch.full((1000,), float(i), device="cookbook"))
        peer(torch.accelerator.synchronize, 0)
        assert stats("waiting") <= 2  # the one with the peer, and the one before


def test_a_queued_use_in_the_peer_keeps_the_memory(peer: Peer, device: torch.device) -> None:
    x = torch.full((1000,), 3.0, device=device)
    peer(keep, "x", x)
    del x
    peer(close_gate, "gate", device.index)
    peer(read_later, "x", "result")  # behind the gate
    peer(drop, "x")
    assert waiting_after_collect() == 1  # dropped, but a kernel that reads it is queued
    other = torch.full((1000,), 9.0, device=device)
    torch.accelerator.synchronize(device)
    peer(open_gate, "gate", device.index)
    assert waiting_after_collect() == 0
    assert peer(values, "result") == [3.0] * 1000
    del other


def test_two_peers_and_a_message_sent_on(peer: Peer, second_peer: Peer) -> None:
    x = torch.full((1000,), 3.0, device="cookbook")
    peer(keep, "x", x)
    second_peer(keep, "x", peer(pass_through_us, "x"))  # arrives here over the same storage, and goes on
    del x
    assert waiting_after_collect() == 1
    peer(drop, "x")
    peer(torch.accelerator.synchronize, 0)
    assert waiting_after_collect() == 1
    assert second_peer(values, "x") == [3.0] * 1000
    second_peer(drop, "x")
    second_peer(torch.accelerator.synchronize, 0)
    assert waiting_after_collect() == 0


def pass_through_us(name: str) -> Tensor:
    return kept[name]


def test_a_peer_sends_on_what_it_received(peer: Peer, second_peer: Peer) -> None:
    """Straight from one to the other; the producer does not take part and still knows."""
    here, there = spawn.Pipe()
    x = torch.full((1000,), 3.0, device="cookbook")
    peer(keep, "x", x)
    del x
    peer(keep, "pipe", here)
    second_peer(keep, "pipe", there)
    peer(send_through, "pipe", "x")
    peer(drop, "x")
    peer(torch.accelerator.synchronize, 0)
    assert waiting_after_collect() == 1  # under way, nobody has it
    second_peer(receive_through, "pipe", "x")
    assert waiting_after_collect() == 1
    assert second_peer(values, "x") == [3.0] * 1000
    second_peer(drop, "x")
    second_peer(torch.accelerator.synchronize, 0)
    assert waiting_after_collect() == 0


def send_through(pipe: str, name: str) -> None:
    kept[pipe].send(kept[name])


def receive_through(pipe: str, name: str) -> None:
    kept[name] = kept[pipe].recv()


def test_what_comes_back_is_the_same_storage(peer: Peer) -> None:
    x = torch.arange(3.0, device="cookbook")
    peer(keep, "x", x)
    back = peer(give, "x")
    assert back.untyped_storage()._cdata == x.untyped_storage()._cdata
    address = x.data_ptr()
    del x, back
    assert waiting_after_collect() == 1
    back = peer(give, "x")  # nothing is left of it here but the memory
    assert back.data_ptr() == address
    assert stats("waiting") == 0
    peer(drop, "x")
    peer(torch.accelerator.synchronize, 0)
    assert back.add(1).tolist() == [1, 2, 3]
    del back
    assert stats("sent") == 0


def test_a_peer_that_is_killed_lets_go(second_peer: Peer) -> None:
    x = torch.full((1000,), 3.0, device="cookbook")
    second_peer(keep, "x", x)
    del x
    assert waiting_after_collect() == 1
    second_peer.kill()  # no destructor, no exit handler
    assert waiting_after_collect() == 0


def test_a_producer_that_is_killed_leaves_its_memory_to_us(second_peer: Peer) -> None:
    x = second_peer(make, "x", 1000, 3.0, "cookbook:1")
    second_peer.kill()
    assert x.add_(1).tolist() == [4.0] * 1000
    del x
    collect()
    assert cookbook_backend.ipc_stats() == {"sent": 0, "waiting": 0, "received": 0, "opened": 0, "unused": 0}


def test_a_message_from_a_process_that_has_ended(second_peer: Peer) -> None:
    message = second_peer(shared_bytes, 1000)
    second_peer.kill()
    with pytest.raises(RuntimeError, match="cannot reach process .*which shared this memory"):
        _C.receive_storage(message)


def shared_bytes(elements: int) -> bytes:
    kept["shared"] = torch.ones(elements, device="cookbook")
    return _C.share_storage(kept["shared"].untyped_storage())


def test_a_message_is_received_once(peer: Peer) -> None:
    message = peer(shared_bytes, 100)
    storage = _C.receive_storage(message)
    for again in (_C.receive_storage, _C.acknowledge_storage):
        with pytest.raises(RuntimeError, match="received before"):
            again(message)
    del storage
    torch.accelerator.synchronize(0)
    with pytest.raises(RuntimeError, match="received before"):
        _C.receive_storage(message)
    peer(drop, "shared")
    with pytest.raises(RuntimeError, match="received before"):  # nor after the entry was given to others
        _C.receive_storage(message)
    own = torch.ones(3, device="cookbook")
    message = _C.share_storage(own.untyped_storage())
    assert torch.tensor([], device="cookbook").set_(_C.receive_storage(message)).tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="received before"):
        _C.receive_storage(message)


def test_what_is_no_message(peer: Peer) -> None:
    message = bytearray(peer(shared_bytes, 100))
    for bad in (b"", b"x" * len(message), bytes(message) + b"x", bytes(message[:-1])):
        with pytest.raises(ValueError, match="share_storage"):
            _C.receive_storage(bad)
    damaged = bytearray(message)
    damaged[20] ^= 255  # in the driver's handle
    with pytest.raises(torch.AcceleratorError, match="InvalidHandle"):
        _C.receive_storage(bytes(damaged))
    assert stats("received") == stats("opened") == 0


# Order.


def test_sending_waits_for_the_device(peer: Peer, device: torch.device, gate: CloseGate) -> None:
    """For all of its streams: the thread on which a queue pickles has none of ours for current."""
    side = torch.Stream(device)
    x = torch.zeros(1000, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(side)
    with side:
        x.add_(3)
    order: list[str] = []
    before = _C.counters(device.index)["synchronizations"]

    def send() -> None:
        peer(keep, "x", x)
        order.append("sent")

    thread = threading.Thread(target=send)
    thread.start()
    while thread.is_alive() and _C.counters(device.index)["synchronizations"] == before:
        time.sleep(0)
    order.append("opened")
    closed.open()
    thread.join()
    assert order == ["opened", "sent"]
    assert peer(values, "x") == [3.0] * 1000


def test_a_few_blocks_stay_open(peer: Peer) -> None:
    """Closing waits for the devices: a stream of messages must not do that for each, nor keep everything open."""
    tensors = [torch.empty(6 << 20, device="cookbook") for _ in range(8)]  # large enough for driver blocks of their own
    for tensor in tensors:
        peer(keep, "x", tensor)
        peer(torch.accelerator.synchronize, 0)
    now = peer(cookbook_backend.ipc_stats)
    assert now["received"] == 1
    assert 1 < now["opened"] < 8
    peer(cookbook_backend.ipc_collect)
    assert peer(cookbook_backend.ipc_stats)["opened"] == 1


# The ways that programs go.


def test_queues(peer: Peer) -> None:
    for make_queue in (spawn.Queue, spawn.SimpleQueue):
        queue = make_queue()
        receiver = spawn.Process(target=add_from_queue, args=(queue, 3))
        receiver.start()
        tensors = [torch.full((100,), float(i), device=f"cookbook:{i % 2}") for i in range(3)]
        for tensor in tensors:
            queue.put(tensor)
        receiver.join(60)
        assert receiver.exitcode == 0
        assert [tensor[0].item() for tensor in tensors] == [1, 2, 3]
        del tensor, tensors


def add_from_queue(queue: Any, count: int) -> None:
    for _ in range(count):
        queue.get().add_(1)  # the process ends by itself; its exit handlers wait for the device


def test_processes_train_one_model(peer: Peer) -> None:
    net = torch.nn.Linear(4, 1, bias=False).to("cookbook")
    before = net.weight.tolist()
    for rank in range(2):  # one after the other: two that write the same weights at once would race, as on any device
        mp.spawn(train, args=(net, rank), nprocs=1)
    assert torch.allclose(net.weight.cpu(), torch.tensor(before) - 0.5)


def train(_: int, net: torch.nn.Module, rank: int) -> None:
    x = torch.zeros(1, 4, device="cookbook")
    x[0, 2 * rank : 2 * rank + 2] = 0.5
    net(x).sum().backward()
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    torch.accelerator.synchronize(0)


def test_forked_child(run_python: Run) -> None:
    done = run_python("""
        import os, torch, cookbook_backend
        from multiprocessing.reduction import ForkingPickler
        x = torch.ones(10, device="cookbook")
        message = cookbook_backend._C.share_storage(x.untyped_storage())
        pid = os.fork()
        if pid == 0:
            try:
                ForkingPickler.dumps(x)
            except RuntimeError as error:
                print("fork" in str(error).lower(), flush=True)
            del x
            raise SystemExit(7)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(code, cookbook_backend.ipc_stats())
    """)
    assert done.stdout == ("True\n7 {'sent': 1, 'waiting': 0, 'received': 0, 'opened': 0, 'unused': 0}\n"), done.stderr


EXITS = {
    "shared and alive": "keep = torch.ones(10, device='cookbook'); ForkingPickler.dumps(keep)",
    "shared and dropped": "ForkingPickler.dumps(torch.ones(10, device='cookbook'))",
    "its own message received": """
keep = ForkingPickler.loads(ForkingPickler.dumps(torch.ones(10, device='cookbook')))
keep.add_(1)""",
}


@pytest.mark.parametrize("case", sorted(EXITS))
def test_exit(case: str, run_python: Run) -> None:
    done = run_python(
        f"import torch, cookbook_backend\nfrom multiprocessing.reduction import ForkingPickler\n{EXITS[case]}\nprint('end')"
    )
    assert (done.stdout, done.returncode, done.stderr) == ("end\n", 0, "")


def test_a_process_that_ends_with_what_it_received(second_peer: Peer) -> None:
    x = torch.ones(1000, device="cookbook")
    second_peer(keep, "x", x)
    second_peer(read_later, "x", "result")
    second_peer.end()
    del x
    assert waiting_after_collect() == 0


@pytest.mark.parametrize("names_the_stream", [True, False])
def test_received_memory_on_a_side_stream(names_the_stream: bool, peer: Peer, device: torch.device) -> None:
    """The peer reads on a stream of its own; without record_stream nobody can know."""
    x = torch.full((1000,), 3.0, device=device)
    peer(keep, "x", x)
    del x
    peer(read_on_side_stream, "x", device, names_the_stream)
    peer(drop, "x")
    if not names_the_stream:  # the memory goes back with the gate closed, so a wait for the device would not end
        deadline = time.monotonic() + 10
        while waiting_after_collect() != 0 and time.monotonic() < deadline:
            time.sleep(0.001)
    assert waiting_after_collect() == (1 if names_the_stream else 0)
    peer(open_side_gate, device)
    assert waiting_after_collect() == 0


def read_on_side_stream(name: str, device: torch.device, names_the_stream: bool) -> None:
    side = torch.Stream(device)
    kept["side gate"] = _C.Gate(side)
    with side:
        kept["read"] = kept[name] * 1
    if names_the_stream:
        kept[name].record_stream(side)


def open_side_gate(device: torch.device) -> None:
    kept.pop("side gate").open()
    torch.accelerator.synchronize(device)
