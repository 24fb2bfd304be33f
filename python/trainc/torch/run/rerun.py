"""A forward call as it was, so that PyTorch can run it again where the plan of its backward cannot be compiled.

The backward is compiled when autograd comes to it, and reads what the forward's plan saved, which nobody else can read. Until a
backward has been compiled, each call therefore keeps what it was given; afterwards its autograd node alone does, for the gradient
of a gradient (joint/second_order.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from trainc.torch import compat
from trainc.torch.device import Host, refuse_freed
from trainc.torch.graph import wire

Tensor = torch.Tensor


class Rerun:
    def __init__(
        self, inputs: Sequence[Tensor | None], written: Collection[int], device: Host, draws: bool,
        graph: torch.fx.GraphModule | None = None, any_value: Collection[int] = (),
    ):  # fmt: skip
        """Before the call. `written`: inputs that change when it is over; `draws`: whether it draws random numbers; `graph`: the
        joint graph; `any_value`: those of the `written` that may have another value when the call is done again."""
        self.graph, self._any_value = graph, any_value
        self._inputs = list(inputs)
        if kept := [i for i in written if i not in any_value and isinstance(inputs[i], Tensor)]:
            refuse_freed(inputs[i] for i in kept)  # a copy would read what is not there
            for i in kept:
                self._inputs[i] = inputs[i].clone()
        self._versions = self._versions_now()
        self._device, self._state = device, device.generator().get_state() if draws else None

    def inputs(self) -> list[Tensor | None] | None:
        """What the call was given; None where that has been written to since."""
        refuse_freed(self._inputs[i] for i in self._any_value)
        return self._inputs if self._versions == self._versions_now() else None

    def _versions_now(self) -> list[int]:
        """-1 of what has none: a number, for the sizes of tensors that a tensor wraps."""
        versions = [t._version if isinstance(t, Tensor) and not t.is_inference() else -1 for t in self._inputs]
        for i in self._any_value:
            versions[i] = -1
        return versions

    def generator(self) -> AbstractContextManager[None]:
        """The random numbers of the call; those of the program go on afterwards as if nothing had been drawn."""
        return nullcontext() if self._state is None else self._device.generator_at(self._state)


def draws(graph: torch.fx.Graph) -> bool:
    return any(wire.is_random(node.target) for node in graph.nodes)


def statistics(primals: Sequence[torch.fx.Node]) -> set[int]:
    """Of a joint graph's primals, by their places, those that nothing is made of but what is written to primals when the forward
    is over."""
    output = next(iter(primals[0].graph.find_nodes(op="output"))) if primals else None
    results = output.args[0] if output is not None else ()
    written = [hasattr(desc, "mutated_input") for desc in (output.meta.get("desc") or ())] if results else []
    read, left = set(), [node for i, node in enumerate(results) if i >= len(written) or not written[i]]
    while left:
        node = left.pop()
        if isinstance(node, torch.fx.Node) and node not in read:
            read.add(node)
            left += _made_of(node)
    return {i for i, primal in enumerate(primals) if primal not in read}


def _made_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What a value is made of. While BatchNorm trains, nothing but new statistics is made of the old ones."""
    norm, result = node.args if wire.is_of_batch_norm(node) else (node, None)
    if norm.op != "call_function" or not wire.is_batch_norm(norm):
        return node.all_input_nodes
    given = dict(zip([argument.name for argument in compat.schema_of(norm.target).arguments], norm.args, strict=False))
    trains = given.get("training", given.get("train")) is True
    if not trains or norm is not node and result not in (0, 1, 2):  # those: what is normalised, mean, 1 / deviation
        return norm.all_input_nodes
    return [value for name, value in given.items() if not name.startswith("running") and isinstance(value, torch.fx.Node)]


__all__ = ["Rerun", "draws", "statistics"]
