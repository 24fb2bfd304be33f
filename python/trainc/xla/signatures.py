"""Signatures of calls in the user's terms, and in what two of them differ."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable
from typing import Any

from trainc.base import messages

SHOWN = 8  # arrays of a signature's text


@dataclasses.dataclass(frozen=True)
class Leaf:
    dtype: str
    shape: tuple[int, ...]
    weak: bool = False

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}" + (", weakly typed" if self.weak else "")


@dataclasses.dataclass(frozen=True)
class Signature:
    arrays: dict[str, Leaf]  # by name: "state['w1']"
    static: dict[str, str]

    def __str__(self) -> str:
        told = [f"{name} {leaf}" for name, leaf in self.arrays.items()]
        more = [f"and {len(told) - SHOWN} more arrays"] if len(told) > SHOWN else []
        return ", ".join([*told[:SHOWN], *more, *(f"{name}={value}" for name, value in self.static.items())])

    def differs_from(self, other: Signature) -> str:
        """In what, the first difference of each kind."""
        for name, leaf in self.arrays.items():
            before = other.arrays.get(name)
            if before is not None and before != leaf:
                return _change(name, before, leaf)
        for name, value in self.static.items():
            if other.static.get(name) != value:
                return f"static argument `{name}` changed from {other.static.get(name)} to {value}"
        if self.arrays.keys() != other.arrays.keys():
            names = sorted(self.arrays.keys() ^ other.arrays.keys())
            return f"the structure of the arguments changed: `{names[0]}`" + (" and others" if len(names) > 1 else "")
        return "the framework's configuration changed"


def of(function: Callable, args: tuple, kwargs: dict[str, Any], arrays_of: Callable[[Any], dict[str, Leaf] | None]) -> Signature:
    """Of a call that is traced. `arrays_of`: the arrays of an argument by where they lie in it, "['w1']"; None of an argument
    that holds none, and is static."""
    arrays: dict[str, Leaf] = {}
    static: dict[str, str] = {}
    for name, value in _named(function, args, kwargs).items():
        found = arrays_of(value)
        if found is None:
            static[name] = repr(value)[:80]
        arrays.update((name + path, leaf) for path, leaf in (found or {}).items())
    return Signature(arrays, static)


class Seen:
    """The signatures that one function was compiled for."""

    def __init__(self) -> None:
        self._all: list[Signature] = []
        self._lock = threading.Lock()

    def recompiled(self, name: str, signature: Signature) -> str:
        """In what it differs from those before it, and says so; "" for the first, and for one that the framework has
        forgotten."""
        with self._lock:
            earlier = list(self._all)
            self._all.append(signature)
        if not earlier or signature in earlier:
            return ""
        why = signature.differs_from(nearest(signature, earlier))
        messages.recompiled(name, why)
        return why


def nearest(signature: Signature, earlier: list[Signature]) -> Signature:
    """The one of `earlier` that differs in the fewest arrays; the latest of equals."""

    def differences(other: Signature) -> int:
        return sum(other.arrays.get(name) != leaf for name, leaf in signature.arrays.items())

    return min(reversed(earlier), key=differences)


def arguments_of(batch: Any) -> tuple[tuple, dict[str, Any]]:
    """Of a call, as `trainc.explain` is given one: a tuple of arguments, a dict of keywords, or one argument."""
    if isinstance(batch, dict):
        return (), batch
    return (batch if isinstance(batch, tuple) else (batch,)), {}


def _named(function: Callable, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    try:
        return inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # a function without a signature
        return {**{f"argument {i}": value for i, value in enumerate(args)}, **kwargs}


def _change(name: str, before: Leaf, now: Leaf) -> str:
    if before.dtype != now.dtype:
        return f"the dtype of `{name}` changed from {before.dtype} to {now.dtype}"
    if before.weak != now.weak:
        return f"`{name}` {'is' if now.weak else 'is no longer'} weakly typed"
    moved = [d for d, (b, n) in enumerate(zip(before.shape, now.shape, strict=False)) if b != n]
    if len(before.shape) != len(now.shape) or len(moved) > 1:
        return f"the shape of `{name}` changed from {list(before.shape)} to {list(now.shape)}"
    return f"dimension {moved[0]} of `{name}` changed from {before.shape[moved[0]]} to {now.shape[moved[0]]}"


__all__ = ["Leaf", "Seen", "Signature", "arguments_of", "nearest", "of"]
