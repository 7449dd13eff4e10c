"""The directives of a chapter page: `{cell}` shows code, `{doctest}` an example, `{status}` what works and what does not.

A cell's text comes from the code, never from the fence: the fence's body is woven in for readers of the raw page, and
`nox -s weave` keeps it equal. All three directives make one node, `CodeLines`: a highlighted block whose lines carry
CSS classes (`line-new`, `line-gone`, `line-out`), which also tell the copy button what to leave out.
"""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any, ClassVar

import stages
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata, OptionSpec
from sphinx.writers.html5 import HTML5Translator

HIGHLIGHTED = re.compile(r"(?P<head>.*?<pre>(?:<span></span>)?)(?P<rows>.*?)\n?(?P<tail></pre>.*)", re.DOTALL)

TREES: dict[str, dict[str, list[stages.Line]]] = {}  # source directory -> the tree that this build parsed


class CodeLines(nodes.literal_block):
    """A literal block with one CSS class (or none) for each of its lines, in the attribute `lines`."""


def code_lines(lines: list[tuple[str, str]], language: str) -> CodeLines:
    """Make the block from (text, CSS class or "") pairs, without blank lines around it, which a highlighter eats."""
    while lines and not lines[0][0].strip():
        lines = lines[1:]
    while lines and not lines[-1][0].strip():
        lines = lines[:-1]
    text = "\n".join(line for line, _ in lines)
    node = CodeLines(text, text)
    node["language"] = language
    node["lines"] = [name for _, name in lines]
    return node


def visit_code_lines(self: HTML5Translator, node: CodeLines) -> None:
    """Highlight the whole text at once, as its lines depend on each other, then wrap the lines that have a class."""
    html = self.highlighter.highlight_block(node.rawsource, node["language"], linenos=False, location=node)
    found = HIGHLIGHTED.fullmatch(html)
    rows = found["rows"].split("\n") if found else []
    if found is None or len(rows) != len(node["lines"]):
        raise ExtensionError(
            f"{node.source}:{node.line}: expected {len(node['lines'])} highlighted lines, got {len(rows)} from Pygments"
        )
    text = "".join(
        f'<span class="{name}">{row}\n</span>' if name else row + "\n"
        for row, name in zip(rows, node["lines"], strict=True)
    )
    start = self.starttag(node, "div", suffix="", CLASS=f"highlight-{node['language']} notranslate")
    self.body.append(f"{start}{found['head']}{text}{found['tail']}</div>\n")
    raise nodes.SkipNode


class Cell(SphinxDirective):
    """`{cell} csrc/runtime/guard.cpp streams`: a named cell as of the page's chapter, what the chapter adds marked."""

    required_arguments = 2
    has_content = True
    option_spec: ClassVar[OptionSpec] = {
        "again": directives.flag,
        "diff": directives.flag,
        "caption": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        path, name = self.arguments
        page = re.fullmatch(r"tutorials/chapter-(\d+)", self.env.docname)
        if not page:
            raise self.error(f"{{cell}} {path} {name}: cells are shown on tutorials/chapter-N.md, as of chapter N")
        n = int(page[1])
        tree = tree_of(self.env.app)
        if path not in tree:
            raise self.error(f"{{cell}} {path} {name}: no such file in the staged tree; paths begin at the root")
        self.env.note_dependency(str(Path(self.env.srcdir) / path))
        cell = [line for line in tree[path] if line.cell == name]
        now = stages.tidy(cell, n)
        if not now:
            here = dict.fromkeys(line.cell for line in tree[path] if line.cell and line.at(n))
            raise self.error(
                f"{{cell}} {path} {name}: no line of such a cell as of chapter {n}; "
                f"the file's cells are {', '.join(here) or 'none'}"
            )

        kept = {line.number for line in now}
        shown = now
        if "diff" in self.options:
            shown = [line for line in cell if line.number in kept or (line.at(n - 1) and not line.mark)]
        born = min(line.since for line in cell if not line.mark and line.text.strip())
        changed = "again" not in self.options and born < n
        classes: dict[int, str] = {}
        if changed:
            classes = {line.number: "line-new" if line.since == n else "" for line in now}
        gone = "line-gone" if changed else ""
        block = code_lines(
            [(line.text, classes.get(line.number, gone)) for line in shown], stages.LANGUAGE[Path(path).suffix]
        )
        self.set_source_info(block)
        return [self.captioned(block, path, name, n, cell, changed)]

    def captioned(
        self, block: CodeLines, path: str, name: str, n: int, cell: list[stages.Line], changed: bool
    ) -> nodes.container:
        """The block under its file path and how it relates to earlier chapters, with a link to where it was shown."""
        again = "again" in self.options
        lines = [line for line in cell if not line.mark and line.text.strip()]
        changes = {line.since for line in lines} | {line.until for line in lines}
        earlier = max((m for m in changes if m < n or (again and m == n)), default=n)
        caption = nodes.caption()
        self.set_source_info(caption)
        caption += nodes.inline(path, path, classes=["cell-path"])
        if "caption" in self.options:
            children, messages = self.parse_inline(self.options["caption"])
            caption += nodes.inline("", "", *children, *messages, classes=["cell-note"])
        hint = nodes.inline(classes=["cell-hint"])
        if again:
            hint += nodes.Text("again, from ")
            hint += cell_reference(path, name, earlier)
        elif changed:
            hint += nodes.Text(f"changed in chapter {n}, was in ")
            hint += cell_reference(path, name, earlier)
        else:
            hint += nodes.Text(f"chapter {n}")
        caption += hint
        wrapper = nodes.container("", caption, block, literal_block=True, classes=["literal-block-wrapper", "cell"])
        if not again:
            wrapper["names"].append(cell_label(path, name, n))
            self.state.document.note_explicit_target(wrapper, wrapper)
        return wrapper


def cell_label(path: str, name: str, n: int) -> str:
    """The reference label of a cell as shown by chapter n."""
    return f"cell-{n}-{path}-{name}".lower()


def cell_reference(path: str, name: str, n: int) -> nodes.Node:
    """A link to the page that shows the cell as of chapter n; a dangling one is a warning, so the build refuses it."""
    text = f"chapter {n}"
    target = cell_label(path, name, n)
    return addnodes.pending_xref(
        "",
        nodes.inline(text, text),
        refdomain="std",
        reftype="ref",
        reftarget=target,
        refexplicit=True,
        refwarn=True,
    )


class Doctest(SphinxDirective):
    """`{doctest}`: an example that `nox -s chapter-N` runs. Output lines are marked, so that a copy is what you type."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        text = "\n".join(self.content)
        try:
            parsed = doctest.DocTestParser().parse(text + "\n", self.env.docname)
        except ValueError as error:
            raise self.error(f"{{doctest}}: {error}") from error
        if not any(isinstance(part, doctest.Example) for part in parsed):
            raise self.error("{doctest}: expected at least one '>>> ' example, got none")
        classes = [""] * len(self.content)
        for part in parsed:
            if isinstance(part, doctest.Example):
                first = part.lineno + part.source.count("\n")
                classes[first : first + part.want.count("\n")] = ["line-out"] * part.want.count("\n")
        block = code_lines(list(zip(self.content, classes, strict=True)), "pycon")
        block["classes"].append("doctest")
        self.set_source_info(block)
        return [block]


class Status(SphinxDirective):
    """`{status}`: lines `+ works now` and `- not yet`, which `nox -s chapter-N` prints too, as a list in two parts."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        parts = {"+": nodes.bullet_list(bullet="+"), "-": nodes.bullet_list(bullet="-")}
        items: list[tuple[str, str]] = []
        for number, line in enumerate(self.content, 1):
            if line[:2] in ("+ ", "- "):
                items.append((line[0], line[2:].strip()))
            elif line.strip():
                raise self.error(
                    f"{{status}} line {number}: expected '+ what works' or '- what does not', got {line!r}"
                )
        for sign, text in items:
            children, messages = self.parse_inline(text)
            parts[sign] += nodes.list_item("", nodes.paragraph(text, "", *children), *messages)
        if not items:
            raise self.error("{status}: expected lines '+ what works' and '- what does not yet', got none")
        box = nodes.container(classes=["status"])
        for sign, title, name in (("+", "Works now", "status-now"), ("-", "Not yet", "status-later")):
            if not len(parts[sign]):
                continue
            heading = nodes.paragraph(title, title, classes=["status-title"])
            box += nodes.container("", heading, parts[sign], classes=[name])
        return [box]


def read_tree(app: Sphinx) -> None:
    """Parse the staged tree once a build. A mistake in its grammar ends the build with the file and line it names."""
    try:
        TREES[str(app.srcdir)] = stages.read(Path(app.srcdir))
    except stages.BookError as error:
        raise ExtensionError(str(error)) from error


def tree_of(app: Sphinx) -> dict[str, list[stages.Line]]:
    """The staged tree that `read_tree` parsed."""
    return TREES[str(app.srcdir)]


def plain(self: Any, node: CodeLines) -> None:
    """Other builders show the text as it is."""
    self.visit_literal_block(node)


def plain_end(self: Any, node: CodeLines) -> None:
    self.depart_literal_block(node)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_node(
        CodeLines,
        html=(visit_code_lines, None),
        text=(plain, plain_end),
        latex=(plain, plain_end),
        man=(plain, plain_end),
    )
    app.add_directive("cell", Cell)
    app.add_directive("doctest", Doctest)
    app.add_directive("status", Status)
    app.connect("builder-inited", read_tree)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
