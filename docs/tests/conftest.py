"""The tests of the book machine. They need no torch and no Sphinx, but for those marked slow."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker that `nox -s book` leaves out."""
    config.addinivalue_line("markers", "slow: compiles or imports torch; run by nox -s new-tests")


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture
def make(tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """Writes files into an empty folder and returns it: a small book."""

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / "book" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "book"

    return write
