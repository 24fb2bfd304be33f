"""Backwards that the program has written itself (of an `autograd.Function`, a hook on a tensor), where the loss uses some of its
results alone.

The joint graph is traced with a tangent for every result, and one that autograd never defines counts as zero there. What
PyTorch's own formulas make of zero is zero, and eager does not run them. A backward of the program's may make something else of
it (`return ctx.saved_tensors[0]`, `g + 1`), which a plan would add to the gradients though eager does not call it. Such programs
run in PyTorch. Or it asks whether there is a gradient at all (`set_materialize_grads(False)`): such a one is traced once more,
with a tangent for the loss alone (compiler.compile_flat).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from operator import getitem
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from trainc.base.errors import NotCompiled
from trainc.base.patches import patched
from trainc.torch import compat
from trainc.torch.joint.histories import edge_of

Tensor = torch.Tensor
Node = torch.fx.Node

_library = torch.library.Library("trainc", "FRAGMENT")
_library.define("own_backward(Tensor gradient, int place) -> Tensor")
_library.impl("own_backward", lambda gradient, place: gradient.clone(), "CompositeExplicitAutograd")
_library.impl("own_backward", lambda gradient, place: torch.empty_like(gradient), "Meta")
_MARK = torch.ops.trainc.own_backward.default  # is in a traced graph until `refuse` has seen it


class AsksWhich(NotCompiled):
    """A backward of the program's does one thing where a result's gradient is zero, and may do another where there is none."""


@dataclasses.dataclass
class Own:
    """One backward of the program's: of `node`, autograd's, whose output `slot` it is called for (None: all)."""

    node: Any
    slot: int | None
    name: str
    materializes: bool = True
    tangents: dict[int, int] = dataclasses.field(default_factory=dict)  # by output of the node: a bit for each that leads there


class OwnBackwards:
    """Those of one trace."""

    def __init__(self) -> None:
        self._owns: list[Own] = []
        self._places: dict[int, int] = {}  # of functions, by their node
        self._in_backward = False
        self._inputs: set[tuple[Any, int]] = set()  # where the gradients of the program's inputs come to
        self._hooked: list[tuple[Any, int]] = []  # and those of tensors that it has put a hook on

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While AOTAutograd traces: what such a backward gives is marked in the graph."""
        register, retain, apply = torch.Tensor.register_hook, torch.Tensor.retain_grad, BackwardCFunction.apply

        def register_hook(tensor: Tensor, hook: Callable[[Tensor], Any]) -> Any:
            if self._in_backward or not isinstance(tensor, compat.FunctionalTensor) or not tensor.requires_grad:
                return register(tensor, hook)
            edge = edge_of(tensor)
            if edge is None:
                return register(tensor, hook)
            node, slot = edge
            self._hooked.append(edge)
            if edge in self._inputs:  # it stays with the caller's tensor, and is told of all that comes to that one
                raise NotCompiled("a hook on an argument or on a tensor of the model's", in_pytorch=True)
            place = self._add(Own(node, slot, "a hook"))
            return register(tensor, lambda gradient: self._marked(place, hook(gradient)))

        def apply_function(function: Any, *gradients: Any) -> Any:
            given = apply(function, *gradients)
            place = self._places.get(id(function))
            return given if place is None else self._marked(place, given)

        def retain_grad(tensor: Tensor) -> None:
            if isinstance(tensor, compat.FunctionalTensor) and tensor.requires_grad and not self._in_backward:
                raise NotCompiled("retain_grad(), for somebody who reads a tensor's gradient after the call", in_pytorch=True)
            retain(tensor)

        with (
            patched(*compat.TENSOR_HOOK, register_hook),
            patched(*compat.TENSOR_RETAINS, retain_grad),
            patched(*compat.OWN_BACKWARD, apply_function),
        ):
            yield

    def program_begins(self, inputs: Sequence[Any]) -> None:
        """With inputs whose gradients come to these places (`histories.edge_of`)."""
        self._inputs, self._hooked = set(inputs) - {None}, []

    def program_ends(self, results: Sequence[Any]) -> None:
        """NotCompiled where a hook of its would be lost."""
        if any(isinstance(t, Tensor) and compat.is_view(t) and edge_of(t) in self._hooked for t in results):
            raise NotCompiled("a hook on a result that is a view, which is made outside of the plan", in_pytorch=True)

    def forward_begins(self) -> None:
        """AOTAutograd runs the program twice, or more often; the last run counts."""
        self._owns, self._places, self._in_backward = [], {}, False

    def forward_ends(self, used: Sequence[Any], order: Sequence[Any]) -> None:
        """`used`: the results that have tangents; `order`: the nodes of autograd's graph, each before those that it leads to."""
        for node in order:
            if isinstance(node, BackwardCFunction):
                own = Own(node, None, type(node).__name__.removesuffix("Backward"), getattr(node, "trainc_materializes", True))
                self._places[id(node)] = self._add(own)
        if self._owns:
            leading = _leading_to({own.node for own in self._owns}, used, order)
            for own in self._owns:
                found = leading[own.node]
                own.tangents = found if own.slot is None else {own.slot: found.get(own.slot, 0)}
        self._in_backward = True

    def hooked(self) -> set[Any]:
        """The nodes on which the program has hooks of its own."""
        return {own.node for own in self._owns if own.slot is not None}

    def _add(self, own: Own) -> int:
        self._owns.append(own)
        return len(self._owns) - 1

    def _marked(self, place: int, given: Any) -> Any:
        if not self._in_backward:  # a gradient that forward itself asks for
            return given
        if isinstance(given, (tuple, list)):
            return type(given)([self._marked(place, each) for each in given])
        if not isinstance(given, Tensor) or given.layout is not torch.strided:
            return given
        with torch.no_grad():  # Dynamo's graph of a backward leaves gradients on
            return _MARK(given, place)

    def refuse(self, graph: torch.fx.Graph, tangents: Sequence[Node]) -> None:
        """Takes the marks out of the graph. NotCompiled where one of these backwards would give something for tangents that are
        not there, or would be given something else."""
        gives: dict[int, list[Node]] = {}
        for node in graph.find_nodes(op="call_function", target=_MARK):
            gradient, place = node.args
            gives.setdefault(place, []).append(gradient)
            node.replace_all_uses_with(gradient)
            graph.erase_node(node)
        everything = (1 << len(tangents)) - 1
        for place, own in enumerate(self._owns):
            reached = {mask for mask in own.tangents.values() if mask}
            if len(reached) > 1 and not own.materializes:
                asks = "asks which of its gradients there are: set_materialize_grads(False)"
                raise AsksWhich(f"{own.name} {asks}", in_pytorch=True)
            all_of = 0
            for mask in reached:
                all_of |= mask
            if all_of in (0, everything) or place not in gives:
                continue  # it runs whatever the loss uses; or it changes nothing
            zero = _vanishing(graph, {t for i, t in enumerate(tangents) if all_of >> i & 1})
            if not zero.issuperset(gives[place]):
                gives_more = "may give a gradient where the loss does not use what it belongs to"
                raise NotCompiled(f"the backward of {own.name} {gives_more}", in_pytorch=True)


def _leading_to(nodes: set[Any], used: Sequence[Any], order: Sequence[Any]) -> dict[Any, dict[int, int]]:
    """Of each of `nodes`, by its output: the tangents from which autograd's graph leads there."""
    found: dict[Any, dict[int, int]] = {node: {} for node in nodes}
    for _, node, slot, tangents in edges_of_tangents(used, order):
        if node in found:
            found[node][slot] = found[node].get(slot, 0) | tangents
    return found


def edges_of_tangents(used: Sequence[Any], order: Sequence[Any]) -> Iterator[tuple[Any, Any, int, int]]:
    """The edges of autograd's graph, from the results `used` (there from None) down, as (from, to, output, tangents): a bit for
    each of the results from which the graph leads there. `order`: its nodes, each before those that it leads to."""
    led: dict[Any, int] = {}
    for i, output in enumerate(used):
        if isinstance(output, Tensor) and output.grad_fn is not None:
            led[output.grad_fn] = led.get(output.grad_fn, 0) | 1 << i
            yield None, output.grad_fn, output.output_nr, 1 << i
    for node in order:
        tangents = led.get(node, 0)
        for following, slot in node.next_functions:
            if following is not None:
                led[following] = led.get(following, 0) | tangents
                yield node, following, slot, tangents


_DIVIDED = torch.ops.aten.div.Tensor
# Operations whose result is zero where their first operand is, whatever the others are.
_FIRST = frozenset(
    {"neg", "div", "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "unsqueeze", "squeeze", "slice",
     "select", "unbind", "split", "split_with_sizes", "diagonal", "as_strided", "alias", "detach", "clone", "_to_copy", "sum",
     "mean", "abs", "sign", "sin", "tan", "tanh", "sqrt", "relu", "square", "flip", "roll", "tril", "triu", "index", "real",
     "index_select", "gather", "imag", "conj", "_conj", "_conj_physical", "view_as_real", "view_as_complex", "cumsum", "norm",
     "nan_to_num", "linalg_vector_norm", "repeat", "expand_copy", "view_copy", "slice_backward", "select_backward",
     "diagonal_backward", "unfold_backward", "tanh_backward", "sigmoid_backward", "threshold_backward", "gelu_backward",
     "silu_backward", "hardtanh_backward", "leaky_relu_backward", "convolution_backward", "native_layer_norm_backward",
     "native_group_norm_backward", "native_batch_norm_backward", "native_dropout_backward", "_softmax_backward_data",
     "_log_softmax_backward_data", "embedding_dense_backward", "amax", "amin", "max", "min", "lift_fresh"}
)  # fmt: skip
# Those of which one operand that is zero is enough.
_ANY = frozenset({"mul", "mm", "bmm", "mv", "dot", "vdot", "matmul"})
# Those that are zero where all of their tensors are.
_ALL = frozenset({"add", "sub", "cat", "stack", "maximum", "minimum", "addmm", "baddbmm", "addcmul"})


def _vanishing(graph: torch.fx.Graph, tangents: set[Node]) -> set[Node]:
    """What is zero where these tangents are. A product of zero with what is made of zero (1 / g.norm()) may be NaN."""
    zero, made_of_zero = set(tangents), set(tangents)
    for node in graph.nodes:
        if node.op == "call_function" and not made_of_zero.isdisjoint(node.all_input_nodes):
            made_of_zero.add(node)
            if _vanishes(node, zero) and zero.issuperset(made_of_zero.intersection(node.all_input_nodes)):
                if not (node.target is _DIVIDED and node.args[1] in zero):
                    zero.add(node)
    return zero


def _vanishes(node: Node, zero: set[Node]) -> bool:
    if node.target is getitem:
        return node.args[0] in zero
    if not isinstance(node.target, compat.OpOverload):
        return False
    name = node.target.overloadpacket.__name__
    first = bool(node.args) and node.args[0] in zero
    if name in _FIRST:
        return first
    if name in _ANY:
        return any(given in zero for given in node.all_input_nodes)
    if name in _ALL:  # of tensors; a number beside them is no zero
        numbers = [arg for arg in node.args if isinstance(arg, (int, float, complex))]
        return bool(node.all_input_nodes) and not any(numbers) and zero.issuperset(node.all_input_nodes)
    if name == "clamp":
        low, high = (*node.args[1:], None, None)[:2]
        return first and not any(isinstance(limit, Node) for limit in (low, high)) and (low or 0) <= 0 <= (high or 0)
    if name == "where":
        return len(node.args) == 3 and all(arg in zero or arg == 0 for arg in node.args[1:])
    if name in ("masked_fill", "constant_pad_nd"):
        return first and (node.args[2] if len(node.args) > 2 else 0) == 0
    return False


__all__ = ["AsksWhich", "OwnBackwards", "edges_of_tangents"]
