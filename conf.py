"""Sphinx configuration of the rendered notes. It stands at the root because the pages are in `docs/` and `tutorials/`.

Nothing here needs torch: the chapters' examples are run by `nox -s chapter-N`, not by Sphinx. Only the recipes run while
the notes are built, and only when the backend can be imported.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

project = "PyTorch Backend Cookbook"
html_title = project
copyright = "2026, the PyTorch Backend Cookbook contributors (BSD-3-Clause)"
language = "en"

extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design", "cell", "landing", "downloads", "wrap"]
root_doc = "docs/index"
# Without this, Sphinx would also read README.md, build/ and the environments that nox makes.
include_patterns = ["docs/**", "tutorials/chapter-*.md"]
exclude_patterns = ["docs/_*/**", "docs/tests/**"]
templates_path = ["docs/_templates"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
nitpicky = True

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3

# A copy of an example is what you type: no prompts, no output. A copy of a changed cell is what it is now: no removed lines.
copybutton_exclude = ".linenos, .gp, .line-out, .line-gone"

html_theme = "furo"
html_static_path = ["docs/_static"]
html_css_files = ["cookbook.css"]
html_favicon = "docs/_static/favicon.svg"
html_additional_pages = {"index": "to-docs.html"}
html_copy_source = False
html_show_sphinx = False
html_use_index = False
pygments_style = "github-light"  # from accessible-pygments, which furo brings
pygments_dark_style = "github-dark"

SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Helvetica Neue", Arial, sans-serif'
MONO = 'ui-monospace, "SF Mono", "Cascadia Code", Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace'
FONTS = {"font-stack": SANS, "font-stack--monospace": MONO}
html_theme_options: dict[str, Any] = {
    "light_css_variables": {
        **FONTS,
        "color-brand-primary": "#0b5c8f",
        "color-brand-content": "#0b5c8f",
        "color-code-background": "#f6f8fa",
        "color-highlight-on-target": "#e8f1f8",
    },
    "dark_css_variables": {
        **FONTS,
        "color-brand-primary": "#7cc4ef",
        "color-brand-content": "#7cc4ef",
        "color-highlight-on-target": "#1b2c38",
    },
}


def backend_is_importable() -> bool:
    """Whether the finished backend is built and on the path, so that recipes can run."""
    try:
        return importlib.util.find_spec("cookbook_backend._C") is not None
    except ImportError:  # no package at all, or its tree without the extension
        return False


RECIPES = ROOT / "tutorials" / "recipes"
if any(RECIPES.glob("recipe_*.py")):
    runs = backend_is_importable()
    if os.environ.get("CI") and not runs:
        raise RuntimeError(
            "conf.py: in CI the recipes must run, but cookbook_backend._C cannot be imported; "
            "build the backend first and put it on PYTHONPATH (nox -s docs does both)"
        )
    extensions.append("sphinx_gallery.gen_gallery")
    sphinx_gallery_conf = {
        "examples_dirs": [str(RECIPES)],
        "gallery_dirs": ["docs/recipes"],
        "filename_pattern": r"/recipe_",
        "plot_gallery": runs,
        "write_computation_times": False,  # its page would land in the root of the repository
        "abort_on_example_error": True,
    }
