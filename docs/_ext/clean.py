"""A chapter's tree without the marks of the book: as a zip to read, or as the start of a backend under another name."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import os
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import stages

# What torch.device() knows already (torch 2.13, c10/core/DeviceType.h), and the names it gives to a backend like ours.
DEVICES = """
    cpu cuda mkldnn opengl opencl ideep hip fpga maia xla lazy vulkan metal xpu mps meta hpu ve ipu mtia
    privateuseone privateuse
"""
# torch.load takes a location that begins with one of these for that device's (torch 2.13, torch/serialization.py).
PREFIXES = ("mps",)
CPP_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class co_await co_return co_yield
    compl concept const const_cast consteval constexpr constinit continue decltype default delete do double
    dynamic_cast else enum explicit export extern false float for friend goto if import inline int long module
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template
    this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t
    while xor xor_eq
"""
# No keywords, but what an extension's C++ has met already: namespaces, macros of the compiler, the entry point.
CPP_NAMES = "std at caffe py pybind main unix linux posix detail"
MODULES = ("torch", "torchgen", "functorch", "numpy", "pybind", "setuptools", "pytest")
EXTRA = ("LICENSE", ".clang-format", ".gitignore")
TAKEN = Path(__file__).with_name("torch_names.txt")


class Refused(Exception):
    """What was asked for cannot be made; nothing has been written."""


def check_name(name: str) -> None:
    """Refuse a name that PyTorch, C++ or Python could not take for a device, saying why."""
    if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name):
        raise Refused(
            f"{name!r} is no device name: want lower-case letters, with single underscores between them; "
            "torch.device() reads no digits in a name, and a C++ namespace takes nothing else"
        )
    reasons = {
        "a device type of PyTorch": name in DEVICES.split(),
        "a word of C++": name in CPP_WORDS.split(),
        "a namespace, macro or function that the C++ sources meet": name in CPP_NAMES.split(),
        "a word of Python": keyword.iskeyword(name) or keyword.issoftkeyword(name),
        "a Python module": name in MODULES or name in sys.stdlib_module_names or bool(importlib.util.find_spec(name)),
        "an attribute of torch or torch.Tensor, where the device's module and methods go": name
        in TAKEN.read_text().split(),
    }
    for reason, applies in reasons.items():
        if applies:
            raise Refused(f"{name!r} is already {reason}: choose another name")
    for prefix in PREFIXES:
        if name.startswith(prefix):
            raise Refused(f"{name!r} begins with {prefix!r}, and torch.load would take its tensors for that device's")


def spellings(name: str) -> dict[str, str]:
    """How the three spellings of `cookbook` are written for another name."""
    return {
        "cookbook": name,
        "Cookbook": "".join(part.capitalize() for part in name.split("_")),
        "COOKBOOK": name.upper(),
    }


def renamed(text: str, name: str) -> str:
    """The text with `cookbook`, `Cookbook` and `COOKBOOK` replaced."""
    by = spellings(name)
    return re.sub("cookbook|Cookbook|COOKBOOK", lambda m: by[m[0]], text)


def tree(root: Path, chapter: int, name: str = "cookbook") -> dict[str, bytes]:
    """The files of the clean tree as of a chapter, under a device name."""
    pages = stages.chapters(root)
    if chapter not in pages:
        have = f"chapters 1 to {max(pages)}" if pages else "no chapter"
        raise Refused(f"there is no chapter {chapter}: the book has {have}")
    out: dict[str, bytes] = {}
    for path, data in stages.tree(root, chapter).items():
        try:
            out[renamed(path, name)] = renamed(data.decode(), name).encode()
        except UnicodeDecodeError as error:
            raise Refused(f"{path} is no text in UTF-8, so that it cannot be renamed: {error}") from error
    out |= {path: (root / path).read_bytes() for path in EXTRA if (root / path).is_file()}
    out["README.md"] = readme(pages[chapter].read_text("utf-8"), chapter, name).encode()
    return out


def readme(page: str, chapter: int, name: str) -> str:
    """The README of a clean tree: how to build and test it, what it can do, where to begin."""
    title = stages.title(page)
    upper = name.upper()
    works = "\n".join(
        f"* {'' if row[0] == '+' else 'not yet: '}{renamed(row[2:], name)}" for row in stages.status(page)
    )
    return f"""# {name}: a device backend for PyTorch

A C++ backend that PyTorch knows as `torch.device("{name}")`, on a simulated accelerator. It began as the tree of
chapter {chapter} ("{title}") of the PyTorch Backend Cookbook, renamed.

## Build and test

You need a C++20 compiler (g++ 12 or later) and PyTorch 2.13. Without build isolation, the extension is compiled against
the PyTorch that will load it:

    pip install "torch==2.13.0" numpy scikit-build-core cmake ninja
    pip install --no-build-isolation .
    pip install pytest hypothesis expecttest
    pytest

## What it does

{works}

## Where things are

* `csrc/driver/` simulates the accelerator behind a C interface. It stands for your SDK: replace it first.
* `csrc/`, everything else: the backend. It reaches the device through `{name}_driver.h` only.
* `{name}_backend/` is the Python side, `torch.{name}`.
* `tests/` are ordinary pytest tests. Environment variables begin with `{upper}_`.

## License

BSD-3-Clause, see `LICENSE`. Keep the notice of the PyTorch Backend Cookbook's contributors; add your own.
"""


def archive(root: Path, chapter: int, file: Path) -> None:
    """Write the clean tree as of a chapter into a zip; the same tree gives the same bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for path, data in sorted(tree(root, chapter).items()):
            info = zipfile.ZipInfo(f"cookbook-chapter-{chapter}/{path}", (1980, 1, 1, 0, 0, 0))
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            out.writestr(info, data)


def start(root: Path, name: str, chapter: int, to: Path) -> int:
    """Write the tree as of a chapter, under a name, into a folder: all or nothing. Returns the number of files."""
    check_name(name)
    if to.is_file() or (to.is_dir() and any(to.iterdir())):
        raise Refused(f"{to} exists and is not an empty folder: name another one")
    files, to = tree(root, chapter, name), to.resolve()
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
    except OSError as error:
        raise Refused(f"{to} cannot be made: {error}") from error
    try:
        partial.chmod(0o755)
        for path, data in files.items():
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            (partial / path).write_bytes(data)
        os.replace(partial, to)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return len(files)


class Arguments(argparse.ArgumentParser):
    """A parser that refuses like the rest of this file, instead of ending the process."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise Refused(f"{message}\n{self.format_usage()}".rstrip())


def main(root: Path, where: Path, args: list[str]) -> str:
    """`nox -s new -- NAME [--chapter N] --to DIR`; a relative DIR is relative to `where`. Returns what to do next."""
    last = max(stages.chapters(root), default=0)
    parser = Arguments(prog="nox -s new --", add_help=False)
    parser.add_argument("name", help="the device's name: torch.device(NAME)")
    parser.add_argument("--chapter", type=int, default=last, help="the chapter whose tree to start from; the last one")
    parser.add_argument("--to", required=True, help="a folder that does not exist, or is empty")
    given = parser.parse_args(args)
    to = (where / given.to).absolute()
    count = start(root, given.name, given.chapter, to)
    return (
        f"{count} files written to {to}: the backend as of chapter {given.chapter}, as {given.name!r}.\n"
        f"Next: cd {to}; its README.md says how to build and test it."
    )
