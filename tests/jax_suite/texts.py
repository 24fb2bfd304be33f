"""Which tests jit anything, by the text of their file: half of JAX's do not, and would only take time."""

from __future__ import annotations

import ast
from pathlib import Path


class Text:
    """Of a file of tests."""

    def __init__(self, file: str):
        tree = ast.parse(Path(file).read_text())
        # by name alone: a helper is a method of the class, of one above it, or a function or a table beside it
        self._uses: dict[str, set[str]] = {}
        for node in [*tree.body, *(n for c in tree.body if isinstance(c, ast.ClassDef) for n in c.body)]:
            if isinstance(node, ast.FunctionDef):
                self._uses.setdefault(node.name, set()).update(_names(node))
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self._uses.setdefault(target.id, set()).update(_names(node.value))

    def jits(self, method: str) -> bool:
        """`method`: of a test, with what the generator of cases put behind it."""
        own = max((name for name in self._uses if method.startswith(name)), key=len, default=None)
        return own is None or self._reaches_jit(own, set())

    def _reaches_jit(self, name: str, seen: set[str]) -> bool:
        if name in seen:
            return False
        seen.add(name)
        uses = self._uses[name]
        return any("jit" in use or use == "_CompileAndCheck" for use in uses) or any(
            self._reaches_jit(use, seen) for use in uses if use in self._uses
        )


def _names(node: ast.AST) -> set[str]:
    found = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            found.add(inner.id)
        elif isinstance(inner, ast.Attribute):
            found.add(inner.attr)
        elif isinstance(inner, ast.arg | ast.keyword) and inner.arg:
            found.add(inner.arg)
    return found
