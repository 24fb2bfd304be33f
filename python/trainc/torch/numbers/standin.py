"""What stands in a number's place while the program is traced."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.fx.node import map_aggregate

from trainc.base import errors
from trainc.torch import compat
from trainc.torch.compat import SymNode
from trainc.torch.numbers.slots import Constant

if TYPE_CHECKING:
    from trainc.torch.numbers.program import Program


class Id(int):
    """A number of a program."""


class Node(SymNode):
    """A number as PyTorch's C++ code sees it."""

    def __init__(self, program: Program, id_: Id, value: float):
        super().__init__(sympy.Symbol(f"number_{int(id_)}"), None, float, value)
        self.program, self.id = program, id_
        self.original: Any = value  # the very object in whose place it stands

    @property
    def expr(self) -> Any:
        return self._expr

    def _graph_repr(self) -> str:
        return f"number_{int(self.id)}"

    __str__ = __repr__ = str = _graph_repr

    def clone(self) -> Node:
        return self

    def is_symbolic(self) -> bool:
        return True

    def has_hint(self) -> bool:
        return True

    def maybe_as_float(self) -> float | None:  # to other threads it is a number like any other
        return None if self.program.listens() else self.program.value(self.id)

    def maybe_as_int(self) -> None:
        return None

    maybe_as_bool = maybe_as_int

    def nested_int(self) -> None:
        return None

    def taken(self) -> float:
        self.program.taken(self.id)
        return self.program.value(self.id)

    def guard_float(self, _file: Any, _line: Any) -> float:
        return self.taken()

    def guard_int(self, _file: Any, _line: Any) -> int:
        return int(self.taken())

    def guard_bool(self, _file: Any, _line: Any) -> bool:
        return self.program.ask(operator.ne, self.id, 0.0)

    def bool_(self) -> bool:
        return self.guard_bool("", 0)

    def int_(self) -> int:
        return int(self.taken())

    def sym_float(self) -> Node:
        return self


class Answer(SymNode):
    """What a comparison gave, to PyTorch's C++ code."""

    def __init__(self, outcome: bool):
        super().__init__(sympy.true if outcome else sympy.false, None, bool, outcome, constant=outcome)

    @property
    def expr(self) -> Any:
        return self._expr

    def _known(self, *_: Any) -> bool:
        return bool(self.constant)

    guard_bool = bool_ = guard_or_false = guard_or_true = expect_true = guard_size_oblivious = statically_known_true = _known
    maybe_as_bool = _known


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "pow": operator.pow,
}  # fmt: skip
_COMPARISONS = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
_UNARY = {"neg": operator.neg, "pos": operator.pos, "abs": operator.abs}


def _of_node(name: str) -> Callable[..., Any]:
    names = {"float_truediv": "truediv", "float_pow": "pow"}
    function = _ARITHMETIC.get(names.get(name, name)) or _UNARY.get(name)

    def answer(self: Node, *others: Any) -> Any:
        operands = [self.id]
        for other in others:
            if isinstance(other, Node):
                operands.append(other.id)
            elif isinstance(other, SymNode) and other.constant is not None:
                operands.append(other.constant)
            else:
                raise self.program.with_size(name)
        if name in _COMPARISONS:
            return Answer(self.program.ask(_COMPARISONS[name], *operands))
        if function is None:
            raise Constant(f"{name} of a number", self.program.slots)
        result = self.program.derive(function, *operands)
        return result.node if type(result) is Number else self.wrap_float(result)

    return answer


for _name in {*_ARITHMETIC, *_COMPARISONS, *_UNARY, "float_truediv", "float_pow", "sym_max", "sym_min", "floor", "ceil",
              "trunc", "round", "is_integer", "sym_sqrt"}:  # fmt: skip
    setattr(Node, _name, _of_node(_name))

_TORCH = tuple(os.path.dirname(os.path.abspath(module.__file__)) + os.sep for module in (torch, sympy, errors))
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


for _name, _function in _ARITHMETIC.items():
    setattr(Number, f"__{_name}__", _binary(pow if _name == "pow" else _function, False))
    setattr(Number, f"__r{_name}__", _binary(_function, True))
for _name, _function in _COMPARISONS.items():
    setattr(Number, f"__{_name}__", _binary(_function, False, asks=True))
for _name, _function in _UNARY.items():
    setattr(Number, f"__{_name}__", lambda self, f=_function: self.node.program.derive(f, self.node.id))
for _name in ("__float__", "__int__", "__trunc__", "__floor__", "__ceil__", "__round__", "__divmod__", "__rdivmod__", "__hash__",
              "__format__", "__str__", "__repr__", "__reduce__", "__reduce_ex__", "__getnewargs__", "__sizeof__", "hex",
              "is_integer", "as_integer_ratio"):  # fmt: skip
    setattr(Number, _name, _taking(_name))
Number.__complex__ = lambda self: complex(self.node.taken())


def original(value: Any) -> Any:
    """What the program has where a trace put `value`."""
    return value.node.original if type(value) is Number else value


__all__ = ["MORE", "Id", "Node", "Number", "original"]
