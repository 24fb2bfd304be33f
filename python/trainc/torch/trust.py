"""Whose code a program runs: the user's own, whose reads are followed, or a package's, whose functions depend on
their arguments alone."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

from trainc.base import PACKAGE

# Packages whose functions depend on their arguments and on settings that `signature.modes` reads, and on nothing else.
TRUSTED = frozenset(
    {"torch", "torchgen", "functorch", "trainc", "numpy", "sympy", "mpmath", "triton", "networkx", "typing_extensions", "tqdm",
     "jax", "jaxlib"}  # which models name that know several frameworks (transformers)
)
STDLIB = frozenset(sys.stdlib_module_names)
C_TRUSTED = TRUSTED | STDLIB | {"nanobind", ""}


def _homes() -> Iterator[str]:
    """Where the trusted packages lie: not always in this interpreter's own directory for packages."""
    for name in TRUSTED - {"trainc"}:
        spec = importlib.util.find_spec(name)
        if spec is not None:
            yield from (path + os.sep for path in spec.submodule_search_locations or ())
            yield spec.origin or ""
    yield PACKAGE


_HOMES = ("<frozen", *filter(None, _homes()))
STDLIB_FOLDERS = tuple({sysconfig.get_path(key) + os.sep for key in ("stdlib", "platstdlib")})
_PACKAGES = tuple(library + name + os.sep for library in STDLIB_FOLDERS for name in ("site-packages", "dist-packages"))


def is_trusted_file(path: str) -> bool:
    """Code of PyTorch, NumPy, the standard library or trainc: what it reads beside its arguments is known, or does not change."""
    return path.startswith(_HOMES) or is_stdlib(path)


def is_stdlib(path: str) -> bool:
    return path.startswith(("<frozen", *STDLIB_FOLDERS)) and not path.startswith(_PACKAGES)


def is_trusted_code(code: types.CodeType, variables: dict) -> bool:
    """`is_trusted_file`, and of code without a file (what dataclasses and torch.fx write), by the module that it belongs to."""
    path = code.co_filename
    if not path.startswith("<"):
        return is_trusted_file(path)
    return path.startswith(("<frozen", "<eval_with_key>")) or is_trusted_module(variables.get("__name__")) or _of_tuple(variables)


def _of_tuple(variables: dict) -> bool:
    """Whether code that sees these globals is what a named tuple is made by: it can reach nothing but its arguments."""
    return variables.get("_tuple_new") is tuple.__new__ and not variables.get("__builtins__", True)


def is_trusted_module(name: str | None) -> bool:
    top = str(name or "").split(".", 1)[0]
    return top in TRUSTED or top in STDLIB and top != "__main__"


def is_pythons(kind: type) -> bool:
    """Whether a class was made by a class statement: it is on the heap, can be changed, and so is what made it."""
    maker = type(kind)
    return bool(kind.__flags__ & (1 << 9)) and not kind.__flags__ & (1 << 8) and (maker is type or is_pythons(maker))


def top_package_of(function: Any) -> str:
    """The top package of a C function, or of the type whose method it is."""
    name = getattr(function, "__module__", None)
    if name is None:
        owner = getattr(function, "__self__", None)
        kind = owner if isinstance(owner, type) else type(owner)
        name = next(base.__module__ for base in kind.__mro__ if not is_pythons(base))
    return str(name).split(".", 1)[0]


__all__ = [
    "C_TRUSTED", "STDLIB", "STDLIB_FOLDERS", "TRUSTED", "is_pythons", "is_stdlib", "is_trusted_code", "is_trusted_file",
    "is_trusted_module", "top_package_of",
]  # fmt: skip
