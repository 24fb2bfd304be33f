"""Which gradients a backward makes: those of tensors that an output leads to which the loss uses. The others stay None, as in
eager, so that no optimizer decays or moves a parameter that had no part in the loss.

The joint graph is traced with a gradient for every output. Two things tell what there would have been with some of them alone:
where a gradient depends on the tangent of a used output, eager makes it; and where autograd's own graph leads from a used output
to the tensor through an `autograd.Function`, too, for such a function is handed zeros for outputs that are not used, or past a
hook of the program's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction, FunctionCtx

from trainc.base.patches import patched
from trainc.torch import compat
from trainc.torch.compat import graph_capture
from trainc.torch.joint import intermediate
from trainc.torch.joint.own_backward import OwnBackwards, edges_of_tangents

Tensor = torch.Tensor
Node = torch.fx.Node


class TangentsOfGradients:
    """Sets of tangents are numbers with a bit for each."""

    def __init__(self) -> None:
        self._of_autograd: list[int] = []  # by input: tangents that autograd's graph leads from
        self.intermediate: dict[int, int] = {}  # outputs that others are made of (intermediate.py), by their places
        self.own = OwnBackwards()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While AOTAutograd traces: looks at autograd's graph between the forward and the backward."""
        create_joint, set_materialize = graph_capture.create_joint, FunctionCtx.set_materialize_grads

        def create_joint_of_watched(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
            return create_joint(self._watched(fn), *args, **kwargs)

        def noted(ctx: Any, value: bool) -> None:
            ctx.trainc_materializes = value  # what PyTorch keeps of it cannot be read
            set_materialize(ctx, value)

        with (
            patched(*compat.JOINT_TRACE, create_joint_of_watched),
            patched(*compat.MATERIALIZED_GRADS, noted),
            self.own.watched(),
        ):
            yield

    def _watched(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*primals: Any) -> Any:
            self.own.forward_begins()
            result = fn(*primals)
            outputs, has_tangent = result[0]
            used = [o for o, has in zip(outputs, has_tangent, strict=True) if has]
            places = [i for i, output in enumerate(outputs) if _has_history(output)]
            order = _in_order(dict.fromkeys(outputs[i].grad_fn for i in places)) if len(places) > 1 else []
            self.own.forward_ends(used, order)
            self._of_autograd = _led_to(used, primals, order, self.own.hooked())
            found = intermediate.made_of([outputs[i] for i in places], order) if order else {}
            self.intermediate = {places[k]: behind for k, behind in found.items()}
            return result

        watched.__dict__.update(fn.__dict__)
        return watched

    def gradients(self, gradients: Sequence[Any], tangents: Sequence[Node]) -> list[int]:
        """Of each gradient of a joint graph: the tangents that it is made for."""
        if len(tangents) < 2:
            return [-1] * len(gradients)
        of_tangents = _dependencies(tangents)
        found = []
        for i, gradient in enumerate(gradients):
            led = self._of_autograd[i] if i < len(self._of_autograd) else 0
            depends = of_tangents.get(gradient, 0) if isinstance(gradient, Node) else 0
            found.append(led | depends or -1)  # -1: it is there whatever the loss uses
        return found


def _led_to(outputs: Sequence[Any], inputs: Sequence[Any], order: Sequence[Any], hooked: Set[Any]) -> list[int]:
    """For each input: the outputs from which autograd's graph leads to it, through an `autograd.Function`, which is handed zeros
    for outputs that are not used, or past a hook of the program's, which may give what it likes. All other operations give no
    gradient for such outputs. `order`: the graph's nodes; `hooked`: those that have such hooks."""
    runs_own = {node for node in order if isinstance(node, BackwardCFunction) or node in hooked}
    if not runs_own:
        return []
    through: dict[Any, int] = {}  # tangents that came through such a function
    for node, following, _, led in edges_of_tangents(outputs, order):
        if node is not None:
            through[following] = through.get(following, 0) | (led if node in runs_own else through.get(node, 0))
    leaves = [torch.autograd.graph.get_gradient_edge(t).node if _has_gradient(t) else None for t in inputs]
    return [through.get(leaf, 0) for leaf in leaves]


def _has_history(value: Any) -> bool:
    return isinstance(value, Tensor) and value.grad_fn is not None


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _in_order(roots: Any) -> list[Any]:
    """The nodes of autograd's graph from the roots on, each before those that it leads to."""
    done: list[Any] = []
    seen: set[Any] = set()
    for root in roots:
        stack = [] if root in seen else [(root, iter(root.next_functions))]
        seen.add(root)
        while stack:
            node, rest = stack[-1]
            following = next((n for n, _ in rest if n is not None and n not in seen), None)
            if following is None:
                stack.pop()
                done.append(node)
            else:
                seen.add(following)
                stack.append((following, iter(following.next_functions)))
    return done[::-1]


def _dependencies(tangents: Sequence[Node]) -> dict[Node, int]:
    """The tangents that each node of the graph is made of. A size or another number is made of none."""
    depends = {tangent: 1 << i for i, tangent in enumerate(tangents)}
    for node in tangents[0].graph.nodes:
        if node.op != "call_function" or issubclass(type(node.meta.get("val")), (int, float, bool, torch.SymInt)):
            continue
        mask = 0
        for given in node.all_input_nodes:
            mask |= depends.get(given, 0)
        if mask:
            depends[node] = mask
    return depends


__all__ = ["TangentsOfGradients"]
