# chapter 1
# %% torch-facts
"""Tells CMake where PyTorch is, its version, and which pybind11 it speaks: `prefix;version;internals`.

Types that PyTorch registers with pybind11 (`c10d::Store`, ...) cross between modules only if both were built with the
same PYBIND11_INTERNALS_VERSION. PyTorch ships the headers that it was built with; the number is read from the library
itself, so that the check in module.cpp holds also when another pybind11 is found first.
"""

import re
from pathlib import Path

import torch

library = Path(torch.__file__).parent / "lib" / "libtorch_python.so"
found = set(re.findall(rb"__pybind11_internals_v(\d+)_", library.read_bytes()))
if len(found) != 1:
    raise SystemExit(f"expected one pybind11 internals version in {library}, found {sorted(found)}")
print(torch.utils.cmake_prefix_path, torch.__version__, int(found.pop()), sep=";")
