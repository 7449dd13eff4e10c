"""docs/device-module.md is what tests/device_module_table.py says; the staged tests hold the table to PyTorch's sources."""

import device_module
from device_module import PAGE, ROOT


def test_the_page_is_the_table() -> None:
    assert (ROOT / PAGE).read_text("utf-8") == device_module.render(), "run: python docs/_ext/device_module.py"


def test_many_files_are_counted_by_folder() -> None:
    assert device_module.files(("C++",)) == "`C++`"
    assert device_module.files(("a.py", "x/y/z/b.py", "x/y/c.py", "x/d.py")) == "1 in `torch/` itself, `x/` 1, `x/y/` 2"
