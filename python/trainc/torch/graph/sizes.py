"""Sizes as symbols: one trace of a model for many shapes of its arguments.

The trace runs with a ShapeEnv of torch's; what Python and PyTorch asked of the sizes on the way are its guards. For other sizes
that keep to them, the traced graph with these sizes in it (`Template.at`) is the graph that another trace would give.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx.node import map_aggregate

from trainc.base.errors import NotCompiled
from trainc.base.patches import patched
from trainc.torch import compat, numbers
from trainc.torch.compat import (
    ConstantSource,
    DimDynamic,
    FakeTensorMode,
    PythonReferenceAnalysis,
    ShapeEnv,
    StatelessSymbolicContext,
    SymNode,
    proxy_tensor,
    sym_node,
    sympy_interp,
)

Tensor = torch.Tensor
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Symbols:
    """The inputs of one trace, as fakes of `mode`: `fixed` tensors as they are, `arguments` with symbols for their `dynamic`
    dimensions; after them one for `numbers`, where there are any. `prints`: what a trace with numbers is compared with."""

    def __init__(
        self, fixed: Sequence[Tensor], arguments: Sequence[Tensor], dynamic: Sequence[set[int]],
        numbers: numbers.Program | None = None, prints: Sequence[numbers.Print] = (),
    ):  # fmt: skip
        self._env = ShapeEnv(duck_shape=False)  # two sizes that are equal by chance stay two symbols
        self.mode = mode = FakeTensorMode(shape_env=self._env)
        self._first = len(fixed)
        self.inputs = [mode.from_tensor(tensor, static_shapes=True) for tensor in fixed]
        for i, (tensor, dims) in enumerate(zip(arguments, dynamic, strict=True)):
            kinds = [DimDynamic.DYNAMIC if d in dims else DimDynamic.STATIC for d in range(tensor.dim())]
            context = StatelessSymbolicContext(dynamic_sizes=kinds)
            self.inputs.append(mode.from_tensor(tensor, symbolic_context=context, source=ConstantSource(f"argument_{i}")))
        self._arguments = self.inputs[self._first :]
        self.sizes, self.numbers, self._prints = any(dynamic), numbers, prints
        # as they were made: a guard may replace a symbol later, and that must hold for the next sizes too
        self._sizes = [[_expression(size) for size in fake.shape] for fake in self._arguments]
        self._strides = [[_expression(step) for step in fake.stride()] for fake in self._arguments]
        self._moving = [self._first + i for i, dims in enumerate(dynamic) if dims]
        inputs = [*fixed, *arguments]
        self.traced, self.traced_key = self._bound(inputs), self.key(inputs)  # the sizes that are traced
        if numbers is not None:
            numbers.vector = len(inputs)
            self.inputs.append(mode.from_tensor(numbers.input(), static_shapes=True))
        compat.forget_tensors(mode)

    def key(self, inputs: Sequence[Tensor]) -> tuple:
        """What tells these inputs' sizes from others that fit."""
        return tuple([inputs[i].shape for i in self._moving])

    def bound(self, inputs: Sequence[Tensor]) -> SizeBinding | None:
        """The symbols' values for these inputs; None where the trace does not hold for them."""
        bound = self._bound(inputs)
        for tensor, sizes, strides in self._arguments_of(inputs):
            for value, expression in zip((*tensor.shape, *tensor.stride()), (*sizes, *strides), strict=True):
                if value != bound.value(expression):
                    return None
        return bound if self._holds(bound) else None

    def _arguments_of(self, inputs: Sequence[Tensor]) -> Iterator[tuple[Tensor, list, list]]:
        last = self._first + len(self._sizes)  # the numbers come after them
        return zip(inputs[self._first : last], self._sizes, self._strides, strict=True)

    def _bound(self, inputs: Sequence[Tensor]) -> SizeBinding:
        bound = SizeBinding({})
        for tensor, sizes, strides in self._arguments_of(inputs):
            for value, expression in zip((*tensor.shape, *tensor.stride()), (*sizes, *strides), strict=True):
                if getattr(expression, "is_Symbol", False):
                    bound.symbols.setdefault(expression, value)
        return bound

    def _holds(self, bound: SizeBinding) -> bool:
        for symbol, value in bound.symbols.items():
            allowed = self._env.var_to_range.get(symbol)
            if allowed is not None and not allowed.lower <= value <= allowed.upper:
                return False
        same = all(value == bound.value(self._env.replacements.get(s, s)) for s, value in bound.symbols.items())
        return same and all(bound.value(guard.expr) for guard in self._env.guards)

    def template(self, gm: torch.fx.GraphModule, result: Any) -> Template:
        """What was traced; `result`: the structure of what it gives back. NotCompiled where the program took a number for a
        constant, or cannot be told from one that does."""
        template, program = Template(gm, self.numbers), self.numbers
        if program is not None:

            def at(known: numbers.Print, values: list[float]) -> torch.fx.GraphModule | None:
                bound = self.bound([*[None] * self._first, *known.inputs])
                return None if bound is None else template.at(bound, values)

            numbers.compare(program, self._prints, result, at)
            program.text = numbers.fingerprint(template.at(self.traced, program.values).graph, result, program.vector)
        return template

    def others(self) -> list[SizeBinding]:
        """A few other sizes that the trace holds for: equal ones stay equal, in case a guard wants that."""
        found = []
        for other in (lambda n: n + n // 2 + 1, lambda n: n - n // 3, lambda n: 3 * n + 2, lambda n: n + 1, lambda n: 2 * n):
            bound = SizeBinding({symbol: other(n) for symbol, n in self.traced.symbols.items()})
            if self._holds(bound):
                found.append(bound)
        return found[:3]

    def check(self, moving: Sequence[set[int]]) -> None:
        """Raises NotCompiled where what was traced cannot stand for other sizes in the arguments' `moving` dimensions."""
        if self._env.deferred_runtime_asserts:
            raise NotCompiled("a size depends on data")
        for i, dims in enumerate(moving):
            for d in dims:
                size = self._env.replacements.get(self._sizes[i][d], self._sizes[i][d])
                if not getattr(size, "free_symbols", None):
                    raise NotCompiled(f"forward takes dimension {d} of argument {i}, {size}, for a constant")


def _expression(size: Any) -> Any:
    return compat.expression_of(size.node) if isinstance(size, SYMBOLIC) else size


class SizeBinding:
    """Symbols with values."""

    def __init__(self, symbols: dict[Any, int]):
        self.symbols = symbols
        self._known: dict[Any, Any] = {}

    def value(self, expression: Any) -> Any:
        """A Python number (or bool) for a sympy expression or a number."""
        if isinstance(expression, (bool, int, float)):
            return expression
        if expression not in self._known:
            missing = expression.free_symbols - self.symbols.keys()
            if missing:
                raise NotCompiled(f"a size depends on data ({', '.join(map(str, missing))})")
            self._known[expression] = _number(sympy_interp(PythonReferenceAnalysis, self.symbols, expression))
        return self._known[expression]

    def of(self, value: Any) -> Any:
        """A symbolic number or tensor (or a list of them) with these values; a tensor on the meta device, for its type alone."""
        if isinstance(value, SYMBOLIC):
            return self.value(value.node.expr)
        if isinstance(value, Tensor):
            shape, strides = [self.of(n) for n in value.shape], [self.of(n) for n in value.stride()]
            return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
        if isinstance(value, (list, tuple)):
            return type(value)([self.of(item) for item in value])
        return value


def _number(value: Any) -> Any:
    if isinstance(value, (bool, int, float)):
        return value
    return bool(value) if getattr(value, "is_Boolean", False) else int(value) if value.is_Integer else float(value)


class Template:
    """A graph traced with symbols."""

    def __init__(self, gm: torch.fx.GraphModule, numbers: numbers.Program | None = None):
        self._gm, self._numbers = gm, numbers

    def at(self, bound: SizeBinding, values: list[float] | None = None) -> torch.fx.GraphModule:
        """The graph for these sizes: no node of it is a number any more. `values`: of the numbers that change, which are
        elements of an input otherwise."""
        graph, made = torch.fx.Graph(), {}
        vector: Any = None

        def argument(arg: Any) -> Any:
            if isinstance(arg, torch.fx.Node):
                return made[arg]
            if (number := numbers.id_of(arg)) is not None:
                return arg if values is None else values[number]
            return bound.of(arg) if isinstance(arg, SYMBOLIC) else arg

        if self._numbers is not None:
            vector = list(self._gm.graph.find_nodes(op="placeholder"))[self._numbers.vector]
        for node in self._gm.graph.nodes:
            value, target = node.meta.get("val"), node.target
            args, kwargs = map_aggregate(node.args, argument), map_aggregate(node.kwargs, argument)
            if vector is not None and values is None and _has_numbers((args, kwargs)):
                target, args = numbers.put_in(self._numbers, graph, node, args, kwargs, made[vector])
            if node.op == "call_function" and isinstance(value, SYMBOLIC):
                made[node] = node.target(*map_aggregate(args, _its_type), **kwargs)
                continue
            made[node] = graph.create_node(node.op, target, args, kwargs, node.name)
            made[node].meta = {**node.meta, "val": bound.of(value)}
            if isinstance(value, Tensor):
                made[node].meta["device"] = value.device
        return torch.fx.GraphModule(torch.nn.Module(), graph)


def _has_numbers(args: Any) -> bool:
    found: list[Any] = []
    map_aggregate(args, lambda arg: found.append(arg) if numbers.id_of(arg) is not None else None)
    return bool(found)


def _its_type(arg: Any) -> Any:
    return arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg


# ---- speed ------------------------------------------------------------------------------------------------------------
# GPT-2 124M asks 300,000 questions of its sizes while it is traced, of which 650 are distinct; torch answers each through sympy
# and makes a node of it. Each is answered once here, and makes no node: an operation that takes a size holds it as an expression.
# That is 2.2 instead of 5.6 times the time of a trace without symbols.

_METHODS = {
    name
    for method in sym_node.METHOD_TO_OPERATOR
    for name in (method, f"{method}_", f"sym_{method}")
    if callable(SymNode.__dict__.get(name))
}


@contextlib.contextmanager
def answered_once() -> Iterator[None]:
    """Arithmetic of symbolic sizes by a table, for the time of a trace with one ShapeEnv."""
    known: dict[Any, SymNode] = {}

    def of_operands(name: str, method: Callable[..., SymNode]) -> Callable[..., SymNode]:
        def answer(self: SymNode, *others: Any) -> SymNode:
            key = (name, compat.expression_of(self), self.pytype, *[_name_of(other) for other in others])
            found = known.get(key)
            if found is None:
                with proxy_tensor.disable_proxy_modes_tracing():
                    found = known[key] = method(self, *others)
            return found

        return answer

    with contextlib.ExitStack() as stack:
        # Another thread that puts tables of its own here would take these for what is to be put back, and leave them for good.
        stack.enter_context(compat.compile_lock)
        create_arg = compat.NODE_OF_ARGUMENT.original()
        methods = {name: SymNode.__dict__[name] for name in (*_METHODS, *_of_sizes_and_strides(), "wrap_int")}
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Raw (Sym|Number)")  # torch would rather have a node
        for name, method in methods.items():
            stack.enter_context(patched(SymNode, name, of_operands(name, method)))
        stack.enter_context(patched(*compat.PROXY_OF_SIZE, lambda _tracer: _as_it_is))
        as_it_is = lambda tracer, arg: _as_it_is(arg) if isinstance(arg, SYMBOLIC) else create_arg(tracer, arg)  # noqa: E731
        stack.enter_context(patched(*compat.NODE_OF_ARGUMENT, as_it_is))
        yield


def _as_it_is(number: Any) -> Any:
    constant = number.node.constant
    return number if constant is None else constant


def _name_of(operand: Any) -> Any:
    if isinstance(operand, SymNode):
        return compat.expression_of(operand), operand.pytype
    if isinstance(operand, (list, tuple)):
        return tuple([_name_of(item) for item in operand])
    return type(operand), operand


def _of_sizes_and_strides() -> list[str]:
    return [name for name in sym_node.sizes_strides_methods if callable(SymNode.__dict__.get(name))]


__all__ = ["SizeBinding", "Symbols", "Template", "answered_once"]
