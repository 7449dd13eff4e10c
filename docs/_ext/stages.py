"""Which lines of the backend exist as of which chapter, and which page shows them.

The code is cut into cells, and its lines are staged by the preprocessor. This is the whole grammar:

    // chapter 2                     first line of a file: the chapter that adds it   ("# chapter 2" outside C++)
    // %% name                       a cell, up to the next one or the end            ("# %% name")
    #if COOKBOOK_CHAPTER >= 3        C++: real directives; also "< 3", "#else", "#endif"
    # if COOKBOOK_CHAPTER >= 3       Python, CMake, TOML: comments, so they can only add; "# endif"

`parse` reads a file, `tree` gives the files as of a chapter, `emit` writes them, `problems` proves
that the pages show all of it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOTS = ("csrc", "cookbook_backend", "cookbook_autoload", "tests", "CMakeLists.txt", "pyproject.toml")
DRIVER = "csrc/driver"  # the vendor's side: whole at every stage, no cells
CPP = (".h", ".cpp")
# What a file is called in a fence, by its suffix; other files have no cells.
LANGUAGE = {
    ".h": "cpp",
    ".cpp": "cpp",
    ".py": "python",
    ".pyi": "python",
    ".txt": "cmake",
    ".cmake": "cmake",
    ".toml": "toml",
}
SUFFIXES = tuple(LANGUAGE)
# The order of the book is the order of dependency: a folder includes itself and what stands before it.
FOLDERS = ("driver", "scaffolding", "operators", "fallback", "runtime", "distributed", "autocast", "testing", "python")
RAW = 999  # the repository as it lies there; what only exists ">= 999" serves the book's makers, not the backend
NEVER = 1000
MANIFEST = ".emitted"

FILE = re.compile(r"(?://|#) chapter ([1-9]\d*)$")
CELL = re.compile(r"\s*(?://|#) %% ([\w-]+)$")
NEAR_CELL = re.compile(r"\s*(?://|#)\s*%%")
FENCE = re.compile(r"```\{cell\}(.*)$")
OPTION = re.compile(r":(\w+):\s*(.*)$")
STATUS = re.compile(r"^```\{status\}\n(.*?)^```$", re.M | re.S)


class BookError(Exception):
    """A sentence of the book's grammar that does not parse; the message begins with file:line."""


@dataclass(frozen=True)
class Line:
    """One line of a source file and the chapters in which it exists."""

    path: str
    number: int
    text: str
    cell: str | None
    since: int
    until: int
    mark: bool  # stage markup: neither shown nor emitted

    def at(self, chapter: int) -> bool:
        """Whether the line exists as of a chapter."""
        return not self.mark and self.since <= chapter < self.until


@dataclass(frozen=True)
class Fence:
    """A {cell} fence of a page: `start` and `end` delimit its body among the page's lines."""

    page: str
    number: int
    path: str
    cell: str
    options: dict[str, str]
    start: int
    end: int


@dataclass
class When:
    """An open #if: its condition (none for the preprocessor's other ones) and the interval around it."""

    number: int
    condition: tuple[str, int] | None
    since: int
    until: int
    other: bool = False


def parse(path: str, text: str) -> list[Line]:
    """Give each line of a file its cell and its interval of chapters."""
    cpp, rows = path.endswith(CPP), text.splitlines()
    slashes, hash_ = ("//", "#") if cpp else ("#", "# ")
    directive = re.compile(rf"\s*{hash_}(if COOKBOOK_CHAPTER (>=|<) (\d+)|else|endif)(?:\s*//.*)?$")
    lines: list[Line] = []
    seen: set[str] = set()
    stack: list[When] = []
    cell: str | None = None

    def wrong(number: int, why: str) -> BookError:
        return BookError(f"{path}:{number}: {why}")

    def narrow(number: int, op: str, n: int, since: int, until: int) -> tuple[int, int]:
        inner = (max(since, n), until) if op == ">=" else (since, min(until, n))
        if inner == (since, until) or inner[0] >= inner[1]:
            always = "always" if inner == (since, until) else "never"
            raise wrong(number, f"'{op} {n}' is {always} true here, where lines begin at {since} and end at {until}")
        return inner

    if not rows:
        return []
    first = FILE.match(rows[0])
    if not first or not rows[0].startswith(slashes):
        raise wrong(1, f"want '{slashes} chapter N', got {rows[0]!r}")
    since, until = int(first[1]), NEVER

    for number, row in enumerate(rows, 1):
        mark = number == 1
        if NEAR_CELL.match(row):
            m = CELL.match(row)
            if not m or not row.lstrip().startswith(slashes):
                raise wrong(number, f"want '{slashes} %% name', got {row.strip()!r}")
            if m[1] in seen:
                raise wrong(number, f"a second cell {m[1]!r}")
            cell, mark = m[1], True
            seen.add(cell)
        elif (m := directive.match(row)) and m[2]:
            mark, op, n = True, m[2], int(m[3])
            if op == "<" and not cpp:
                raise wrong(number, "'# if' is a comment here and both branches would run: only '>=' can be written")
            stack.append(When(number, (op, n), since, until))
            since, until = narrow(number, op, n, since, until)
        elif m and m[1] == "else" and stack and stack[-1].condition:
            if not cpp:
                raise wrong(number, "'# else' is a comment here and both branches would run: only '>=' can be written")
            if stack[-1].other:
                raise wrong(number, f"a second '#else' for the '#if' of line {stack[-1].number}")
            mark, stack[-1].other, (op, n) = True, True, stack[-1].condition
            since, until = narrow(number, "<" if op == ">=" else ">=", n, stack[-1].since, stack[-1].until)
        elif m and m[1] == "endif":
            if not stack:
                raise wrong(number, f"'{hash_}endif' without '{hash_}if'")
            top = stack.pop()
            mark, since, until = top.condition is not None, top.since, top.until
        elif re.match(r"\s*#.*\bCOOKBOOK_CHAPTER\b", row):
            branches = " or '#if COOKBOOK_CHAPTER < N'" if cpp else ""
            raise wrong(number, f"want '{hash_}if COOKBOOK_CHAPTER >= N'{branches}, got {row.strip()!r}")
        elif cpp and re.match(r"\s*#\s*if", row):
            stack.append(When(number, None, since, until))
        elif cpp and re.match(r"\s*#\s*endif\b", row):
            if not stack or stack.pop().condition:
                raise wrong(number, f"want '#endif', got {row.strip()!r}")
        elif cpp and stack and stack[-1].condition and re.match(r"\s*#\s*el", row):
            raise wrong(number, f"want '#else' or '#endif' for the '#if' of line {stack[-1].number}")
        if cell is None and not mark and row.strip() and not path.startswith("tests/"):
            raise wrong(number, f"a line before the first '{slashes} %% name': every line belongs to a cell")
        lines.append(Line(path, number, row, cell, since, until, mark))
    if stack:
        raise wrong(stack[-1].number, f"'{hash_}if' without '{hash_}endif'")
    return lines


def files(root: Path, top: str) -> Iterator[Path]:
    """The files under one of the roots, without what tools leave there."""
    if (root / top).is_file():
        yield root / top
    for path in sorted((root / top).rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not any(p in ("__pycache__", "build") or p.startswith(".") for p in parts):
            yield path


def read(root: Path) -> dict[str, list[Line]]:
    """Parse every staged file. An empty file (`py.typed`, `__init__.py`) has no lines and exists from the start."""
    found = {path.relative_to(root).as_posix(): path for top in ROOTS for path in files(root, top)}
    return {
        name: parse(name, path.read_text("utf-8"))
        for name, path in found.items()
        if not name.startswith(DRIVER + "/") and (path.suffix in SUFFIXES or not path.stat().st_size)
    }


def tidy(lines: Sequence[Line], chapter: int) -> list[Line]:
    """The lines as of a chapter, without the blank lines that only the removed ones needed."""
    kept: list[Line] = []
    blank: list[list[Line]] = []  # the blank lines since the last kept one, in runs that were contiguous
    for x in (x for x in lines if x.at(chapter)):
        if not x.text.strip():
            if blank and blank[-1][-1].number == x.number - 1:
                blank[-1].append(x)
            else:
                blank.append([x])
            continue
        if kept and blank:
            run = max(blank, key=len)
            arose = len(blank) > 1 or kept[-1].number != run[0].number - 1 or run[-1].number != x.number - 1
            before, after = kept[-1].text.rstrip(), x.text.lstrip()
            opens = before.endswith(("{", "(", "[", ":")) and "namespace" not in before
            closes = after.startswith(("}", ")", "]")) and "namespace" not in after
            if not (arose and (opens or closes)):
                kept += run
        blank = []
        kept.append(x)
    return kept


def tree(root: Path, chapter: int, numbers: bool = False) -> dict[str, bytes]:
    """The files as of a chapter. With numbers, every line keeps its number and a C++ file says where it truly lies."""
    out = {p.relative_to(root).as_posix(): p.read_bytes() for p in files(root, DRIVER)}
    for path, lines in read(root).items():
        if lines and not any(x.at(chapter) and x.text.strip() for x in lines):
            continue
        text = [x.text for x in tidy(lines, chapter)]
        if numbers:
            text = [x.text if x.at(chapter) else "" for x in lines]
        if numbers and lines and path.endswith(CPP):
            text[0] = f"#line 2 {json.dumps(str((root / path).resolve()), ensure_ascii=False)}"
        out[path] = "".join(x + "\n" for x in text).encode()
    return out


def emit(root: Path, chapter: int, out: Path, numbers: bool = False) -> list[str]:
    """Write the tree as of a chapter; unchanged files are not touched. Returns what was written or removed."""
    new, manifest = tree(root, chapter, numbers), out / MANIFEST
    old = set(manifest.read_text("utf-8").split("\n")) - {""} if manifest.exists() else set()
    changed = sorted(p for p in new if not (out / p).is_file() or (out / p).read_bytes() != new[p])
    out.mkdir(parents=True, exist_ok=True)
    manifest.write_text("\n".join(sorted(old | set(new))), "utf-8")  # first, so that an interrupted run forgets nothing
    for path in changed:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_bytes(new[path])
    for path in (gone := sorted(old - set(new))):
        (out / path).unlink(missing_ok=True)
    manifest.write_text("\n".join(sorted(new)), "utf-8")
    return changed + gone


def chapters(root: Path) -> dict[int, Path]:
    """The pages by chapter number."""
    return dict(sorted((int(p.stem.split("-")[1]), p) for p in root.glob("tutorials/chapter-*.md")))


def fences(page: str, text: str) -> list[Fence]:
    """The {cell} fences of a page."""
    rows, found, i = text.split("\n"), [], 0
    while i < len(rows):
        m, number = FENCE.match(rows[i]), i + 1
        i += 1
        if not m:
            continue
        words, options = m[1].split(), {}
        if len(words) != 2:
            raise BookError(f"{page}:{number}: want '```{{cell}} path name', got {rows[i - 1]!r}")
        while i < len(rows) and (o := OPTION.match(rows[i])):
            if o[1] not in ("diff", "again", "caption"):
                raise BookError(f"{page}:{i + 1}: a cell has the options :diff:, :again: and :caption:, not :{o[1]}:")
            options[o[1]], i = o[2], i + 1
        start = i
        while i < len(rows) and not rows[i].startswith("```"):
            i += 1
        if i == len(rows) or rows[i].rstrip() != "```":
            raise BookError(f"{page}:{number}: this fence is not closed by '```'")
        found.append(Fence(page, number, words[0], words[1], options, start, i))
    return found


def title(text: str) -> str:
    """The title of a page, without its number."""
    found = re.search(r"^# (?:Chapter )?(?:\d+[.:]? )?(.+)$", text, re.M)
    return found[1].strip() if found else "untitled"


def status(text: str) -> list[str]:
    """What a page says in its {status} fence: lines of '+ what works' and '- what does not yet'."""
    return [row for block in STATUS.findall(text) for row in block.splitlines() if row.startswith(("+ ", "- "))]


def problems(root: Path) -> list[str]:
    """Each cell that a chapter adds or changes must be shown on that chapter's page exactly once."""
    changed: Counter[tuple[str, str, int]] = Counter()
    shown: Counter[tuple[str, str, int]] = Counter()
    for path, lines in read(root).items():
        for x in lines:
            if x.cell and not x.mark and x.text.strip():
                changed.update((path, x.cell, n) for n in {x.since, x.until} - {RAW, NEVER})
    for n, page in chapters(root).items():
        name = page.relative_to(root).as_posix()
        shown.update((f.path, f.cell, n) for f in fences(name, page.read_text("utf-8")) if "again" not in f.options)
    return [
        f"{p}: cell {c}: chapter {n} changes {changed[p, c, n]} lines, shows it {shown[p, c, n]} times"
        for p, c, n in sorted(changed | shown)
        if shown[p, c, n] != bool(changed[p, c, n])
    ]
