"""Collects the examples of the chapters' {doctest} fences; `nox -s chapter-N` runs them at their stage."""

from doctest import ELLIPSIS

from sybil import Sybil
from sybil.parsers.myst import DocTestDirectiveParser

pytest_collect_file = Sybil(parsers=[DocTestDirectiveParser(ELLIPSIS)], patterns=["*.md"]).pytest()
