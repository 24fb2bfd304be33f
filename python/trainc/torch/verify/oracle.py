"""What PyTorch makes of some values of a graph, and how far others lie from that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from trainc.torch.device import Host
from trainc.torch.verify import bounds, program
from trainc.torch.verify.bounds import Distance
from trainc.torch.verify.program import Draws

Tensor = torch.Tensor
SEEDS = range(3)  # of disturbed runs


class Oracle:
    """`outputs`: nodes of the graph of these `nodes`, or None. `finish` makes more of a run's values (and is told whether they
    are in float64). It leaves the generator as it is."""

    def __init__(
        self, nodes: Iterable[torch.fx.Node], inputs: Sequence[Any], outputs: Sequence[Any], device: Host, draws: Draws,
        finish: Callable[[list[Any], bool], list[Any]] | None = None,
    ):  # fmt: skip
        self._nodes, self._inputs, self._outputs = list(nodes), inputs, list(outputs)
        self._device, self._draws, self._finish = device, draws, finish
        self._others: list[list[Any]] | None = None
        with device.generator_at(draws.state):
            self.eager = self._run()
            self.state = device.generator().get_state()  # when all is drawn
            try:
                self.truth: list[Any] | None = self._run(wide=True)
            except Exception:  # there is no such operation in float64, or no room for it
                self.truth = None

    def distance(self, i: int, ours: Tensor) -> Distance:
        """Of another value for output `i`."""
        truth = None if self.truth is None else self.truth[i]
        found = bounds.distance(ours, self.eager[i], truth, terms=self._terms)
        if not found.parted or found.error == float("inf") and ours.shape != self.eager[i].shape:
            return found
        return bounds.distance(ours, self.eager[i], truth, [run[i] for run in self.others()], self._terms)

    def distances(self, ours: Sequence[Any]) -> list[tuple[int, Distance]]:
        """Of all outputs that are tensors."""
        pairs = enumerate(zip(ours, self.eager, strict=False))
        return [(i, self.distance(i, a)) for i, (a, b) in pairs if isinstance(a, Tensor) and isinstance(b, Tensor)]

    def others(self) -> list[list[Any]]:
        """The outputs where every rounding is another."""
        if self._others is None:
            with self._device.generator_at(self._draws.state):
                self._others = [self._run(noise=torch.Generator().manual_seed(seed)) for seed in SEEDS]
        return self._others

    @property
    def _terms(self) -> int:
        return program.terms(self._nodes)

    def _run(self, wide: bool = False, noise: torch.Generator | None = None) -> list[Any]:
        made = program.run(self._nodes, self._inputs, self._outputs, self._device, self._draws, wide=wide, noise=noise)
        return made if self._finish is None else self._finish(made, wide)


def parted(found: Sequence[tuple[int, Distance]]) -> tuple[int, Distance] | None:
    """The output that lies farthest beyond what it may; None where none does."""
    beyond = [each for each in found if each[1].parted]
    return max(beyond, key=lambda each: each[1].error / (each[1].allowed or 1e-300), default=None)


def largest(found: Iterable[tuple[int, Distance]]) -> float:
    return max((distance.ratio for _, distance in found), default=0.0)


__all__ = ["Oracle", "largest", "parted"]
