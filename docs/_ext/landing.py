"""The `{chapters}` directive of the landing page: the chapters in numeric order, each with one line from its own page.

It also makes the tables of contents from which the theme builds the sidebar and previous/next. A glob would not do:
it sorts chapter-10 before chapter-2.
"""

from __future__ import annotations

import re
from pathlib import Path

import stages
from docutils import nodes
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.directives.other import TocTree
from sphinx.util.typing import ExtensionMetadata

FRONT_MATTER = re.compile(r"\A---\n(.*?)^---\n", re.DOTALL | re.MULTILINE)
TITLE = re.compile(r"^# +(.+)$", re.MULTILINE)
SENTENCE = re.compile(r".+?[.!?](?=\s|$)", re.DOTALL)


def summary(page: str) -> tuple[str, str]:
    """Title and one line of a page: the front matter's `summary`, else the first sentence below the title."""
    front = FRONT_MATTER.match(page)
    body = page[front.end() :] if front else page
    title = TITLE.search(body)
    if not title:
        raise ValueError("expected a title, a line '# ...'")
    if front and (said := re.search(r"^summary: *(.+)$", front[1], re.MULTILINE)):
        return title[1].strip(), said[1].strip().strip("\"'")
    for block in re.split(r"\n\s*\n", body[title.end() :].strip()):
        if re.match(r"[\w`*\"'(]", block):  # a paragraph, not a fence, table, heading, list or label
            sentence = SENTENCE.match(block)
            text = " ".join((sentence[0] if sentence else block).split())
            return title[1].strip(), re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    raise ValueError("expected a summary in the front matter, or a paragraph below the title")


class Chapters(TocTree):
    """`{chapters}`: a hidden toctree of all chapters (and the recipes, if there are any) and a visible list."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # a chapter that is added or retold changes this page
        pages = stages.chapters(Path(self.env.srcdir))
        tocs = self.toctree("Chapters", [f"/tutorials/{path.stem}" for _, path in sorted(pages.items())])
        if "docs/recipes/index" in self.env.found_docs:
            tocs += self.toctree("Recipes", ["/docs/recipes/index"])
        rows = nodes.bullet_list(classes=["chapters"])
        for _, path in sorted(pages.items()):
            try:
                title, line = summary(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise self.error(f"{path}: {error}") from error
            link = addnodes.pending_xref(
                "",
                nodes.inline(title, title),
                refdomain="std",
                reftype="doc",
                reftarget=f"/tutorials/{path.stem}",
                refexplicit=True,
                refwarn=True,
            )
            said, messages = self.parse_inline(line)
            text = nodes.inline("", "", *said, classes=["chapter-line"])
            rows += nodes.list_item("", nodes.paragraph("", "", link, text), *messages)
        return [rows, *tocs]

    def toctree(self, caption: str, entries: list[str]) -> list[nodes.Node]:
        """One hidden, captioned toctree."""
        self.content = StringList(entries, source=self.env.docname)
        self.options = {"caption": caption, "hidden": None, "maxdepth": 1}
        return super().run()


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("chapters", Chapters)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
