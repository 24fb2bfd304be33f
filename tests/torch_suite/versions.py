"""Files of tests that were written for another PyTorch: what they import and this one lacks is stood in for, and a test that
needs it skips itself; and the compiler's names of before it became a part of PyTorch are today's."""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
import types
import unittest
from collections.abc import Sequence
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


def _leniently(body: list[ast.stmt]) -> list[ast.stmt]:
    """Each name that a file imports from a module, in a statement of its own that may fail."""
    made: list[ast.stmt] = []
    for node in body:
        if not isinstance(node, ast.ImportFrom) or node.module == "__future__" or node.names[0].name == "*":
            made.append(node)
            continue
        for alias in node.names:
            name, told = alias.asname or alias.name, f"{node.module}.{alias.name}"
            one = ast.parse(f"try: pass\nexcept ImportError: {name} = __missing__({told!r})").body[0]
            one.body = [ast.ImportFrom(node.module, [alias], node.level)]
            made.append(ast.fix_missing_locations(ast.copy_location(one, node)))
    return made


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        text = self.get_data(path).decode()
        if re.search(r"^\s*(import|from) torch(dynamo|inductor)\b", text, re.MULTILINE):
            text = re.sub(r"\btorch(dynamo|inductor)\b", r"torch._\1", text)
        tree = ast.parse(text, path)
        tree.body = _leniently(tree.body)
        return compile(tree, path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds files of tests by their bare names, as they import one another."""

    def __init__(self) -> None:
        self.folders: list[Path] = []

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        for folder in self.folders if path is None else []:
            if (file := folder / f"{name}.py").exists():
                return importlib.util.spec_from_file_location(name, file, loader=_Loader(name, str(file)))
        return None


_FINDER = _Finder()


def load(file: str) -> types.ModuleType:
    """A file of tests as a module; any exception of its own."""
    builtins.__missing__ = Missing
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    path = Path(file)
    _FINDER.folders += [path.parent]
    sys.path[:0] = [str(path.parent), str(path.parents[1])]
    return importlib.import_module(path.stem)
