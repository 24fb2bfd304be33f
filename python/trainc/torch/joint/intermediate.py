"""Results that other results are made of: hidden states or logits beside the loss, and whoever asks for their gradients.

A call is one node of autograd's graph, so what reaches such a result within the program never passes by it: a hook there would
see what comes from outside alone. Hooks on these results therefore are kept here, where autograd does not run them, and the node
asks, when its backward begins, whether somebody wants one of their gradients: by a hook, `retain_grad()`, or
`torch.autograd.grad(loss, hidden)`. If so, PyTorch does the call once more (second_order.py), and the gradient is taken from
result to result: that of each is complete, and has gone through its hooks, before it goes on to what that result is made of.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from trainc.base.errors import UserError
from trainc.torch import compat

Tensor = torch.Tensor
_COUNTS = f"{torch.autograd.graph.register_multi_grad_hook.__name__}.<locals>.get_inner_hook"


def made_of(outputs: Sequence[Any], order: Sequence[Node]) -> dict[int, int]:
    """Of each of a trace's outputs that others are made of: of how many others it is made itself. `order`: the nodes of
    autograd's graph from the outputs on, each before those that it leads to."""
    own: dict[Any, int] = {}  # outputs, as a bit for each
    for i, output in enumerate(outputs):
        own[output.grad_fn] = own.get(output.grad_fn, 0) | 1 << i
    behind: dict[Any, int] = {}  # outputs that a node leads to
    for node in reversed(order):
        found = 0
        for following, _ in node.next_functions:
            if following is not None:
                found |= behind.get(following, 0) | own.get(following, 0)
        behind[node] = found
    of = [behind[output.grad_fn] for output in outputs]
    return {i: of[i].bit_count() for i in range(len(outputs)) if any(others >> i & 1 for others in of)}


class Watch:
    """The intermediate results of one call, by their places among its node's outputs."""

    def __init__(self, places: dict[int, int], values: Sequence[Tensor], node: Node, first: int):
        """`places`: of `made_of`; `first`: where the program's results begin."""
        _follow_engine()
        self._places, self._first, self._node = places, first, weakref.ref(node)
        self._hooks: dict[int, OrderedDict[int, Callable[..., Any]]] = {}
        self._results: dict[int, weakref.ref[Tensor]] = {}
        self._asked: dict[int, Tensor | None] = {}  # those that torch.autograd.grad asks for, and what it is given
        self._extra: Tensor | None = None  # the gradient of this leaf is asked for only so that the node runs
        for i in places:
            # register_hook() finds a table that is there already, and tells autograd's node nothing of it.
            self._results[i], self._hooks[i] = weakref.ref(values[i]), OrderedDict()
            values[i]._backward_hooks = self._hooks[i]

    def has(self, place: int) -> bool:
        return place in self._places

    @contextlib.contextmanager
    def ask(self, places: Sequence[int], others: Sequence[GradientEdge]) -> Iterator[list[GradientEdge]]:
        """While autograd runs for the gradients of results: what else it is to be asked for, beside the edges `others`, so that
        the node runs."""
        edges = [GradientEdge(*edge) for edge in self._node().next_functions if edge[0] is not None]
        leaves = [edge for edge in edges if hasattr(edge.node, "variable")]
        extra = [] if any(edge[:2] in others for edge in leaves) else [*leaves, *edges][:1]
        self._asked = dict.fromkeys(places)
        self._extra = getattr(extra[0].node, "variable", None) if extra else None
        try:
            yield extra
        finally:
            self._asked, self._extra = {}, None

    def given(self, place: int) -> Tensor | None:
        return self._asked[place]

    def _retained(self, i: int) -> Tensor | None:
        """The result, if it is to keep its gradient, and is what the call gave: what was written in place has another history."""
        result = self._results[i]()
        return result if result is not None and result.retains_grad and result.grad_fn is self._node() else None

    def wanted(self) -> list[int]:
        """Those whose gradient somebody wants, each before those that it is made of."""
        with compat.DisableTorchFunctionSubclass():
            found = [i for i in self._places if self._hooks[i] or i in self._asked or self._retained(i) is not None]
        return sorted(found, key=self._places.__getitem__, reverse=True)

    def only_asked(self, wanted: Sequence[int]) -> bool:
        """Whether `torch.autograd.grad` alone wants these: no hook, no `.grad`."""
        with compat.DisableTorchFunctionSubclass():
            return not any(self._hooks[i] or self._retained(i) is not None for i in wanted)

    def gradients(
        self, wanted: Sequence[int], results: Sequence[Tensor], tangents: dict[int, Tensor], inputs: Sequence[Tensor],
        originals: Sequence[Tensor],
    ) -> Sequence[Tensor | None]:  # fmt: skip
        """Of the inputs, where `wanted` of the results are `wanted()`. `results`: the program's, with their history; `tangents`:
        what reached them from outside, by their places among the results; `originals`: what the call was given as inputs."""
        edges = {i: get_gradient_edge(results[i - self._first]) for i in wanted if results[i - self._first].requires_grad}
        roots, reached = dict(tangents), set()
        running, passed = self._run(edges, [t for t, its in zip(inputs, originals, strict=True) if self._is_run_for(its)])
        with contextlib.ExitStack() as cuts:
            for i in [i for i in wanted if i in edges]:
                (gradient,) = gradients_of(results, roots, [edges[i]])
                captured = gradient  # by torch.autograd.grad
                if i in running and gradient is not None:
                    gradient = self._hooked(i, gradient)
                    reached.add(i)
                self._keep(i, gradient if i in reached else None, tangents.get(i - self._first))
                if i in self._asked:  # before the hooks, where autograd goes on from there
                    self._asked[i] = captured if i in passed else gradient
                if gradient is not None:
                    roots[i - self._first] = gradient
                    cuts.enter_context(_replaced(edges[i], gradient))
            self._tell_counting(reached)
            return gradients_of(results, roots, inputs)

    def _is_run_for(self, original: Tensor) -> bool:
        """Whether autograd goes on to this input of the call."""
        if original is self._extra:
            return False
        try:
            return compat.will_execute(get_gradient_edge(original).node)
        except RuntimeError:  # it does not say so of a leaf that torch.autograd.grad() asks for
            return True

    def _run(self, edges: dict[int, GradientEdge], inputs: Sequence[Tensor]) -> tuple[set[int], set[int]]:
        """The results that autograd would come to for these inputs, and for what it is asked for; those that it would pass by."""
        ends = {get_gradient_edge(tensor).node for tensor in inputs} | {edges[i].node for i in self._asked if i in edges}
        passed = {i for i, edge in edges.items() if _leads([node for node, _ in edge.node.next_functions], ends)}
        return passed | {i for i, edge in edges.items() if edge.node in ends}, passed

    def _hooked(self, i: int, gradient: Tensor) -> Tensor:
        """What the hooks make of a result's gradient."""
        for hook in list(self._hooks[i].values()):
            changed = hook(gradient)
            if changed is not None:
                gradient = _checked(changed, gradient, hook)
        return gradient

    def _tell_counting(self, reached: set[int]) -> None:
        """Hooks on several tensors at once wait for as many calls as autograd executes nodes of them, and it executes ours for
        all of its results: those of results that no gradient `reached` are called without one."""
        counts = lambda hook: _COUNTS in getattr(hook, "__qualname__", "")  # noqa: E731
        counting = {i: [hook for hook in table.values() if counts(hook)] for i, table in self._hooks.items()}
        if any(counting[i] for i in reached):
            for hook in [hook for i, hooks in counting.items() if i not in reached for hook in hooks]:
                hook(None)

    def _keep(self, i: int, gradient: Tensor | None, outer: Tensor | None) -> None:
        """`.grad` of a result that retains it; no `gradient`: eager would not come to it. Autograd has put there what came from
        outside."""
        with compat.DisableTorchFunctionSubclass():
            result = self._retained(i)
            if result is None or (gradient is None and outer is None):
                return
            before = result.grad
            if before is None or (outer is not None and torch.equal(before, outer)):
                result.grad = None if gradient is None else gradient.clone()
            else:
                change = [term for term in (gradient, None if outer is None else -outer) if term is not None]
                result.grad = before + sum(change[1:], change[0])


def gradients_of(results: Sequence[Tensor], tangents: dict[int, Tensor], inputs: Sequence[Any]) -> Sequence[Tensor | None]:
    """Of tensors, or edges of autograd's graph, for these tangents of results, by their places. The graph stays."""
    pairs = [(results[i], tangent) for i, tangent in tangents.items() if results[i].requires_grad]
    if not pairs or not inputs:
        return [None] * len(inputs)
    return torch.autograd.grad(
        [result for result, _ in pairs], inputs, [tangent for _, tangent in pairs],
        retain_graph=True, create_graph=torch.is_grad_enabled(), allow_unused=True,
    )  # fmt: skip


class Refused(OrderedDict):
    """In the place of a result's hooks, where a call has AOTAutograd's node and they would be called with another gradient."""

    def __init__(self, refuse: Callable[[], None]):
        super().__init__()
        self.refuse = refuse

    def __setitem__(self, key: Any, hook: Any) -> None:
        self.refuse()


def refused(name: str, told: Callable[[], None], places: Sequence[int], call: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
    """`call`, whose results at `places` other results are made of, and are not to be asked for their gradients. `told` is called
    where they are, before that is a UserError."""

    def refuse() -> None:
        told()
        raise UserError(
            f"{name}: a result's gradient is asked for (a hook, retain_grad) of which another result is made, and some of its "
            "results share memory: no plan makes it. Its next calls run in PyTorch"
        )

    def run(*inputs: Any) -> Sequence[Any]:
        values = call(*inputs)
        arguments = {id(given) for given in inputs}
        _follow_engine()
        with compat.DisableTorchFunctionSubclass():
            for value in [values[i] for i in places if i < len(values) and id(values[i]) not in arguments]:
                if value.grad_fn is not None and value._backward_hooks is None:
                    value._backward_hooks = Refused(refuse)
                    _refused.append(weakref.ref(value))
        if len(_refused) > 1000:
            _refused[:] = [result for result in _refused if result() is not None]
        return values

    return run


_refused: list[weakref.ref[Tensor]] = []


def _follow_engine() -> None:
    """From now on `torch.autograd.grad` is given the gradients of intermediate results."""
    engine = compat.AUTOGRAD_ENGINE.original()
    if getattr(engine, "trainc_follows", False):
        return

    def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse_retained(outputs)
        given = dict(zip(ENGINE_ARGUMENTS, args, strict=False)) | kwargs
        asked = {} if given["accumulate_grad"] else _asked(given["inputs"])
        if asked:
            return _with_results(engine, outputs, given, asked)
        if len(outputs) == 1 and (watch := _watch_of(outputs[0])) is not None and watch.wanted():
            # Autograd does not count a single root among the nodes that it executes, as hooks on several tensors expect.
            other = torch.zeros((), requires_grad=True)
            outputs, given["grad_tensors"] = (*outputs, other), (*given["grad_tensors"], torch.zeros(()))
            return engine(outputs, **given)
        return engine(outputs, *args, **kwargs)

    run_backward.trainc_follows = True
    setattr(*compat.AUTOGRAD_ENGINE, run_backward)


ENGINE_ARGUMENTS = ("grad_tensors", "keep_graph", "create_graph", "inputs", "allow_unreachable")


def _with_results(
    engine: Callable[..., Any], outputs: Any, given: dict[str, Any], asked: dict[int, tuple[Watch, int]]
) -> tuple[Tensor | None, ...]:
    """What autograd gives for `given["inputs"]`, some of which are intermediate results: by their places, whose, and which."""
    inputs, by_watch = given["inputs"], {id(watch): watch for watch, _ in asked.values()}
    others = [get_gradient_edge(tensor)[:2] for k, tensor in enumerate(inputs) if k not in asked and _is_leaf(tensor)]
    with contextlib.ExitStack() as asking:
        extra = []
        for watch in by_watch.values():
            extra += asking.enter_context(watch.ask([place for of, place in asked.values() if of is watch], others))
        # The graph is kept: what leads on from such a result is not run in eager, nor freed.
        made = list(engine(outputs, **given | {"keep_graph": True, "inputs": (*inputs, *extra), "allow_unreachable": True}))
        for k, (watch, place) in asked.items():
            made[k] = watch.given(place)
    made = made[: len(inputs)]
    if not given["allow_unreachable"] and any(gradient is None for gradient in made):
        raise RuntimeError(
            "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if this is the "
            "desired behavior."
        )
    return tuple(made)


def _is_leaf(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and tensor.is_leaf and tensor.requires_grad


def _asked(inputs: Sequence[Tensor | GradientEdge]) -> dict[int, tuple[Watch, int]]:
    """Which of the tensors that gradients are asked for are intermediate results."""
    found = {}
    for k, given in enumerate(inputs):
        watch = _watch_of(given)
        if watch is not None and watch.has(given.output_nr):
            found[k] = watch, given.output_nr
        elif type(hooks := getattr(given, "_backward_hooks", None)) is Refused:
            hooks.refuse()
    return found


def _watch_of(given: Tensor | GradientEdge) -> Watch | None:
    node = given.node if isinstance(given, GradientEdge) else given.grad_fn
    return None if node is None else getattr(node, "trainc_watch", None)


def _refuse_retained(outputs: Sequence[Tensor | GradientEdge]) -> None:
    """UserError where a backward of these comes to a call of whose results one is to keep its gradient."""
    for result in _refused:
        tensor = result()
        if tensor is None or not tensor.retains_grad or type(tensor._backward_hooks) is not Refused:
            continue
        roots = [given.node if isinstance(given, GradientEdge) else given.grad_fn for given in outputs]
        if _leads(roots, {_call_of(tensor.grad_fn)}):
            tensor._backward_hooks.refuse()


def _call_of(node: Node) -> Node:
    """The node of a call, of which `node`, a result's, may be a view."""
    while not isinstance(node, BackwardCFunction) and node.next_functions and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
    return node


@contextlib.contextmanager
def _replaced(edge: GradientEdge, gradient: Tensor) -> Iterator[None]:
    """Whatever reaches this place of autograd's graph, `gradient` goes on from it."""

    def instead(given: tuple) -> tuple:
        return (*given[: edge.output_nr], gradient, *given[edge.output_nr + 1 :])

    handle = edge.node.register_prehook(instead)
    try:
        yield
    finally:
        handle.remove()


def _leads(nodes: Sequence[Node | None], ends: set[Node]) -> bool:
    """Whether autograd's graph leads from one of the nodes to one of the ends."""
    todo, seen = [node for node in nodes if node is not None], set(nodes)
    while todo:
        node = todo.pop()
        if node in ends:
            return True
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
    return False


def _checked(changed: Any, gradient: Tensor | None, hook: Any) -> Any:
    """What autograd asks of a hook's result."""
    name = getattr(hook, "__name__", type(hook).__name__)
    if not isinstance(changed, Tensor):
        raise TypeError(f"expected Tensor, but hook returned '{type(changed).__name__}'")
    if gradient is not None and changed.shape != gradient.shape:
        raise RuntimeError(f"hook '{name}' has changed the size of value")
    if gradient is not None and changed.dtype != gradient.dtype:
        raise RuntimeError(f"hook '{name}' has changed the type of value (was {gradient.type()} got {changed.type()})")
    return changed


__all__ = ["Watch", "gradients_of", "made_of", "refused"]
