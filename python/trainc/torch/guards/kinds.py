"""Kinds of objects, as the walk over what a program may read (reads.py) tells them apart."""

from __future__ import annotations

import collections
import datetime
import decimal
import dis
import enum
import fractions
import functools
import gc
import inspect
import operator
import pathlib
import re
import struct
import types
import weakref
from typing import Any

import numpy
import torch

from trainc.base.errors import NotCompiled
from trainc.base.patches import REPLACED
from trainc.torch.guards.code import about
from trainc.torch.trust import is_pythons, is_trusted_module

# Values that cannot change: they are compared by value. (Floats by their bits: 0.0 is not -0.0, and NaN is itself.)
IMMUTABLE = (
    int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
    range, slice, type(Ellipsis), type(NotImplemented), enum.Enum, re.Pattern, datetime.date, datetime.time, datetime.timedelta,
    datetime.tzinfo, decimal.Decimal, fractions.Fraction, pathlib.PurePath, numpy.generic, numpy.dtype, torch.finfo, torch.iinfo,
)  # fmt: skip


def token(value: Any) -> Any:
    """A value that cannot change, to be compared with another: equal only if no program can tell them apart."""
    kind = type(value)
    if kind is float:
        return kind, struct.pack("d", value)
    if kind is complex:
        return kind, struct.pack("dd", value.real, value.imag)
    if isinstance(value, (numpy.generic, torch.finfo, torch.iinfo, slice, datetime.tzinfo)):
        return kind, repr(value)
    return kind, value


def is_replaced(thing: Any) -> bool:
    """Whether a place holds what the trace that is going on has put there."""
    return bool(REPLACED) and type(thing) is tuple and len(thing) == 2 and (id(thing[0]), thing[1]) in REPLACED


def is_plain(value: Any) -> bool:
    """Whether a value cannot change, and nothing hangs on it."""
    kind = type(value)
    if not isinstance(value, IMMUTABLE) or not hasattr(value, "__dict__") or is_trusted_module(module_of(kind)):
        return isinstance(value, IMMUTABLE)
    return not is_pythons(kind) and not isinstance(value, enum.Enum)


def module_of(kind: Any) -> str | None:
    """The module of a class, which need not have one."""
    return getattr(kind, "__module__", None)


_WITH_CONTENTS = (list, tuple, set, frozenset, collections.deque)


def contents_of(value: Any) -> list[Any]:
    """What a list, tuple, set or deque holds, also where its class iterates otherwise."""
    return list(next(kind for kind in _WITH_CONTENTS if isinstance(value, kind)).__iter__(value))


def is_special(name: Any) -> bool:
    """Whether this is a name by which Python finds a method."""
    return isinstance(name, str) and name.startswith("__") and name.endswith("__")


def is_callable(item: Any) -> bool:
    return isinstance(item, (types.FunctionType, staticmethod, classmethod, functools.partial, functools.partialmethod))


def order(value: dict) -> tuple:
    """In which order a dictionary gives what it holds; keys that are objects are all alike."""
    return tuple(token(key) if isinstance(key, IMMUTABLE) else None for key in value)


def kept_by(path: str, cache: Any) -> tuple[dict, dict[int, Any]]:
    """The dictionary of a functools.cache, and its results by the addresses of their keys. It is C's, and only the garbage
    collector is told what is in it: (key -> result), or each key and result in a row, then (key -> link between them)."""
    inside = gc.get_referents(cache)
    table = next((item for item in inside if type(item) is dict and item is not cache.__dict__), None)
    if table is not None:
        if not any(type(link).__name__ == "_lru_list_elem" for link in table.values()):
            return table, {id(key): result for key, result in table.items()}
        inside = [item for item in inside[: next(i for i, item in enumerate(inside) if item is table)] if not is_of_cache(item)]
        results = {id(key): result for key, result in zip(inside[::2], inside[1::2], strict=False)}
        if results.keys() == set(map(id, table)):
            return table, results
    raise NotCompiled(f"`{path}` keeps its results, and trainc cannot see them")


def is_of_cache(item: Any) -> bool:
    return isinstance(item, type) and item.__name__ in ("_lru_cache_wrapper", "_lru_list_elem")


def holds_tensors(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(isinstance(item() if isinstance(item, weakref.ref) else item, torch.Tensor) for item in items)


def is_torchs(value: Any) -> bool:
    """An object of PyTorch's compiled code (an enumeration, a type, an operator), or one of ours: a step, say, that is another
    function's global, and that changes while it is traced."""
    return type(value).__module__.startswith(("torch._C", "trainc.")) or type(value).__name__ in ("pybind11_type", "OpOverload")


_CONTAINERS = (
    object, dict, list, set, frozenset, tuple, int, float, str, bytes, collections.deque, collections.OrderedDict,
    collections.defaultdict, types.SimpleNamespace,
)  # fmt: skip


def functions_of(frame: Any) -> list[types.FunctionType]:
    """The functions whose code a frame runs: the global or the method of its first argument with that name, or all that there
    are."""
    code = frame.f_code
    candidates = [frame.f_globals.get(code.co_name)]
    if code.co_varnames and (first := frame.f_locals.get(code.co_varnames[0])) is not None:
        kind = first if isinstance(first, type) else type(first)
        candidates += [base.__dict__.get(code.co_name) for base in kind.__mro__]
    for found in candidates:
        function = getattr(found, "fget", None) or getattr(found, "__func__", None) or getattr(found, "func", None) or found
        while function is not None:
            if getattr(function, "__code__", None) is code:
                return [function]
            function = getattr(function, "__wrapped__", None)
    return [f for f in gc.get_referrers(code) if type(f) is types.FunctionType and f.__code__ is code]


def code_of(value: Any) -> Any:
    """What runs where a callable object is called, as far as that is plain: the code of a function or a method, else its type."""
    function = value
    while isinstance(function, (types.MethodType, functools.partial)):
        function = function.__func__ if isinstance(function, types.MethodType) else function.func
    return getattr(function, "__code__", type(value))


def is_function(value: Any) -> bool:
    """A function of a library's compiled code that is of no ordinary type (Cython's)."""
    return callable(value) and not is_pythons(type(value)) and is_trusted_module(getattr(value, "__module__", None))


@functools.cache
def is_transparent(kind: type) -> bool:
    """Whether all that an object of this class holds lies in its attributes, its slots and, where it is one, its container."""
    for base in kind.__mro__:
        if base in _CONTAINERS or issubclass(base, BaseException) or base.__basicsize__ == 0:
            continue
        fields = sum(type(item) in (types.MemberDescriptorType, types.GetSetDescriptorType) for item in base.__dict__.values())
        if base.__basicsize__ - base.__base__.__basicsize__ > fields * struct.calcsize("P") or not is_pythons(base):
            return False
    return True


@functools.cache
def reads_itself(kind: type) -> bool:
    """Whether code that is not watched, or that computes names, reads an object's attributes: a class of the standard library's;
    one that looks attributes up itself."""
    ways = {"__getattr__", "__getattribute__"}
    return is_trusted_module(module_of(kind)) or any(
        not ways.isdisjoint(base.__dict__) for base in kind.__mro__ if not is_trusted_module(module_of(base))
    )


@functools.cache
def names_of_bases(kind: type) -> frozenset[str]:
    """Names in the code of the bases that are not the user's: UserDict's own methods read `data`."""
    found: set[str] = {"forward"} if issubclass(kind, torch.nn.Module) else set()
    for base in kind.__mro__:
        if is_trusted_module(module_of(base)) and base not in (object, torch.nn.Module):
            for item in base.__dict__.values():
                code = getattr(getattr(item, "fget", getattr(item, "__func__", item)), "__code__", None)
                if code is not None:
                    found |= about(code).names
    return frozenset(found)


@functools.cache
def methods_of(kind: type) -> dict[types.CodeType, type]:
    """The code of a class's methods, whatever wraps them, and the class that defines each."""
    found: dict[types.CodeType, type] = {}
    for base in kind.__mro__:
        for item in base.__dict__.values():
            for each in (item.fget, item.fset) if isinstance(item, property) else (item,):
                code = getattr(inspect.unwrap(getattr(each, "__func__", each)), "__code__", None)
                if code is not None:
                    found.setdefault(code, base)
    return found


@functools.cache
def set_later(kind: type) -> frozenset[str]:
    """The attributes that methods of a class set after `__init__`: of a scheduler what is another at each step."""
    every = [code for code in methods_of(kind) if code.co_name != "__init__"]
    return frozenset(i.argval for code in every for i in dis.get_instructions(code) if i.opname == "STORE_ATTR")


@functools.cache
def names_of_users(kind: type) -> frozenset[str]:
    """Names in the code of a class's methods that are the user's."""
    own = [code for code, base in methods_of(kind).items() if not is_trusted_module(module_of(base))]
    return frozenset().union(*(about(code).names for code in own))


def names_in(getter: operator.attrgetter | operator.methodcaller) -> set[str]:
    """The attributes that it asks for."""
    make, arguments = getter.__reduce__()
    names = (*arguments, *getattr(make, "args", ()))  # with keywords it is made by a functools.partial
    return {part for name in names if isinstance(name, str) for part in name.split(".")}


def slot_names(kind: type) -> list[str]:
    return [
        key for base in kind.__mro__ for key, item in base.__dict__.items()
        if type(item) is types.MemberDescriptorType and is_pythons(base) and key not in ("__dict__", "__weakref__")
    ]  # fmt: skip


def is_number(told: Any) -> bool:
    return type(told) is tuple and told[0] in (float, "number")


__all__ = [
    "IMMUTABLE",
    "code_of",
    "contents_of",
    "functions_of",
    "holds_tensors",
    "is_callable",
    "is_function",
    "is_number",
    "is_of_cache",
    "is_plain",
    "is_replaced",
    "is_special",
    "is_torchs",
    "is_transparent",
    "kept_by",
    "methods_of",
    "module_of",
    "names_in",
    "names_of_bases",
    "names_of_users",
    "order",
    "reads_itself",
    "set_later",
    "slot_names",
    "token",
]
