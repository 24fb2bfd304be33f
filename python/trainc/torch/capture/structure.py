"""Arguments and results as tensors plus the structure around them.

A structure is a nested tuple, hashable where its constants are, and therefore part of a call's signature:
    ("tensor", i)                          the i-th distinct tensor: the same tensor twice has one index
    ("const", type, value)                      two are equal where type and bits are: `constant`
    ("number", type, path)                      a number that changes, which is no part of the structure (numbers/)
    ("node", type, context, children)      a pytree node: list, dict, dataclass, Hugging Face's ModelOutput
                                           (of a dict whose keys are not all strings: and the keys' types)
    ("object", type, names, children)      any other object that was made by the program, by its attributes (results only)
    ("copy", type, value)                  an array that was made by the program: each call gives one of its own (results only)
"""

from __future__ import annotations

import array
import copy
import enum
import types
from collections.abc import Callable
from typing import Any

import numpy
import torch

from trainc.base.errors import NotCompiled
from trainc.torch.compat import OpOverload, OpOverloadPacket, node_type, pytree
from trainc.torch.guards.kinds import IMMUTABLE, is_transparent, slot_names
from trainc.torch.numbers import Number, Program
from trainc.torch.run.deferred import plain
from trainc.torch.trust import is_trusted_file

CONSTANTS = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
             torch.Size, enum.Enum, type(Ellipsis), slice, range)  # fmt: skip


_CONTAINERS = (dict, list, tuple, set, frozenset, BaseException)
_LASTING = (*IMMUTABLE, type, types.ModuleType, types.BuiltinFunctionType, OpOverload, OpOverloadPacket)


class Flattener:
    """`known`, of results: whether an object was there before the program ran, and is given as it is. What the program makes is
    made anew for each call."""

    def __init__(self, known: Callable[[Any], bool] | None = None):
        self.tensors: list[torch.Tensor] = []
        self._index: dict[int, int] = {}
        self._known = known
        self._path: list[int] = []  # ids of the objects being flattened: a cycle is refused

    def flatten(self, value: Any) -> tuple:
        if isinstance(value, torch.Tensor):
            value = plain(value)
            index = self._index.get(id(value))
            if index is None:
                index = self._index[id(value)] = len(self.tensors)
                self.tensors.append(value)
            return ("tensor", index)
        kind = type(value)
        if kind is tuple or kind is list:
            return ("node", kind, None, tuple([self.flatten(item) for item in value]))
        if kind is dict:
            keys, children = tuple(value), tuple([self.flatten(item) for item in value.values()])
            plain_keys = all(type(key) is str for key in keys)
            return ("node", kind, keys, children) if plain_keys else ("node", kind, keys, children, tuple(map(exact, keys)))
        if kind is Number:
            return self._number(value)
        if isinstance(value, CONSTANTS):
            return constant(kind, value)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise NotCompiled("the result holds a size as a number")  # another one for other sizes
        registered = node_type(value)
        if registered in pytree.SUPPORTED_NODES:
            children, context = pytree.SUPPORTED_NODES[registered].flatten_fn(value)
            return ("node", registered, Context(context), tuple([self.flatten(child) for child in children]))
        if self._known is None:
            raise NotCompiled(f"an argument is a {kind.__qualname__}, which is not made of tensors, numbers and containers")
        return self._flatten_object(value)

    def _number(self, value: Number) -> tuple:
        path = value.node.program.path_of(value)
        if path is None or self._known is not None:
            return constant(float, value.node.taken())
        return ("number", float, path)

    def _flatten_object(self, value: Any) -> tuple:
        if id(value) in self._path:
            raise NotCompiled(f"the result holds a {type(value).__qualname__} that contains itself")
        kind = type(value)
        if self._stays(value):
            return ("const", kind, value)
        if kind is set or kind is frozenset:
            return ("node", kind, None, tuple([self.flatten(item) for item in value]))
        if isinstance(value, numpy.ndarray) and not value.dtype.hasobject or kind in (bytearray, array.array):
            return ("copy", kind, copy.copy(value))
        if not is_transparent(kind) or isinstance(value, (torch.nn.Module, *_CONTAINERS)):
            raise NotCompiled(f"the result holds a {kind.__qualname__}, which no later call could make again")
        attributes = {name: getattr(value, name) for name in slot_names(kind) if hasattr(value, name)}
        attributes |= getattr(value, "__dict__", {})
        self._path.append(id(value))
        children = tuple([self.flatten(child) for child in attributes.values()])
        self._path.pop()
        return ("object", kind, tuple(attributes), children)

    def _stays(self, value: Any) -> bool:
        """Whether it is the same at every call: it cannot change, or was there before."""
        if isinstance(value, types.MethodType):
            return self._stays(value.__self__)
        if isinstance(value, types.FunctionType):
            return self._known(value) or is_trusted_file(value.__code__.co_filename) and not value.__closure__
        return isinstance(value, _LASTING) or self._known(value)


_SAME_NUMBERS: dict[tuple, Any] = {}  # of NaN, which is not equal to itself: the one that stands for all


def constant(kind: type, value: Any) -> tuple:
    """A plain value, so that equal structures mean equal bits: for Python 0.0 == -0.0, and NaN is nobody's equal."""
    if isinstance(value, complex) or isinstance(value, float) and not (value and value == value):
        text = repr(value)
        return ("const", (kind, text), value if value == value else _SAME_NUMBERS.setdefault((kind, text), value))
    return ("const", kind, value)


def exact(key: Any) -> Any:
    """A dictionary's key, so that equal means the same: 1, True and 1.0 are one key for Python, but not for forward."""
    if isinstance(key, tuple):
        return (type(key), *map(exact, key))
    return (type(key), repr(key)) if isinstance(key, (int, float, complex)) else key


class Context:
    """A pytree node's context, compared by value."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and self.value == other.value and repr(self.value) == repr(other.value)  # 1, True

    def __hash__(self) -> int:
        return hash(repr(self.value))


def unflatten(structure: tuple, tensors: list[Any], numbers: Program | None = None) -> Any:
    kind, what = structure[0], structure[1]
    if kind == "tensor":
        return tensors[what]
    if kind == "const":
        return structure[2]
    if kind == "copy":
        return copy.copy(structure[2])
    if kind == "number":
        return numbers.argument(structure[2])
    children = [unflatten(child, tensors, numbers) for child in structure[3]]
    if kind == "object":
        value = what.__new__(what)
        slots = slot_names(what)
        for name, child in zip(structure[2], children, strict=True):
            if name in slots:
                object.__setattr__(value, name, child)
            else:
                value.__dict__[name] = child
        return value
    if what is tuple:
        return tuple(children)
    if what is list:
        return children
    if what is set or what is frozenset:
        return what(children)
    if what is dict:
        return dict(zip(structure[2], children, strict=True))
    return pytree.SUPPORTED_NODES[what].unflatten_fn(children, structure[2].value)


def describe(structure: tuple, tensors: list[torch.Tensor], name: str = "") -> list[str]:
    """The tensors of a call in the user's terms: ["input_ids i64[4, 256]", ...]."""
    from trainc.torch.graph.wire import dtype_name

    if structure[0] == "tensor":
        tensor = tensors[structure[1]]
        return [f"{name or 'argument'} {dtype_name(tensor.dtype)}{list(tensor.shape)}"]
    if structure[0] == "const":
        return [f"{name or 'argument'}={structure[2]!r}"]
    if structure[0] == "number":
        return [f"{name or 'argument'}: any number"]
    names = structure[2] if isinstance(structure[2], tuple) else range(len(structure[3]))
    found = []
    for key, child in zip(names, structure[3], strict=False):
        found += describe(child, tensors, f"{name}[{key!r}]" if name else str(key))
    return found


def leaves(structure: tuple, tensors: list[torch.Tensor], name: str = "") -> dict[str, tuple]:
    """A call's tensors and plain values by name: ("tensor", dtype, shape, strides, requires_grad, device) or
    ("value", value, type)."""
    from trainc.torch.graph.wire import dtype_name

    if structure[0] == "tensor":
        t = tensors[structure[1]]
        return {name: ("tensor", dtype_name(t.dtype), tuple(t.shape), t.stride(), t.requires_grad, str(t.device))}
    if structure[0] == "const":
        return {name: ("value", structure[2], structure[1])}
    if structure[0] == "number":
        return {name: ("number",)}
    names = structure[2] if isinstance(structure[2], tuple) else range(len(structure[3]))
    found: dict[str, tuple] = {}
    for key, child in zip(names, structure[3], strict=False):
        found |= leaves(child, tensors, f"{name}[{key!r}]" if name else str(key))
    return found


def changes(old: dict[str, tuple], new: dict[str, tuple]) -> list[str]:
    """What makes one call another, in the user's terms: ["dimension 1 of `input_ids` changed from 128 to 96"]."""
    told = [f"`{name}` is not given any more" for name in old if name not in new]
    for name, leaf in new.items():
        if name not in old:
            told.append(f"`{name}` is given for the first time")
        elif old[name] != leaf:
            told += _leaf_changes(name, old[name], leaf)
    return told


def _leaf_changes(name: str, old: tuple, new: tuple) -> list[str]:
    if new[0] == "number":
        return [f"`{name}` is an input from now on: further values are not compiled again"]
    if old[0] != new[0]:
        return [f"`{name}` changed from a {old[0]} to a {new[0]}"]
    if new[0] == "value":
        return [f"`{name}` changed from {old[1]!r} to {new[1]!r}"]
    (_, old_dtype, old_shape, old_strides, _, old_device), (_, dtype, shape, strides, gradient, device) = old, new
    if len(old_shape) != len(shape):
        return [f"`{name}` changed from {len(old_shape)} to {len(shape)} dimensions"]
    told = [f"`{name}` changed from {old_dtype} to {dtype}"] if old_dtype != dtype else []
    for i, (before, size) in enumerate(zip(old_shape, shape, strict=True)):
        if before != size:
            told.append(f"dimension {i} of `{name}` changed from {before} to {size}")
    if old_device != device:
        told.append(f"`{name}` moved from {old_device} to {device}")
    if old_shape == shape and old_strides != strides:
        told.append(f"the strides of `{name}` changed from {old_strides} to {strides}")
    return told or [f"`{name}` requires {'a' if gradient else 'no'} gradient now"]
