"""The fingerprint by which a chapter's tests are not run twice: it must change with all that could change their outcome."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "_ext"))

import built


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small built tree beside an environment."""
    files = {
        "src/pyproject.toml": '[project]\nname = "a-b"\nversion = "1"\n[project.entry-points."torch.backends"]\nx = "a:b"\n',
        "src/tests/test_a.py": "def test(): ...\n",
        "src/pkg/_C.so": "native",
        "env/requirements.stamp": "torch",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def fingerprint(tree: Path) -> str:
    """Of the fixture's tree in its environment."""
    return built.fingerprint(tree / "src", tree / "env")


@pytest.mark.parametrize("name", ["src/tests/test_a.py", "src/pkg/_C.so", "env/requirements.stamp"])
def test_a_change_anywhere_changes_it(tree: Path, name: str) -> None:
    before = fingerprint(tree)
    (tree / name).write_text("something else")
    assert fingerprint(tree) != before


def test_a_new_a_gone_and_a_renamed_file_change_it(tree: Path) -> None:
    seen = {fingerprint(tree)}
    (tree / "src/tests/test_b.py").write_text("def test(): ...\n")
    seen.add(fingerprint(tree))
    (tree / "src/tests/test_b.py").rename(tree / "src/tests/test_c.py")
    seen.add(fingerprint(tree))
    (tree / "src/tests/test_a.py").unlink()
    seen.add(fingerprint(tree))
    assert len(seen) == 4


def test_what_a_run_leaves_behind_does_not(tree: Path) -> None:
    before = fingerprint(tree)
    for name in ("src/.hypothesis/examples", "src/tests/__pycache__/test_a.cpython-311.pyc"):
        path = tree / name
        path.parent.mkdir(parents=True)
        path.write_text("x")
    assert fingerprint(tree) == before


def test_a_tree_is_registered_as_pip_would(tree: Path) -> None:
    built.register(tree / "src")
    assert (tree / "src/a_b-1.dist-info/entry_points.txt").read_text() == "[torch.backends]\nx = a:b\n"
