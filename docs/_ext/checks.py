"""What tree and pages must hold beside the proof of `stages.problems`: each check gives a list of complaints."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import stages

LONGEST_CELL = 48  # lines; about 40 is what a reader takes in at once
SECTIONS = (
    "What works when you are done",
    "What fails now",
    "The contract",
    "The code",
    "Pitfalls",
    "What changed",
    "What to replace for your chip",
)
DOCTEST = re.compile(r"^```\{doctest\}\n(.*?)^```$", re.M | re.S)
SAMPLE = re.compile(r"^````md\n.*?^````$", re.M | re.S)  # a page shown as its source
PROMPT = re.compile(r"(?:^|\s)>>>(?:\s|$)")
INCLUDE = re.compile(r'\s*#\s*include\s+(["<])([^">]+)[">]')


def escaped(root: Path) -> list[str]:
    """Files of the staged roots that the book does not know, though git does (or would, if you added them)."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z", "--", *stages.ROOTS]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    known = stages.read(root)
    return [
        f"{path}: not staged: a file here ends in {', '.join(stages.SUFFIXES)}, or is empty"
        for path in sorted(set(listed) - {""})
        if (root / path).exists() and not path.startswith(stages.DRIVER + "/") and path not in known
    ]


def long_cells(root: Path) -> list[str]:
    """Cells that are too long to read at once, at any chapter that shows them."""
    found = []
    for path, lines in stages.read(root).items():
        for name in dict.fromkeys(x.cell for x in lines if x.cell):
            cell = [x for x in lines if x.cell == name]
            lengths = {n: len(stages.tidy(cell, n)) for n in {x.since for x in cell} - {stages.RAW}}
            n = max(lengths, key=lambda n: lengths[n], default=0)
            if n and lengths[n] > LONGEST_CELL:
                found.append(
                    f"{path}: cell {name} has {lengths[n]} lines as of chapter {n}; cut it: {LONGEST_CELL} at most"
                )
    return found


def includes(root: Path) -> list[str]:
    """Includes against the order of the book: a folder may use itself and the folders before it.

    What PyTorch lets a process register only once, the guard and the hooks, grows in place: lines of a chapter may
    include a later folder's file that the same chapter, or an earlier one, has added.
    """
    found, order = [], list(stages.FOLDERS)
    tree = stages.read(root)
    added = {path: min((x.since for x in lines), default=0) for path, lines in tree.items()}
    driver = {p.name for p in (root / stages.DRIVER / "include").glob("*.h")}
    for path, lines in tree.items():
        if not path.endswith(stages.CPP) or path.startswith("tests/"):
            continue  # a test may look into any folder
        parts = path.split("/")
        if parts[0] != "csrc" or len(parts) < 3 or parts[1] not in order:
            found.append(f"{path}: C++ lies in a folder of the book's order: csrc/{{{','.join(order)}}}")
            continue
        for x in lines:
            if not (m := INCLUDE.match(x.text)) or m[2] in driver:
                continue
            folder = m[2].split("/")[0]
            later = folder in order and order.index(folder) > order.index(parts[1])
            if later and not added[path] < added.get(f"csrc/{m[2]}", stages.NEVER) <= x.since:
                found.append(
                    f"{path}:{x.number}: {parts[1]} comes before {folder} in the book, so it cannot include {m[2]}"
                )
            elif not later and m[1] == '"' and (folder not in order or "/" not in m[2]):
                found.append(f'{path}:{x.number}: want "folder/file.h" with a folder of csrc, got "{m[2]}"')
    return found


def prompts(name: str, text: str, chapter: bool) -> list[str]:
    """Prompts that nothing runs: outside the {doctest} fences of a chapter, or anywhere in a note but in a sample."""
    allowed = DOCTEST if chapter else SAMPLE
    rest = allowed.sub(lambda m: "\n" * m[0].count("\n"), text)
    where = "outside a {doctest} fence" if chapter else "in a note"
    return [
        f"{name}:{number}: a prompt {where} is never run: {row.strip()}"
        for number, row in enumerate(rest.split("\n"), 1)
        if PROMPT.search(row)
    ]


def page(name: str, text: str) -> list[str]:
    """What every chapter has: the sections in their order, an example, and what works at its end."""
    found = []
    prose = re.sub(r"^(`{3,}|~{3,}).*?^\1$", "", text, flags=re.M | re.S)
    headings = [h for h in re.findall(r"^## (.+?)\s*$", prose, re.M) if h in SECTIONS]
    if headings != list(SECTIONS):
        found.append(
            f"{name}: want the sections {', '.join(SECTIONS)}, once each, in this order; got {', '.join(headings)}"
        )
    if not any(">>> " in block for block in DOCTEST.findall(text)):
        found.append(f"{name}: no example in a {{doctest}} fence")
    if not any(row.startswith("+ ") for row in stages.status(text)):
        found.append(f"{name}: want a {{status}} fence with lines '+ what works' and '- what does not yet'")
    return found
