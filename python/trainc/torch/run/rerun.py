"""A forward call as it was, so that PyTorch can run it again where the plan of its backward cannot be compiled.

The backward is compiled when autograd comes to it, and reads what the forward's plan saved, which nobody else can read. Until a
backward has been compiled, each call therefore keeps what it was given; afterwards its autograd node alone does, for the gradient
of a gradient (joint/second_order.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from trainc.torch.device import Host, refuse_freed
from trainc.torch.graph import wire

Tensor = torch.Tensor


class Rerun:
    def __init__(
        self, inputs: Sequence[Tensor | None], written: Collection[int], device: Host, draws: bool,
        graph: torch.fx.GraphModule | None = None,
    ):  # fmt: skip
        """Before the call. `written`: inputs that change when it is over; `draws`: whether it draws random numbers; `graph`: the
        joint graph."""
        self.graph = graph
        self._inputs = list(inputs)
        if written:
            refuse_freed(t for i, t in enumerate(inputs) if i in written)  # a copy would read what is not there
            self._inputs = [t.clone() if i in written and isinstance(t, Tensor) else t for i, t in enumerate(inputs)]
        self._versions = _versions(self._inputs)
        self._device, self._state = device, device.generator().get_state() if draws else None

    def inputs(self) -> list[Tensor | None] | None:
        """What the call was given; None where that has been written to since."""
        return self._inputs if self._versions == _versions(self._inputs) else None

    def generator(self) -> AbstractContextManager[None]:
        """The random numbers of the call; those of the program go on afterwards as if nothing had been drawn."""
        return nullcontext() if self._state is None else self._device.generator_at(self._state)


def draws(graph: torch.fx.Graph) -> bool:
    return any(wire.is_random(node.target) for node in graph.nodes)


def _versions(given: Sequence[Any]) -> list[int]:
    """-1 of what has none: a number, for the sizes of tensors that a tensor wraps."""
    return [t._version if isinstance(t, Tensor) and not t.is_inference() else -1 for t in given]


__all__ = ["Rerun", "draws"]
