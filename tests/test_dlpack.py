# chapter 4
"""DLPack in both directions: what a consumer sees, who waits for whom, how long memory is kept, what is refused."""

from __future__ import annotations

import copy
import ctypes
import gc
import subprocess
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils.dlpack import DLDeviceType, to_dlpack

import cookbook_backend

_C = cookbook_backend._C
CloseGate = Callable[[torch.Stream], _C.Gate]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
pytestmark = pytest.mark.usefixtures("time_limit")

VERSIONED = (1, 0)
READ_ONLY, IS_COPIED = 1, 2


# ---- a consumer and a producer that know DLPack and no PyTorch --------------------------------------------------------


class Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("index", ctypes.c_int32))


class DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER))


class ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


api = ctypes.pythonapi
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
api.PyCapsule_GetName.restype = ctypes.c_char_p
api.PyCapsule_GetName.argtypes = [ctypes.py_object]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def peek(capsule: Any) -> Managed | ManagedVersioned:
    name = api.PyCapsule_GetName(capsule)
    kind = {b"dltensor": Managed, b"dltensor_versioned": ManagedVersioned}[name]
    return kind.from_address(api.PyCapsule_GetPointer(capsule, name))


class Consumer:
    """Takes a capsule as another framework does: it owns the tensor and calls the deleter when it is done."""

    _names = (b"used_dltensor", b"used_dltensor_versioned")  # a capsule does not copy its name

    def __init__(self, capsule: Any) -> None:
        self.managed = peek(capsule)
        api.PyCapsule_SetName(capsule, self._names[isinstance(self.managed, ManagedVersioned)])
        self.tensor = self.managed.tensor

    def delete(self) -> None:
        self.managed.deleter(ctypes.addressof(self.managed))


class Producer:
    """Driver memory of four floats on a device, made by `stream`, as another framework would hand it out."""

    def __init__(self, device: int = 0, address: int | None = None, offset: int = 0) -> None:
        self.device = device
        self.address = _C.driver_malloc(device, 64) if address is None else address
        self.asked: list[dict[str, Any]] = []
        self.deleted = 0
        self.shape, self.strides = (ctypes.c_int64 * 1)(4), (ctypes.c_int64 * 1)(1)
        self.deleter = DELETER(self._delete)
        self.managed = ManagedVersioned(1, 0, None, self.deleter, 0)
        self.managed.tensor = DLTensor(
            self.address,
            Device(DLDeviceType.kDLExtDev, device),
            1,
            DataType(2, 32, 1),
            self.shape,
            self.strides,
            offset,
        )

    def _delete(self, _: int) -> None:
        self.deleted += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return int(DLDeviceType.kDLExtDev), self.device

    def __dlpack__(self, *, stream: int | None = None, max_version: Any = None, copy: bool | None = None) -> Any:
        self.asked.append({"stream": stream, "max_version": max_version, "copy": copy})
        return api.PyCapsule_New(ctypes.addressof(self.managed), b"dltensor_versioned", None)


@pytest.fixture
def producer() -> Iterator[Producer]:
    made = Producer()
    yield made
    gc.collect()
    _C.collect_foreign()
    _C.driver_free(made.address)


def current(device: torch.device | str) -> torch.Stream:
    return cookbook_backend.current_stream(device)


# ---- what a consumer sees --------------------------------------------------------------------------------------------

CODES = {
    torch.int8: (0, 8), torch.int16: (0, 16), torch.int32: (0, 32), torch.int64: (0, 64),
    torch.uint8: (1, 8), torch.uint16: (1, 16), torch.uint32: (1, 32), torch.uint64: (1, 64),
    torch.float16: (2, 16), torch.float32: (2, 32), torch.float64: (2, 64), torch.bfloat16: (4, 16),
    torch.complex32: (5, 32), torch.complex64: (5, 64), torch.complex128: (5, 128), torch.bool: (6, 8),
    torch.float8_e4m3fn: (10, 8), torch.float8_e4m3fnuz: (11, 8), torch.float8_e5m2: (12, 8),
    torch.float8_e5m2fnuz: (13, 8), torch.float8_e8m0fnu: (14, 8),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("version", [None, VERSIONED], ids=["unversioned", "versioned"])
def test_every_dtype(version: tuple[int, int] | None, device: torch.device) -> None:
    for dtype, (code, bits) in CODES.items():
        x = torch.empty(2, 3, dtype=dtype, device=device)
        managed = peek(x.__dlpack__(max_version=version))
        assert isinstance(managed, ManagedVersioned if version else Managed)
        tensor = managed.tensor
        assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (code, bits, 1), dtype
        assert (tensor.device.type, tensor.device.index) == (12, device.index)
        again = torch.from_dlpack(x)
        assert (again.dtype, again.data_ptr(), again.device) == (x.dtype, x.data_ptr(), x.device)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.mT,
    "slice": lambda x: x[1:, ::2],
    "expanded": lambda x: x[:1].expand(5, 3, 4),
    "scalar": lambda x: x[1, 2, 3],
    "empty": lambda x: x[:0],
    "size one": lambda x: x.as_strided((1, 3), (77, 4)),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_layout(view: Callable[[Tensor], Tensor], device: torch.device) -> None:
    base = torch.arange(24.0, device=device).view(2, 3, 4)
    x = view(base)
    capsule = x.__dlpack__(max_version=VERSIONED)
    managed = peek(capsule)
    assert isinstance(managed, ManagedVersioned)
    tensor = managed.tensor
    assert managed.flags == 0
    assert (tensor.data or 0) + tensor.byte_offset == x.data_ptr()
    assert tensor.ndim == x.dim()
    assert (tensor.shape[: x.dim()] if x.dim() else []) == list(x.shape)
    assert (tensor.strides[: x.dim()] if x.dim() else []) == list(x.stride())
    again = torch.from_dlpack(capsule)
    assert (again.shape, again.stride(), again.data_ptr()) == (x.shape, x.stride(), x.data_ptr())
    again.add_(100) if x.numel() == base.numel() else None
    assert torch.equal(again.cpu(), x.cpu())


def test_the_device_has_a_name(device: torch.device) -> None:  # B38
    assert torch.ones(1, device=device).__dlpack_device__() == (DLDeviceType.kDLExtDev, device.index)
    assert torch.ones(1).__dlpack_device__() == (DLDeviceType.kDLCPU, 0)


def test_import_shares_the_memory(device: torch.device) -> None:  # B38
    x = torch.arange(3.0, device=device)
    for take in (torch.from_dlpack, cookbook_backend.from_dlpack, lambda t: torch.from_dlpack(to_dlpack(t))):
        y = take(x)
        y += 1
        assert y.data_ptr() == x.data_ptr()
        assert y.device == device
    assert x.tolist() == [3, 4, 5]


@pytest.mark.parametrize("target", ["cpu", "cookbook:0", "cookbook:1"])
def test_to_another_device(target: str, device: torch.device) -> None:
    x = torch.arange(3.0, device=device)
    moves = torch.device(target) != device
    for take in (torch.from_dlpack, cookbook_backend.from_dlpack):
        y = take(x, device=target)
        assert y.device == torch.device(target)
        assert (y.data_ptr() == x.data_ptr()) != moves
        assert y.tolist() == [0, 1, 2]
        assert take(x, device=target, copy=True).data_ptr() != x.data_ptr()
        if moves:
            with pytest.raises(ValueError, match="without copying"):
                take(x, device=target, copy=False)
    assert take(torch.arange(3.0), device=device).tolist() == [0, 1, 2]


def test_a_copy_says_so(device: torch.device) -> None:
    x = torch.arange(3.0, device=device)
    for options, copied in (
        ({}, 0),
        ({"copy": False}, 0),
        ({"copy": True}, IS_COPIED),
        ({"dl_device": (DLDeviceType.kDLCPU, 0)}, IS_COPIED),
        ({"dl_device": (DLDeviceType.kDLExtDev, 1 - device.index)}, IS_COPIED),
        ({"dl_device": (DLDeviceType.kDLExtDev, device.index)}, 0),
    ):
        managed = peek(x.__dlpack__(max_version=VERSIONED, **options))
        assert isinstance(managed, ManagedVersioned)
        assert managed.flags & (READ_ONLY | IS_COPIED) == copied, options


def test_what_cannot_be_exported(device: torch.device) -> None:
    complex_one = torch.ones(2, dtype=torch.complex64, device=device)
    for x, reason in (
        (torch.ones(2, device=device, requires_grad=True), "require gradient"),
        (complex_one.conj(), "conjugate bit"),
        (complex_one.conj().imag, "negative bit"),
    ):
        with pytest.raises(BufferError, match=reason):
            x.__dlpack__()
    x = torch.ones(2, device=device)
    with pytest.raises(ValueError, match="copying"):
        x.__dlpack__(dl_device=(DLDeviceType.kDLCPU, 0), copy=False)
    with pytest.raises(TypeError, match="stream must be"):
        x.__dlpack__(stream=current(device))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got null"):
        x.__dlpack__(stream=0)
    with pytest.raises(torch.AcceleratorError, match="cookbookErrorInvalidHandle"):
        x.__dlpack__(stream=12345)


def test_the_cpu_is_as_before() -> None:
    x = torch.arange(3.0)
    assert torch.from_dlpack(x).data_ptr() == x.data_ptr()
    assert cookbook_backend.from_dlpack(x).data_ptr() == x.data_ptr()
    assert numpy.from_dlpack(x).tolist() == [0, 1, 2]
    with pytest.raises(AssertionError, match="None on cpu"):
        x.__dlpack__(stream=5)


def test_subclasses_have_their_say(device: torch.device) -> None:
    calls = []

    class Loud(Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(getattr(function, "__name__", "?"))
            return super().__torch_function__(function, types, args, kwargs or {})

    x = torch.arange(3.0, device=device).as_subclass(Loud)
    assert x.__dlpack_device__() == (12, device.index)
    assert isinstance(peek(x.__dlpack__(max_version=VERSIONED)), ManagedVersioned)
    assert "__dlpack_device__" in calls
    assert "__dlpack__" in calls


def test_numpy_is_refused(device: torch.device) -> None:
    x = torch.ones(2, device=device)
    with pytest.raises((RuntimeError, BufferError), match="(?i)device"):
        numpy.from_dlpack(x)
    with pytest.raises(TypeError, match=r"can't convert cookbook.*Use Tensor.cpu\(\)"):
        numpy.asarray(x)
    assert numpy.from_dlpack(x, device="cpu").tolist() == [1, 1]  # asked for, a copy is made


def test_no_interface_of_another_vendor(device: torch.device) -> None:
    """A consumer of `__cuda_array_interface__` would use the address as CUDA's."""
    x = torch.ones(2, device=device)
    assert not hasattr(x, "__cuda_array_interface__")
    assert not hasattr(x, "__array_interface__")


# ---- how long the memory is kept -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, VERSIONED], ids=["unversioned", "versioned"])
def test_the_deleter_lets_go(version: tuple[int, int] | None, device: torch.device) -> None:
    gc.collect()
    before = torch.accelerator.memory_stats(device.index)["allocated_bytes.all.current"]
    x = torch.ones(1000, device=device)
    consumer = Consumer(x.__dlpack__(max_version=version))
    address = x.data_ptr()
    assert consumer.tensor.data == address
    del x
    assert torch.ones(1000, device=device).data_ptr() != address
    assert torch.accelerator.memory_stats(device.index)["allocated_bytes.all.current"] == before + 4096
    consumer.delete()
    assert torch.accelerator.memory_stats(device.index)["allocated_bytes.all.current"] == before


def test_a_capsule_that_nobody_takes(device: torch.device) -> None:
    gc.collect()
    before = torch.accelerator.memory_stats(device.index)["allocated_bytes.all.current"]
    capsule = torch.ones(1000, device=device).__dlpack__(stream=None)
    assert torch.accelerator.memory_stats(device.index)["allocated_bytes.all.current"] == before + 4096
    del capsule
    assert torch.accelerator.memory_stats(device.index)["allocated_bytes.all.current"] == before


def test_a_capsule_is_taken_once(device: torch.device) -> None:
    capsule = torch.ones(3, device=device).__dlpack__(max_version=VERSIONED)
    torch.from_dlpack(capsule)
    with pytest.raises(RuntimeError, match="only once"):
        torch.from_dlpack(capsule)


# ---- export: the consumer's stream -----------------------------------------------------------------------------------


def full_later(x: Tensor, gate: CloseGate) -> _C.Gate:
    """Queue a write behind a closed gate."""
    torch.accelerator.synchronize(x.device)
    closed = gate(current(x.device))
    x.fill_(7)
    return closed


def blocked(stream: torch.Stream) -> bool:
    """Whether the stream stands still, after a while in which work that nobody holds up would have run."""
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        if stream.query():
            return False
        time.sleep(0.01)
    return True


def consume(consumer: Consumer, stream: torch.Stream) -> Tensor:
    """Read the capsule's memory on a stream, as a consumer's kernel would."""
    address = consumer.tensor.data + consumer.tensor.byte_offset
    with stream:
        return cookbook_backend.from_pointer(address, [4], torch.float32).clone()


@pytest.mark.parametrize("how", ["side", "none", "copy", "other device"])
def test_the_consumers_stream_waits(how: str, device: torch.device, gate: CloseGate) -> None:
    x = torch.zeros(4, device=device)
    where = torch.device("cookbook", 1 - device.index) if how == "other device" else device
    side = torch.Stream(where)
    producing = torch.Stream(device)  # so that the default stream can be the consumer's
    options: dict[str, Any] = {"stream": side.native_handle}
    if how == "none":
        side, options["stream"] = cookbook_backend.default_stream(device), None
    if how == "copy":
        options["copy"] = True
    if how == "other device":
        options["dl_device"] = (DLDeviceType.kDLExtDev, where.index)
    with producing:
        closed = full_later(x, gate)
        consumer = Consumer(x.__dlpack__(**options))
    y = consume(consumer, side)
    assert blocked(side)
    closed.open()
    side.synchronize()
    assert y.tolist() == [7, 7, 7, 7]
    consumer.delete()


def test_minus_one_waits_for_nobody(device: torch.device, gate: CloseGate) -> None:
    x = torch.zeros(4, device=device)
    side = torch.Stream(device)
    closed = full_later(x, gate)
    for options in ({"stream": -1}, {}):
        consumer = Consumer(x.__dlpack__(**options))
        y = consume(consumer, side)
        side.synchronize()
        with side:
            assert y.tolist() == [0, 0, 0, 0]
        consumer.delete()
    closed.open()


def test_the_current_stream_of_the_tensors_device_counts(gate: CloseGate) -> None:
    """Not that of the current device."""
    x = torch.zeros(4, device="cookbook:1")
    side = torch.Stream("cookbook:1")
    closed = full_later(x, gate)
    assert cookbook_backend.current_device() == 0
    consumer = Consumer(x.__dlpack__(stream=side.native_handle))
    assert cookbook_backend.current_device() == 0
    y = consume(consumer, side)
    assert blocked(side)
    closed.open()
    side.synchronize()
    assert y.tolist() == [7, 7, 7, 7]
    consumer.delete()


@pytest.mark.parametrize("copied", [False, True])
def test_memory_is_kept_until_the_consumers_stream_has_passed(
    copied: bool, device: torch.device, gate: CloseGate
) -> None:
    side = torch.Stream(device)
    consumer = Consumer(torch.ones(1000, device=device).__dlpack__(stream=side.native_handle, copy=copied or None))
    address = consumer.tensor.data
    closed = gate(side)  # the consumer's kernels
    consumer.delete()
    held = [torch.empty(1000, device=device) for _ in range(3)]
    assert address not in {x.data_ptr() for x in held}
    closed.open()
    side.synchronize()
    held.append(torch.empty(1000, device=device))
    assert address == held[-1].data_ptr()


def test_the_c_interface_knows_the_current_stream(device: torch.device) -> None:
    """`__dlpack_c_exchange_api__`, for consumers that never come to Python: in 2.13 core asks the guard."""

    class Interface(ctypes.Structure):
        _fields_ = (
            ("version", ctypes.c_uint32 * 2),
            ("previous", ctypes.c_void_p),
            *((name, ctypes.c_void_p) for name in ("allocate", "from_object", "to_object", "dltensor", "stream")),
        )

    interface = Interface.from_address(
        api.PyCapsule_GetPointer(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    )
    signature = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
    found = ctypes.c_void_p()
    side = torch.Stream(device)
    with side:
        assert signature(interface.stream)(12, device.index, ctypes.byref(found)) == 0
    assert found.value == side.native_handle


# ---- import: the producer's memory -----------------------------------------------------------------------------------


def test_the_producer_is_told_our_stream(producer: Producer) -> None:
    side = torch.Stream("cookbook:0")
    with side:
        x = cookbook_backend.from_dlpack(producer)
    assert producer.asked == [{"stream": side.native_handle, "max_version": VERSIONED, "copy": None}]
    assert x.data_ptr() == producer.address
    torch.from_dlpack(producer)
    assert producer.asked[-1]["stream"] is None  # core drops it: what from_dlpack of this module is for


def test_between_two_streams_of_ours(device: torch.device, gate: CloseGate) -> None:
    """A tensor as producer: its own stream is the one that is current when it is asked, so it asks no one to wait."""
    x = torch.zeros(4, device=device)
    closed = full_later(x, gate)
    y = cookbook_backend.from_dlpack(x)
    assert y.data_ptr() == x.data_ptr()
    closed.open()
    assert y.tolist() == [7, 7, 7, 7]


@pytest.mark.parametrize("named", [False, True], ids=["home", "record_stream"])
def test_the_deleter_runs_once_behind_the_last_use(named: bool, producer: Producer, gate: CloseGate) -> None:
    used = torch.Stream("cookbook:0")
    if named:
        x = cookbook_backend.from_dlpack(producer)
        x.record_stream(used)
    else:
        with used:
            x = cookbook_backend.from_dlpack(producer)
    closed = gate(used)
    with used:
        x.fill_(3)
        y = x + 1
    view = x[1:]
    del x
    assert producer.deleted == 0
    del view
    _C.collect_foreign()
    assert producer.deleted == 0
    assert _C.foreign_stats() == {"alive": 0, "dropped": 1}
    closed.open()
    used.synchronize()
    assert producer.deleted == 1
    with used:
        assert y.tolist() == [4, 4, 4, 4]
    _C.collect_foreign()
    assert producer.deleted == 1
    assert _C.foreign_stats() == {"alive": 0, "dropped": 0}


def test_core_calls_the_deleter_at_once(producer: Producer, gate: CloseGate) -> None:
    """Why from_dlpack of this module adopts what core has imported."""
    x = torch.from_dlpack(producer)
    closed = gate(current("cookbook:0"))
    x.fill_(1)
    del x
    assert producer.deleted == 1
    closed.open()


def test_a_copy_keeps_the_producers_memory_until_it_has_run(producer: Producer, gate: CloseGate) -> None:
    for options in ({"copy": True}, {"device": "cookbook:1"}):
        before = producer.deleted
        closed = gate(current("cookbook:0"))
        y = cookbook_backend.from_dlpack(producer, **options)
        assert y.data_ptr() != producer.address
        assert producer.deleted == before
        closed.open()
        torch.accelerator.synchronize("cookbook:0")
        assert producer.deleted == before + 1
    assert all(asked["copy"] is None for asked in producer.asked)


def test_a_producer_that_offsets(producer: Producer) -> None:
    cookbook_backend.from_pointer(producer.address, [16], torch.float32).copy_(torch.arange(16.0))
    producer.managed.tensor.byte_offset = 8
    x = cookbook_backend.from_dlpack(producer)
    assert x.data_ptr() == producer.address + 8
    assert x.tolist() == [2, 3, 4, 5]


def test_another_vendors_address_is_refused(producer: Producer) -> None:
    """KDLExtDev is every private device's type."""
    floats = torch.ones(4)
    for address, device, reason in (
        (floats.data_ptr(), 0, "which is no device memory"),
        (producer.address, 1, "expected memory of cookbook:1"),
        (producer.address + 56, 0, "at most 8 bytes"),
        (producer.address + 1, 0, "multiple of 4"),
    ):
        foreign = Producer(device, address)
        with pytest.raises(ValueError, match=reason):
            cookbook_backend.from_dlpack(foreign)
        gc.collect()
        assert foreign.deleted == 1
    with pytest.raises(ValueError, match=r"expected a capsule of a cookbook tensor, got one of cpu"):
        cookbook_backend.from_dlpack(to_dlpack(floats))


def test_a_producer_without_streams_is_refused(producer: Producer) -> None:
    class Old(Producer):
        def __dlpack__(self) -> Any:  # type: ignore[override]
            return super().__dlpack__()

    with pytest.raises(TypeError, match="stream"):
        cookbook_backend.from_dlpack(Old(0, producer.address))


def test_imported_memory_is_a_storage_like_others(producer: Producer) -> None:
    x = cookbook_backend.from_dlpack(producer)
    x.copy_(torch.arange(4.0))
    with pytest.raises(RuntimeError, match="not resizable"):
        x.untyped_storage().resize_(128)
    assert copy.deepcopy(x).tolist() == [0, 1, 2, 3]
    alive = weakref.ref(x.untyped_storage())
    assert torch.from_dlpack(x).data_ptr() == producer.address  # and out again
    assert alive() is None or producer.deleted == 0
    assert (x * 2).sum().item() == 12
    x.requires_grad_()
    (x * x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 2, 4, 6]


def test_what_is_imported_at_exit(run_python: Run) -> None:
    """What was dropped is let go of behind its stream. A tensor that lives when Python ends is never destroyed: core's
    `torch.frombuffer` keeps its buffer then, too.
    """
    done = run_python("""
        import torch, cookbook_backend
        _C = cookbook_backend._C
        class Owner(bytearray):
            def __del__(self): print("free", len(self), flush=True)
        def new(size):
            return cookbook_backend.from_pointer(_C.driver_malloc(0, 64), [16], torch.float32, owner=Owner(size))
        dropped, kept, core = new(1), new(2), torch.frombuffer(Owner(4), dtype=torch.float32)
        gate = _C.Gate(torch.accelerator.current_stream())
        dropped.add_(1)
        del dropped
        print("end", _C.foreign_stats(), flush=True)
        import atexit
        atexit.register(gate.open)  # runs before the backend's handlers
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "end {'alive': 1, 'dropped': 1}\nfree 1\n"
