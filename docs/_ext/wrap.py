"""Lets a browser break a long identifier where a reader would: after `_`, `.`, `/`, `::` and before a capital.

Contract tables are full of such names, and without a place to break, one name makes its column as wide as itself. The
break is a `<wbr>`, which is no character: a copied name stays as it was.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

WORD = re.compile(r'(?<=<span class="pre">)[^<]{12,}(?=</span>)')
PLACE = re.compile(
    r"(?<=::)(?=\w)|(?<=[A-Za-z0-9][_/])(?=[A-Za-z0-9])|(?<=[A-Za-z0-9]\.)(?=\w{4})|(?<=[a-z0-9])(?=[A-Z])"
)


def add_breaks(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Mark the places in the inline code of a page; blocks of code have no such spans."""
    if "body" in context:
        context["body"] = WORD.sub(lambda word: PLACE.sub("<wbr>", word[0]), context["body"])


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("html-page-context", add_breaks)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
