# chapter 4
"""Storages on streams: resize and set_ with work in flight, foreign memory, copies of storages, sharing."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

import cookbook_backend

_C = cookbook_backend._C
CloseGate = Callable[[torch.Stream], _C.Gate]
pytestmark = pytest.mark.usefixtures("time_limit")

SIZE = 4096  # elements, 16 KiB


def current(device: torch.device | str) -> torch.Stream:
    return cookbook_backend.current_stream(device)


def allocated(device: torch.device) -> int:
    return torch.accelerator.memory_stats(device.index)["allocated_bytes.all.current"]


def blocks(device: torch.device) -> list[Tensor]:
    """A few blocks of this size: if the one in question is free, it is among them."""
    return [torch.zeros(SIZE, device=device) for _ in range(4)]


@pytest.fixture(params=["cookbook:0", "cookbook:1"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Each device in turn, on a stream that nobody has used."""
    device = torch.device(request.param)
    gc.collect()
    torch.accelerator.synchronize(device)
    with cookbook_backend.external_stream(_C.driver_stream_create(device.index, 0)):
        yield device


# ---- resize with work in flight --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("through", "bytes_"),
    [("storage", SIZE * 8), ("storage", SIZE * 2), ("tensor", SIZE * 8), ("set_", SIZE * 8)],
    ids=["larger storage", "smaller storage", "resize_", "set_"],
)
def test_resize_on_a_side_stream_reads_the_old_block_in_peace(
    through: str, bytes_: int, device: torch.device, gate: CloseGate
) -> None:
    """The copy runs on the side stream; the old block belongs to another, which could hand it out at once."""
    x = torch.full((SIZE,), 7.0, device=device)
    address = x.untyped_storage().data_ptr()
    home, side = current(device), torch.Stream(device)
    side.wait_stream(home)
    closed = gate(side)
    with side:
        if through == "storage":
            x.untyped_storage().resize_(bytes_)
        elif through == "tensor":
            x.resize_(bytes_ // 4)
        else:
            x.set_(x.untyped_storage(), 0, (bytes_ // 4,), (1,))
    assert x.untyped_storage().data_ptr() != address
    others = blocks(device)  # zeros, written on the home stream now
    home.synchronize()
    assert address not in {other.untyped_storage().data_ptr() for other in others}
    closed.open()
    side.synchronize()
    kept = min(bytes_ // 4, SIZE)
    assert (torch.empty(0, device=device).set_(x.untyped_storage())[:kept].cpu() == 7).all()
    assert address in {other.untyped_storage().data_ptr() for other in (*others, *blocks(device))}


def test_resize_to_nothing_on_a_side_stream(device: torch.device, gate: CloseGate) -> None:
    """As FSDP frees a parameter: what is queued on the stream that is current still reads it."""
    x = torch.full((SIZE,), 7.0, device=device)
    address = x.data_ptr()
    side = torch.Stream(device)
    side.wait_stream(current(device))
    closed = gate(side)
    with side:
        y = x.clone()
        x.untyped_storage().resize_(0)
    assert x.data_ptr() == 0
    others = blocks(device)
    current(device).synchronize()
    assert address not in {other.data_ptr() for other in others}
    closed.open()
    side.synchronize()
    assert (y.cpu() == 7).all()


def test_resize_on_the_blocks_own_stream_keeps_nothing(device: torch.device, gate: CloseGate) -> None:
    x = torch.zeros(SIZE, device=device)
    address = x.data_ptr()
    closed = gate(current(device))
    x.untyped_storage().resize_(0)
    assert address in {other.data_ptr() for other in blocks(device)}
    closed.open()


def test_to_nothing_and_back(device: torch.device) -> None:
    x = torch.arange(8.0, device=device).view(2, 4)
    view, storage = x.t(), x.untyped_storage()
    before = allocated(device)
    for _ in range(3):
        storage.resize_(0)
        assert (storage.nbytes(), storage.data_ptr(), x.data_ptr(), view.data_ptr()) == (0, 0, 0, 0)
        assert (x.shape, view.shape) == ((2, 4), (4, 2))
        assert allocated(device) == before - 512
        storage.resize_(32)
        assert allocated(device) == before
        x.copy_(torch.arange(8.0).view(2, 4) + 1)
        assert torch.equal(view.cpu(), (torch.arange(8.0).view(2, 4) + 1).t())
        assert view.data_ptr() == x.data_ptr() == storage.data_ptr()


# ---- set_ ------------------------------------------------------------------------------------------------------------


def test_set_drops_the_old_storage_behind_the_named_streams(device: torch.device, gate: CloseGate) -> None:
    x = torch.full((SIZE,), 7.0, device=device)
    address = x.data_ptr()
    side = torch.Stream(device)
    side.wait_stream(current(device))
    closed = gate(side)
    with side:
        y = x.clone()
    x.record_stream(side)
    x.set_(torch.ones(3, device=device))
    others = blocks(device)
    current(device).synchronize()
    assert address not in {other.data_ptr() for other in others}
    closed.open()
    side.synchronize()
    assert (y.cpu() == 7).all()
    assert x.tolist() == [1, 1, 1]
    assert address in {other.data_ptr() for other in blocks(device)}


def test_set_refuses_as_the_cpu_does(device: torch.device) -> None:
    base = torch.arange(4.0)
    errors: list[list[tuple[type, str]]] = []
    for here in (base, base.to(device)):
        storage, found = here.untyped_storage(), []
        elsewhere = torch.ones(2, device="cpu" if here.device == device else device)
        for bad in (
            lambda h=here, s=storage: torch.empty_like(h).set_(s, -1, (1,), (1,)),
            lambda h=here, s=storage: torch.empty_like(h).set_(s, 0, (1, 2), (1,)),
            lambda h=here, s=storage: torch.empty_like(h).set_(s, 9, h.shape, h.stride()),
            lambda h=here, e=elsewhere: torch.empty_like(h).set_(e),
            lambda h=here: torch.empty_like(h).set_(torch.ones(2, dtype=torch.int64, device=h.device)),
        ):
            with pytest.raises(RuntimeError) as caught:
                bad()
            found.append((caught.type, str(caught.value).split("\n")[0].replace(str(here.device), "HERE")))
        errors.append([(kind, text.replace(str(elsewhere.device), "THERE")) for kind, text in found])
    assert errors[0] == errors[1]


# ---- storages as values ----------------------------------------------------------------------------------------------


def test_storage_methods(device: torch.device) -> None:
    cpu = torch.arange(4, dtype=torch.int16).untyped_storage()
    storage = torch.arange(4, dtype=torch.int16, device=device).untyped_storage()
    assert (storage.nbytes(), storage.device, len(storage)) == (8, device, 8)
    assert storage.tolist() == cpu.tolist()
    assert storage.cpu().device.type == "cpu"
    assert storage.cpu().tolist() == cpu.tolist()
    clone = storage.clone()
    assert clone.data_ptr() != storage.data_ptr()
    storage[2] = 9
    assert storage[2] == 9
    assert clone.tolist() == cpu.tolist()
    assert storage.copy_(cpu) is storage
    assert storage.tolist() == cpu.tolist()
    assert storage.fill_(1).tolist() == [1] * 8
    there = storage.to(device=torch.device("cookbook", 1 - device.index))
    assert there.device.index == 1 - device.index
    assert there.tolist() == [1] * 8
    assert torch.UntypedStorage(24, device=device).nbytes() == 24
    back = torch.zeros(4, dtype=torch.int16).untyped_storage()
    assert back.copy_(storage).tolist() == [1] * 8
    assert not storage.is_pinned()
    with pytest.raises(TypeError, match="only CPU memory can be pinned"):
        storage.pin_memory()


def test_storage_copy_follows_the_current_stream(device: torch.device, gate: CloseGate) -> None:
    x, y = torch.ones(SIZE, device=device), torch.zeros(SIZE, device=device)
    closed = gate(current(device))
    x.fill_(5)
    y.untyped_storage().copy_(x.untyped_storage(), non_blocking=True)
    clone = x.untyped_storage().clone()
    assert not current(device).query()
    closed.open()
    assert (y.cpu() == 5).all()
    assert torch.empty(0, device=device).set_(clone)[0].item() == 5


# ---- deepcopy --------------------------------------------------------------------------------------------------------


def test_deepcopy_keeps_what_is_shared(device: torch.device) -> None:
    results = []
    for place in ("cpu", device):
        base = torch.arange(12.0, device=place).view(3, 4)
        made = copy.deepcopy({"base": base, "row": base[1], "t": base.t()[1:], "same": base})
        assert made["base"] is made["same"]
        assert made["base"].data_ptr() != base.data_ptr()
        made["base"].add_(1)
        assert base[0, 0].item() == 0
        results.append({name: (t.tolist(), t.stride(), t.storage_offset(), t.dtype) for name, t in made.items()})
        assert len({t.untyped_storage().data_ptr() for t in made.values()}) == 1
        assert all(t.device == torch.device(place) for t in made.values())
    assert results[0] == results[1]


def test_deepcopy_of_leaves_and_others(device: torch.device) -> None:
    x = torch.ones(3, device=device, requires_grad=True)
    (x * x).sum().backward()
    made = copy.deepcopy(x)
    assert made.requires_grad
    assert made.is_leaf
    assert made.grad is not None
    assert x.grad is not None
    assert made.grad.tolist() == [2, 2, 2]
    assert made.grad.data_ptr() != x.grad.data_ptr()
    conj = torch.tensor([1 + 2j], device=device).conj()
    assert copy.deepcopy(conj).tolist() == [1 - 2j]
    for empty in (torch.empty(0, 3, device=device), torch.empty((), device=device)):
        assert copy.deepcopy(empty).shape == empty.shape
    texts = []
    for place in ("cpu", device):
        with pytest.raises(RuntimeError, match="graph leaves") as caught:
            copy.deepcopy(torch.ones(1, device=place, requires_grad=True) * 2)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_deepcopy_of_modules(device: torch.device) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).to(device)
    model[2].weight = model[0].weight  # tied
    made = copy.deepcopy(model)
    assert made[2].weight is made[0].weight
    with torch.no_grad():
        made[0].weight.add_(1)
    x = torch.randn(5, 4)
    reference = copy.deepcopy(model).cpu()
    assert torch.allclose(model(x.to(device)).cpu(), reference(x), atol=1e-5)
    for (name, a), (_, b) in zip(model.state_dict().items(), made.state_dict().items(), strict=True):
        assert a.data_ptr() != b.data_ptr()
        assert b.device == device, name


def test_deepcopy_waits_for_what_is_queued(device: torch.device, gate: CloseGate) -> None:
    x = torch.zeros(SIZE, device=device)
    closed = gate(current(device))
    x.fill_(3)
    made = copy.deepcopy(x)
    closed.open()
    assert (made.cpu() == 3).all()


# ---- share_memory_ ---------------------------------------------------------------------------------------------------


def test_device_memory_is_shared_already(device: torch.device) -> None:
    """CUDA's policy: nothing to move. `share_memory_` returns its tensor, and `is_shared` is true."""
    x = torch.arange(3.0, device=device)
    address = x.data_ptr()
    assert x.is_shared()
    assert x.share_memory_() is x
    assert x.untyped_storage().share_memory_().data_ptr() == address
    assert x.tolist() == [0, 1, 2]
    x.resize_(8)  # CPU memory that is shared could not
    model = nn.Linear(2, 2).to(device)
    assert model.share_memory() is model
    assert all(parameter.is_shared() for parameter in model.parameters())
    for name in ("_share_fd_cpu_", "_share_filename_cpu_"):
        with pytest.raises(RuntimeError, match="only available on CPU"):
            getattr(x.untyped_storage(), name)()


def _train(model: nn.Module, steps: int) -> None:
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.data.add_(1)
    torch.accelerator.synchronize(next(model.parameters()).device)


def test_hogwild(device: torch.device) -> None:
    """Workers change the same parameters in place, without a copy and without a lock."""
    model = nn.Linear(2, 2, bias=False).to(device)
    nn.init.zeros_(model.weight)
    model.share_memory()
    context = mp.get_context("spawn")
    for _ in range(2):  # one after the other: the sum is exact
        worker = context.Process(target=_train, args=(model, 3))
        worker.start()
        worker.join(50)
        assert worker.exitcode == 0
    assert model.weight.tolist() == [[6, 6], [6, 6]]


# ---- from_pointer ----------------------------------------------------------------------------------------------------


class Owner:
    """Driver memory and a note of when its last holder has let go. Freeing it waits for the device, so that comes later.

    Behind a closed gate a free would wait until the gate gives up.
    """

    let_go: ClassVar[list[int]] = []

    def __init__(self, device: int, size: int = 64) -> None:
        self.address = _C.driver_malloc(device, size)
        self.freed = threading.Event()
        weakref.finalize(self, self._free, self.address, self.freed)

    @classmethod
    def _free(cls, address: int, freed: threading.Event) -> None:
        assert not freed.is_set()
        cls.let_go.append(address)
        freed.set()


@pytest.fixture(autouse=True)
def free_what_was_let_go() -> Iterator[None]:
    yield
    gc.collect()
    _C.collect_foreign()
    while Owner.let_go:
        _C.driver_free(Owner.let_go.pop())


def foreign(owner: Owner, shape: tuple[int, ...] = (4, 4), **options: Any) -> Tensor:
    return cookbook_backend.from_pointer(owner.address, shape, torch.float32, owner=owner, **options)


def test_memory_of_a_library(device: torch.device) -> None:
    owner = Owner(device.index)
    before = allocated(device)
    x = foreign(owner)
    assert (x.device, x.shape, x.stride(), x.data_ptr()) == (device, (4, 4), (4, 1), owner.address)
    x.copy_(torch.arange(16.0).view(4, 4))
    y = foreign(owner, (2, 3), strides=(4, 2), device=device)
    assert y.tolist() == [[0, 2, 4], [4, 6, 8]]
    assert foreign(owner, (2, 0)).stride() == torch.empty(2, 0).stride()
    assert foreign(owner, ()).item() == 0
    assert (x @ x).sum().item() == (x.cpu() @ x.cpu()).sum().item()
    assert allocated(device) == before
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(100)
    freed = owner.freed
    del owner, x
    gc.collect()
    assert not freed.is_set()
    del y
    torch.accelerator.synchronize(device)
    _C.collect_foreign()
    gc.collect()
    assert freed.is_set()


def test_the_owner_outlives_the_streams(device: torch.device, gate: CloseGate) -> None:
    """The memory goes back to the driver only then: freeing it earlier would wait, or free it under a kernel."""
    sides = [torch.Stream(device) for _ in range(2)]
    owner = Owner(device.index)
    freed, x = owner.freed, foreign(owner)
    del owner
    gates = [gate(side) for side in sides]
    for side in sides:
        x[1:].record_stream(side)
        x.record_stream(side)
        with side:
            x.add_(1)
    _C.reset_counters(device.index)
    del x
    for closed, side in zip(gates, sides, strict=True):
        gc.collect()
        _C.collect_foreign()
        assert not freed.is_set()
        assert _C.counters(device.index)["synchronizations"] == 0
        closed.open()
        side.synchronize()
        _C.reset_counters(device.index)
    assert freed.is_set()  # the stream woke the interpreter


def test_record_stream_of_a_part_of_it(device: torch.device, gate: CloseGate) -> None:
    side = torch.Stream(device)
    owner = Owner(device.index)
    freed, x = owner.freed, foreign(owner)
    del owner
    part = torch.empty(0, device=device).set_(x.untyped_storage()[32:])  # a context of its own
    closed = gate(side)
    part.record_stream(side)
    del x, part
    gc.collect()
    _C.collect_foreign()
    assert not freed.is_set()
    closed.open()
    side.synchronize()
    assert freed.is_set()


def test_two_tensors_over_parts_of_one_block(device: torch.device, gate: CloseGate) -> None:
    """The stream is noted with every import that holds the address, and with no other."""
    owners = [Owner(device.index, 256) for _ in range(2)]
    whole = cookbook_backend.from_pointer(owners[0].address, [64], torch.float32, owner=owners[0])
    part = cookbook_backend.from_pointer(owners[0].address + 64, [4], torch.float32)
    apart = cookbook_backend.from_pointer(owners[1].address, [64], torch.float32, owner=owners[1])
    freed = [owner.freed for owner in owners]
    del owners
    side = torch.Stream(device)
    closed = gate(side)
    whole[32:].untyped_storage()
    torch.empty(0, device=device).set_(whole.untyped_storage()[128:]).record_stream(side)
    del whole, part, apart
    gc.collect()
    _C.collect_foreign()
    assert [event.is_set() for event in freed] == [False, True]
    closed.open()
    side.synchronize()
    assert [event.is_set() for event in freed] == [True, True]


def test_owner_let_go_on_another_thread(device: torch.device) -> None:
    owner = Owner(device.index)
    freed, box = owner.freed, [foreign(owner)]
    del owner
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    torch.accelerator.synchronize(device)
    gc.collect()
    _C.collect_foreign()
    assert freed.is_set()


def test_owner_in_autograd(device: torch.device) -> None:
    """Saved by a node of the graph, the memory stays until the backward is through."""
    owner = Owner(device.index)
    freed, x = owner.freed, foreign(owner)
    del owner
    x.fill_(2)
    w = torch.ones(4, 4, device=device, requires_grad=True)
    loss = (w * x).sum()
    del x
    gc.collect()
    assert not freed.is_set()
    loss.backward()
    assert w.grad is not None
    assert (w.grad.cpu() == 2).all()
    del loss
    torch.accelerator.synchronize(device)
    _C.collect_foreign()
    assert freed.is_set()


def test_owner_during_a_capture(device: torch.device) -> None:
    """An event recorded now would become a part of the graph; the owner waits for the end of the capture."""
    owner = Owner(device.index)
    freed, x = owner.freed, foreign(owner)
    out = torch.zeros(4, 4, device=device)
    keep = owner  # a graph replays with addresses: who replays keeps the memory
    del owner
    x.fill_(5)
    graph = torch.accelerator.Graph()
    with graph:
        out.copy_(x)
        x.record_stream(current(device))
        del x
        _C.collect_foreign()
        assert _C.foreign_stats()["dropped"] == 1
    graph.replay()
    assert (out.cpu() == 5).all()
    _C.collect_foreign()
    assert _C.foreign_stats() == {"alive": 0, "dropped": 0}
    del keep
    assert freed.is_set()


def test_a_destroyed_stream_is_done(device: torch.device) -> None:
    handle = _C.driver_stream_create(device.index, 0)
    owner = Owner(device.index)
    freed, x = owner.freed, foreign(owner)
    del owner
    x.record_stream(cookbook_backend.external_stream(handle))
    _C.driver_stream_destroy(handle)
    del x
    torch.accelerator.synchronize(device)
    _C.collect_foreign()
    assert freed.is_set()


def test_a_failed_device_lets_go(device: torch.device) -> None:
    owner = Owner(device.index)
    freed, x = owner.freed, foreign(owner)
    del owner
    _C.inject_fault(device.index, "launch", 1, 0)
    x.add_(1)
    with pytest.raises(torch.AcceleratorError):
        torch.accelerator.synchronize(device)
    del x
    _C.reset(device.index)
    _C.collect_foreign()
    assert freed.is_set()


def test_our_own_memory_by_its_address(device: torch.device, gate: CloseGate) -> None:
    x = torch.zeros(SIZE, device=device)
    address = x.data_ptr()
    side = torch.Stream(device)
    y = cookbook_backend.from_pointer(address, [SIZE], torch.float32, owner=x)
    closed = gate(side)
    y.record_stream(side)
    del x, y
    current(device).synchronize()
    _C.collect_foreign()
    assert address not in {other.data_ptr() for other in blocks(device)}
    closed.open()
    side.synchronize()
    assert address in {other.data_ptr() for other in blocks(device)}


def test_what_is_no_device_memory(device: torch.device) -> None:
    owner = Owner(device.index)
    take = cookbook_backend.from_pointer
    other = torch.device("cookbook", 1 - device.index)
    pinned, pageable = torch.ones(4).pin_memory(), torch.ones(4)
    freed_address = _C.driver_malloc(device.index, 64)
    _C.driver_free(freed_address)
    bad: list[tuple[str, Callable[[object], object]]] = [
        ("which is no device memory", lambda o: take(pageable.data_ptr(), [4], torch.float32, owner=o)),
        ("which is no device memory", lambda o: take(0, [4], torch.float32, owner=o)),
        ("which is no device memory", lambda o: take(freed_address, [4], torch.float32, owner=o)),
        ("which is pinned host memory", lambda o: take(pinned.data_ptr(), [4], torch.float32, owner=o)),
        (f"expected memory of {other}", lambda o: take(owner.address, [4], torch.float32, device=other, owner=o)),
        ("at most 64 bytes", lambda o: take(owner.address, [17], torch.float32, owner=o)),
        ("at most 60 bytes", lambda o: take(owner.address + 4, [4, 4], torch.float32, owner=o)),
        ("at most 64 bytes", lambda o: take(owner.address, [2, 4], torch.float32, strides=[13, 1], owner=o)),
        ("multiple of 4", lambda o: take(owner.address + 2, [1], torch.float32, owner=o)),
        ("multiple of 8", lambda o: take(owner.address + 4, [1], torch.complex128, owner=o)),
        ("negative", lambda o: take(owner.address, [-1], torch.float32, owner=o)),
        ("negative", lambda o: take(owner.address, [2], torch.float32, strides=[-1], owner=o)),
        ("as many strides", lambda o: take(owner.address, [2, 2], torch.float32, strides=[1], owner=o)),
        ("expected a cookbook device", lambda o: take(owner.address, [2], torch.float32, device="cpu", owner=o)),
    ]
    for reason, call in bad:
        held = Held()
        gone = weakref.ref(held)
        with pytest.raises(ValueError, match=reason):
            call(held)
        del held
        gc.collect()
        assert gone() is None, reason  # an owner that was not needed is not kept
    assert take(owner.address + 4, [1], torch.complex64).numel() == 1
    assert _C.foreign_stats()["alive"] == 0


class Held:
    """Something to be kept."""
