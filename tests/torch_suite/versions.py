"""A file of tests that was written for another PyTorch: what it imports and this one lacks is stood in for, and a test that needs
it skips itself."""

from __future__ import annotations

import ast
import sys
import types
import unittest
from pathlib import Path
from typing import Any


class Missing:
    """A name that PyTorch lacks: as a decorator it skips the test."""

    def __init__(self, name: str):
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], (types.FunctionType, type)):
            return unittest.skip(f"this PyTorch has no {self._name}")(args[0])
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise unittest.SkipTest(f"this PyTorch has no {self._name}")

    def __bool__(self) -> bool:
        return False


class _Lenient(ast.NodeTransformer):
    """Each name that the file itself imports from a module, in a statement of its own that may fail."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        if node.module == "__future__":
            return node
        return [self._one(node, alias) for alias in node.names]

    def _one(self, node: ast.ImportFrom, alias: ast.alias) -> ast.Try:
        name = alias.asname or alias.name
        found = ast.parse(f"try: pass\nexcept ImportError: {name} = __missing__({f'{node.module}.{alias.name}'!r})").body[0]
        found.body = [ast.ImportFrom(node.module, [alias], node.level)]
        return ast.fix_missing_locations(ast.copy_location(found, node))


def load(file: str) -> types.ModuleType:
    path = Path(file)
    tree = ast.parse(path.read_text(), file)
    tree.body = [_Lenient().visit(node) if isinstance(node, ast.ImportFrom) else node for node in tree.body]
    tree.body = [node for one in tree.body for node in (one if isinstance(one, list) else [one])]
    module = types.ModuleType(path.stem)
    module.__file__, module.__missing__ = file, Missing
    sys.modules[path.stem] = module  # classes are found again by their module
    sys.path[:0] = [str(path.parent), str(path.parents[1])]
    exec(compile(tree, file, "exec"), module.__dict__)
    return module
