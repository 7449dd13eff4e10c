"""The proof: the chapters show every line of the backend, and what they show is the code."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import checks
import pytest
import stages
import weave

ROOT = Path(__file__).resolve().parents[2]
PAGES = list(stages.chapters(ROOT).values())
NOTES = [p for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tutorials/*.md")] if p.is_file()]
Make = Callable[[dict[str, str]], Path]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_line_is_shown_once() -> None:
    assert stages.problems(ROOT) == []


def test_no_file_escapes() -> None:
    assert checks.escaped(ROOT) == []


def test_fences_hold_their_cells() -> None:
    assert weave.weave(ROOT, write=False) == [], "run: nox -s weave"


def test_cells_are_short() -> None:
    assert checks.long_cells(ROOT) == []


def test_folders_use_only_earlier_ones() -> None:
    assert checks.includes(ROOT) == []


def test_chapters_are_numbered_from_one() -> None:
    assert PAGES, "tutorials/ has no chapter-1.md"
    numbers = list(stages.chapters(ROOT))
    # Chapter 5, distributed, keeps its number until it is written.
    assert set(range(1, max(numbers) + 1)) - set(numbers) <= {5}
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_chapter_has_its_parts(path: Path) -> None:
    assert checks.page(name(path), path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", NOTES, ids=name)
def test_every_prompt_is_run(path: Path) -> None:
    assert checks.prompts(name(path), path.read_text("utf-8"), chapter=path in PAGES) == []


# The checks themselves must be able to fail.


def test_a_file_of_another_kind_escapes(make: Make) -> None:
    root = make({"csrc/runtime/table.inc": "1,\n", "csrc/driver/x.c": "int x;\n", "cookbook_backend/py.typed": ""})
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    assert [c.split(": ")[:2] for c in checks.escaped(root)] == [["csrc/runtime/table.inc", "not staged"]]


@pytest.mark.parametrize(("lines", "complaints"), [(48, 0), (49, 1)])
def test_a_long_cell_is_named(make: Make, lines: int, complaints: int) -> None:
    code = "// chapter 2\n// %% a\nint x;\n// %% b\n#if COOKBOOK_CHAPTER >= 3\n" + "int y;\n" * lines + "#endif\n"
    found = checks.long_cells(make({"csrc/runtime/a.h": code}))
    assert len(found) == complaints
    assert all(f.startswith(f"csrc/runtime/a.h: cell b has {lines} lines as of chapter 3") for f in found)


@pytest.mark.parametrize(
    ("path", "include", "complaint"),
    [
        ("csrc/operators/a.h", '"runtime/b.h"', "csrc/operators/a.h:3: operators comes before runtime"),
        ("csrc/operators/a.h", "<runtime/b.h>", "csrc/operators/a.h:3: operators comes before runtime"),
        ("csrc/operators/a.h", '"b.h"', 'csrc/operators/a.h:3: want "folder/file.h"'),
        ("csrc/operators/a.h", '"other/b.h"', 'csrc/operators/a.h:3: want "folder/file.h"'),
        ("csrc/a.h", "<string>", "csrc/a.h: C++ lies in a folder"),
        ("csrc/elsewhere/a.h", "<string>", "csrc/elsewhere/a.h: C++ lies in a folder"),
        ("csrc/operators/a.h", '"scaffolding/b.h"', None),
        ("csrc/operators/a.h", '"operators/b.h"', None),
        ("csrc/operators/a.h", '"cookbook_driver.h"', None),
        ("csrc/operators/a.h", "<ATen/ATen.h>", None),
        ("csrc/python/a.h", '"distributed/b.h"', None),
        ("tests/cpp/a.cpp", '"runtime/b.h"', None),
        ("tests/cpp/a.cpp", '"b.h"', None),
    ],
)
def test_an_include_against_the_order_is_named(make: Make, path: str, include: str, complaint: str | None) -> None:
    header = {"csrc/driver/include/cookbook_driver.h": "", path: f"// chapter 1\n// %% a\n#include {include}\n"}
    found = checks.includes(make(header))
    assert len(found) == (complaint is not None)
    assert all(f.startswith(complaint or "") for f in found)


@pytest.mark.parametrize(("since", "refused"), [(4, False), (5, True), (2, True)])
def test_the_guard_may_grow_with_the_chapter_that_adds_a_later_folder(make: Make, since: int, refused: bool) -> None:
    """A line of chapter 4 may include what chapter 4 adds; not what chapter 5 adds, nor what was there all along."""
    guard = '// chapter 1\n// %% a\nint a;\n#if COOKBOOK_CHAPTER >= 4\n#include "runtime/b.h"\n#endif\n'
    if since == 2:
        guard = guard.replace("#if COOKBOOK_CHAPTER >= 4\n", "").replace("#endif\n", "")
    files = {"csrc/scaffolding/guard.cpp": guard, "csrc/runtime/b.h": f"// chapter {since}\n// %% b\nint b;\n"}
    found = checks.includes(make(files))
    assert bool(found) == refused
    assert all("scaffolding comes before runtime in the book" in f for f in found)


@pytest.mark.parametrize(
    ("text", "chapter", "line"),
    [
        ("a\n>>> 1\n", True, 2),
        ("```{doctest}\n>>> 1\n1\n```\n```python\n>>> 2\n```\n", True, 6),
        ("```{cell} a.cpp a\n// >>> 2\n```\n", True, 2),
        ("```{doctest}\n>>> 1\n1\n```\n", True, None),
        ("```{doctest}\n>>> 1\n1\n```\n", False, 2),
        ("````md\n```{doctest}\n>>> 1\n1\n```\n````\n", False, None),
        ("```{cell} a.cpp a\nstd::vector<std::pair<int, std::vector<int>>> x;\n```\n", True, None),
    ],
)
def test_a_prompt_elsewhere_is_named(text: str, chapter: bool, line: int | None) -> None:
    complaints = [c.split(": ")[0] for c in checks.prompts("page.md", text, chapter)]
    assert complaints == ([f"page.md:{line}"] if line else [])


GOOD = (
    "".join(f"## {s}\n" for s in checks.SECTIONS)
    + "```{doctest}\n>>> 1\n1\n```\n```{status}\n+ works\n- not yet\n```\n"
)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("", "", None),
        ("## Pitfalls\n", "## Pitfalls\n## One more\n", None),
        ("## Pitfalls\n", "", "want the sections"),
        ("## Pitfalls\n", "```\n## Pitfalls\n```\n", "want the sections"),
        ("## Pitfalls\n## What changed\n", "## What changed\n## Pitfalls\n", "want the sections"),
        ("## The code\n", "## The code\n## The code\n", "want the sections"),
        (">>> 1\n1\n", "", "no example"),
        ("+ works\n", "", "want a {status} fence"),
    ],
)
def test_a_page_without_a_part_is_named(old: str, new: str, complaint: str | None) -> None:
    found = checks.page("page.md", GOOD.replace(old, new, 1))
    assert len(found) == (complaint is not None)
    assert all(f.startswith(f"page.md: {complaint}") for f in found)
