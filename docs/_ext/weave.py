"""Write each cell's text into the fence that shows it, so that a chapter's page is complete by itself.

`python docs/_ext/weave.py` rewrites the pages; `--check` names the fences that differ from the code and exits 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import stages


def body(cell: list[stages.Line], chapter: int, diff: bool) -> list[str]:
    """The lines of a fence: the cell as of a chapter, or what the chapter makes of it."""
    if diff:
        both = (x for x in cell if x.at(chapter) or x.at(chapter - 1))
        return [(" +-"[x.at(chapter) - x.at(chapter - 1)] + x.text).rstrip() for x in both]
    return [x.text for x in stages.tidy(cell, chapter)]


def page(name: str, text: str, chapter: int, tree: dict[str, list[stages.Line]]) -> tuple[str, list[str]]:
    """The woven text of a page, and the fences of it that were stale."""
    rows, stale = text.split("\n"), []
    for fence in reversed(stages.fences(name, text)):
        where = f"{name}:{fence.number}"
        if fence.path not in tree:
            raise stages.BookError(f"{where}: there is no staged file {fence.path}")
        cell = [x for x in tree[fence.path] if x.cell == fence.cell]
        if not cell:
            names = ", ".join(dict.fromkeys(x.cell for x in tree[fence.path] if x.cell))
            raise stages.BookError(f"{where}: {fence.path} has no cell {fence.cell!r}; it has {names}")
        new = body(cell, chapter, "diff" in fence.options)
        while new and not new[-1].strip():
            new.pop()
        if not new:
            raise stages.BookError(f"{where}: {fence.path}: cell {fence.cell!r} has no line as of chapter {chapter}")
        if any(row.startswith("```") for row in new):
            raise stages.BookError(f"{where}: {fence.path}: cell {fence.cell!r} has a line that would close the fence")
        if fence.options:
            new.insert(0, "")
        if rows[fence.start : fence.end] != new:
            stale.append(f"{where}: {fence.path} {fence.cell}")
            rows[fence.start : fence.end] = new
    return "\n".join(rows), stale[::-1]


def weave(root: Path, write: bool) -> list[str]:
    """Weave every page (or only look); returns the fences that were stale."""
    tree, stale = stages.read(root), []
    for n, path in stages.chapters(root).items():
        old = path.read_text("utf-8")
        new, here = page(path.relative_to(root).as_posix(), old, n, tree)
        stale += here
        if write and here:
            path.write_text(new, "utf-8")
    return stale


def main(args: list[str]) -> int:
    """The command line."""
    check = "--check" in args
    try:
        stale = weave(Path.cwd(), write=not check)
    except stages.BookError as error:
        print(error, file=sys.stderr)
        return 1
    for fence in stale:
        print(f"{fence}: {'differs from the code' if check else 'woven'}")
    if check and stale:
        print("run: nox -s weave", file=sys.stderr)
    elif not stale:
        print("every fence holds its cell")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
