# chapter 4
"""Threads: autograd's and the program's own, on streams and devices; fork, spawn, and the end of the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch
from conftest import Run
from torch import Tensor
from torch.autograd.function import once_differentiable

import cookbook_backend

_C = cookbook_backend._C
CloseGate = Callable[[torch.Stream], _C.Gate]
pytestmark = pytest.mark.usefixtures("time_limit")

LARGE = 1 << 14


def current(device: torch.device) -> torch.Stream:
    return torch.accelerator.current_stream(device)


# ---- backward and streams --------------------------------------------------------------------------------------------


def test_backward_runs_on_the_streams_of_the_forward(device: torch.device, gate: CloseGate) -> None:  # B54
    """On autograd's thread of the device, without a wait; the caller's stream then waits for the gradient."""
    x = torch.ones(LARGE, device=device, requires_grad=True)
    side, seen = torch.Stream(device), []
    torch.accelerator.synchronize(device)
    torch.accelerator.set_device_index(1 - device.index)

    def look(grad: Tensor) -> None:
        here = threading.get_ident() != threading.main_thread().ident
        seen.append((here, current(device) == side, torch.accelerator.current_device_index() == device.index))

    closed = gate(side)
    with side:
        y = x * 3
        y.register_hook(look)
        z = y.sum()
    z.backward()
    assert seen == [(True, True, True)]
    assert not side.query()
    assert not current(device).query()  # whoever reads the gradient next is behind it
    assert torch.accelerator.current_device_index() == 1 - device.index
    closed.open()
    assert x.grad is not None and (x.grad == 3).all()


@pytest.mark.parametrize("opened", ["as queued", "the other way round"])
def test_backward_through_several_streams(opened: str, device: torch.device, gate: CloseGate) -> None:
    x = torch.arange(float(LARGE), device=device).div_(LARGE).requires_grad_()
    a, b, c = (torch.Stream(device) for _ in range(3))
    for _ in range(3):
        x.grad = None
        torch.accelerator.synchronize(device)
        gates = [gate(s) for s in (a, b)]
        if opened != "as queued":
            gates.reverse()
        with a:
            left = x * 2
        with b:
            right = x * x
        c.wait_stream(a), c.wait_stream(b)
        with c:
            total = (left + right).sum()
        with torch.Stream(device):
            total.backward()
            here = current(device)
            assert not here.query()
            gates[0].open()
            time.sleep(0.002)
            gates[1].open()
            assert x.grad is not None
            assert torch.equal(x.grad.cpu(), x.detach().cpu() * 2 + 2)
        del left, right, total  # a graph that lives on keeps the stream of the leaf's gradient: core warns


def test_backward_across_devices(gate: CloseGate) -> None:  # B08
    x = torch.ones(LARGE, device="cookbook:0", requires_grad=True)
    y = torch.full((LARGE,), 2.0, device="cookbook:1", requires_grad=True)
    s, t = torch.Stream("cookbook:0"), torch.Stream("cookbook:1")
    for index in (0, 1):
        torch.accelerator.synchronize(index)
    with s, t:
        gates = [gate(s), gate(t)]
        z = ((x * 3).to("cookbook:1") * y).to("cookbook:0").sum()
        z.backward()
        for closed in gates:
            closed.open()
        assert x.grad is not None and y.grad is not None
        assert (x.grad.device, y.grad.device) == (x.device, y.device)
        assert (x.grad.cpu() == 6).all() and (y.grad.cpu() == 3).all()


def test_gradients_accumulate_over_streams(device: torch.device, gate: CloseGate) -> None:
    x = torch.ones(LARGE, device=device, requires_grad=True)
    torch.accelerator.synchronize(device)
    gates = []
    for factor in (1, 2, 3, 4):
        side = torch.Stream(device)
        gates.append(gate(side))
        side.wait_stream(current(device))  # backward orders its own streams; between two backwards the program does
        with side:
            (x * factor).sum().backward()
        current(device).wait_stream(side)
    for closed in gates:
        closed.open()
    torch.accelerator.synchronize(device)
    assert x.grad is not None and (x.grad == 10).all()


class Again(torch.autograd.Function):
    """Computes forward again in backward and calls backward there, as activation checkpointing does."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x.sin() * x).exp()

    @staticmethod
    @once_differentiable
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor | None:
        x = ctx.saved_tensors[0].detach().requires_grad_()  # type: ignore[attr-defined]
        with torch.enable_grad():
            (x.sin() * x).exp().backward(grad)
        return x.grad


def test_backward_inside_backward(device: torch.device, gate: CloseGate) -> None:
    """On the same thread of the engine, on the stream of the forward, still without a wait."""
    x = torch.linspace(0, 1, 512)
    y = x.to(device).requires_grad_()
    x.requires_grad_()
    Again.apply(Again.apply(x)).sum().backward()
    torch.accelerator.synchronize(device)
    with torch.Stream(device) as side:
        closed = gate(side)
        Again.apply(Again.apply(y)).sum().backward()
        assert not side.query() and current(device) == side
        closed.open()
        assert x.grad is not None and y.grad is not None
        torch.testing.assert_close(y.grad.cpu(), x.grad)


# ---- backward and exceptions -----------------------------------------------------------------------------------------


class Failing(torch.autograd.Function):
    """Raises in backward, which runs on the device's thread."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: object, grad: Tensor) -> Tensor:
        raise LookupError(f"no gradient on {grad.device}")


def test_exception_in_backward_reaches_the_caller(device: torch.device) -> None:  # B54
    x = torch.ones(3, device=device, requires_grad=True)
    for _ in range(3):
        with pytest.raises(LookupError, match=f"no gradient on {device}"):
            Failing.apply(x * 2).sum().backward()
        assert torch.accelerator.current_device_index() == 0
    (x * 2).sum().backward()  # the engine and its thread are as before
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2]


def test_exception_in_a_callback_of_backward(device: torch.device) -> None:  # B54
    x = torch.ones(3, device=device, requires_grad=True)

    def fail() -> None:
        raise LookupError("callback")

    def queue(grad: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(fail)

    x.register_hook(queue)
    with pytest.raises(LookupError, match="callback"):
        (x * 2).sum().backward()


def test_kernel_that_fails_in_backward(device: torch.device) -> None:
    x = torch.ones(3, device=device, requires_grad=True)
    y = (x * 2).exp()
    torch.accelerator.synchronize(device)
    _C.inject_fault(device.index, "launch", 1, 0)

    def train() -> None:
        y.sum().backward(retain_graph=True)
        torch.accelerator.synchronize(device)

    for _ in range(2):  # the failure stays until the device is reset
        with pytest.raises(torch.AcceleratorError, match="kernel '.*' on device"):
            train()
    _C.reset(device.index)
    x.grad = None
    (x * 2).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2]


def test_factory_without_a_device_in_backward() -> None:  # B54
    """`with torch.device(...)` is a thread's own and backward runs on another; the current device is the gradient's."""
    seen: list[torch.device] = []
    x = torch.ones(3, device="cookbook:1", requires_grad=True)
    x.register_hook(lambda grad: seen.append(torch.empty(1, device="cookbook").device))
    (x * 2).sum().backward()
    assert seen == [torch.device("cookbook:1")]
    assert torch.accelerator.current_device_index() == 0


# ---- the program's threads -------------------------------------------------------------------------------------------


def test_threads_on_their_own_devices_and_streams() -> None:
    """Eight threads train at once; each sees its own device and stream, and the CPU's result."""
    x = torch.linspace(-1, 1, 64).view(8, 8)
    failures: list[BaseException] = []

    def train(index: int) -> None:
        try:
            device, side = torch.device("cookbook", index % 2), torch.Stream(f"cookbook:{index % 2}")
            torch.accelerator.set_stream(side)
            w = (torch.eye(8) * (index + 1)).requires_grad_()
            v = w.detach().to(device).requires_grad_()
            for _ in range(10):
                for weight, data in ((w, x), (v, x.to("cookbook"))):
                    (data @ weight).tanh().square().sum().backward()
                    assert weight.grad is not None
                    with torch.no_grad():
                        weight -= 0.01 * weight.grad
                    weight.grad = None
                assert torch.accelerator.current_stream() == side
                assert torch.accelerator.current_device_index() == device.index
            torch.testing.assert_close(v.detach().cpu(), w.detach())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert torch.accelerator.current_device_index() == 0 and torch.accelerator.current_stream(0).stream_id == 0


def test_a_tensor_is_handed_to_another_thread(device: torch.device, gate: CloseGate) -> None:
    """What orders two threads' streams is the event that one gives to the other."""
    producer, handed = torch.Stream(device), []
    x = torch.zeros(LARGE, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(producer)

    def produce() -> None:
        with producer:
            x.fill_(8)
            handed.append(producer.record_event())

    thread = threading.Thread(target=produce)
    thread.start()
    thread.join()
    handed[0].wait(current(device))  # without an argument: the stream of the current device
    result = x * 2
    assert not current(device).query()
    closed.open()
    assert (result == 16).all()


def test_thread_that_ends_with_work_in_flight(device: torch.device, gate: CloseGate) -> None:
    side, x = torch.Stream(device), torch.zeros(LARGE, device=device)
    torch.accelerator.synchronize(device)
    closed = gate(side)

    def work() -> None:
        torch.accelerator.set_stream(side)
        for _ in range(10):
            x.add_(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not side.query()
    closed.open()
    side.synchronize()
    assert (x == 10).all()


# ---- fork ------------------------------------------------------------------------------------------------------------

FORK = """
    import gc, os, sys, torch, cookbook_backend

    def child(work):
        sys.stdout.flush()
        if (pid := os.fork()) == 0:
            try:
                work()
            except RuntimeError as error:
                print(type(error).__name__, "spawn" in str(error), flush=True)
            except BaseException as error:
                print("unexpected", repr(error), flush=True)
            return True
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        return False
"""


def test_fork_before_first_use_works(run_python: Run) -> None:  # B13
    done = run_python(
        FORK
        + """
    def train():
        with torch.Stream("cookbook:1"):
            x = torch.ones(8, device="cookbook:1", requires_grad=True)
            (x * 2).sum().backward()
            print(x.grad.sum().item(), torch.cookbook._is_in_bad_fork(), flush=True)

    torch.accelerator.is_available(), torch.accelerator.current_stream(), torch.ones(3).is_pinned()
    torch.Event("cookbook"), torch.accelerator.set_device_index(0)
    if not child(train) and not child(train):
        train()
    """
    )
    assert done.stdout == "16.0 False\n0\n16.0 False\n0\n16.0 False\n", done.stderr
    assert done.stderr == ""


def test_forked_child_is_told_and_ends_quietly(run_python: Run) -> None:  # B13
    """Every use says what to do instead; dropping what was inherited, and the child's ordinary end, say nothing."""
    done = run_python(
        FORK
        + """
    x = torch.ones(3, device="cookbook")
    s, pinned = torch.Stream("cookbook"), torch.ones(3).pin_memory()
    e = s.record_event()
    uses = [
        lambda: torch.ones(2, device="cookbook"), lambda: torch.empty(2).to("cookbook"), lambda: torch.empty_like(x),
        lambda: x + 1, lambda: x.cpu(), lambda: x.sum().item(), lambda: repr(x), lambda: torch.ones(2).pin_memory(),
        lambda: torch.Stream("cookbook"), s.synchronize, s.query, s.record_event, s.__enter__, e.query, e.synchronize,
        e.record, torch.accelerator.synchronize, torch.cookbook.synchronize, torch.cookbook.current_device,
        lambda: torch.accelerator.set_device_index(1), torch.accelerator.current_stream,
        torch.accelerator.memory_allocated, lambda: torch.cookbook.stream(s).__enter__(),
    ]

    def use():
        assert torch.cookbook._is_in_bad_fork() and torch.accelerator.is_available()
        assert pinned.sum() == 3 and not pinned.is_pinned()  # its memory is here, the driver is not
        torch.manual_seed(1)
        (torch.ones(2, requires_grad=True) * 2).sum().backward()  # the CPU is as ever
        for index, one in enumerate(uses):
            try:
                one()
                print(index, "worked")
            except RuntimeError as error:
                if "fork" not in str(error) or "spawn" not in str(error):
                    print(index, error)
        one()  # and this one says what all the others said

    if child(use):
        del x, s, e, pinned, uses
        gc.collect()
    else:
        print(x.sum().item())
    """
    )
    assert done.stdout == "AcceleratorError True\n0\n3.0\n", done.stderr
    assert "Forked" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr


def test_start_methods(run_python: Run, tmp_path: object) -> None:  # B13
    """What `multiprocessing` calls spawn and forkserver works after use; `fork` fails in the child, with the advice."""
    script = f"{tmp_path}/start.py"
    with open(script, "w") as file:
        file.write("""if True:
            import multiprocessing, os, torch, cookbook_backend
            from torch.utils.data import DataLoader, Dataset

            def work(index, queue):
                try:
                    queue.put((torch.ones(4, device=f"cookbook:{index}") * 2).sum().item())
                except RuntimeError as error:
                    queue.put("spawn" in str(error))

            class OnDevice(Dataset):
                def __init__(self):
                    self.data = torch.ones(4)
                def __len__(self):
                    return 4
                def __getitem__(self, i):
                    return self.data[i] if self.data.is_cpu else self.data[i].cpu()

            if __name__ == "__main__":
                torch.ones(2, device="cookbook")
                for method in ("fork", "spawn", "forkserver"):
                    context = multiprocessing.get_context(method)
                    queue = context.Queue()
                    process = context.Process(target=work, args=(1, queue))
                    process.start()
                    print(method, queue.get(timeout=100), process.join(), process.exitcode)
                data = OnDevice()
                loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="fork", pin_memory=True)
                print([batch.is_pinned() for batch in loader])
                data.data = data.data.to("cookbook")
                try:
                    list(loader)
                except RuntimeError as error:
                    print(type(error).__name__, "spawn" in str(error))
        """)
    done = run_python(f"import runpy; runpy.run_path({script!r}, run_name='__main__')", PYTHONPATH=_python_path())
    assert done.stdout == (
        "fork True None 0\nspawn 8.0 None 0\nforkserver 8.0 None 0\n[True]\nAcceleratorError True\n"
    ), done.stderr


def _python_path() -> str:
    import os
    from pathlib import Path

    return os.pathsep.join([str(Path(cookbook_backend.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])


# ---- the end of the process ------------------------------------------------------------------------------------------

# Each ends a process of its own in another way, with 200 ms of work in flight on a side stream. The processes are forked
# from one that has imported PyTorch and not touched the device: that is all that an import would give them.
ENDS = {
    "end of the program": ("", 0),
    "a current side stream": ("torch.accelerator.set_stream(side)", 0),
    "an exception": ("raise KeyError", 1),
    "sys.exit": ("sys.exit(5)", 5),
    "os._exit": ("os._exit(6)", 6),
    "a signal": ("os.kill(os.getpid(), signal.SIGTERM)", -15),
    "a failed device": ("_C.inject_fault(0, 'launch', 1, 0); x.add_(1)", 0),
    "a copy to pinned memory": ("with side: torch.empty(1 << 16).pin_memory().copy_(x, non_blocking=True)", 0),
    "a thread that still launches": ("threading.Thread(target=launch).start()", 0),
    "a daemon thread that waits": ("threading.Thread(target=side.synchronize, daemon=True).start()", 0),
    "an exit handler that launches": ("atexit.register(launch)", 0),
    "a device that was reset": ("_C.reset(0)", 0),
    "an earlier shutdown": ("_C.shutdown(); launch()", 0),
    "an event that a stream waits for": ("torch.Stream('cookbook:1').wait_stream(side)", 0),
    "a full queue": ("[y.add_(1) for _ in range(20_000)]", 0),
}
PROCESS = """
    import atexit, os, signal, sys, threading, time, torch, cookbook_backend
    _C = cookbook_backend._C
    children = {{}}
    for name, end in {ends!r}.items():
        if (pid := os.fork()) == 0:
            break
        children[pid] = name
    else:
        for pid, name in children.items():
            print(name, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), sep=";", flush=True)
        os._exit(0)
    x, y, side = torch.ones(1 << 16, device="cookbook"), torch.ones(4, device="cookbook"), torch.Stream("cookbook")

    def launch():
        for _ in range(50):
            with side:
                x.add_(1)
            time.sleep(0.001)

    torch.accelerator.synchronize()
    _C.inject_fault(0, "delay", 1, 200_000)
    with side:
        x.add_(1)
    exec(end)
"""


def test_process_ends_with_work_in_flight(run_python: Run) -> None:
    done = run_python(PROCESS.format(ends={name: end for name, (end, _) in ENDS.items()}))
    seen = {name: int(status) for name, status in (line.split(";") for line in done.stdout.splitlines())}
    assert seen == {name: status for name, (_, status) in ENDS.items()}, done.stderr
    assert "terminate" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr


def test_exit_after_backward_on_streams(run_python: Run) -> None:  # B52
    """Both devices, several streams, autograd's threads at idle priority on one core: the worst case of chapter 3."""
    done = run_python("""
        import os, threading, torch, cookbook_backend
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        def idle(grad):
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
        for index in (0, 1):
            x = torch.randn(2, 8, device=f"cookbook:{index}", requires_grad=True)
            x.register_hook(idle)
            for _ in range(3):
                with torch.Stream(f"cookbook:{index}"):
                    (x * x).sum().backward()
    """)
    assert done.returncode == 0, done.stderr
