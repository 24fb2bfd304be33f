"""A call of a train_step that is verified: the whole step's plan beside its graph and its updates in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trainc.base.errors import VerifyError
from trainc.base.records import Compilation
from trainc.base.step_graph import StepGraph
from trainc.torch.device import Host
from trainc.torch.verify.call import copy
from trainc.torch.verify.case import Case
from trainc.torch.verify.oracle import Oracle, parted
from trainc.torch.verify.program import NARROW, Draws
from trainc.torch.verify.told import Summary, describe, unharmed

Tensor = torch.Tensor
States = Sequence[Sequence[Tensor]]


class WholeCall:
    """Made before the plan runs. `primals`: the inputs that are parameters which it updates; `names`: of the inputs, the last of
    which is the tangent."""

    def __init__(
        self, step: StepGraph, record: Compilation, primals: Sequence[int], inputs: Sequence[Tensor], states: States,
        scalars: list[list[float]], names: Sequence[str], device: Host,
    ):  # fmt: skip
        self._step, self._record, self._primals, self._device = step, record, primals, device
        self._scalars, self._names = scalars, names
        self._inputs = [copy(t).detach() for t in inputs]
        self._states = [[copy(t) for t in each] for each in states]
        self._draws = Draws(device.generator().get_state())
        self._summary: Summary = record.verified or Summary()
        record.verified = self._summary

    def differs(self, outputs: Sequence[Any], inputs: Sequence[Tensor], states: States) -> VerifyError | None:
        """What is wrong, after the plan has run."""
        return self._summary.seen(unharmed(self._summary, None, lambda: self._differs(outputs, inputs, states)))

    def _differs(self, outputs: Sequence[Any], inputs: Sequence[Tensor], states: States) -> VerifyError | None:
        case = self._case()
        self.oracle = Oracle(case.graph.graph.nodes, self._inputs, case.results, self._device, self._draws, self._updated)
        updated = [*(inputs[i] for i in self._primals), *(t for each in states for t in each)]
        # a plan that consumes a gradient does not give it
        ours = [*outputs, *[None] * (len(case.results) - len(outputs)), *[t.detach() for t in updated]]
        found = self.oracle.distances(ours)
        self._summary.steps += 1
        count = len(case.results)
        self._summary.see("results", [each for each in found if each[0] < count])
        self._summary.see("updates", [each for each in found if each[0] >= count])
        if difference := parted(found):
            place, distance = difference
            slot = place - count
            if slot < 0:
                return describe(case, difference, f"result {place} of its graph", self._record.name)
            slot = self._slot(slot)
            what = f"{self._names[self._primals[slot]]}, or its state, after the step"
            return describe(case, (self._step.outputs + slot, distance), what, self._record.name)
        if not torch.equal(self.oracle.state, self._device.generator().get_state()):
            return describe(case, None, "the generator of random numbers", self._record.name)
        return None

    def take(self, inputs: Sequence[Tensor], states: States) -> list[Tensor | None]:
        """The outputs that PyTorch makes; parameters, states and the generator become what it leaves."""
        made = iter(self.oracle.eager[self._count :])
        with torch.no_grad():
            for tensor in (*(inputs[i] for i in self._primals), *(t for each in states for t in each)):
                tensor.copy_(next(made))
        self._device.generator().set_state(self.oracle.state)
        return self.oracle.eager[: self._count]

    @property
    def _count(self) -> int:
        return len(self._case().results)

    def _updated(self, values: list[Any], wide: bool) -> list[Any]:
        """A run's outputs, then the parameters and the states as the updates leave them."""
        copied = [_wide(t) if wide else t.clone() for t in self._inputs]
        states = [[_wide(t) if wide else t.clone() for t in each] for each in self._states]
        self._step.updates.run(copied, values[self._step.outputs :], states, self._scalars)
        return [*values, *(copied[i] for i in self._primals), *(t for each in states for t in each)]

    def _slot(self, place: int) -> int:
        """Which parameter a value after the updates is of."""
        if place < len(self._primals):
            return place
        owners = [slot for slot, each in enumerate(self._states) for _ in each]
        return owners[place - len(self._primals)]

    def _case(self) -> Case:
        return Case(
            "joint", self._record.name, self._step.program, self._inputs[:-1], self._inputs[-1:], self._step.outputs, self._draws,
            self._device, self._record.tune,
        )  # fmt: skip


def _wide(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.dtype in NARROW else tensor.clone()


__all__ = ["WholeCall"]
