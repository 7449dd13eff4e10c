# chapter 4
"""Every virtual method that PyTorch offers a backend is overridden, or its default is right and a reason is given.

A newer PyTorch that adds a method fails here: its default throws, or worse, says nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

HEADERS = Path(torch.__file__).parent / "include"
SOURCES = Path(__file__).parent.parent / "csrc"

# Our class and its file; the interfaces that it answers for, the base last; the methods whose default is kept, and why.
CLASSES: list[tuple[str, str, list[tuple[str, str]], dict[str, str]]] = [
    (
        "Hooks",
        "scaffolding/hooks.cpp",
        [
            ("PrivateUse1HooksInterface", "ATen/detail/PrivateUse1HooksInterface.h"),
            ("AcceleratorHooksInterface", "ATen/detail/AcceleratorHooksInterface.h"),
        ],
        {},
    ),
    (
        "GuardImpl",
        "scaffolding/guard.cpp",
        [("DeviceGuardImplInterface", "c10/core/impl/DeviceGuardImplInterface.h")],
        {},
    ),
    (
        "CachingAllocator",
        "runtime/caching_allocator.cpp",
        [("DeviceAllocator", "c10/core/CachingDeviceAllocator.h"), ("Allocator", "c10/core/Allocator.h")],
        {"raw_deleter": "null says that the pointer is not its own context, so raw_allocate() refuses to be used"},
    ),
    (
        "DirectAllocator",
        "scaffolding/allocator.cpp",
        [("DeviceAllocator", "c10/core/CachingDeviceAllocator.h"), ("Allocator", "c10/core/Allocator.h")],
        {"is_simple_data_ptr": "the default compares pointer and context, which are the same here"},
    ),
    (
        "PhiloxGenerator",
        "runtime/generator.h",
        [("GeneratorImpl", "c10/core/GeneratorImpl.h")],
        {},
    ),
    (
        "HostCache",
        "runtime/host_allocator.cpp",
        [("CachingHostAllocatorImpl", "ATen/core/CachingHostAllocator.h")],
        {
            "pinned_use_background_threads": "the default reads PyTorch's own setting",
            "pinned_max_round_threshold": "the default reads PyTorch's own setting",
            "pinned_max_cached_size": "the default reads PyTorch's own setting",
            "add_allocated_block": "core's cache: it keeps the books, we give memory and events",
            "get_free_block": "core's cache",
            "process_events": "core's cache",
            "process_events_for_specific_size": "core's cache",
        },
    ),
    # Core's class between the two: what it left out would throw.
    (
        "CachingHostAllocatorInterface",
        "",
        [("HostAllocator", "ATen/core/CachingHostAllocator.h"), ("Allocator", "c10/core/Allocator.h")],
        {
            "is_simple_data_ptr": "the default compares pointer and context, and pinned blocks have a context",
            "raw_deleter": "null: nobody takes pinned memory through the raw interface",
        },
    ),
    (
        "Graph",
        "runtime/graph.h",
        [("GraphImplInterface", "ATen/core/GraphImplInterface.h")],
        {},
    ),
]


def without_comments(text: str) -> str:
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r"//[^\n]*", "", text)


def body_of(name: str, text: str) -> str:
    """The text between the braces of a class."""
    found = re.search(rf"\b(?:class|struct)\s+(?:\w+\s+)?{name}\b[^;{{]*{{", text)
    assert found, f"no class {name}"
    depth, start = 1, found.end()
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start:at]
    raise AssertionError(f"class {name} has no end")


def members(body: str) -> list[str]:
    """The members' declarations, one each, without what is in the braces of their bodies."""
    flat, depth = [], 0
    for character in body:
        depth += character == "{"
        if depth == 0:
            flat.append(character)
        elif character == "}":
            depth -= 1
            flat.append(";" if depth == 0 else "")
    return re.sub(r"^\s*#.*$|\b(?:public|protected|private):", "", "".join(flat), flags=re.MULTILINE).split(";")


def methods(body: str, word: str) -> set[str]:
    """Names of the members that are declared with `virtual` or `override`; destructors have nothing to decide."""
    names = set()
    for declaration in members(body):
        if not re.search(rf"\b{word}\b", declaration):
            continue
        found = re.search(r"(~?\w+)\s*\(", declaration)
        assert found, declaration
        names.add(found.group(1))
    return {name for name in names if not name.startswith("~")}


def virtuals(interfaces: list[tuple[str, str]]) -> set[str]:
    return set().union(
        *(
            methods(body_of(name, without_comments((HEADERS / header).read_text())), "virtual")
            for name, header in interfaces
        )
    )


@pytest.mark.parametrize("case", CLASSES, ids=[case[0] for case in CLASSES])
def test_every_method_is_decided(case: tuple[str, str, list[tuple[str, str]], dict[str, str]]) -> None:
    name, source, interfaces, kept = case
    text = (SOURCES / source if source else HEADERS / interfaces[0][1]).read_text()
    offered = virtuals(interfaces)
    ours = methods(body_of(name, without_comments(text)), "override")
    assert offered, "the header was not understood"
    assert ours <= offered, "an override of nothing would not compile: the parser is wrong"
    assert offered - ours - set(kept) == set(), (
        f"{name} does not decide about these methods of torch {torch.__version__}"
    )
    assert set(kept) & ours == set(), "overridden after all: drop the reason"
    assert set(kept) - offered == set(), "gone from PyTorch: drop the reason"


def test_the_parser_finds_what_is_missing() -> None:
    """On text that is small enough to be read."""
    header = without_comments("""
        // virtual void in_a_comment();
        struct TORCH_API Interface : Base {
          virtual ~Interface() = default;
          virtual bool decided(int x) const { if (x) { return true; } return false; }
          virtual std::pair<int, int> forgotten(std::function<bool(int)> f) const noexcept = 0; /* virtual void no(); */
          void plain() {}
         protected:
          virtual Interface* clone_impl() const = 0;
        };
        struct Other { virtual void elsewhere(); };
    """)
    source = """
        class Ours final : public Interface {
         public:
        #if 1
          bool decided(int x) const override { return x; }
        #endif
          Interface* clone_impl() const override;
        };
    """
    assert methods(body_of("Interface", header), "virtual") == {"decided", "forgotten", "clone_impl"}
    assert methods(body_of("Ours", source), "override") == {"decided", "clone_impl"}
