# chapter 6
"""Tensors of the device in files and copies: torch.save and load, pickle, deepcopy, storages, metadata, safetensors."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run

pytestmark = [
    pytest.mark.usefixtures("time_limit"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support", "ignore:TypedStorage is deprecated"),
]
ONE = torch.device("cookbook:1")
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip


def saved(what: object, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(what, file, **options)
    file.seek(0)
    return file


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bytes(a.cpu().untyped_storage()) == bytes(b.cpu().untyped_storage())


# Where a file's tensors go


@pytest.mark.parametrize(
    ("location", "index"),
    [
        ("cookbook:1", 1),
        ("cookbook", 1),  # the current device, which is 1 here
        ("cookbook:0", 0),
        (torch.device("cookbook", 0), 0),
        (torch.device("cookbook"), 1),
        ({"cpu": "cookbook:0"}, 0),
        (lambda storage, location: storage.cookbook(0), 0),
        (lambda storage, location: storage.to(device="cookbook:1"), 1),
    ],
)
@pytest.mark.parametrize("weights_only", [True, False])
def test_map_location_to_the_device(location: object, index: int, weights_only: bool) -> None:  # B28
    x = torch.randn(3, 4).t()
    torch.cookbook.set_device(1)
    y = torch.load(saved(x), map_location=location, weights_only=weights_only)
    assert y.device == torch.device("cookbook", index)
    assert y.stride() == x.stride() and torch.equal(y.cpu(), x)
    assert torch.cookbook.current_device() == 1


@pytest.mark.parametrize(
    "location",
    [
        None,
        "cpu",
        torch.device("cpu"),
        {"cookbook:1": "cpu"},
        {"cookbook:1": "cookbook:0"},
        lambda s, _: s.cpu(),
        "meta",
    ],
)
def test_map_location_from_the_device(location: object) -> None:
    x = torch.randn(3, device=ONE)
    y = torch.load(saved(x), map_location=location)
    expected = {"None": ONE, "cpu": torch.device("cpu"), "meta": torch.device("meta")}
    if isinstance(location, dict):
        assert y.device == torch.device(location["cookbook:1"])
    else:
        assert y.device == expected["cpu" if callable(location) else str(location)]
    assert y.is_meta or torch.equal(y.cpu(), x.cpu())


def test_a_dictionary_that_does_not_name_the_location_changes_nothing() -> None:
    assert torch.load(saved(torch.ones(2, device=ONE)), map_location={"cookbook:0": "cpu"}).device == ONE


def test_a_device_that_does_not_exist(run_python: Run, tmp_path: Path) -> None:  # B28
    """It is an error that says what to do, whether the program asks for the device or the file does."""
    with pytest.raises(RuntimeError, match="COOKBOOK device 99 but torch.cookbook.device_count.. is 2"):
        torch.load(saved(torch.ones(2)), map_location="cookbook:99")
    torch.save(torch.arange(3.0, device=ONE), tmp_path / "f")
    script = f"""
        import torch
        try:
            torch.load({str(tmp_path / "f")!r})
        except RuntimeError as error:
            print(error)
        print(torch.load({str(tmp_path / "f")!r}, map_location="cpu").tolist())
    """
    for count, message in (
        ("1", "device 1 but torch.cookbook.device_count() is 1. Please use torch.load with map_location"),
        ("0", "torch.cookbook.is_available() is False"),
    ):
        done = run_python(script, COOKBOOK_DEVICE_COUNT=count)
        assert message in done.stdout and done.stdout.endswith("\n[0.0, 1.0, 2.0]\n"), (done.stdout, done.stderr)


def test_a_file_without_the_backend(run_python: Run, tmp_path: Path) -> None:  # B28
    x = torch.arange(3.0, device=ONE)
    torch.cookbook.set_metadata(x, {"layout": "rows"})
    torch.save({"x": x, "p": torch.nn.Parameter(x)}, tmp_path / "f")
    done = run_python(
        f"""
        import torch
        assert not hasattr(torch, "cookbook")
        loaded = torch.load({str(tmp_path / "f")!r}, map_location="cpu")
        print(loaded["x"].tolist(), type(loaded["p"]).__name__)
        try:
            torch.load({str(tmp_path / "f")!r})
        except RuntimeError as error:
            print("map_location" in str(error) or str(error))
    """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.stdout.startswith("[0.0, 1.0, 2.0] Parameter\n"), done.stderr
    assert "don't know how to restore data location" in done.stdout


# What is kept


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("old_format", [False, True])
def test_every_dtype_bit_by_bit(dtype: torch.dtype, old_format: bool, device: torch.device) -> None:  # B29
    x = (
        torch.arange(32, dtype=torch.uint8)
        .view(torch.uint8)[:32]
        .clone()
        .view(dtype if dtype != torch.bool else torch.uint8)
    )
    x = x.ne(0) if dtype == torch.bool else x
    options = {"_use_new_zipfile_serialization": not old_format}
    try:
        torch.load(saved(x, **options), weights_only=True)
    except Exception as error:  # the old format does not know the newer dtypes
        assert old_format
        with pytest.raises(type(error)):
            torch.load(saved(x.to(device), **options), weights_only=True)
        return
    y = torch.load(saved(x.to(device), **options), weights_only=True)
    assert (y.device, y.dtype, y.shape) == (device, dtype, x.shape)
    assert same_bytes(y, x)


def test_mmap(tmp_path: Path) -> None:  # B29
    x = torch.randn(1000, device=ONE)
    torch.save(x, tmp_path / "f")
    y = torch.load(tmp_path / "f", mmap=True, map_location="cookbook:0", weights_only=True)
    assert y.device.index == 0 and torch.equal(y.cpu(), x.cpu())


@pytest.mark.parametrize("old_format", [False, True])
def test_views_share_their_storage_again(old_format: bool) -> None:
    base = torch.arange(12.0, device=ONE).view(3, 4)
    views = {"base": base, "rows": base[1:, ::2], "t": base.t(), "again": base}
    loaded = torch.load(saved(views, _use_new_zipfile_serialization=not old_format))
    assert len({v.untyped_storage()._cdata for v in loaded.values()}) == 1
    for name, view in views.items():
        assert (loaded[name].stride(), loaded[name].storage_offset()) == (view.stride(), view.storage_offset())
    loaded["base"].fill_(7)
    assert loaded["rows"].cpu().eq(7).all() and base.cpu()[0, 0] == 0


def test_state_of_a_training_run(tmp_path: Path) -> None:
    """Model, optimizer and random state: the second half of a run is the same after a restart."""

    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.BatchNorm1d(8)).cookbook(1)
        return net, torch.optim.Adam(net.parameters(), lr=0.1)

    def run(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = net(torch.ones(6, 4, device=ONE) * torch.arange(6, device=ONE)[:, None]).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    net, optimizer = made()
    run(net, optimizer)
    states = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.cookbook.get_rng_state(1)}
    torch.save(states, tmp_path / "f")
    expected = run(net, optimizer)
    net, optimizer = made()
    loaded = torch.load(tmp_path / "f", weights_only=True)
    net.load_state_dict(loaded["net"])
    optimizer.load_state_dict(loaded["optimizer"])
    torch.cookbook.set_rng_state(loaded["rng"], 1)
    assert run(net, optimizer) == expected


def test_saving_waits_for_the_work_in_flight() -> None:
    """What is in the file is what the stream will have written."""
    x = torch.zeros(1000, device=ONE)
    with torch.cookbook.device(1):
        torch.cookbook._sleep(200_000_000)
        x.add_(3)
        assert not torch.accelerator.current_stream(ONE).query()
    assert torch.load(saved(x), map_location="cpu").eq(3).all()


def test_saving_keeps_the_gil_and_copying_does_not() -> None:
    """PyTorch's, not ours: `UntypedStorage.copy_` waits for the device with the GIL, `Tensor.copy_` without."""
    x, ticks, done = torch.ones(10, device="cookbook"), [0], threading.Event()

    def tick() -> None:
        while not done.wait(0.001):
            ticks[0] += 1

    def ticks_during(wait: Callable[[], object]) -> int:
        torch.cookbook._sleep(200_000_000)
        before = ticks[0]
        wait()
        return ticks[0] - before

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        assert ticks_during(lambda: saved(x)) <= 2 < ticks_during(x.cpu)
    finally:
        done.set()
        thread.join()


def test_pickle_subclasses_and_requires_grad() -> None:
    parameter = torch.nn.Parameter(torch.randn(3, device=ONE), requires_grad=False)
    buffer = torch.randn(2, device=ONE, requires_grad=True)
    loaded = pickle.loads(
        pickle.dumps([parameter, buffer, torch.device("cookbook:1"), torch.nn.Linear(2, 2).cookbook(1)])
    )
    assert type(loaded[0]) is torch.nn.Parameter and loaded[0].device == ONE and not loaded[0].requires_grad
    assert loaded[1].requires_grad and torch.equal(loaded[1].detach().cpu(), buffer.detach().cpu())
    assert loaded[2] == ONE and loaded[3].weight.device == ONE


def test_pickled_generators_continue() -> None:
    generator = torch.Generator(ONE).manual_seed(5)
    torch.randn(3, device=ONE, generator=generator)
    again = pickle.loads(pickle.dumps(generator))
    assert again.device == ONE
    draw = [torch.randn(4, device=ONE, generator=g).cpu() for g in (generator, again)]
    assert torch.equal(*draw)


def test_conjugate_and_negative_views() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    loaded = torch.load(saved({"conj": x.to(ONE).conj(), "neg": x.to(ONE).conj().imag}))
    assert loaded["conj"].is_conj() and loaded["neg"].is_neg()
    assert torch.equal(loaded["conj"].cpu().resolve_conj(), x.conj().resolve_conj())
    assert torch.equal(loaded["neg"].cpu().resolve_neg(), x.conj().imag.resolve_neg())


def test_scripted_modules(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = torch.jit.script(torch.nn.Linear(2, 2).cookbook(1))
        torch.jit.save(net, tmp_path / "f")
        there, here = torch.jit.load(tmp_path / "f"), torch.jit.load(tmp_path / "f", map_location="cpu")
    assert there.weight.device == ONE and here.weight.device.type == "cpu"
    assert torch.equal(there.weight.cpu(), here.weight)


# Copies in memory


@pytest.mark.parametrize("of", ["cpu", "cookbook:1"])
def test_copies_do_what_they_do_on_the_cpu(of: str) -> None:
    x = torch.arange(6.0, device=of).view(2, 3).t()
    shallow, deep = copy.copy(x), copy.deepcopy(x)
    assert shallow.untyped_storage()._cdata == x.untyped_storage()._cdata
    assert deep.untyped_storage()._cdata != x.untyped_storage()._cdata
    assert deep.stride() == x.stride() and deep.device == x.device and torch.equal(deep, x)
    first, second = copy.deepcopy([x, x[1:]])
    assert first.untyped_storage()._cdata == second.untyped_storage()._cdata
    leaf = torch.ones(3, device=of, requires_grad=True)
    leaf.sum().backward()
    twin = copy.deepcopy(leaf)
    assert twin.grad is not None and twin.grad.device == x.device and twin.grad is not leaf.grad
    net = torch.nn.Linear(2, 2).to(of)
    net.tied = net.weight
    other = copy.deepcopy(net)
    assert other.tied is other.weight and other.weight.device == x.device
    other.weight.data.fill_(9)
    assert not net.weight.eq(9).any()
    storage = x.untyped_storage()
    assert copy.deepcopy(storage).tolist() == storage.tolist() and copy.deepcopy(storage).device == x.device
    assert copy.copy(storage).tolist() == storage.tolist() and copy.copy(storage).device == x.device


def test_slices_of_storages() -> None:  # B30
    storage = torch.arange(8.0, device=ONE).untyped_storage()
    part = storage[4:12]
    assert part.device == ONE and part.nbytes() == 8
    assert part.data_ptr() == storage.data_ptr() + 4 and part.tolist() == storage.tolist()[4:12]
    storage[4] = 1  # writes through
    assert part[0] == 1
    part.fill_(0)
    assert storage.tolist()[4:12] == [0] * 8
    with pytest.raises(TypeError, match="only CPU memory can be pinned"):
        storage.pin_memory()
    assert torch.arange(8.0).untyped_storage().pin_memory().is_pinned()


def test_names_of_tensor_types() -> None:
    assert torch.ones(2, device=ONE).bfloat16().type() == "torch.cookbook.BFloat16Tensor"
    assert torch.ones(2).type("torch.cookbook.HalfTensor").device.type == "cookbook"
    assert torch.ones(2, device=ONE).type("torch.FloatTensor").device.type == "cpu"


# Metadata

LAYOUT = {"layout": "tiled", "scale": "0.5 = 1/2", "": "", "größe": "8"}


def test_metadata_is_kept_in_files(device: torch.device) -> None:
    x = torch.randn(3, device=device)
    metadata = {name: value for name, value in LAYOUT.items() if name}
    torch.cookbook.set_metadata(x, metadata)
    for loaded in (
        torch.load(saved(x), weights_only=True),
        torch.load(saved(x), map_location="cookbook:0"),
        torch.load(saved([x], _use_new_zipfile_serialization=False))[0],
        torch.load(saved(torch.nn.Parameter(x))),
        pickle.loads(pickle.dumps(x)),
        copy.copy(x),
        x.detach(),
        x.data,
    ):
        assert torch.cookbook.get_metadata(loaded) == metadata
    assert torch.cookbook.get_metadata(torch.load(saved(x), map_location="cpu")) == {}


def test_what_is_computed_from_a_tensor_has_no_metadata() -> None:
    x = torch.randn(4, device=ONE)
    torch.cookbook.set_metadata(x, {"layout": "tiled"})
    for other in (x + 1, x.clone(), x[1:], x.view(2, 2), x.cpu(), x.to("cookbook:0"), copy.deepcopy(x)):
        assert torch.cookbook.get_metadata(other) == {}
    assert torch.cookbook.get_metadata(x) == {"layout": "tiled"}


def test_queues_do_not_carry_metadata() -> None:
    """PyTorch sends offset, size, strides and requires_grad to another process, and nothing of the backend's."""
    x = torch.randn(4, device=ONE)
    torch.cookbook.set_metadata(x, {"layout": "tiled"})
    rebuild, arguments = torch.multiprocessing.reductions.reduce_tensor(x)
    received = rebuild(*arguments)
    assert torch.equal(received.cpu(), x.cpu()) and torch.cookbook.get_metadata(received) == {}


def test_metadata_is_replaced_not_changed() -> None:
    x = torch.randn(4, device=ONE)
    torch.cookbook.set_metadata(x, {"layout": "tiled"})
    y = x.detach()
    torch.cookbook.get_metadata(x)["layout"] = "rows"  # a copy
    torch.cookbook.set_metadata(x, {})
    assert torch.cookbook.get_metadata(x) == {} and torch.cookbook.get_metadata(y) == {"layout": "tiled"}


def test_conjugates_with_metadata() -> None:
    """PyTorch's own marks travel in the same dictionary."""
    x = torch.randn(3, dtype=torch.complex64, device=ONE).conj()
    torch.cookbook.set_metadata(x, {"conj": "no", "neg": "yes"})
    loaded = torch.load(saved(x))
    assert loaded.is_conj() and not loaded.is_neg()
    assert torch.cookbook.get_metadata(loaded) == {"conj": "no", "neg": "yes"}


def test_metadata_that_is_refused() -> None:
    x = torch.ones(2, device=ONE)
    for name in ("", "a=b"):
        with pytest.raises(ValueError, match="not empty and have no '='"):
            torch.cookbook.set_metadata(x, {name: "1"})
    with pytest.raises(ValueError, match="expected a tensor on the device, got one on cpu"):
        torch.cookbook.set_metadata(torch.ones(2), {"a": "b"})
    with pytest.raises(TypeError):
        torch.cookbook.set_metadata(x, {"scale": 0.5})


@pytest.mark.parametrize("entry", [{"npu_format": True}, {"cookbook.layout": True}, {"cookbook.a=b": False}])
def test_metadata_of_another_backend_is_refused(entry: dict[str, bool]) -> None:
    """A file of a backend that keeps its tensors otherwise must not be read as if its bytes were plain."""
    x = torch.ones(2, device=ONE)
    args = (x._typed_storage(), 0, (2,), (1,), False, {}, entry)
    with pytest.raises(RuntimeError, match="which this backend does not know: it was saved by another one"):
        torch._utils._rebuild_tensor_v2(*args)


# safetensors


@pytest.fixture
def st() -> Any:
    return pytest.importorskip("safetensors.torch")


def test_safetensors(st: Any, tmp_path: Path) -> None:
    tensors = {
        str(d): torch.arange(4).to(d).cookbook(1) for d in (torch.float32, torch.bfloat16, torch.bool, torch.int64)
    }
    st.save_file(tensors, tmp_path / "f")
    for loaded in (st.load_file(tmp_path / "f", device=1), st.load_file(tmp_path / "f")):
        for name, tensor in tensors.items():
            assert loaded[name].dtype == tensor.dtype and same_bytes(loaded[name], tensor)
    assert {t.device for t in st.load_file(tmp_path / "f", device=1).values()} == {ONE}
    assert st.load(st.save(tensors)).keys() == tensors.keys()
    net = torch.nn.Linear(3, 2).cookbook(1)
    net.tied = net.weight
    st.save_model(net, tmp_path / "m")
    other = torch.nn.Linear(3, 2).cookbook(0)
    other.tied = other.weight
    st.load_model(other, tmp_path / "m", device=0)
    assert torch.equal(other.weight.cpu(), net.weight.cpu()) and other.weight.device.index == 0


def test_safetensors_does_not_know_the_devices_name(st: Any, tmp_path: Path) -> None:
    """Its list of names is closed (0.8.0). Give it the index, which PyTorch takes for the accelerator's."""
    import safetensors

    st.save_file({"x": torch.ones(2, device=ONE)}, tmp_path / "f")
    for name in ("cookbook", "cookbook:1", torch.device("cookbook:1")):
        with pytest.raises(safetensors.SafetensorError, match="device .* is invalid"):
            st.load_file(tmp_path / "f", device=name)
    with safetensors.safe_open(tmp_path / "f", framework="pt", device=1) as file:
        assert file.get_tensor("x").device == ONE and file.get_slice("x")[1:].device == ONE
