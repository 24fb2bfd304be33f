"""Logits beside a loss, which nobody reads: the plans are made as if the program did not give them.

A language model gives its loss and, beside it, a matrix with a row for each token and a column for each word. Training reads
the loss alone. Where the matrix is no result, it is made in chunks of rows, and rows without a label are passed over
(schedule/chunk.h), which is up to a quarter of a step. So the forward gives what the matrix is made of instead: the narrow
operand of its product, and a copy of the weight, which an optimizer may change before somebody looks. The caller gets a tensor
whose elements are computed when they are first read (run/deferred.py). Once they were read, or had a gradient of their own, the
plans of the whole program serve the calls that follow.

A program whose first batch has a label in nearly every row (a text packed into blocks) has nothing to gain, and is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from trainc.base import config
from trainc.torch.device import Host
from trainc.torch.graph import wire
from trainc.torch.run.deferred import DeferredTensor, Outputs
from trainc.torch.run.pool import Results

Tensor = torch.Tensor
Node = torch.fx.Node
aten = torch.ops.aten

_MOVES = frozenset({
    aten.view.default, aten._unsafe_view.default, aten.t.default, aten.transpose.int, aten.permute.default, aten.alias.default,
    aten.unsqueeze.default, aten.squeeze.dim, aten.detach.default,
})  # fmt: skip
_PRODUCTS = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default})
_BY_ELEMENT = frozenset({aten._to_copy.default, aten.mul.Tensor, aten.div.Tensor, aten.tanh.default})  # by a number, if by any
_LOSSES = frozenset({aten._log_softmax.default})
_WORTHWHILE = 0.1  # of a batch's labels: what pays for the copy of the weight, and for kernels of several sizes


class Unread:
    """One result of a joint graph that is left to whoever reads it."""

    def __init__(
        self, gm: torch.fx.GraphModule, inputs: int, forward_outputs: int, index: int, tangent: int | None, product: Node
    ):  # fmt: skip
        """`index`: of the result among the `forward_outputs`; `tangent`: its own, by its place among the tangents, which come
        behind `inputs`; `product`: the product it is made from."""
        placeholders = list(gm.graph.find_nodes(op="placeholder"))
        outputs = list(next(iter(gm.graph.find_nodes(op="output"))).args[0])
        self.index, self.meta = index, outputs[index].meta["val"]
        self.tangent, self.undefined = tangent, () if tangent is None else (inputs + tangent,)
        self.whole = gm
        bases = list(dict.fromkeys(map(_base, product.all_input_nodes)))
        # results of the narrow plan; inputs of which a copy is taken
        self._results = [base for base in bases if base.op != "placeholder"]
        self.inputs = [placeholders.index(base) for base in bases if base.op == "placeholder"]
        self.narrow = self._without(gm, outputs, forward_outputs)
        self.forward_outputs = forward_outputs - 1 + len(self._results)
        self._given = forward_outputs
        self.graph = self._made_of(outputs[index], [*self._results, *[placeholders[i] for i in self.inputs]])

    @staticmethod
    def of(gm: torch.fx.GraphModule, inputs: int, forward_outputs: int, is_sample: bool = False) -> Unread | None:
        """Of a joint graph of `inputs` and tangents; None where there is no such result, or where nothing could be gained.
        `is_sample`: the same program with other sizes, which may be too small to gain by it."""
        if not any(node.target in _LOSSES for node in gm.graph.nodes) or any(wire.RECOMPUTE in n.meta for n in gm.graph.nodes):
            return None
        tangents = list(gm.graph.find_nodes(op="placeholder"))[inputs:]
        outputs = list(next(iter(gm.graph.find_nodes(op="output"))).args[0])
        losses = [t for t in tangents if t.meta["val"].numel() == 1]
        for i, out in enumerate(outputs[:forward_outputs]):
            if not isinstance(out, Node) or outputs.count(out) > 1 or not losses:
                continue
            value = out.meta.get("val")
            if not isinstance(value, Tensor) or not value.is_contiguous() or not value.dtype.is_floating_point:
                continue
            product = _product(out)
            if product is None or not (is_sample or _is_worth_it(product)):
                continue
            own = [t for t in tangents if (t.meta["val"].shape, t.meta["val"].dtype) == (value.shape, value.dtype)]
            like = [o for o in outputs[:forward_outputs] if isinstance(o, Node) and _shape(o) == value.shape]
            if len(own) > 1 or len(like) > 1:  # which of them is whose cannot be told
                continue
            theirs = {_base(o) for o in outputs[:forward_outputs] if isinstance(o, Node)}
            if any(base in theirs or not _is_plain(base) for base in map(_base, product.all_input_nodes)):  # he may write to it
                continue
            found = Unread(gm, inputs, forward_outputs, i, tangents.index(own[0]) if own else None, product)
            return found if found._results else None
        return None

    def _without(self, gm: torch.fx.GraphModule, outputs: list[Any], forward_outputs: int) -> torch.fx.GraphModule:
        graph, copies = torch.fx.Graph(), {}
        graph.graph_copy(gm.graph, copies)
        first, *others = self._results or [None]
        forward = [first if i == self.index else out for i, out in enumerate(outputs[:forward_outputs])]
        given = [*forward, *others, *outputs[forward_outputs:]]
        graph.output(tuple([copies[out] if isinstance(out, Node) else out for out in given]))
        return torch.fx.GraphModule(gm, graph)

    @staticmethod
    def _made_of(out: Node, bases: list[Node]) -> torch.fx.GraphModule:
        """The part of the graph that makes `out` of `bases`."""
        graph, copies = torch.fx.Graph(), {}
        for base in bases:
            copies[base] = graph.placeholder(base.name)
            copies[base].meta.update(base.meta)

        def copy(node: Node) -> Node:
            if node not in copies:
                for given in node.all_input_nodes:
                    copy(given)
                copies[node] = graph.node_copy(node, copies.__getitem__)
            return copies[node]

        graph.output((copy(out),))
        return torch.fx.GraphModule(torch.nn.Module(), graph)

    def is_given_away(self, held: Sequence[int], aliases: Iterable[int], inputs: int) -> bool:
        """Whether somebody else would have what the result is made of: the backward, which is given the results `held` (by places
        behind `inputs`), or the caller, whose inputs the results `aliases` are."""
        own = {self.index, *range(self._given, self.forward_outputs)}
        return not (own.isdisjoint(i - inputs for i in held) and own.isdisjoint(aliases))

    def described(self) -> str:
        return f"result {self.index}, {wire.dtype_name(self.meta.dtype)}{list(self.meta.shape)}"

    def copies(self, device: Host) -> list[Results]:
        """Memory for the inputs among what the result is made of."""
        metas = [node.meta["val"] for node in self.graph.graph.find_nodes(op="placeholder")][len(self._results) :]
        return [Results(meta.dtype, tuple(meta.shape), meta.stride(), device) for meta in metas]

    def wants(self, tangents: Sequence[Tensor | None]) -> bool:
        """Whether the loss has a term of its own from the result."""
        return self.tangent is not None and tangents[self.tangent] is not None

    def give(
        self, results: list[Any], inputs: Sequence[Tensor], copies: list[Results], compute: Callable[[list[Tensor]], Tensor]
    ) -> list[Any]:
        """The program's results, of those of the narrow plan. `compute` makes the one that is left out of what it is made of;
        `copies`: of `copies()`."""
        copied = [copy.new().copy_(inputs[i].detach()) for i, copy in zip(self.inputs, copies, strict=True)]
        bases = [results[self.index], *results[self._given :], *copied]
        results, device = results[: self._given], bases[0].device
        results[self.index] = DeferredTensor(self.meta, device, Outputs(lambda: [compute(bases)]), 0)
        return results


def _shape(node: Node) -> torch.Size | None:
    return getattr(node.meta.get("val"), "shape", None)


def _is_plain(base: Node) -> bool:
    value = base.meta.get("val")
    return isinstance(value, Tensor) and value.is_contiguous()


def _is_chain(node: Node, kinds: frozenset) -> bool:
    return node.op == "call_function" and node.target in kinds and len(node.all_input_nodes) == 1


def _product(out: Node) -> Node | None:
    """The product that a result is made from, element by element, and moved."""
    while _is_chain(out, _MOVES | _BY_ELEMENT):
        out = out.all_input_nodes[0]
    return out if out.op == "call_function" and out.target in _PRODUCTS else None


def _base(operand: Node) -> Node:
    """What holds the elements of a product's operand."""
    while _is_chain(operand, _MOVES):
        operand = operand.all_input_nodes[0]
    return operand


def _is_worth_it(product: Node) -> bool:
    value, operand = product.meta["val"], product.all_input_nodes[-1].meta["val"]
    flops = 6 * math.prod(value.shape) * operand.shape[-2]  # of the product and its two gradients
    return config.skip_hidden and flops >= config.skip_hidden_flops


def hides_rows(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether these inputs of the graph have labels that hide enough rows from a loss."""
    places = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    for loss in gm.graph.find_nodes(op="call_function", target=aten.nll_loss_forward.default):
        labels, ignored = loss.args[1], loss.args[4]
        while len(labels.all_input_nodes) == 1:  # moved, or shifted
            labels = labels.all_input_nodes[0]
        place = places.get(labels, len(inputs))
        if place < len(inputs) and type(inputs[place]) is Tensor and inputs[place].numel():
            if (inputs[place] == ignored).float().mean().item() >= _WORTHWHILE:
                return True
    return False


__all__ = ["Unread"]
