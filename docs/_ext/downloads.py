"""What each chapter page offers beside itself: commands to run it, and three downloads.

`chapter-N.zip` is the clean tree as of the chapter, `chapter-N.md` the page with its cells as it is in the repository, and
`chapter-N.ipynb` the page as a notebook. They are written next to the page when the build ends.
"""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path
from typing import Any

import clean
import jupytext  # type: ignore[import-untyped]
import stages
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata

logger = logging.getLogger(__name__)

PAGE = re.compile(r"tutorials/chapter-(\d+)")
FRONT_MATTER = re.compile(r"\A---\n.*?^---\n", re.DOTALL | re.MULTILINE)
DOCTEST = re.compile(r"^```\{doctest\}[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CELL = re.compile(r"^```\{cell\} (\S+) ([\w-]+)\n((?::[^\n]*\n)*)\n*(.*?)^```$", re.DOTALL | re.MULTILINE)
STATUS = re.compile(r"^```\{status\}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ADMONITION = re.compile(r"^(:{3,})\{(\w+)\} *([^\n]*)\n(?::[^\n]*\n)*(.*?)^\1$", re.DOTALL | re.MULTILINE)
ROLE = re.compile(r"\{[\w:-]+\}`([^`<]*?)\s*(?:<[^`>]*>)?`")
LABEL = re.compile(r"^\([\w-]+\)=\n", re.MULTILINE)


def markdown(text: str) -> str:
    """Prose as plain Markdown, which a notebook shows: MyST's own constructs become ordinary ones."""

    def cell(found: re.Match[str]) -> str:
        language = "diff" if ":diff:" in found[3] else stages.LANGUAGE[Path(found[1]).suffix]
        return f"`{found[1]}`\n\n```{language}\n{found[4]}```"

    def status(found: re.Match[str]) -> str:
        lines = found[1].splitlines()
        now = "\n".join(f"* {line[2:]}" for line in lines if line.startswith("+ "))
        later = "\n".join(f"* {line[2:]}" for line in lines if line.startswith("- "))
        return f"**Works now**\n\n{now}\n\n**Not yet**\n\n{later}"

    def admonition(found: re.Match[str]) -> str:
        body = "\n".join(f"> {line}".rstrip() for line in found[4].strip().splitlines())
        return f"> **{found[3] or found[2].capitalize()}**\n>\n{body}"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    for i in range(0, len(parts), 2):  # prose; odd parts are fences
        parts[i] = LABEL.sub("", ROLE.sub(r"\1", ADMONITION.sub(admonition, parts[i])))
    return STATUS.sub(status, CELL.sub(cell, "".join(parts)))


def notebook(page: str) -> dict[str, Any]:
    """A chapter page as a notebook: prose and C++ are Markdown cells, each doctest example is a code cell.

    An example's expected output, which `nox -s chapter-N` has checked, is stored as the cell's output.
    """
    cells: list[dict[str, Any]] = []

    def add(kind: str, source: str, **more: Any) -> None:
        cells.append({"id": f"cell-{len(cells) + 1}", "cell_type": kind, "metadata": {}, "source": source, **more})

    page = FRONT_MATTER.sub("", page)
    at = 0
    for block in DOCTEST.finditer(page):
        if prose := markdown(page[at : block.start()]).strip():
            add("markdown", prose)
        at = block.end()
        for example in doctest.DocTestParser().get_examples(block[1]):
            output = {"output_type": "stream", "name": "stdout", "text": example.want}
            add("code", example.source.rstrip("\n"), execution_count=None, outputs=[output] if example.want else [])
    if prose := markdown(page[at:]).strip():
        add("markdown", prose)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def add_start(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Put commands and downloads below the title of a chapter page."""
    if not (page := PAGE.fullmatch(pagename)) or "body" not in context:
        return
    n = int(page[1])
    files = [
        (f"chapter-{n}.zip", "the tree (zip)"),
        (f"chapter-{n}.md", "this page (Markdown)"),
        (f"chapter-{n}.ipynb", "a notebook"),
    ]
    start = app.builder.templates.render("chapter-start.html", {"n": n, "downloads": files})
    context["body"] = context["body"].replace("</h1>", "</h1>\n" + start, 1)


def write_downloads(app: Sphinx, exception: Exception | None) -> None:
    """Write the three files of every chapter."""
    if exception or app.builder.format != "html":
        return
    root = Path(app.srcdir)
    out = Path(app.outdir) / "tutorials"
    for n, path in stages.chapters(root).items():
        page = path.read_text(encoding="utf-8")
        (out / f"chapter-{n}.md").write_text(page, encoding="utf-8")
        jupytext.write(jupytext.reads(json.dumps(notebook(page)), fmt="ipynb"), out / f"chapter-{n}.ipynb")
        clean.archive(root, n, out / f"chapter-{n}.zip")
        logger.info("chapter %d: zip, Markdown and notebook written", n)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("html-page-context", add_start)
    app.connect("build-finished", write_downloads)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
