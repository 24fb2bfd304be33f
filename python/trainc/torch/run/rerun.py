"""A forward call as it was, so that PyTorch can run it again where the plan of its backward cannot be compiled.

The backward is compiled when autograd comes to it, and reads what the forward's plan saved, which nobody else can read. Until a
backward has been compiled, each call therefore keeps what it was given; afterwards nothing is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence

import torch

from trainc.torch.device import Host
from trainc.torch.graph import wire

Tensor = torch.Tensor


class Rerun:
    def __init__(self, graph: torch.fx.GraphModule, inputs: Sequence[Tensor | None], written: Collection[int], device: Host):
        """Before the call. `graph`: the joint graph; `written`: inputs that change when the call is over."""
        self.graph = graph
        self._inputs = [t.clone() if i in written and t is not None else t for i, t in enumerate(inputs)]
        self._versions = [_version(t) for t in self._inputs]
        draws = any(wire.is_random(node.target) for node in graph.graph.nodes)
        self._device, self._state = device, device.generator().get_state() if draws else None

    def inputs(self) -> list[Tensor | None] | None:
        """What the call was given; None where that has been written to since."""
        return self._inputs if self._versions == [_version(t) for t in self._inputs] else None

    @contextlib.contextmanager
    def generator(self) -> Iterator[None]:
        """The random numbers of the call; those of the program go on afterwards as if nothing had been drawn."""
        if self._state is None:
            yield
            return
        generator = self._device.generator()
        now = generator.get_state()
        generator.set_state(self._state)
        try:
            yield
        finally:
            generator.set_state(now)


def _version(tensor: Tensor | None) -> int:
    return -1 if tensor is None or tensor.is_inference() else tensor._version


__all__ = ["Rerun"]
