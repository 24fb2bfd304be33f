"""What a caller gets of a plan's results.

A plan gives dense tensors of its own. A program may give others: a part of an argument (one of `x.chunk(2)`), a part of
another result, a copy of an argument, a tensor with gaps between its rows. Of a part nothing is computed: the plan gives what
it is a part of, and the part is taken here, so that who writes into one writes into the other, as in eager.

AOTAutograd itself makes views of arguments again, and those results that lie in one another and have a gradient. All others it
leaves to us, for it takes a graph's results to be what its operations give.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from trainc.base.errors import NotCompiled
from trainc.torch import compat
from trainc.torch.graph import wire
from trainc.torch.strided import is_apart, is_dense, is_static, is_view, part_of

Tensor = torch.Tensor
Node = torch.fx.Node


class Outputs:
    """Made before the plan is, for it changes what `gm` gives: `count` outputs are the caller's."""

    def __init__(self, gm: torch.fx.GraphModule, count: int):
        output = next(iter(gm.graph.find_nodes(op="output")))
        self._nodes = list(output.args[0])
        inputs = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
        # Dynamo hands sizes and the like out of a graph that it ends early.
        self._numbers = {i: node for i, node in enumerate(self._nodes[:count]) if isinstance(node, (int, float, complex))}
        for i in self._numbers:
            self._nodes[i] = None
        self._of_inputs: list[tuple[int, int, tuple]] = []  # (output, the input that it is a part of, where)
        self._of_outputs: list[tuple[int, int, tuple]] = []
        together: dict[Node, list[int]] = defaultdict(list)
        for i, node in enumerate(self._nodes[:count]):
            if not isinstance(node, Node):
                continue
            root = root_of(node)
            if root not in inputs:
                together[root].append(i)
            elif root is not node and (part := _part(root, node)) is not None:
                self._of_inputs.append((i, inputs[root], part))
                self._nodes[i] = root
        for root, group in together.items():
            self._lie_together(root, group)
        self._count = count
        if self._numbers or self._of_inputs or self._of_outputs:
            output.args = (tuple(self._nodes),)
        self._copied: list[int] = []
        self._with_gaps: list[tuple[int, torch.Size, tuple[int, ...]]] = []

    def _lie_together(self, root: Node, group: list[int]) -> None:
        """The outputs `group` look at the memory of `root`: the plan gives that once."""
        if len(group) == 1 and _is_apart(self._nodes[group[0]]):
            return  # nobody sees that it is a part: it has memory of its own size
        base = next((i for i in group if self._nodes[i] is root), group[0])
        for i in group:
            if self._nodes[i] is root and i == base:
                continue
            part = _part(root, self._nodes[i])
            if part is None:
                where = wire.origin(root) or root.name
                raise NotCompiled(f"{where}: results share its memory, one of them as another type or with sizes that change")
            self._of_outputs.append((i, base, part))
        for i in group:
            self._nodes[i] = root if i == base else None

    def shared(self) -> set[int]:
        """The outputs that are parts of others, or of inputs, and those that they are parts of."""
        return {i for i, *_ in (*self._of_inputs, *self._of_outputs)} | {base for _, base, _ in self._of_outputs}

    def settle(self, executable: Any) -> None:
        """Once there is a plan: what it gives otherwise than the program."""
        given = self._nodes[: self._count]
        # `x.clone()`: the plan gives x itself, which is the caller's.
        self._copied = [i for i in executable.aliases if i < len(given) and given[i].op != "placeholder"]
        for i, node in enumerate(given):
            if node is not None and node.op != "placeholder" and (gaps := _gaps(node.meta["val"])):
                self._with_gaps.append((i, *gaps))

    def __call__(self, results: list[Any], inputs: Sequence[Tensor]) -> tuple[list[Any], dict[int, Tensor]]:
        """What the caller gets of the plan's results; those of the plan's, by their places, that he gets parts of alone."""
        for i, number in self._numbers.items():
            results[i] = number
        for i in self._copied:
            results[i] = results[i].clone()
        for i, shape, strides in self._with_gaps:
            if results[i].stride() != strides:
                dense = results[i]
                results[i] = torch.empty_strided(shape, strides, dtype=dense.dtype, device=dense.device).copy_(dense)
        for i, base, part in self._of_inputs:
            results[i] = part_of(inputs[base], part)
        wholes = {base: results[base] for _, base, _ in self._of_outputs}
        for i, base, part in self._of_outputs:
            results[i] = part_of(wholes[base], part)
        return results, wholes


def root_of(node: Node) -> Node:
    """What `node` is a view of, through all that only looks at memory."""
    while (source := _viewed(node)) is not None:
        node = source
    return node


def _is_apart(node: Node) -> bool:
    """Whether each element of it has a place of its own, as far as that is known before sizes are."""
    x = node.meta.get("val")
    return not isinstance(x, Tensor) or x.layout is not torch.strided or not _is_static(x) or is_apart(x.shape, x.stride())


def _viewed(node: Node) -> Node | None:
    """The node whose memory this one looks at (of an element of a list of views: the list); None where it has its own."""
    if node.op != "call_function" or not is_view(node) or not isinstance(node.args[0], Node):
        return None
    source = node.args[0]
    several = isinstance(source.meta.get("val"), (list, tuple))
    return None if several and _viewed(source) is None else source


def _part(root: Node, node: Node) -> tuple | None:
    """(shape, strides, offset from the root's first element); None where that cannot be said."""
    chain: list[Node] = []
    while node is not root:
        chain.append(node)
        node = _viewed(node)
    whole = root.meta.get("val")
    if not isinstance(whole, Tensor) or whole.layout is not torch.strided or not _is_static(whole):
        return None
    with torch.no_grad():
        value: Any = torch.empty_strided(whole.shape, whole.stride(), dtype=whole.dtype, device="meta")
        for step in reversed(chain):
            rest = (step.args[1:], step.kwargs)
            if any(isinstance(x, Node) for x in compat.pytree.tree_leaves(rest)):
                return None
            value = step.target(value, *step.args[1:], **step.kwargs)
    if not isinstance(value, Tensor) or value.dtype != whole.dtype:
        return None
    return tuple(value.shape), value.stride(), value.storage_offset()


def _is_static(x: Tensor) -> bool:
    return is_static((*x.shape, *x.stride()))


def _gaps(x: Any) -> tuple[torch.Size, tuple[int, ...]] | None:
    """(shape, strides) of a tensor that does not fill its memory, and of which no two elements share a place."""
    if not isinstance(x, Tensor) or x.layout is not torch.strided or not _is_static(x) or x.numel() == 0:
        return None
    lies = x.shape, x.stride()
    return lies if is_apart(*lies) and not is_dense(*lies) else None


__all__ = ["Outputs", "root_of"]
