# chapter 6
"""How `import torch` finds the backend, and what a backend that does not load does to it: nothing but a warning."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import cookbook_backend

SOURCE = Path(cookbook_backend.__file__).parents[1]
NATIVE = Path(cookbook_backend._C.__file__).name
DRIVER = "libcookbook_driver.so"
Python = Callable[..., subprocess.CompletedProcess[str]]


def declare(site: Path, name: str, value: str) -> None:
    """Write what pip would: a distribution with one entry point."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[torch.backends]\n{name} = {value}\n")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An installation of its own, to be damaged: the two packages, and the entry point that pyproject.toml declares."""
    for package in ("cookbook_backend", "cookbook_autoload"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SOURCE / package, tmp_path / "site" / package, ignore=ignored)
    declare(tmp_path / "site", "cookbook", "cookbook_autoload:autoload")
    return tmp_path / "site"


@pytest.fixture
def python(site: Path, tmp_path: Path) -> Python:
    """Run a script with that installation, in a folder without any."""

    def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            cwd=tmp_path / "elsewhere",
            env={**os.environ, "PYTHONPATH": str(site), **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def test_the_project_declares_the_entry_point() -> None:
    if (project := SOURCE / "pyproject.toml").exists():
        declared = project.read_text("utf-8")
        assert '[project.entry-points."torch.backends"]\ncookbook = "cookbook_autoload:autoload"' in declared
    else:  # installed: what pip has made of it
        found = [e.value for e in importlib.metadata.entry_points(group="torch.backends") if e.name == "cookbook"]
        assert found == ["cookbook_autoload:autoload"]


@pytest.mark.parametrize(
    "imports",
    [
        "import torch",
        "import cookbook_backend, torch",
        "import torch, cookbook_backend",
        "from cookbook_backend import streams; import torch",
        "import torch.utils.benchmark, torch.distributed, torch._dynamo",  # B12
    ],
)
def test_every_order_of_imports(python: Python, imports: str) -> None:  # B78
    done = python(f"""
        {imports}
        import sys, torch
        print(torch.ones(2, device="cookbook").device, sys.modules["torch.cookbook"] is sys.modules["cookbook_backend"])
    """)
    assert (done.stdout, done.stderr) == ("cookbook:0 True\n", "")


def test_it_can_be_switched_off(python: Python) -> None:  # B78
    done = python(
        """
        import sys, torch
        print("cookbook_backend" in sys.modules, hasattr(torch, "cookbook"), torch.accelerator.current_accelerator())
        import cookbook_backend
        print(torch.ones(2, device="cookbook").device)
    """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert (done.stdout, done.stderr) == ("False False None\ncookbook:0\n", "")


# What can be wrong with an installation, and what the warning must name.
# A library that is cut off behind its header is not among them: the loader maps what is not there, and the process gets
# SIGBUS, whoever loads it.
def garbage(site: Path, library: str) -> None:
    (site / "cookbook_backend" / library).write_bytes(b"\x7fELF" + bytes(5000))


def another_library(site: Path) -> None:
    """A driver of another version: a library of the right name without the functions."""
    shutil.copy(Path(torch.__file__).parent / "lib" / "libtorch_global_deps.so", site / "cookbook_backend" / DRIVER)


def for_another_torch(site: Path) -> None:
    module = site / "cookbook_backend" / "__init__.py"
    text = module.read_text("utf-8")
    assert '_BUILT_FOR = "2.13"' in text
    module.write_text(text.replace('_BUILT_FOR = "2.13"', '_BUILT_FOR = "2.12"'), "utf-8")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no driver": (lambda site: (site / "cookbook_backend" / DRIVER).unlink(), DRIVER),
    "corrupt driver": (lambda site: garbage(site, DRIVER), DRIVER),
    "driver without the functions": (another_library, "undefined symbol: cookbook"),
    "no native module": (lambda site: (site / "cookbook_backend" / NATIVE).unlink(), "_C"),
    "corrupt native module": (lambda site: garbage(site, NATIVE), NATIVE),
    "another torch": (for_another_torch, f"built for torch 2.12.*, this is torch {torch.__version__}"),
    "no backend": (lambda site: shutil.rmtree(site / "cookbook_backend"), "No module named 'cookbook_backend'"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_backend_that_does_not_load_is_a_warning(python: Python, site: Path, damage: str) -> None:  # B79, B82, B83
    break_, named = DAMAGE[damage]
    break_(site)
    done = python("""
        import torch
        print(torch.ones(2).sum().item(), hasattr(torch, "cookbook"), torch.accelerator.is_available())
        try:
            import cookbook_backend
        except ImportError as error:
            print(error)
    """)
    assert done.returncode == 0, done.stderr
    warning = done.stderr
    assert "RuntimeWarning: torch has no device 'cookbook'" in warning and named in warning
    assert "`import cookbook_backend` shows where" in warning
    first, error = done.stdout.split("\n", 1)
    assert first == "2.0 False False"
    assert named in error
    assert damage != "no native module" or "If this is the source folder, build it first" in error


def test_a_broken_driver_is_named_in_the_error_of_an_import(python: Python, site: Path) -> None:  # B79
    (site / "cookbook_backend" / DRIVER).unlink()
    done = python("import cookbook_backend", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 1
    assert f"ImportError: cookbook_backend's native module does not load: {DRIVER}: cannot open" in done.stderr


def test_another_backend_came_first(python: Python, site: Path, tmp_path: Path) -> None:  # B84
    (site / "toy_chip.py").write_text(
        "import torch\ndef load():\n    torch.utils.rename_privateuse1_backend('toychip')\n"
    )
    declare(tmp_path / "first", "toychip", "toy_chip:load")
    done = python(
        "import torch; print(torch.device('toychip'), hasattr(torch, 'cookbook'))",
        PYTHONPATH=f"{tmp_path / 'first'}{os.pathsep}{site}",
    )
    assert (done.returncode, done.stdout) == (0, "toychip False\n"), done.stderr
    assert "Also installed: toy_chip; a process has room for one such backend" in done.stderr
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stderr
    chosen = python("import torch, cookbook_backend; print(torch.cookbook)", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "cookbook_backend" in chosen.stdout, chosen.stderr


@pytest.mark.parametrize("count", ["0", "many"])
def test_a_machine_without_a_device_imports(python: Python, count: str) -> None:
    """No device, or a setting that the driver refuses: PyTorch is whole, and the device is not available."""
    done = python(
        """
        import torch, warnings
        print(torch.cookbook.is_available(), torch.accelerator.is_available(), torch.ones(2).sum().item())
        try:
            torch.ones(2, device="cookbook")
        except RuntimeError as error:
            print(error)
    """,
        COOKBOOK_DEVICE_COUNT=count,
    )
    assert done.returncode == 0, done.stderr
    first, error = done.stdout.split("\n", 1)
    assert first == "False False 2.0"
    assert ("COOKBOOK_DEVICE_COUNT" if count == "many" else "device") in error
