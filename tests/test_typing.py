# chapter 6
"""The package is typed: mypy --strict accepts a user's program, and finds the mistakes in another."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Run

import cookbook_backend

HERE = Path(__file__).parent / "typing"
PACKAGE = Path(cookbook_backend.__file__).parent


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, int, str]]:
    """File, line and kind of each error that mypy finds, from one run: most of its time goes into torch's own types."""
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path_factory.mktemp("mypy"), *HERE.glob("*.py")],
        cwd=HERE,  # so that the package is found as a user's checker finds it, by its path
        env={**os.environ, "MYPYPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {
        (Path(m[1]).name, int(m[2]), m[3])
        for m in re.finditer(r"^(.+?):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.M)
    }


def test_a_users_program_is_accepted(errors: set[tuple[str, int, str]]) -> None:
    assert not {error for error in errors if error[0] != "mistakes.py"}


def test_each_mistake_is_found(errors: set[tuple[str, int, str]]) -> None:
    lines = (HERE / "mistakes.py").read_text("utf-8").splitlines()
    expected = {("mistakes.py", n, line.split("  # ")[1]) for n, line in enumerate(lines, 1) if "  # " in line}
    assert len(expected) == 15
    assert {error for error in errors if error[0] == "mistakes.py"} == expected


def test_a_users_program_runs(run_python: Run) -> None:
    done = run_python(f"import runpy; runpy.run_path({str(HERE / 'user_script.py')!r}, run_name='__main__')")
    assert done.stdout == "Cookbook Simulated Accelerator 1.0, 4096 MiB 19.0\n", done.stderr


def test_the_package_says_that_it_is_typed() -> None:
    """Without this file a checker takes every name of an installed package for Any."""
    assert (PACKAGE / "py.typed").is_file()


def test_stubs_name_what_the_native_module_has() -> None:
    """Every name of the stub exists, and every name that exists is in the stub."""
    stub = (PACKAGE / "_C.pyi").read_text("utf-8")
    typed = set(re.findall(r"^(?:def|class) (\w+)", stub, re.M)) | set(re.findall(r"^(\w+):", stub, re.M))
    there = {name for name in vars(cookbook_backend._C) if not name.startswith("__")}
    assert typed - {"Properties"} == there
