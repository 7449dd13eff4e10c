"""Builds a small book with the real extensions, and holds the notes against the code that they speak about.

No browser: what the pages' HTML and the downloads contain, and what a mistake on a page says.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAST = 11  # beyond 9, where the order of names and of numbers differ

CODE = """// chapter 1
// %% first
int one() { return 1; }
#if COOKBOOK_CHAPTER < 2
int two() { return 0; }  // not yet
#else
int two() { return 2; }
#endif

// %% second
int three() { return 3; }
"""
PAGE_1 = """---
summary: Counts to `three`.
---

# Chapter 1: Counting

This sentence is not the summary.

```{cell} csrc/count.cpp first
```

```{cell} csrc/count.cpp second
:caption: the *last* one
```

```{doctest}
>>> for i in range(2):
...     print(i)
0
1
>>> 1 / 0  # doctest: +ELLIPSIS
Traceback (most recent call last):
  ...
ZeroDivisionError: ...
```

```{status}
+ `one()` is 1
- `two()` is wrong; chapter 2
```

:::{note} Mind
A note with {doc}`another page <chapter-2>`.
:::
"""
PAGE_2 = """# Chapter 2: Correction

Two is [two](chapter-1.md). This is not in the list.

```{cell} csrc/count.cpp first
:diff:
```

```{cell} csrc/count.cpp second
:again:
```
"""


def make(root: Path, pages: dict[int, str]) -> subprocess.CompletedProcess[str]:
    """Build a book of these pages under `root`; the notes, the extensions and conf.py are the real ones."""
    (root / "csrc").mkdir(parents=True)
    (root / "csrc" / "count.cpp").write_text(CODE)
    (root / "tutorials").mkdir()
    shutil.copy(ROOT / "conf.py", root)
    shutil.copytree(ROOT / "docs", root / "docs", ignore=shutil.ignore_patterns("tests", "recipes", "__pycache__"))
    for n, page in pages.items():
        (root / "tutorials" / f"chapter-{n}.md").write_text(page)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html", ".", "out"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a built book of eleven chapters."""
    root = tmp_path_factory.mktemp("book") / "root"
    pages = {n: f"# Chapter {n}\n\nThe line of {n}. Nothing more.\n" for n in range(3, LAST + 1)}
    done = make(root, {1: PAGE_1, 2: PAGE_2, **pages})
    assert done.returncode == 0, done.stderr
    return root / "out"


def text_of(html: str) -> str:
    """HTML without its tags."""
    return re.sub(r"<[^>]+>", "", html).replace("&gt;", ">").replace("&lt;", "<")


def test_chapters_are_in_numeric_order(book: Path) -> None:
    landing = (book / "docs" / "index.html").read_text()
    listed = re.search(r'<ul class="chapters[^>]*>(.*?)</ul>', landing, re.DOTALL)
    assert listed
    assert re.findall(r"chapter-(\d+)\.html", listed[1]) == [str(n) for n in range(1, LAST + 1)]
    page = (book / "tutorials" / "chapter-9.html").read_text()
    assert re.search(r'class="next-page" href="chapter-10\.html"', page)


def test_a_chapters_line_is_its_summary_or_its_first_sentence(book: Path) -> None:
    landing = text_of((book / "docs" / "index.html").read_text())
    assert "Counts to three." in landing
    assert "This sentence is not the summary" not in landing
    assert "Two is two." in landing
    assert "This is not in the list" not in landing


def test_new_cell_has_no_marked_line(book: Path) -> None:
    page = (book / "tutorials" / "chapter-1.html").read_text()
    assert "line-new" not in page
    assert "line-gone" not in page
    assert "int two() { return 0; }" in text_of(page)
    assert "return 2" not in text_of(page)
    assert re.search(r'class="cell-path"[^>]*>csrc/count\.cpp</span>', page)
    assert 'class="cell-note">the <em>last</em> one' in page


def test_changed_cell_marks_what_came_and_what_went(book: Path) -> None:
    page = (book / "tutorials" / "chapter-2.html").read_text()
    new = re.findall(r'<span class="line-new">(.*?)\n</span>', page, re.DOTALL)
    gone = re.findall(r'<span class="line-gone">(.*?)\n</span>', page, re.DOTALL)
    assert [text_of(line) for line in new] == ["int two() { return 2; }"]
    assert [text_of(line) for line in gone] == ["int two() { return 0; }  // not yet"]


def test_captions_lead_back_to_where_a_cell_was(book: Path) -> None:
    page = (book / "tutorials" / "chapter-2.html").read_text()
    targets = re.findall(r'class="cell-hint">([^<]*)<a [^>]*href="(chapter-1\.html#[^"]+)"', page)
    assert [words for words, _ in targets] == ["changed in chapter 2, was in ", "again, from "]
    first = (book / "tutorials" / "chapter-1.html").read_text()
    for _, target in targets:
        assert f'id="{target.split("#")[1]}"' in first


def test_output_of_an_example_is_marked(book: Path) -> None:
    page = (book / "tutorials" / "chapter-1.html").read_text()
    out = [text_of(line) for line in re.findall(r'<span class="line-out">(.*?)\n</span>', page, re.DOTALL)]
    assert out == ["0", "1", "Traceback (most recent call last):", "  ...", "ZeroDivisionError: ..."]
    assert "# doctest:" not in page


def test_status_is_a_list_in_two_parts(book: Path) -> None:
    page = (book / "tutorials" / "chapter-1.html").read_text()
    now, later = page.index("status-now"), page.index("status-later")
    assert now < page.index("<code", now) < later
    assert "is wrong; chapter 2" in text_of(page[later:])


def test_notebook_has_prose_code_and_outputs(book: Path) -> None:
    cells = json.loads((book / "tutorials" / "chapter-1.ipynb").read_text())["cells"]
    code = [("".join(c["source"]), "".join(c["outputs"][0]["text"])) for c in cells if c["cell_type"] == "code"]
    assert code[0] == ("for i in range(2):\n    print(i)", "0\n1\n")
    assert code[1][0].startswith("1 / 0")
    prose = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    assert "> **Mind**\n>\n> A note with another page." in prose
    assert "**Not yet**\n\n* `two()` is wrong; chapter 2" in prose
    assert "```{" not in prose
    assert "summary:" not in prose


MISTAKES = {
    "unknown cell": ("```{cell} csrc/count.cpp fourth\n```", "first, second"),
    "unknown file": ("```{cell} csrc/missing.cpp first\n```", "no such file in the staged tree"),
    "example without a prompt": ("```{doctest}\n1 + 1\n```", "expected at least one '>>> ' example"),
    "status without a sign": ("```{status}\nworks\n```", "expected '+ what works' or '- what does not', got 'works'"),
    "dangling link": ("[there](chapter-99.md)", "chapter-99.md"),
}


def test_mistakes_name_page_line_and_remedy(tmp_path: Path) -> None:
    """All at once, since a build takes seconds: mistake number k is on page k, line 5."""
    pages = {n: f"# Chapter {n}\n\nSome prose.\n\n{wrong}\n" for n, (wrong, _) in enumerate(MISTAKES.values(), 1)}
    done = make(tmp_path / "root", pages)
    assert done.returncode != 0
    for n, (_, said) in enumerate(MISTAKES.values(), 1):
        lines = [line for line in done.stderr.splitlines() if f"tutorials/chapter-{n}.md:5:" in line]
        assert len(lines) == 1, done.stderr
        assert said in lines[0]


def test_driver_page_has_every_call() -> None:
    """The table of calls and the header name the same functions."""
    header = (ROOT / "csrc" / "driver" / "include" / "cookbook_driver.h").read_text()
    declared = set(re.findall(r"^(?:COOKBOOK_API|static inline) [^;{(]*?\b(cookbook[A-Z]\w*)\(", header, re.MULTILINE))
    page = (ROOT / "docs" / "driver.md").read_text()
    calls = re.findall(r"^\| `(cookbook[A-Z]\w*)` \|", page, re.MULTILINE)
    assert len(declared) > 40
    assert sorted(calls) == sorted(declared)


def test_driver_page_names_tests_that_exist() -> None:
    """Each guarantee names one of the driver's tests, by file and name."""
    page = (ROOT / "docs" / "driver.md").read_text()
    rows = page[page.index("## What it guarantees") : page.index("## Call by call")].splitlines()
    rows = [row for row in rows if row.startswith("| ") and not row.startswith(("| guarantee", "| ---"))]
    assert len(rows) > 20
    for row in rows:
        named = re.fullmatch(r"`(\w+\.cpp)`: (.+)", row.strip("| ").rsplit(" | ", 1)[1])
        assert named, f"expected '`file.cpp`: name of a test' in the last column: {row}"
        source = (ROOT / "csrc" / "driver" / "tests" / named[1]).read_text()
        assert f'"{named[2]}"' in source, f"csrc/driver/tests/{named[1]} has no test {named[2]!r}"


def test_driver_page_has_every_environment_variable() -> None:
    source = (ROOT / "csrc" / "driver" / "src" / "environment.cpp").read_text()
    read = set(re.findall(r'getenv\("(\w+)"\)', source))
    page = (ROOT / "docs" / "driver.md").read_text()
    assert read
    assert set(re.findall(r"^\| `(COOKBOOK_\w+)` \|", page, re.MULTILINE)) == read
