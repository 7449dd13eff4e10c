# chapter 6
"""`torch.cookbook` as PyTorch and libraries see it: what is looked up there, lazy initialization, properties, methods."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch
from conftest import Run
from device_module_table import ABSENT, FORWARDED, TABLE, Row
from torch_lookups import lookups

import cookbook_backend

pytestmark = pytest.mark.usefixtures("time_limit")
HERE = Path(__file__).parent
ROWS = [row for rows in TABLE.values() for row in rows]
CPP = {row.name for row in ROWS if row.where == ("C++",)}


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, list[int]]]:
    return lookups(Path(torch.__file__).parent)


def test_the_table_is_what_torchs_sources_look_up(found: dict[str, dict[str, list[int]]]) -> None:
    assert {row.name: set(row.where) for row in ROWS if row.name not in CPP} == {
        name: set(files) for name, files in found.items() if name not in FORWARDED
    }


def test_known_lookups_are_found(found: dict[str, dict[str, list[int]]]) -> None:
    """One of each form, so that a reader that has become blind is noticed."""
    for name, file in {
        "device_count": "accelerator/__init__.py",  # mod = torch.get_device_module(acc); mod.device_count()
        "manual_seed_all": "random.py",  # getattr(custom_device_mod, _seed_all_name)(seed)
        "get_amp_supported_dtype": "amp/autocast_mode.py",  # for func in necessary_funcs: hasattr(self.custom_device_mod, func)
        "_initialized": "utils/checkpoint.py",  # getattr(device_module, "_initialized", False)
        "_utils._get_device_index": "serialization.py",  # hasattr(device_module._utils, "_get_device_index")
        "get_device_properties": "_utils.py",  # _get_device_attr(lambda m: m.get_device_properties(i))
        "Scheduling": "_inductor/codegen/common.py",  # _get_custom_mod_func("Scheduling")
        "is_initialized": "_subclasses/fake_tensor.py",  # getattr(torch, device.type).is_initialized()
        "stream": "distributed/fsdp/_runtime_utils.py",  # state._device_handle.stream(...)
    }.items():
        lines = (Path(torch.__file__).parent / file).read_text("utf-8").splitlines()
        assert found[name][file], name
        for line in found[name][file]:  # a lookup may run over several lines
            assert (
                name.split(".")[-1] in "".join(lines[line - 1 : line + 2])
                or "func" in lines[line - 1]
                or ("_name" in "".join(lines[line - 1 : line + 2]))
            )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_is_looked_up_is_there_or_has_a_reason(row: Row) -> None:
    value, here = cookbook_backend, True
    for part in row.name.split("."):
        here = here and hasattr(value, part)
        value = getattr(value, part, value)
    assert here == (not row.absent)
    assert bool(row.test) == here
    assert (row in ABSENT) == bool(row.absent)
    if row.test:
        file, function = row.test.split("::")
        assert re.search(rf"^def {function}\(", (HERE / file).read_text("utf-8"), re.M), row.test


RECORDER = """
    import sys, types, torch, cookbook_backend
    asked = {"torch": set(), "cpp": set()}
    class Recorder(types.ModuleType):
        def __getattribute__(self, name):
            by = sys._getframe(1).f_code.co_filename
            # C++ has no frame: the lookup seems to come from this script, which itself never touches the module.
            asked["cpp" if by == "<string>" else "torch"].add(name)
            return super().__getattribute__(name)
    module = Recorder("torch.cookbook")
    vars(types.ModuleType)["__dict__"].__get__(module).update(vars(cookbook_backend))
    asked["cpp"].clear()
    sys.modules["torch.cookbook"] = torch.cookbook = module
"""
RAN = """
    print(*sorted(n for n in asked["cpp"] if not n.startswith("__")))
    print(*sorted(n for n in asked["torch"] if not n.startswith("__")))
"""


def test_lookups_of_cpp(run_python: Run) -> None:
    """What factories, streams, events, the allocator, copies, autograd and types ask of the module by name."""
    done = run_python(f"""{RECORDER}
    torch._C._activate_gpu_trace()
    x = torch.ones(200_000, device="cookbook:1", requires_grad=True)
    stream, event = torch.Stream("cookbook:1"), torch.Event("cookbook:1", enable_timing=True)
    with stream:
        y = (x * 2).sum()
    event.record(stream); event.synchronize(); stream.wait_event(event); x.detach().record_stream(stream)
    y.backward()
    torch.accelerator.set_device_index(1); torch.accelerator.synchronize(); torch.accelerator.memory_stats()
    torch.Generator("cookbook").manual_seed(1); torch.tensor([1.0], device="cookbook"); torch.zeros(3).pin_memory()
    x.type(), torch.ones(2).type("torch.cookbook.FloatTensor"), repr(x), x.detach().cpu(), x.detach().to("cookbook:0")
    torch.accelerator.empty_cache(); torch.accelerator.get_memory_info(); x.untyped_storage().resize_(0)
    {RAN}""")
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()[0].split()) == CPP


def test_lookups_at_run_time_are_in_the_table(run_python: Run) -> None:
    """Nothing that the reader of the sources has missed."""
    done = run_python(f"""{RECORDER}
    import io, warnings, torch.utils.checkpoint, torch.utils.benchmark, torch.distributed as dist
    from torch.distributed._tools.memory_tracker import MemoryTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.profiler import ProfilerActivity, profile
    from torch.testing._internal.distributed.fake_pg import FakeStore
    warnings.simplefilter("ignore")
    x = torch.ones(8, 8, device="cookbook", requires_grad=True)
    torch.utils.checkpoint.checkpoint(torch.nn.functional.dropout, x, use_reentrant=True).sum().backward()
    torch.utils.checkpoint.checkpoint(torch.nn.functional.dropout, x, use_reentrant=False).sum().backward()
    file = io.BytesIO(); torch.save(x, file); file.seek(0); torch.load(file, map_location="cookbook:1")
    torch.manual_seed(3)
    with torch.random.fork_rng(device_type="cookbook", devices=[0, 1]): pass
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]): x + 1
    with torch.autocast("cookbook", dtype=torch.bfloat16): x @ x
    with torch._subclasses.FakeTensorMode(): torch.ones(2, device="cookbook")
    with torch.autograd.graph.save_on_cpu(pin_memory=True, device_type="cookbook"): x.exp().sum().backward()
    x.detach().cookbook(1); x.untyped_storage().cookbook(1); torch._utils._get_devices_properties([0, 1])
    torch.utils.benchmark.Timer("x + 1", globals=dict(x=x)).timeit(1)
    net, tracker = torch.nn.Linear(2, 2).to("cookbook"), MemoryTracker()
    tracker.start_monitor(net); net(torch.ones(2, 2, device="cookbook")); tracker.stop()
    dist.init_process_group("cpu:fake,cookbook:fake", rank=0, world_size=2, store=FakeStore())
    init_device_mesh("cookbook", (2,))
    {RAN}""")
    assert done.returncode == 0, done.stderr
    asked = set(done.stdout.splitlines()[1].split())
    assert asked <= {row.name.split(".")[0] for row in ROWS}
    assert len(asked) > 15


# Lazy initialization


def test_the_device_is_initialized_by_its_first_use_only(run_python: Run) -> None:
    done = run_python("""
        import os, torch
        cookbook = torch.cookbook
        cookbook.device_count(), cookbook.is_available(), cookbook.manual_seed(1), cookbook.get_device_properties(0)
        cookbook.current_device(), torch.ones(3).is_pinned(), torch.device("cookbook:1")
        uses = [lambda: None, cookbook.init, lambda: cookbook.set_device(1), lambda: torch.accelerator.set_device_index(1),
                lambda: torch.ones(2, device="cookbook"), lambda: torch.Event("cookbook").record(),
                lambda: print(torch.rand(2).to("cookbook").device, flush=True)]  # B02
        for use in uses:  # each in a process of its own
            if (pid := os.fork()) == 0:
                before = cookbook.is_initialized()
                use()
                os._exit(10 * before + cookbook.is_initialized())
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), end=" ", flush=True)
    """)
    assert done.stdout == "0 1 1 1 1 1 cookbook:0\n1 ", done.stderr


def test_a_child_that_was_forked_before_use_starts_anew(run_python: Run) -> None:  # B13
    """And one that was forked after it is told: by every function that initializes."""
    done = run_python("""
        import os, torch
        def child(*uses):
            if (pid := os.fork()) == 0:
                for use in uses:
                    try:
                        use()
                        os._exit(0)
                    except RuntimeError as error:
                        if "fork" not in str(error).lower(): os._exit(4)
                os._exit(3 + 10 * torch.cookbook.is_initialized() + 20 * (not torch.cookbook._is_in_bad_fork()))
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        use = lambda: torch.ones(2, device="cookbook").sum().item()
        first = child(use)
        use()
        print(first, child(use, torch.cookbook.init, lambda: torch.cookbook.set_device(1), torch.cookbook._lazy_init))
    """)
    assert done.stdout == "0 3\n", done.stderr


def test_lazy_initialization_as_device_mesh_asks(run_python: Run) -> None:
    """The mesh chooses the device of its rank, unless the program has chosen one."""
    for first, expected in (("", "1"), ("torch.cookbook.set_device(0)", "0")):
        done = run_python(
            f"""
            import torch, torch.distributed as dist
            from torch.distributed.device_mesh import init_device_mesh
            from torch.testing._internal.distributed.fake_pg import FakeStore
            import torch.distributed.device_mesh as mesh
            mesh.get_backend = lambda *_: "stands for a real one"  # the mesh leaves devices alone under "fake"
            {first}
            dist.init_process_group("cpu:fake,cookbook:fake", rank=1, world_size=2, store=FakeStore())
            init_device_mesh("cookbook", (2,))
            print(torch.cookbook.current_device())
        """,
            LOCAL_RANK="1",
        )
        assert done.stdout == f"{expected}\n", done.stderr


def test_a_fake_tensor_is_on_the_current_device() -> None:
    torch.cookbook.set_device(1)
    with torch._subclasses.FakeTensorMode():
        assert torch.ones(2, device="cookbook").device == torch.device("cookbook:1")


# What a device is


def test_device_properties(device: torch.device) -> None:
    for spelled in (device, str(device), device.index):
        properties = torch.cookbook.get_device_properties(spelled)
        assert properties.name == torch.cookbook.get_device_name(spelled)
        assert properties.total_memory == torch.accelerator.get_memory_info(spelled)[1]
        assert (properties.major, properties.minor) == torch.cookbook.get_device_capability(spelled)
    assert [p.name for p in torch._utils._get_devices_properties([0, 1])] == [properties.name] * 2
    with pytest.raises(AttributeError):
        properties.name = "another"


def test_properties_come_from_the_driver(run_python: Run) -> None:
    done = run_python(
        "import torch; print(torch.cookbook.get_device_properties())",
        COOKBOOK_DEVICE_NAME="Teapot",
        COOKBOOK_DEVICE_MEMORY="96M",
    )
    assert done.stdout == "DeviceProperties(name='Teapot', total_memory=100663296, major=1, minor=0)\n", done.stderr


def test_properties_of_a_device_that_does_not_exist() -> None:  # B04
    for function in ("get_device_properties", "get_device_capability", "get_device_name", "memory_summary"):
        with pytest.raises(RuntimeError, match="(?i)device.*7"):
            getattr(torch.cookbook, function)(7)
        with pytest.raises(ValueError, match="expected a cookbook device, got cpu"):
            getattr(torch.cookbook, function)("cpu")


def test_bfloat16_is_computed() -> None:
    assert torch.cookbook.is_bf16_supported() and torch.cookbook.is_bf16_supported(including_emulation=False)
    x = torch.randn(8, 8).bfloat16()
    assert torch.equal((x.to("cookbook") + 1).cpu(), x + 1)


def test_device_of() -> None:
    zero = torch.ones(2, device="cookbook:0")
    for current, other in ((1, 0), (0, 1)):
        torch.cookbook.set_device(current)
        there = zero.to(f"cookbook:{other}")
        # What is elsewhere changes nothing.
        for of, expected in (
            (there, other),
            (there.untyped_storage(), other),
            (torch.ones(2), current),
            (torch.ones(2).untyped_storage(), current),
            (torch.ones(2, device="meta"), current),
        ):
            with torch.cookbook.device_of(of):
                assert torch.cookbook.current_device() == expected
            assert torch.cookbook.current_device() == current


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        (1, {}, 1),
        ("cookbook:1", {}, 1),
        (torch.device("cookbook", 0), {}, 0),
        (None, {"optional": True}, 1),
        ("cookbook", {"optional": True}, 1),
        ("cpu", {"allow_cpu": True}, -1),
        (torch.device("cpu"), {"allow_cpu": True}, -1),
    ],
)
def test_device_index(given: object, options: dict[str, bool], expected: int) -> None:
    torch.cookbook.set_device(1)
    assert torch.cookbook._utils._get_device_index(given, **options) == expected


@pytest.mark.parametrize("given", [None, "cookbook", "cpu", "cuda:0", -1])
def test_device_index_that_is_none(given: object) -> None:
    with pytest.raises(ValueError, match="expected a cookbook device"):
        torch.cookbook._utils._get_device_index(given)


def test_integers_mean_this_device() -> None:  # B10
    assert torch.nn.Linear(1, 1).to(0).weight.device == torch.device("cookbook:0")
    assert torch.zeros(2).to(1).device == torch.device("cookbook:1")
    torch.cookbook.set_device(1)
    assert torch.zeros(2).to(0).device == torch.device("cookbook:0")  # 0 never means the current one


def test_get_generator(device: torch.device) -> None:
    assert torch.cookbook._get_generator(device) is not None
    assert torch.cookbook._get_generator(device).device == device
    torch.cookbook._get_generator(device).manual_seed(77)
    assert torch.cookbook.default_generators[device.index].initial_seed() == 77


def test_autocast_takes_the_dtypes_of_the_list() -> None:  # B61
    listed = torch.cookbook.get_amp_supported_dtype()
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.warn", lambda *_, **__: None)
            with torch.autocast("cookbook", dtype=dtype):
                assert torch.is_autocast_enabled("cookbook") == (dtype in listed)


def test_dispatch_keys_are_not_renamed() -> None:  # B87
    """Registration by key takes PyTorch's name, registration by device type takes the device's."""
    library = torch.library.Library("cookbook_module_test", "DEF")
    library.define("plus(Tensor x) -> Tensor")
    with pytest.raises(RuntimeError, match="could not parse dispatch key: cookbook"):
        library.impl("plus", lambda x: x + 1, "cookbook")
    library.impl("plus", lambda x: x + 1, "PrivateUse1")
    x = torch.ones(2, device="cookbook:1")
    assert torch.ops.cookbook_module_test.plus(x).tolist() == [2, 2]

    @torch.library.custom_op("cookbook_module_test::minus", mutates_args=(), device_types="cookbook")
    def minus(x: torch.Tensor) -> torch.Tensor:
        return x - 1

    assert minus(x).tolist() == [0, 0]
    with pytest.raises(NotImplementedError):
        minus(torch.ones(2))


# Memory by name


def test_memory_summary(device: torch.device) -> None:
    before = torch.accelerator.memory_stats(device)
    held = torch.empty(3 << 20, dtype=torch.uint8, device=device)
    lines = torch.cookbook.memory_summary(device).splitlines()
    now = torch.accelerator.memory_stats(device)
    assert now["allocated_bytes.all.current"] >= before["allocated_bytes.all.current"] + held.nbytes
    assert lines[0].startswith(f"{device}, ")
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:]}
    assert int(rows["allocated_bytes.all"][0]) == now["allocated_bytes.all.current"] // 1024
    assert int(rows["allocation.large_pool"][0]) == now["allocation.large_pool.current"] >= 1
    assert len(rows) == 3 * len(torch.cookbook.memory_summary(device, abbreviated=True).splitlines()[2:]) == 27


def test_memory_tracker() -> None:
    """`torch.distributed._tools.MemoryTracker`, written for any device module, sees each module's memory."""
    from torch.distributed._tools.memory_tracker import MemoryTracker

    net, tracker = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()).to("cookbook"), MemoryTracker()
    tracker.start_monitor(net)
    net(torch.ones(1024, 256, device="cookbook")).sum().backward()
    tracker.stop()
    allocated = [value for _, value in tracker.memories_allocated.values()]
    assert max(allocated) - min(allocated) >= 1.0  # MiB: the activations of 1024 rows
    assert all(reserved >= 1.0 for _, reserved in tracker.memories_reserved.values())


# The kernel that sleeps


def test_sleep_occupies_the_current_stream_only(device: torch.device) -> None:
    torch.cookbook.set_device(device)
    stream = torch.Stream(device)
    torch.cookbook._C.reset_counters(device.index)
    before, after = (torch.Event(device, enable_timing=True) for _ in range(2))
    with stream:
        before.record()
        torch.cookbook._sleep(60_000_000)
        after.record()
    torch.accelerator.current_stream(device).synchronize()
    assert torch.cookbook._C.counters(device.index)["launches"] == 1
    assert not after.query()
    after.synchronize()
    assert before.elapsed_time(after) >= 60


def test_sleep_refuses_negative_numbers() -> None:
    with pytest.raises(ValueError, match="not negative, got -1"):
        torch.cookbook._sleep(-1)


# Generated methods


def test_generated_methods() -> None:
    torch.cookbook.set_device(1)
    x = torch.arange(6.0).view(2, 3).t()
    for given, index in ((None, 1), (0, 0), ("cookbook:0", 0), (torch.device("cookbook"), 1)):
        y = x.cookbook(given)
        assert y.device == torch.device("cookbook", index) and y.is_cookbook
        assert y.stride() == x.stride() and torch.equal(y.cpu(), x)
    assert not x.is_cookbook
    assert y.cookbook() is y
    assert x.pin_memory().cookbook(non_blocking=True, memory_format=torch.contiguous_format).is_contiguous()
    with pytest.raises(RuntimeError, match="must be cookbook device"):
        x.cookbook("cpu")


def test_generated_methods_of_modules_and_packed_sequences() -> None:
    net = torch.nn.LSTM(3, 4)
    moved = net.cookbook(1)
    assert moved is net and all(p.is_cookbook and p.device.index == 1 for p in net.parameters())
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(2, 3, 3), [2, 2, 1])
    there = packed.cookbook()
    assert there.is_cookbook and not packed.is_cookbook
    assert torch.equal(there.cpu().data, packed.data)


def test_generated_methods_of_storages() -> None:
    storage = torch.arange(4.0).untyped_storage()
    there = storage.cookbook(1)
    assert there.is_cookbook and not storage.is_cookbook and there.device.index == 1
    assert there.tolist() == storage.tolist()
    assert there.cookbook(1) is there
    with pytest.warns(UserWarning, match="TypedStorage is deprecated"):
        assert torch.ones(2).storage().cookbook().is_cookbook


# No device, and the public names


def test_a_machine_without_a_device(run_python: Run) -> None:
    done = run_python(
        """
        import torch
        cookbook = torch.cookbook
        assert not cookbook.is_available() and cookbook.device_count() == 0 and not cookbook.is_initialized()
        assert torch.accelerator.current_accelerator(check_available=True) is None
        assert cookbook.default_generators == () and cookbook.get_rng_state_all() == []
        cookbook.manual_seed_all(1), torch.manual_seed(1), cookbook.init()
        assert not cookbook.is_initialized()
        for use in (lambda: torch.ones(2, device="cookbook"), lambda: torch.ones(2).cookbook(), cookbook.current_stream,
                    cookbook.get_device_properties, lambda: cookbook.set_device(0), cookbook.synchronize):
            try:
                use()
                print("no error")
            except RuntimeError as error:
                if "device" not in str(error): print(error)
        print(torch.ones(2).sum().item())
    """,
        COOKBOOK_DEVICE_COUNT="0",
    )
    assert done.stdout == "2.0\n", done.stderr + done.stdout


def test_public_names_exist_and_are_documented() -> None:
    assert len(set(cookbook_backend.__all__)) == len(cookbook_backend.__all__)
    for name in cookbook_backend.__all__:
        value = getattr(cookbook_backend, name)
        assert not (inspect.isfunction(value) or inspect.isclass(value)) or inspect.getdoc(value), name
