# chapter 6
"""Every attribute that PyTorch 2.13 looks up on a device module: what for, who covers it, or why it is not there.

test_device_module.py compares the table with PyTorch's sources (torch_lookups.py) and with what it asks at run time.
docs/device-module.md shows it.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One attribute."""

    name: str
    purpose: str
    where: tuple[str, ...]
    """The files below `torch/` that look it up; `C++` for libtorch_python."""
    test: str
    """file::function below tests/; empty when the attribute is not there."""
    absent: str = ""
    """Why it is not there."""


# These look up the name that they are given: their callers are the lookups.
FORWARDED = {"{name}", "{func_name}"}

DEVICES = (
    Row(
        "is_available",
        "`torch.accelerator.is_available`, and what runs only where a device is",
        (
            "_dynamo/package.py",
            "_inductor/fx_passes/freezing_patterns.py",
            "_inductor/runtime/benchmarking.py",
            "_utils.py",
            "accelerator/__init__.py",
            "autograd/graph.py",
            "distributed/checkpoint/filesystem.py",
            "distributed/checkpoint/optimizer.py",
            "distributed/fsdp/_runtime_utils.py",
            "distributed/fsdp/_state_dict_utils.py",
            "distributed/run.py",
            "distributed/tensor/_random.py",
            "serialization.py",
        ),
        "test_device_module.py::test_a_machine_without_a_device",
    ),
    Row(
        "device_count",
        "`torch.accelerator.device_count`, `fork_rng`, the index check of `torch.load`, the device of a rank",
        (
            "_utils.py",
            "accelerator/__init__.py",
            "distributed/checkpoint/optimizer.py",
            "distributed/device_mesh.py",
            "distributed/fsdp/_init_utils.py",
            "distributed/fsdp/_optim_utils.py",
            "distributed/fsdp/_state_dict_utils.py",
            "distributed/run.py",
            "distributed/tensor/_random.py",
            "random.py",
            "serialization.py",
        ),
        "test_scaffolding.py::test_accelerator_is_this_device",
    ),
    Row(
        "current_device",
        "the index that `tensor.cookbook()` means, `torch._utils`, checkpoints and FSDP",
        (
            "_subclasses/fake_tensor.py",
            "_utils.py",
            "distributed/_shard/sharded_tensor/api.py",
            "distributed/checkpoint/optimizer.py",
            "distributed/checkpoint/planner_helpers.py",
            "distributed/fsdp/_fully_shard/_fsdp_init.py",
            "distributed/fsdp/_init_utils.py",
            "distributed/fsdp/_shard_utils.py",
            "utils/backend_registration.py",
        ),
        "test_device_module.py::test_generated_methods",
    ),
    Row(
        "set_device",
        "`DeviceMesh` chooses the device of its rank",
        ("distributed/device_mesh.py",),
        "test_device_module.py::test_lazy_initialization_as_device_mesh_asks",
    ),
    Row(
        "device",
        "`with torch.cookbook.device(i)`: activation checkpointing, legacy storages",
        (
            "_utils.py",
            "utils/checkpoint.py",
        ),
        "test_device_module.py::test_device_of",
    ),
    Row(
        "synchronize",
        "the profiler waits at its end; FSDP before it reads state",
        (
            "autograd/profiler.py",
            "distributed/fsdp/_optim_utils.py",
            "distributed/fsdp/_state_dict_utils.py",
            "distributed/fsdp/_unshard_param_utils.py",
        ),
        "test_scaffolding.py::test_synchronize_is_counted_on_the_device_asked_for",
    ),
    Row(
        "get_device_name",
        "the key under which compiled code is cached",
        ("_dynamo/package.py",),
        "test_device_module.py::test_device_properties",
    ),
    Row(
        "get_device_properties",
        "`torch._utils._get_devices_properties`",
        ("_utils.py",),
        "test_device_module.py::test_device_properties",
    ),
    Row("_utils", "holds the next one", ("serialization.py",), "test_device_module.py::test_device_index"),
    Row(
        "_utils._get_device_index",
        "`torch.load` reads the index of a location",
        ("serialization.py",),
        "test_device_module.py::test_device_index",
    ),
)

START = (
    Row(
        "_lazy_init",
        "before the first factory function, and `torch.accelerator.set_device_index`",
        ("C++",),
        "test_device_module.py::test_lookups_of_cpp",
    ),
    Row(
        "is_initialized",
        "`DeviceMesh` sets no device where one has been chosen; fake tensors name the current device",
        (
            "_subclasses/fake_tensor.py",
            "distributed/device_mesh.py",
        ),
        "test_device_module.py::test_lazy_initialization_as_device_mesh_asks",
    ),
    Row(
        "_initialized",
        "checkpointing saves the random state only where this is true",
        ("utils/checkpoint.py",),
        "test_generator.py::test_checkpointing_drops_the_same_elements_again",
    ),
    Row(
        "_is_in_bad_fork",
        "`torch.manual_seed` leaves the devices alone in a forked child",
        ("random.py",),
        "test_generator.py::test_a_forked_child_can_seed",
    ),
)

STREAMS = (
    Row(
        "Stream",
        "FSDP makes its streams",
        (
            "distributed/fsdp/_fully_shard/_fsdp_param_group.py",
            "distributed/fsdp/_runtime_utils.py",
        ),
        "test_streams.py::test_module_names_are_those_of_other_backends",
    ),
    Row(
        "Event",
        "FSDP orders its streams",
        (
            "distributed/fsdp/_fully_shard/_fsdp_param_group.py",
            "distributed/fsdp/_runtime_utils.py",
        ),
        "test_streams.py::test_module_names_are_those_of_other_backends",
    ),
    Row(
        "stream",
        "`with torch.cookbook.stream(s)`: FSDP, asynchronous checkpoints",
        (
            "distributed/checkpoint/filesystem.py",
            "distributed/fsdp/_fully_shard/_fsdp_collectives.py",
            "distributed/fsdp/_runtime_utils.py",
            "distributed/tensor/parallel/_data_parallel_utils.py",
            "distributed/tensor/parallel/fsdp.py",
        ),
        "test_streams.py::test_with_restores_stream_and_device",
    ),
    Row(
        "current_stream",
        "FSDP, asynchronous checkpoints, communication hooks",
        (
            "distributed/algorithms/_comm_hooks/default_hooks.py",
            "distributed/checkpoint/filesystem.py",
            "distributed/fsdp/_flat_param.py",
            "distributed/fsdp/_fully_shard/_fsdp_collectives.py",
            "distributed/fsdp/_fully_shard/_fsdp_param_group.py",
            "distributed/fsdp/_fully_shard/_fsdp_state.py",
            "distributed/fsdp/_runtime_utils.py",
            "distributed/fsdp/_unshard_param_utils.py",
            "distributed/fsdp/fully_sharded_data_parallel.py",
            "distributed/tensor/parallel/fsdp.py",
        ),
        "test_streams.py::test_current_stream_is_a_threads_own",
    ),
)

RANDOM = (
    Row(
        "manual_seed_all",
        "`torch.manual_seed`",
        ("random.py",),
        "test_generator.py::test_manual_seed_seeds_every_device_and_warns_of_nothing",
    ),
    Row(
        "get_rng_state",
        "`fork_rng`, checkpointing, DTensor",
        (
            "_functorch/_aot_autograd/utils.py",
            "distributed/_local_tensor/__init__.py",
            "distributed/tensor/_random.py",
            "random.py",
            "utils/checkpoint.py",
        ),
        "test_generator.py::test_states_of_devices",
    ),
    Row(
        "set_rng_state",
        "`fork_rng`, checkpointing, DTensor",
        (
            "distributed/_local_tensor/__init__.py",
            "distributed/tensor/_random.py",
            "random.py",
            "utils/checkpoint.py",
        ),
        "test_generator.py::test_states_of_devices",
    ),
    Row(
        "default_generators",
        "random operators under `torch.compile`",
        ("_prims/rng_prims.py",),
        "test_generator.py::test_the_default_generators",
    ),
    Row(
        "_get_generator",
        "compiled graphs that draw random numbers",
        ("_functorch/_aot_autograd/utils.py",),
        "test_device_module.py::test_get_generator",
    ),
    Row(
        "get_amp_supported_dtype",
        "`torch.autocast` refuses other dtypes",
        ("amp/autocast_mode.py",),
        "test_device_module.py::test_autocast_takes_the_dtypes_of_the_list",
    ),
)

MEMORY = (
    Row(
        "empty_cache",
        "`torch.distributed._tools.MemoryTracker`",
        ("distributed/_tools/memory_tracker.py",),
        "test_device_module.py::test_memory_tracker",
    ),
    Row(
        "memory_allocated",
        "the same",
        ("distributed/_tools/memory_tracker.py",),
        "test_device_module.py::test_memory_tracker",
    ),
    Row(
        "memory_reserved",
        "the same",
        ("distributed/_tools/memory_tracker.py",),
        "test_device_module.py::test_memory_tracker",
    ),
    Row(
        "memory_stats",
        "the same",
        ("distributed/_tools/memory_tracker.py",),
        "test_device_module.py::test_memory_tracker",
    ),
    Row(
        "memory_summary",
        "FSDP logs it when it gathers optimizer state",
        ("distributed/fsdp/_optim_utils.py",),
        "test_device_module.py::test_memory_summary",
    ),
    Row(
        "_gpu_trace",
        "who listens to allocations: `torch._C._activate_gpu_trace()`",
        ("C++",),
        "test_allocator_threads.py::test_an_observer_sees_each_life_end_before_the_next",
    ),
)

ABSENT = (
    Row(
        "Scheduling",
        "inductor compiles for the device",
        ("_inductor/codegen/common.py",),
        "",
        "the chapter on `torch.compile` adds the four",
    ),
    Row("PythonWrapperCodegen", "inductor", ("_inductor/codegen/common.py",), "", "the same"),
    Row("CppWrapperCodegen", "inductor", ("_inductor/codegen/common.py",), "", "the same"),
    Row("WrapperFxCodegen", "inductor", ("_inductor/codegen/common.py",), "", "the same"),
    Row(
        "set_rng_ctx",
        "DTensor on `hpu`",
        ("distributed/tensor/_random.py",),
        "",
        "asked of the device type `hpu` only, one line above",
    ),
    Row("unset_rng_ctx", "DTensor on `hpu`", ("distributed/tensor/_random.py",), "", "the same"),
    Row(
        "sparse",
        "`.type()` of a sparse tensor",
        ("_utils.py",),
        "",
        "the device stores dense tensors; `hasattr` asks first",
    ),
    Row("sparse.{self.__class__.__name__}", "the same", ("_utils.py",), "", "the same"),
    Row(
        "{storage_name}",
        "`FloatStorage` and its kind: the name that `TypedStorage.type()` gives",
        ("storage.py",),
        "",
        "deprecated classes; without them PyTorch answers `torch.storage.TypedStorage`",
    ),
)

TABLE = {
    "Devices": DEVICES,
    "Start": START,
    "Streams": STREAMS,
    "Random numbers and autocast": RANDOM,
    "Memory": MEMORY,
    "Looked up and not there": ABSENT,
}
