"""torch.compile(model, backend="trainc"): Dynamo's graphs through the same joint partition as trainc.compile."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainc.base import config, messages, records, tuning
from trainc.base.errors import NotCompiled, UserError
from trainc.torch import compat, device
from trainc.torch.capture import turns
from trainc.torch.capture.trace import packs_saved_tensors, tracing
from trainc.torch.doors import beside_guards
from trainc.torch.doors.signature import unguarded
from trainc.torch.graph import wire
from trainc.torch.graph.sizes import Symbols
from trainc.torch.guards import overlap
from trainc.torch.guards.overlap import Overlapping
from trainc.torch.joint import compiler as joint
from trainc.torch.joint import family
from trainc.torch.joint.second_order import BESIDE, SECOND
from trainc.torch.run.executable import NoAddress
from trainc.torch.run.runner import Runners
from trainc.torch.strided import is_static

compilations: list[records.Compilation] = []  # of all graphs that came through this door


def backend(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None, mode: str | None = None,
    **_: Any,
) -> Callable[..., Any]:  # fmt: skip
    """What torch.compile calls. `options`: {"tune": "max"}, as trainc.compile's tune="max"; so is mode="max-autotune"."""
    tune = (options or {}).get("tune", "max" if (mode or "").startswith("max-autotune") else "fast")
    tuning.check(tune)
    if unknown := set(options or {}) - {"tune"}:
        raise UserError(f'torch.compile(backend="trainc"): no option {sorted(unknown)[0]!r}; there is "tune"')
    if any(isinstance(value, (torch.SymInt, torch.SymFloat)) or _is_symbolic(value) for value in example_inputs):
        return _by_sizes(gm, example_inputs, tune)
    made_for, compiled = unguarded(), _static(gm, example_inputs, tune)
    otherwise: list[Callable[..., Any]] = []  # what runs under other settings, which Dynamo does not look at

    @functools.partial(compat.dynamo_disable, reason="compiled by trainc")
    def call(*given: Any) -> Any:
        if unguarded() == made_for:
            return compiled(*given)
        if not otherwise:
            otherwise.append(_by_sizes(gm, given, tune))
        return otherwise[0](*given)

    return call


backend.trainc_backend = True  # so that frames which are traced for it are known
beside_guards.watch()


def _static(gm: torch.nn.Module, inputs: Sequence[Any], tune: str) -> Callable[..., Any]:
    record = _record(inputs, tune)
    where = _where(record, inputs)
    if where is None or _asks_versions(gm):
        return gm.forward
    compiler = joint.Compiler(record, Runners(where, tune))
    compiler.program = GraphAgain(record.name, gm, gm.forward)

    def compile() -> Callable[..., Any]:
        return _separately(gm.forward, joint.compile_flat(gm, overlap.apart(inputs), record, compiler), compiler)

    return _compiled(record, compile, lambda: gm.forward)


def _compiled(
    record: records.Compilation, compile: Callable[[], Callable[..., Any]], in_pytorch: Callable[[], Callable[..., Any]],
    failed: Callable[[], None] = lambda: None,
) -> Callable[..., Any]:  # fmt: skip
    """What `compile()` gives; PyTorch's own way to the graph where it cannot be compiled, or where `compile` failed by a fault of
    ours: `failed` is told of both."""
    try:
        compiled = compile()
    except NotCompiled as reason:
        failed()
        messages.warn(f"{record.name} runs in PyTorch: {reason}")
        return in_pytorch()
    except (UserError, compat.RestartAnalysis):  # the latter is how Dynamo is told to begin again
        raise
    except Exception as error:
        failed()
        messages.fell_back(record.name, error)
        record.route, record.reason = "eager", family.first_line(error)
        compiled = in_pytorch()
    compilations.append(record)
    return compiled


def _separately(plain: Callable[..., Any], compiled: Callable[..., Any], compiler: joint.Compiler) -> Callable[..., Any]:
    """`compiled`; where it writes an input that shares memory with another, or an input has none, `plain` runs in PyTorch; and
    where gradients of its gradients are taken, derivatives by forward-mode AD, or what autograd saves is packed by hooks of
    the program's."""

    def run(*given: Any) -> Any:
        if compiler.program.often or compat.differentiates_forward() or packs_saved_tensors():
            return plain(*given)
        try:
            if not compat.count_dispatch_modes():
                return compiled(*given)
            with compat.disable_current_modes():  # one that is not to see what a compiler does: Dynamo has looked at it
                return compiled(*given)
        except (NoAddress, Overlapping) as reason:
            messages.warn_once(type(reason).__name__, f"A graph of torch.compile runs in PyTorch where {reason}")
            return plain(*given)

    return run


class GraphAgain:
    """A graph, done by PyTorch once more for the gradient of a gradient (`joint.second_order.Program`)."""

    def __init__(self, name: str, gm: torch.fx.GraphModule, run: Callable[..., Sequence[Any]]):
        self._name, self._run, self.often = name, run, False
        regions = [node for node in gm.graph.nodes if isinstance(node.target, compat.HigherOrderOperator)]
        self._region = (wire.origin(regions[0]) or regions[0].name) if regions else ""

    def again(self, inputs: list[torch.Tensor]) -> Sequence[Any]:
        return self._run(*inputs)

    def asked(self, often: bool, what: str = SECOND) -> None:
        if self._region:  # Dynamo's autograd.Function loses the history of what it saves: a wrong number, without a word
            asked = "the gradient" if what is SECOND else "an intermediate result"
            raise UserError(f"{self._region}: torch.compile has no gradient of {asked} of this region")
        self.often |= often
        messages.warn_once(f"second order {self._name} {what}", f"{self._name} runs in PyTorch where {what}")

    def differentiates(self, places: frozenset[int]) -> None:
        self.asked(True, BESIDE)


def _record(inputs: Sequence[Any], tune: str) -> records.Compilation:
    return records.Compilation(f"graph {len(compilations)}", signature=_describe(inputs), tune=tune, route="dynamo")


def _where(record: records.Compilation, inputs: Sequence[Any]) -> device.Host | None:
    """The device of all tensors; None, and a warning, where there are several."""
    try:
        return device.one((t for t in inputs if isinstance(t, torch.Tensor)), "its tensors")
    except NotCompiled as reason:
        messages.warn(f"{record.name} runs in PyTorch: {reason}")
        return None


def _by_sizes(gm: torch.fx.GraphModule, examples: Sequence[Any], tune: str) -> Callable[..., Any]:
    """Dynamo gives sizes as symbols once a second shape comes; plans have concrete ones. Its graph is traced with symbols of
    our own, and all sizes that come get plans of that trace."""
    inputs = Inputs([node.meta.get(compat.EXAMPLE, given) for node, given in zip(_placeholders(gm), examples, strict=True)])
    found: dict[Any, Callable[..., Any]] = {}
    families: dict[Any, family.Family] = {}
    values: set[tuple] = set()  # that numbers which are no sizes have had: each is compiled for itself
    left: set[Any] = set()  # kinds of calls that were not compiled for one size, and are not tried for others

    def compiled_for(kind: tuple, given: Sequence[Any]) -> Callable[..., Any]:
        fixed, moving = inputs.fixed_of(given), inputs.moving_of(given)
        record = _record(given, tune)
        where = _where(record, given)
        if where is None or _asks_versions(gm):
            return WithNumbers(gm, inputs, given)
        runners = Runners(where, tune)

        def static() -> Callable[..., Any]:
            module, compiler = WithNumbers(gm, inputs, given), joint.Compiler(record, runners)
            compiler.program, compiler.first_inputs = GraphAgain(record.name, gm, module), [*fixed, *moving]
            return _separately(module, joint.compile_flat(module, overlap.apart([*fixed, *moving]), record, compiler), compiler)

        def symbolic(symbols: Symbols) -> family.Serve:
            compiler = joint.Compiler(record, runners, symbols)
            module = WithNumbers(gm, inputs)
            compiler.program, compiler.first_inputs = GraphAgain(record.name, gm, module), [*fixed, *moving]
            compiled = _separately(module, joint.compile_flat(module, overlap.apart(symbols.inputs), record, compiler), compiler)
            return lambda tensors, record: compiled if compiler.add_sizes(tensors, record) else None

        shapes = families.setdefault(kind, family.Family(dims=inputs.dims))
        if kind in left:
            return WithNumbers(gm, inputs, given)

        def compile() -> Callable[..., Any]:
            with turns.alone(), tracing():
                return shapes.entry(record, fixed, moving, static, symbolic)

        return _compiled(record, compile, lambda: WithNumbers(gm, inputs, given), lambda: left.add(kind))

    @compat.dynamo_disable
    def call(*given: Any) -> Any:
        tensors = [t for t in given if isinstance(t, torch.Tensor)]
        kind = (*[(t.dim(), t.dtype, t.requires_grad, t.device) for t in tensors], torch.is_grad_enabled(), *unguarded())
        key = (*[(t.shape, t.stride()) if isinstance(t, torch.Tensor) else t for t in given], kind)
        compiled = found.get(key)
        if compiled is None:
            values.add(inputs.values_of(given))
            if len(values) > config.max_signatures:  # a number that is drawn, or counts
                line = next(filter(None, map(wire.origin, gm.graph.nodes)), "a graph")
                messages.warn_once(f"values {id(gm)}", f"{line} runs in PyTorch for further values of a number that it is given")
                return WithNumbers(gm, inputs, given)(*inputs.fixed_of(given), *inputs.moving_of(given))
            compiled = found[key] = compiled_for(kind, given)
        return compiled(*inputs.fixed_of(given), *inputs.moving_of(given))

    return call


class Inputs:
    """What Dynamo gives to a graph, by its fakes: tensors of one shape, tensors with symbolic sizes, and numbers."""

    def __init__(self, examples: Sequence[Any]):
        tensors = [i for i, value in enumerate(examples) if isinstance(value, torch.Tensor)]
        self.count = len(examples)
        self.moving = [i for i in tensors if _is_symbolic(examples[i])]
        self.fixed = [i for i in tensors if i not in self.moving]
        self.dims = [{d for d, n in enumerate(examples[i].shape) if type(n) is not int} for i in self.moving]
        places = {
            examples[i].shape[d].node.expr: (i, d) for i, dims in zip(self.moving, self.dims, strict=True) for d in sorted(dims)
        }
        # the (tensor, dimension) whose size each number is; None where it is none
        self.numbers = {
            i: places.get(value.node.expr) if isinstance(value, torch.SymInt) else None
            for i, value in enumerate(examples)
            if i not in tensors
        }

    def fixed_of(self, given: Sequence[Any]) -> list[torch.Tensor]:
        return [given[i] for i in self.fixed]

    def values_of(self, given: Sequence[Any]) -> tuple:
        """Of the numbers that are no sizes."""
        return tuple((type(given[i]), given[i]) for i, place in self.numbers.items() if place is None)

    def moving_of(self, given: Sequence[Any]) -> list[torch.Tensor]:
        return [given[i] for i in self.moving]


class WithNumbers(torch.nn.Module):
    """A graph as a function of its tensors (those of one shape first). The numbers among its inputs are those that are `given`,
    or the sizes that they stand for."""

    def __init__(self, gm: torch.fx.GraphModule, inputs: Inputs, given: Sequence[Any] | None = None):
        super().__init__()
        self._graph = [gm]  # out of sight: AOTAutograd would take the graph's own tensors for parameters twice
        self._inputs = inputs
        self._numbers = None if given is None else {i: given[i] for i in inputs.numbers}
        if given is None and None in inputs.numbers.values():
            raise NotCompiled("a number among its inputs is not a size")

    def forward(self, *tensors: torch.Tensor) -> Any:
        values: dict[int, Any] = dict(zip((*self._inputs.fixed, *self._inputs.moving), tensors, strict=True))
        for i, place in self._inputs.numbers.items():
            values[i] = values[place[0]].shape[place[1]] if self._numbers is None else self._numbers[i]
        return self._graph[0](*[values[i] for i in range(self._inputs.count)])


def _placeholders(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return list(gm.graph.find_nodes(op="placeholder"))


def _asks_versions(gm: torch.nn.Module) -> bool:
    """Whether the program reads `x._version`, another number at each call, which a trace would take for settled."""
    nodes = gm.graph.nodes if isinstance(gm, torch.fx.GraphModule) else ()
    found = next((node for node in nodes if str(node.target) == "prims._tensor_version.default"), None)
    if found is not None:
        where = wire.origin(found) or "a graph"
        messages.warn_once(f"version {id(gm)}", f"{where} runs in PyTorch: it reads _version of a tensor")
    return found is not None


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not is_static((*value.shape, *value.stride()))


def _describe(inputs: Sequence[Any]) -> str:
    from trainc.torch.graph.wire import dtype_name

    return ", ".join(f"{dtype_name(t.dtype)}{list(t.shape)}" for t in inputs if isinstance(t, torch.Tensor))
