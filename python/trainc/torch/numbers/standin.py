"""What stands in a number's place while the program is traced."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch.fx.node import map_aggregate

from trainc.base import PACKAGE
from trainc.torch import compat
from trainc.torch.numbers.node import ARITHMETIC, COMPARISONS, UNARY, Node

_TORCH = (*(os.path.dirname(os.path.abspath(module.__file__)) + os.sep for module in (torch, sympy)), PACKAGE)
_ABSTRACT = ("abc.py", "<frozen abc>")
_OF_FLOATS = frozenset(dir(float))


class Number(torch.SymFloat):
    """A number as the program sees it: to all its questions it answers as the float that it stands for."""

    def __init__(self, node: Node):
        self.node = node

    @property
    def __class__(self) -> type:
        """To isinstance() in the program it is a float, in PyTorch what it is."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.endswith(_ABSTRACT):
            frame = frame.f_back
        return torch.SymFloat if _is_torchs(frame) else float

    @property
    def __dict__(self) -> dict:
        raise AttributeError("'float' object has no attribute '__dict__'")

    def __dir__(self) -> list[str]:
        return dir(float)

    def __getattr__(self, name: str) -> Any:  # what it has not, and a float has
        if name in _OF_FLOATS:
            return getattr(self.node.taken(), name)
        raise AttributeError(f"'float' object has no attribute '{name}'")

    @property
    def __torch_function__(self) -> Callable[..., Any]:
        """PyTorch takes a SymFloat for NaN where it is a tensor's operand and nobody traces: to other threads it is a float."""
        return compat.no_torch_function if self.node.program.listens() else _with_values

    @property
    def real(self) -> Number:
        return self

    @property
    def imag(self) -> float:
        return 0.0

    def conjugate(self) -> Number:
        return self

    def __bool__(self) -> bool:
        return self.node.bool_()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        import numpy

        return numpy.asarray(self.node.taken(), *args)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(function, method)(*map(_plain, inputs), **kwargs)


def _with_values(function: Callable[..., Any], _types: Any, args: Any = (), kwargs: Any = None) -> Any:
    return function(*map_aggregate(args, _plain), **map_aggregate(kwargs or {}, _plain))


# Attributes that tell it from a float.
MORE = frozenset(dir(torch.SymFloat)) | vars(Number).keys() | {"node"}
MORE = MORE - _OF_FLOATS - {"__dict__", "__dir__", "__module__", "__weakref__", "__getattr__"}


def _plain(value: Any) -> Any:
    return value.node.taken() if type(value) is Number else value


def _binary(function: Callable[..., Any], swapped: bool, asks: bool = False) -> Callable[..., Any]:
    def operation(self: Number, other: Any, *rest: Any) -> Any:
        program = self.node.program
        if rest or type(other) is not Number and not isinstance(other, (int, float)):
            if isinstance(other, (torch.SymInt, torch.SymFloat)):
                raise program.with_size(function.__name__)
            if isinstance(other, complex) or rest:
                value = self.node.taken()
                return function(*((other, value) if swapped else (value, other)), *rest)
            return NotImplemented
        operand = other if type(other) is not Number else other.node.id if other.node.program is program else _plain(other)
        operands = (operand, self.node.id) if swapped else (self.node.id, operand)
        return program.ask(function, *operands) if asks else program.derive(function, *operands)

    return operation


def _is_torchs(frame: Any) -> bool:
    return frame is None or frame.f_code.co_filename.startswith(_TORCH)


def _taking(name: str) -> Callable[..., Any]:
    tells = name in ("__format__", "__str__", "__repr__")  # in PyTorch's messages it has a name

    def method(self: Number, *args: Any) -> Any:
        if tells and self.node.program.listens() and _is_torchs(sys._getframe(1)):
            return self.node.str()
        return getattr(self.node.taken(), name)(*map(_plain, args))

    return method


for _name, _function in ARITHMETIC.items():
    setattr(Number, f"__{_name}__", _binary(pow if _name == "pow" else _function, False))
    setattr(Number, f"__r{_name}__", _binary(_function, True))
for _name, _function in COMPARISONS.items():
    setattr(Number, f"__{_name}__", _binary(_function, False, asks=True))
for _name, _function in UNARY.items():
    setattr(Number, f"__{_name}__", lambda self, f=_function: self.node.program.derive(f, self.node.id))
for _name in ("__float__", "__int__", "__trunc__", "__floor__", "__ceil__", "__round__", "__divmod__", "__rdivmod__", "__hash__",
              "__format__", "__str__", "__repr__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__sizeof__", "hex",
              "is_integer", "as_integer_ratio"):  # fmt: skip
    setattr(Number, _name, _taking(_name))
Number.__complex__ = lambda self: complex(self.node.taken())


def original(value: Any) -> Any:
    """What the program has where a trace put `value`."""
    return value.node.original if type(value) is Number else value


__all__ = ["MORE", "Number", "original"]
