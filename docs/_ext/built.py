"""A built tree, `build/N/src`: made known to Python as pip would, and its fingerprint, by which tests need not run twice."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path


def register(source: Path) -> None:
    """Write what pip would: the tree's name, version and entry points, so that `import torch` finds the backend."""
    project = tomllib.loads((source / "pyproject.toml").read_text("utf-8")).get("project", {})
    name, version = project.get("name", "cookbook-backend"), project.get("version", "0")
    rows = []
    for group, points in project.get("entry-points", {}).items():
        rows += [f"[{group}]", *(f"{key} = {value}" for key, value in points.items())]
    folder = source / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
    (folder / "entry_points.txt").write_text("\n".join(rows) + "\n", "utf-8")


def fingerprint(source: Path, environment: Path) -> str:
    """Return a number that changes with whatever the staged tests of a built tree depend on.

    Args:
        source: the tree, with its native modules in place. What a run leaves behind (hidden folders, bytecode) is not
            looked at.
        environment: the virtual environment that runs it; its requirements count.
    """
    digest = hashlib.sha256(str(environment).encode())
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if path.is_file() and path.suffix != ".pyc" and not any(part.startswith(".") for part in name.parts):
            digest.update(str(name).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    stamp = environment / "requirements.stamp"
    digest.update(stamp.read_bytes() if stamp.exists() else b"")
    return digest.hexdigest()
