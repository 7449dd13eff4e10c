"""docs/device-module.md from tests/device_module_table.py: `python docs/_ext/device_module.py` writes it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLE = "tests/device_module_table.py"
PAGE = "docs/device-module.md"
HEAD = """# The device module

What PyTorch 2.13 itself looks up on `torch.<device>`, the module that a backend registers with `torch._register_device_module`.
The list was found by reading the sources, and it is kept true by three tests:

* `test_the_table_is_what_torchs_sources_look_up` parses the Python files of the installed `torch` (its own tests in
  `torch/testing` left out), finds every expression that holds a device module, and notes what is asked of it. The page must
  name the same attributes and the same files.
* `test_lookups_of_cpp` puts a module that remembers in the place of `torch.cookbook` and runs tensors, streams, events,
  copies, autograd and the allocator: what C++ asks for by name has no file, so it is found at run time.
* `test_what_is_looked_up_is_there_or_has_a_reason` wants each attribute to be there with a test, or not there with a reason.

The page is generated; nobody types a row. Files are below `torch/`, tests below `tests/`.
"""


def table(root: Path = ROOT) -> dict[str, tuple[Any, ...]]:
    """The rows by group. The file is Python without imports from outside the standard library."""
    spec = importlib.util.spec_from_file_location("device_module_table", root / TABLE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    groups: dict[str, tuple[Any, ...]] = module.TABLE
    return groups


def files(where: tuple[str, ...]) -> str:
    """The files as one line: all of them when they are few, else by their folders."""
    if len(where) <= 3:
        return ", ".join(f"`{file}`" for file in where)
    folders: dict[str, int] = {}
    for file in where:
        parts = file.split("/")
        folder = "/".join(parts[: min(2, len(parts) - 1)])
        folders[folder] = folders.get(folder, 0) + 1
    return ", ".join(
        f"`{folder}/` {count}" if folder else f"{count} in `torch/` itself" for folder, count in sorted(folders.items())
    )


def lines(root: Path = ROOT) -> Iterator[str]:
    """The page, line by line."""
    yield HEAD
    for group, rows in table(root).items():
        absent = bool(rows[0].absent)
        yield f"\n## {group}\n"
        yield f"| attribute | what for | looked up in | {'why it is not there' if absent else 'held by'} |"
        yield "| --- | --- | --- | --- |"
        for row in rows:
            last = row.absent if absent else f"`{row.test.replace('.py::', '.py`, `')}`"
            yield f"| `{row.name}` | {row.purpose} | {files(row.where)} | {last} |"


def render(root: Path = ROOT) -> str:
    """Return docs/device-module.md."""
    return "\n".join(lines(root)).replace("\n\n\n", "\n\n") + "\n"


if __name__ == "__main__":
    (ROOT / PAGE).write_text(render(), "utf-8")
