# chapter 6
"""What PyTorch looks up on `torch.<device>`: found by reading its Python sources, not from memory.

`lookups(folder)` parses the files below an installed `torch`. An expression is taken for a device module when it is

* `getattr(torch, X)` where X is not a literal and speaks of a device, or a call of one of `FINDERS`,
* a variable or attribute that one of these was assigned to: a variable in the same function, an attribute in the file,
* a name that PyTorch itself gives to device modules (`NAMED`): parameters, and FSDP's handle, which forwards every name,
* an attribute of one of these that something is asked of in turn, as in `device_module._utils._get_device_index`.

A lookup is what is asked of such an expression: `m.x`, `getattr(m, "x")`, `hasattr(m, "x")`. A name in a variable counts
as the literals that the variable is given; where there are none, the lookup is `{variable}`.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

FINDERS = {"get_device_module", "_get_device_module", "_get_device_handle"}
NAMED = re.compile(r"_?(custom_)?device_(mod|module|handle)|_?privateuse1_backend_module")
DEVICE = re.compile(r"device|backend_name|gpu", re.I)
# A file without one of these has nothing to parse.
WORTH = re.compile(
    r"getattr\(\s*torch,|_get_device_attr|_get_custom_mod_func|"
    + "|".join(FINDERS)
    + r"|device_(mod|module|handle)\b|privateuse1_backend_module"
)
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def called(node: ast.Call) -> str:
    """Return the last part of what is called: `getattr`, `get_device_module`."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


class Reader(ast.NodeVisitor):
    """Collects the lookups of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self.scopes: list[Scope] = []
        self.modules: set[tuple[Scope | None, str]] = set()
        self.literals: dict[tuple[Scope | None, str], set[str]] = defaultdict(set)
        self.found: set[tuple[str, int]] = set()
        known = -1
        while known != (known := len(self.modules) + sum(map(len, self.literals.values()))):
            self.visit(tree)  # again: an attribute may be assigned further down

    def in_scope(self, name: str) -> Iterator[Scope | None]:
        """The scopes in which a name may have been assigned, innermost first; none further out than its parameter."""
        for scope in reversed(self.scopes):
            yield scope
            a = scope.args
            if name in {p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)}:
                return
        yield None

    def key(self, target: ast.expr) -> tuple[Scope | None, str]:
        is_local = isinstance(target, ast.Name) and self.scopes
        return (self.scopes[-1] if is_local else None), ast.unparse(target)

    def learn(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Name, ast.Attribute)):
            if self.prefix(value) == "":
                self.modules.add(self.key(target))
            self.literals[self.key(target)] |= set(self.strings(value))

    def strings(self, node: ast.expr) -> Iterator[str]:
        """The literals that an expression may be."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, (ast.List, ast.Tuple)):
            for element in node.elts:
                yield from self.strings(element)
        elif isinstance(node, ast.Name):
            for scope in self.in_scope(node.id):
                yield from self.literals.get((scope, node.id), ())
        elif isinstance(node, ast.Attribute):
            yield from self.literals.get((None, ast.unparse(node)), ())

    def prefix(self, node: ast.expr) -> str | None:
        """Return "" for a device module, "x." for its attribute x, None for anything else."""
        if isinstance(node, ast.IfExp):
            return self.prefix(node.body) if self.prefix(node.body) is not None else self.prefix(node.orelse)
        if isinstance(node, ast.Call):
            if called(node) == "getattr" and ast.unparse(node.args[0]) == "torch":
                asked = node.args[1]
                return "" if not isinstance(asked, ast.Constant) and DEVICE.search(ast.unparse(asked)) else None
            if called(node) == "cast":
                return self.prefix(node.args[-1])
            return "" if called(node) in FINDERS else None
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return None
        text = ast.unparse(node)
        scopes = self.in_scope(text) if isinstance(node, ast.Name) else (None,)
        if NAMED.fullmatch(text.split(".")[-1]) or any((scope, text) in self.modules for scope in scopes):
            return ""
        if isinstance(node, ast.Attribute) and (before := self.prefix(node.value)) is not None:
            return f"{before}{node.attr}."
        return None

    def note(self, name: str, node: ast.expr) -> None:
        if not name.startswith("__"):
            self.found.add((name, node.lineno))

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, Scope):
            self.scopes.append(node)
        super().visit(node)
        if isinstance(node, Scope):
            self.scopes.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.learn(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.learn(node.target, node.value)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.learn(node.target, node.value)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self.learn(node.target, node.iter)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if (before := self.prefix(node.value)) is not None:
            self.note(before + node.attr, node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        asked = called(node)
        if asked in ("getattr", "hasattr") and len(node.args) > 1:
            if (before := self.prefix(node.args[0])) is not None:
                for name in set(self.strings(node.args[1])) or {f"{{{ast.unparse(node.args[1])}}}"}:
                    self.note(before + name, node)
        elif asked == "_get_custom_mod_func":  # the function that looks its argument up
            for name in self.strings(node.args[0]):
                self.note(name, node)
        elif asked == "_get_device_attr":  # calls its argument, a lambda, with the module
            self.modules |= {(f, a.arg) for f in node.args if isinstance(f, ast.Lambda) for a in f.args.args}
        self.generic_visit(node)


def lookups(folder: Path) -> dict[str, dict[str, list[int]]]:
    """Return, for each attribute, the files that look it up and the lines, by reading an installed `torch`.

    `torch/testing` is left out: it holds PyTorch's own tests, which ask the devices they were written for.
    """
    found: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if name.startswith("testing/") or not WORTH.search(text := path.read_text("utf-8")):
            continue
        for attribute, line in sorted(Reader(ast.parse(text)).found):
            found[attribute].setdefault(name, []).append(line)
    return dict(sorted(found.items()))
