"""What a program may not ask where numbers change: what tells a `Number` from the float in whose place it stands.

A comparison of two traces (compare.py) finds a program that sees another type and does another thing, but not one that would do
so for other values only; and whether two floats are the same object depends on each value. So the functions that can ask are
looked for: among all that the program's code can reach (reads.Reads), under whatever name. Of functions written in C, those that
are known to do no more than arithmetic, conversions and comparisons may be there. Code that itself has `is`, `type(x)` or `id(x)`
is looked at while it runs (operands.py), where that is possible.
"""

from __future__ import annotations

import builtins
import functools
import operator
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from trainc.torch.numbers.operands import Operands, syntax
from trainc.torch.numbers.standin import MORE
from trainc.torch.trust import is_pythons, top_package_of

_C_FUNCTIONS = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)  # fmt: skip
_BUILTINS = frozenset(
    "__build_class__ abs all any ascii bin bool bytearray bytes callable chr classmethod complex delattr dict dir divmod "
    "enumerate filter float format frozenset getattr hasattr hash hex int isinstance issubclass iter len list map max min next "
    "oct ord pow print property range repr reversed round set setattr slice sorted staticmethod str super tuple vars zip".split()
) | ({"sum"} if sys.version_info < (3, 12) else set())  # from 3.12 on it adds floats otherwise than numbers of a class
_MODULES = frozenset(
    {"torch", "numpy", "math", "cmath", "itertools", "collections", "_collections", "functools", "_functools", "_operator",
     "time", "random", "_random", "re", "_warnings", "_abc", "enum", "typing", "contextvars", "_contextvars"}
)  # fmt: skip
_ASKING = (operator.is_, operator.is_not, torch.SymFloat, torch.SymInt, torch.SymBool)


def question(reads: Any, operands: Operands) -> str | None:
    """How the functions that ran could tell, in the user's terms; None where they cannot. `operands`: how they ran."""
    if reads is None:
        return None
    for value in reads.reached():
        if _asks(value):
            return f"it can call {getattr(value, '__qualname__', value)}"
    watched = operands.watched and not reads.own_backward  # which runs later
    for code, variables in reads.codes():
        if (asked := _in_code(code, variables, watched)) is not None:
            return f"{code.co_name} {asked}"
    return operands.asked or None


def _asks(value: Any) -> bool:
    if any(value is each for each in _ASKING):
        return True
    if isinstance(value, type):
        if is_pythons(value) or issubclass(value, BaseException):
            return False
        top = value.__module__.split(".")[0]
        return value.__name__ not in _BUILTINS if top == "builtins" else top not in _MODULES
    if not isinstance(value, _C_FUNCTIONS):
        return False
    bound = getattr(value, "__self__", None)
    owner = getattr(value, "__objclass__", None) or (bound if isinstance(bound, type) else type(bound))
    if owner in (object, type):
        return True
    top = top_package_of(value)
    return top not in _MODULES and not (top == "builtins" and (owner is not types.ModuleType or value.__name__ in _BUILTINS))


def _in_code(code: types.CodeType, variables: dict, watched: bool) -> str | None:
    if (attribute := _attribute(code)) is not None:
        return f"names the attribute {attribute}"
    found = syntax(code)
    if found.compares and not watched:
        return "compares by `is`"
    named = found.named if watched else found.named | found.called
    hidden = (name for name in named if name not in variables and _asks(getattr(builtins, name, None)))
    return next((f"uses {name}()" for name in hidden), None)


@functools.cache
def _attribute(code: types.CodeType) -> str | None:
    """An attribute that it names, and that a float has not."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    strings = [each for each in _flat(code.co_consts) if isinstance(each, str)]
    named = sorted(MORE.intersection((*code.co_names, *strings)))
    return next(filter(None, (*named, *map(_attribute, inner))), None)


def _flat(constants: tuple | frozenset) -> Iterator[Any]:
    for each in constants:
        if isinstance(each, (tuple, frozenset)):
            yield from _flat(each)
        else:
            yield each


__all__ = ["question"]
