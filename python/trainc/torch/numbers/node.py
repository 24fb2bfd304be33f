"""A number, and what a comparison with it gave, as PyTorch's C++ code sees them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Protocol

import sympy

from trainc.torch.compat import SymNode
from trainc.torch.numbers.slots import Constant


class Program(Protocol):
    """Of numbers/program.py: what the numbers of one trace are derived by."""

    slots: Any

    def listens(self) -> bool:
        """Whether what is asked of a number is noted."""

    def value(self, operand: Any) -> Any:
        """What a number is now."""

    def taken(self, *operands: Any) -> None:
        """The values of these have left the trace as Python's."""

    def ask(self, function: Any, *operands: Any) -> bool:
        """The answer, which later calls must give, too."""

    def derive(self, function: Any, *operands: Any) -> Any:
        """A number that is computed of others."""

    def with_size(self, what: str) -> Exception:
        """What is raised where a number meets a symbolic size."""


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


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "pow": operator.pow,
}  # fmt: skip
COMPARISONS = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
UNARY = {"neg": operator.neg, "pos": operator.pos, "abs": operator.abs}


def _of_node(name: str) -> Callable[..., Any]:
    names = {"float_truediv": "truediv", "float_pow": "pow"}
    function = ARITHMETIC.get(names.get(name, name)) or UNARY.get(name)

    def answer(self: Node, *others: Any) -> Any:
        operands = [self.id]
        for other in others:
            if isinstance(other, Node):
                operands.append(other.id)
            elif isinstance(other, SymNode) and other.constant is not None:
                operands.append(other.constant)
            else:
                raise self.program.with_size(name)
        if name in COMPARISONS:
            return Answer(self.program.ask(COMPARISONS[name], *operands))
        if function is None:
            raise Constant(f"{name} of a number", self.program.slots)
        result = self.program.derive(function, *operands)
        return self.wrap_float(result) if type(result) is float else result.node

    return answer


for _name in {*ARITHMETIC, *COMPARISONS, *UNARY, "float_truediv", "float_pow", "sym_max", "sym_min", "floor", "ceil",
              "trunc", "round", "is_integer", "sym_sqrt"}:  # fmt: skip
    setattr(Node, _name, _of_node(_name))


__all__ = ["ARITHMETIC", "COMPARISONS", "UNARY", "Answer", "Id", "Node"]
