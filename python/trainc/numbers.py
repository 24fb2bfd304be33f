"""Numbers that change: a float that the program reads from an attribute, a global or an argument, and that has had several
values, is an input of what is compiled from then on (docs/capture.md, "Numbers that change").

While the program is traced a `Number` stands in its place. Python's own arithmetic with it is remembered (`Program`) and done
again, by Python, for each later value; what Python asks of it (`if beta > 0.5`) is a guard; whatever needs its value in any other
way makes it a constant.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
import struct
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.sym_node import SymNode
from torch.fx.node import map_aggregate

from trainc.errors import NotCompiled

ROOM = 32  # numbers that one plan takes: those that are given, and those that Python computes of them
TRIES = 4  # traces of a number that could not be compared with one of another value
aten = torch.ops.aten


class Constant(NotCompiled):
    """Some numbers must be constants after all. `again`: only for this call."""

    def __init__(self, message: str, slots: Sequence[Slot], again: bool = False):
        super().__init__(message)
        self.slots, self.again = list(slots), again


# ---- where numbers are ------------------------------------------------------------------------------------------------


class Slot:
    """A place of the program's state that holds a float: (dictionary, key), (list, index), (object, slot) or a cell; or an
    argument, by its path within the arguments' structure."""

    __slots__ = ("container", "given", "key", "path", "state", "tries")

    def __init__(self, container: Any, key: Any, path: tuple | None = None, given: Any = None):
        self.container, self.key, self.path, self.given = container, key, path, given
        # "new"; "seen" with a second value; "moving": an input from now on; "fixed": a constant for good
        self.state, self.tries = "new", 0

    def holds(self, container: Any, key: Any) -> bool:
        return self.path is None and self.container is container and self.key == key

    def get(self) -> Any:
        thing, key = self.container, self.key
        try:
            if self.path is not None:
                return self.given.values.get(self.path)
            if isinstance(thing, dict):
                return dict.get(thing, key)
            if isinstance(thing, list):
                return list.__getitem__(thing, key)
            return thing.cell_contents if isinstance(thing, types.CellType) else getattr(thing, key)
        except (AttributeError, IndexError, ValueError):
            return None

    def put(self, value: Any) -> None:
        thing = self.container
        if isinstance(thing, dict):
            dict.__setitem__(thing, self.key, value)
        elif isinstance(thing, list):
            list.__setitem__(thing, self.key, value)
        elif isinstance(thing, types.CellType):
            thing.cell_contents = value
        else:
            object.__setattr__(thing, self.key, value)


class _Given(threading.local):
    """The numbers among the arguments of the call that is going on in this thread, by their paths."""

    def __init__(self) -> None:
        self.values: dict[tuple, float] = {}


class Registry:
    """The numbers of one compiled call that were seen to change."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self._given = _Given()
        self.moving: list[Slot] = []
        self.paused = False  # no number becomes an input in the call that is going on
        self._arguments: list[Slot] = []

    def of_place(self, container: Any, key: Any) -> Slot:
        found = next((slot for slot in self.slots if slot.holds(container, key)), None)
        return found or self._added(Slot(container, key))

    def of_argument(self, path: tuple) -> Slot:
        found = next((slot for slot in self.slots if slot.path == path), None)
        return found or self._added(Slot(None, None, path, self._given))

    def _added(self, slot: Slot) -> Slot:
        self.slots.append(slot)
        self.set([], "")
        return slot

    def set(self, slots: Sequence[Slot], state: str) -> None:
        for slot in slots:
            slot.state = state
        self.moving = [slot for slot in self.slots if slot.state == "moving"]
        self._arguments = [slot for slot in self.slots if slot.path is not None]

    def refuse(self, reason: Constant) -> None:
        self.paused = reason.again
        for slot in reason.slots:
            slot.tries += 1
            self.set([slot], "seen" if reason.again and slot.tries < TRIES else "fixed")

    def without_numbers(self, structure: tuple) -> tuple:
        """`structure` of the arguments with moving numbers in the place of their values, which are remembered for this thread."""
        if not self._arguments:
            return structure
        values: dict[tuple, float] = {}
        for slot in self._arguments:
            replaced = _replaced(structure, slot.path, 0, slot.path, values)
            structure = replaced if slot.state == "moving" else structure
        self._given.values = values
        return structure

    def active(self) -> list[Slot]:
        return [slot for slot in self.moving if type(slot.get()) is float]


def _replaced(structure: tuple, rest: tuple, depth: int, path: tuple, values: dict[tuple, float]) -> tuple:
    if depth == len(rest):
        if structure[0] != "const" or type(structure[2]) is not float:
            return structure
        values[path] = structure[2]
        return ("number", float, path)
    if structure[0] != "node" or rest[depth] >= len(structure[3]):
        return structure
    i, children = rest[depth], structure[3]
    child = _replaced(children[i], rest, depth + 1, path, values)
    return (*structure[:3], (*children[:i], child, *children[i + 1 :]), *structure[4:])


def differing(old: Any, new: Any, path: tuple = ()) -> list[tuple] | None:
    """The paths at which two structures of arguments have other floats; None where they differ in anything else."""
    if old == new:
        return []
    if old[0] != "node" and new[0] != "node":
        return [path] if all(s[0] == "number" or s[0] == "const" and type(s[2]) is float for s in (old, new)) else None
    if old[0] != "node" or new[0] != "node" or len(old) != len(new) or len(old[3]) != len(new[3]):
        return None
    if old[:3] != new[:3] or old[4:] != new[4:]:
        return None
    found: list[tuple] = []
    for i, (a, b) in enumerate(zip(old[3], new[3], strict=True)):
        inner = differing(a, b, (*path, i))
        if inner is None:
            return None
        found += inner
    return found


# ---- what is computed of them -----------------------------------------------------------------------------------------


class _Id(int):
    """A number of a program."""


class Program:
    """What Python does with the numbers of one trace: what it computes of them, and what it asks (`guards`)."""

    def __init__(self, slots: Sequence[Slot], prints: Sequence[Print] = ()):
        self.slots, self.prints = list(slots), list(prints)
        self.values: list[float] = [slot.get() for slot in slots]
        self.made: list[tuple[Callable[..., Any], tuple]] = []
        self.guards: list[tuple[Callable[..., Any], tuple, bool]] = []
        self.constants: set[int] = set()  # numbers that are given, and whose value was taken
        self.inputs: list[int] = []  # numbers that the graph takes, in the order in which they lie in its input
        self._known: dict[tuple, Any] = {}
        self._asked: set[tuple] = set()
        self.numbers = [self._number(i) for i in range(len(self.values))]
        self.vector: int = -1  # the place of that input among the graph's
        self.mixed = False  # whether it computes of numbers and of symbolic sizes together
        self.codes: Callable[[], Sequence[types.CodeType]] = list  # the functions that ran
        self.text = ""  # the fingerprint of its graph, with these values as constants

    def _number(self, i: int) -> Number:
        return Number(Node(self, _Id(i), self.values[i]))

    def take(self, *operands: Any) -> None:
        """The values of these numbers are in the trace from now on."""
        for each in operands:
            if type(each) is _Id:
                if each < len(self.slots):
                    self.constants.add(int(each))
                else:
                    self.take(*self.made[each - len(self.slots)][1])

    def value(self, operand: Any) -> Any:
        return self.values[operand] if type(operand) is _Id else operand

    def derive(self, function: Callable[..., Any], *operands: Any) -> Any:
        key = (function, *map(_token, operands))
        if (known := self._known.get(key)) is not None:
            return known
        try:
            result = function(*map(self.value, operands))
        except Exception:  # the program may catch it
            self.take(*operands)
            raise
        if type(result) is not float:
            self.take(*operands)
            return result
        self.made.append((function, operands))
        self.values.append(result)
        self._known[key] = number = self._number(len(self.values) - 1)
        return number

    def ask(self, function: Callable[..., Any], *operands: Any) -> bool:
        outcome = function(*map(self.value, operands))
        key = (function, *map(_token, operands))
        if key not in self._asked:
            self._asked.add(key)
            self.guards.append((function, operands, outcome))
        return outcome

    def run(self, given: Sequence[float]) -> list[float] | None:
        """All numbers for these given ones; None where the trace does not hold for them."""
        values = list(given)
        try:
            for function, operands in self.made:
                result = function(*[values[each] if type(each) is _Id else each for each in operands])
                if type(result) is not float:
                    return None
                values.append(result)
            for function, operands, outcome in self.guards:
                if function(*[values[each] if type(each) is _Id else each for each in operands]) is not outcome:
                    return None
        except (ArithmeticError, ValueError):
            return None
        return values

    def place(self, number: int) -> int:
        """Where the graph's input has this number."""
        if number not in self.inputs:
            if len(self.inputs) == ROOM:
                raise NotCompiled(f"more than {ROOM} numbers")
            self.inputs.append(number)
        return self.inputs.index(number)

    def input(self) -> torch.Tensor | None:
        """The graph's input for the numbers that are there now; None where the trace does not hold for them."""
        given = [slot.get() for slot in self.slots]
        if not all([type(value) is float for value in given]) or (values := self.run(given)) is None:
            return None
        room = [0.0] * (ROOM - len(self.inputs))
        return torch.tensor([values[i] for i in self.inputs] + room, dtype=torch.float64, device="cpu")

    def check_constants(self) -> None:
        if self.mixed:
            raise NotCompiled("a number and a size are computed together")
        if self.constants:
            raise Constant("the program takes a number's value", [self.slots[i] for i in sorted(self.constants)])

    def expect_prints(self) -> None:
        if not any(known.tells(self.slots) for known in self.prints):
            raise Constant("there is no trace of another value to compare with", self.slots, again=True)

    def compare(self, at: Callable[[Print, list[float]], torch.fx.GraphModule | None]) -> None:
        """Raises where the trace is not, for another value of a number, what a trace without numbers was: the program does other
        things with what is no float. `at`: the traced graph with constants, for a print and the numbers' values then."""
        self.check_constants()
        refuse_questions(self.codes())
        self.expect_prints()
        compared: set[int] = set()
        for known in self.prints:
            given = [known.values.get(slot) for slot in self.slots]
            if not all([type(value) is float for value in given]) or (values := self.run(given)) is None:
                continue
            gm = at(known, values)
            if gm is None:
                continue
            if fingerprint(gm.graph, self.vector) != known.text:
                raise Constant("the program does other things with what stands for a number", self.slots)
            compared |= {i for i, value in enumerate(given) if _bits(value) != _bits(self.values[i])}
        missing = [slot for i, slot in enumerate(self.slots) if i not in compared]
        if missing:
            raise Constant("no trace of another value takes the same branches", missing, again=True)

    # -- while the program is traced

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The numbers are where the program reads them. What the program itself puts there stays."""
        held = [(slot, number, slot.get()) for slot, number in zip(self.slots, self.numbers, strict=True) if slot.path is None]
        for _, number, before in held:
            number.original = before
        try:
            for slot, number, _ in held:
                slot.put(number)
            yield
        finally:
            for slot, number, before in held:
                if slot.get() is number:
                    slot.put(before)

    def argument(self, path: tuple) -> Number:
        return next(number for slot, number in zip(self.slots, self.numbers, strict=True) if slot.path == path)

    def path_of(self, number: Number) -> tuple | None:
        i = number.node.id
        return self.slots[i].path if number.node.program is self and i < len(self.slots) else None


def _token(operand: Any) -> Any:
    if type(operand) is _Id:
        return _Id, int(operand)
    return type(operand), struct.pack("d", operand) if isinstance(operand, float) else operand


def _bits(value: float) -> bytes:
    return struct.pack("d", value)


# ---- what stands in their place ---------------------------------------------------------------------------------------


class Node(SymNode):
    """A number as PyTorch's C++ code sees it."""

    def __init__(self, program: Program, id_: _Id, value: float):
        super().__init__(sympy.Symbol(f"number_{int(id_)}"), None, float, value)
        self.program, self.id = program, id_

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

    def maybe_as_float(self) -> None:
        return None

    maybe_as_int = maybe_as_bool = maybe_as_float

    def nested_int(self) -> None:
        return None

    def taken(self) -> float:
        self.program.take(self.id)
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
                self.program.mixed = True
                raise NotCompiled(f"{name} of a number and a symbolic size")
        if name in _COMPARISONS:
            return Answer(self.program.ask(_COMPARISONS[name], *operands))
        if function is None:
            raise Constant(f"{name} of a number", self.program.slots)
        result = self.program.derive(function, *operands)
        return result.node if type(result) is Number else self.wrap_float(result)

    return answer


for _name in {*_ARITHMETIC, *_COMPARISONS, *_UNARY, "float_truediv", "float_pow", "sym_max", "sym_min", "floor", "ceil",
              "trunc", "round", "is_integer", "sym_sqrt", "sym_float"}:  # fmt: skip
    if _name != "sym_float":
        setattr(Node, _name, _of_node(_name))
Node.sym_float = lambda self: self

_TORCH = tuple(
    os.path.dirname(os.path.abspath(module.__file__)) + os.sep for module in (torch, sympy, sys.modules["trainc.errors"])
)
_ABSTRACT = ("abc.py", "<frozen abc>")


class Number(torch.SymFloat):
    """A number as the program sees it: to all its questions it answers as the float that it stands for."""

    def __init__(self, node: Node):
        self.node = node
        self.original: Any = node.program.value(node.id)  # the very object in whose place it stands

    @property
    def __class__(self) -> type:
        """To isinstance() in the program it is a float, in PyTorch what it is."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.endswith(_ABSTRACT):
            frame = frame.f_back
        return torch.SymFloat if _is_torchs(frame) else float

    def taken(self) -> float:
        return self.node.taken()

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

        return numpy.asarray(self.taken(), *args)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(function, method)(*[each.taken() if type(each) is Number else each for each in inputs], **kwargs)


def _binary(function: Callable[..., Any], swapped: bool, asks: bool = False) -> Callable[..., Any]:
    def operation(self: Number, other: Any, *rest: Any) -> Any:
        if rest or type(other) is not Number and not isinstance(other, (int, float)):
            if isinstance(other, (torch.SymInt, torch.SymFloat)):
                self.node.program.mixed = True
                raise NotCompiled("a number and a symbolic size")
            if isinstance(other, complex) or rest:
                return function(*((other, self.taken()) if swapped else (self.taken(), other)), *rest)
            return NotImplemented
        operand = other.node.id if type(other) is Number else other
        operands = (operand, self.node.id) if swapped else (self.node.id, operand)
        program = self.node.program
        return program.ask(function, *operands) if asks else program.derive(function, *operands)

    return operation


def _is_torchs(frame: Any) -> bool:
    return frame is None or frame.f_code.co_filename.startswith(_TORCH)


def _taking(name: str) -> Callable[..., Any]:
    tells = name in ("__format__", "__str__", "__repr__")  # in PyTorch's messages it has a name

    def method(self: Number, *args: Any) -> Any:
        if tells and _is_torchs(sys._getframe(1)):
            return self.node.str()
        return getattr(self.taken(), name)(*[each.taken() if type(each) is Number else each for each in args])

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
              "is_integer", "as_integer_ratio", "__complex__"):  # fmt: skip
    setattr(Number, _name, _taking(_name))
Number.__complex__ = lambda self: complex(self.taken())


def original(value: Any) -> Any:
    """What the program has where a trace put `value`."""
    return value.original if type(value) is Number else value


# ---- what a program may not ask ---------------------------------------------------------------------------------------

_ASKS = frozenset({"type", "id"} | ({"sum"} if sys.version_info >= (3, 12) else set()))  # sum() of floats is compensated there


def refuse_questions(codes: Sequence[types.CodeType]) -> None:
    """NotCompiled where the program's functions can tell a `Number` from a float: by its type, or by identity."""
    for code in codes:
        if (asked := _asks(code)) is not None:
            raise NotCompiled(f"{code.co_name}: {asked}, which tells what stands for a number from the number")


_asking: dict[int, tuple[types.CodeType, str | None]] = {}


def _asks(code: types.CodeType) -> str | None:
    found = _asking.get(id(code))
    if found is None:
        found = _asking[id(code)] = code, _find_question(code)
    return found[1]


def _find_question(code: types.CodeType) -> str | None:
    import dis

    before = None
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME") and each.argval in _ASKS:
            return f"uses {each.argval}()"
        if each.opname in ("LOAD_ATTR", "LOAD_METHOD") and each.argval == "node":
            return "reads an attribute `node`"
        if each.opname == "IS_OP" and not (before is not None and before.opname == "LOAD_CONST"):
            return "compares by `is`"
        before = each
    inner = (_find_question(each) for each in code.co_consts if isinstance(each, types.CodeType))
    return next(filter(None, inner), None)


# ---- numbers in a graph -----------------------------------------------------------------------------------------------

# Operations that take a number as they take a tensor without dimensions: (the operation with tensors, its operands' order).
_AS_TENSOR = {
    **{getattr(aten, name).Tensor: (getattr(aten, name).Tensor, (0, 1)) for name in ("add", "sub", "mul", "div")},
    **{getattr(aten, name).Scalar: (getattr(aten, name).Tensor, (0, 1)) for name in ("mul", "div")},
    **{getattr(aten, name).Scalar: (getattr(aten, name).Tensor, (0, 1)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    aten.rsub.Scalar: (aten.sub.Tensor, (1, 0)),
}


def id_of(arg: Any) -> _Id | None:
    """Which number this is, of a graph's argument."""
    return arg.node.id if isinstance(arg, torch.SymFloat) and isinstance(arg.node, Node) else None


def put_in(
    program: Program, graph: torch.fx.Graph, node: torch.fx.Node, args: tuple, kwargs: dict, vector: torch.fx.Node
) -> tuple[Any, tuple]:
    """(operation, args) of `node` with elements of the graph's input `vector` where numbers were. `args`: of the new graph."""
    here = [i for i, arg in enumerate(args) if id_of(arg) is not None]
    everywhere: list[Any] = []
    map_aggregate((args, kwargs), lambda arg: everywhere.append(arg) if id_of(arg) is not None else None)
    target, order = _AS_TENSOR.get(node.target, (None, ()))
    fits = target is not None and len(here) == len(everywhere) == 1 and len(args) == 2 and here[0] < 2
    other = args[1 - here[0]] if fits else None
    if not isinstance(other, torch.fx.Node) or (node.target is aten.rsub.Scalar and kwargs):
        return _refused(program, everywhere)
    i = program.place(args[here[0]].node.id)
    like, double = other.meta["val"], torch.empty((), dtype=torch.float64, device="meta")
    wanted = torch.result_type(like, 1.0)
    element = _made(graph, aten.select.int, (vector, 0, i), {}, double)
    if torch.result_type(like, double) is not wanted:  # a number takes the other side's type, a tensor may give it its own
        if wanted not in (torch.float32, torch.float64):
            return _refused(program, everywhere)
        element = _made(graph, aten._to_copy.default, (element,), {"dtype": wanted}, torch.empty((), dtype=wanted, device="meta"))
        if torch.result_type(like, element.meta["val"]) is not wanted:
            return _refused(program, everywhere)
    operands = [element if i == here[0] else arg for i, arg in enumerate(args)]
    return target, tuple([operands[i] for i in order])


def _refused(program: Program, numbers: list[Any]) -> Any:
    program.take(*map(id_of, numbers))
    program.check_constants()


def _made(graph: torch.fx.Graph, target: Any, args: tuple, kwargs: dict, value: torch.Tensor) -> torch.fx.Node:
    node = graph.create_node("call_function", target, args, kwargs)
    node.meta = {"val": value, "device": torch.device("cpu")}
    return node


class Print:
    """A trace without numbers: the graph, as a fingerprint, for these inputs and these numbers."""

    def __init__(self, text: str, inputs: Sequence[torch.Tensor], slots: Sequence[Slot]):
        self.text = text
        self.inputs = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in inputs]
        self.values = {slot: slot.get() for slot in slots}

    def tells(self, slots: Sequence[Slot]) -> bool:
        return all(type(self.values.get(slot)) is float for slot in slots)


def fingerprint(graph: torch.fx.Graph, without: int = -1) -> str:
    """What tells a graph from others that compute something else; `without`: the placeholder that is left out of it, and with it
    its gradient, which there is none of."""
    places: dict[torch.fx.Node, int] = {}
    found = hashlib.blake2b()

    def text(arg: Any) -> str:
        if isinstance(arg, torch.fx.Node):
            return f"%{places[arg]}"
        if isinstance(arg, (list, tuple)):
            return f"({','.join(map(text, arg))})"
        if isinstance(arg, dict):
            return f"({','.join(f'{key}={text(item)}' for key, item in arg.items())})"
        return f"{type(arg).__name__} {arg.hex() if type(arg) is float else arg}"

    placeholders = list(graph.find_nodes(op="placeholder"))
    primals = sum(not node.name.startswith("tangents") for node in placeholders)
    left_out = placeholders[without] if without >= 0 else None
    for node in graph.nodes:
        if node is left_out:
            continue
        places[node] = len(places)
        target, args = node.target if node.op == "call_function" else node.op, node.args
        if node.op == "output" and left_out is not None:
            outputs = list(args[0])
            gradient = len(outputs) - primals + without
            if gradient >= 0 and outputs[gradient] is None:
                del outputs[gradient]
            args = (tuple(outputs),)
        found.update(f"{target}{text(args)}{text(node.kwargs)}{text(_types(node.meta.get('val')))};".encode())
    return found.hexdigest()


def _types(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.stride()
    return tuple(map(_types, value)) if isinstance(value, (list, tuple)) else type(value).__name__


# ---- what runs --------------------------------------------------------------------------------------------------------


class Numbered:
    """The entry of a trace with numbers."""

    def __init__(self, entry: Any, program: Program):
        self.entry, self.program = entry, program

    def now(self) -> Ready | None:
        """What runs with the numbers that are there now; None where the trace does not hold for them."""
        vector = self.program.input()
        return None if vector is None else Ready(self.entry, vector)


class Ready:
    def __init__(self, entry: Any, vector: torch.Tensor):
        self.entry, self._vector = entry, vector

    def __call__(self, inputs: list[torch.Tensor], args: tuple, kwargs: dict) -> Any:
        return self.entry([*inputs, self._vector], args, kwargs)


__all__ = ["Constant", "Number", "Numbered", "Print", "Program", "Registry", "Slot", "fingerprint"]
