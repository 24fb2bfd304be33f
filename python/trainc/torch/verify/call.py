"""One call of a model that is verified: what the plans gave beside what PyTorch makes of the same graph, and of the program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainc.base.errors import VerifyError
from trainc.base.records import Compilation
from trainc.torch.device import Host
from trainc.torch.guards.state import ModuleState
from trainc.torch.run.deferred import plain
from trainc.torch.verify.again import Again
from trainc.torch.verify.case import Case
from trainc.torch.verify.oracle import Oracle, parted
from trainc.torch.verify.otherwise import first_other
from trainc.torch.verify.program import Draws
from trainc.torch.verify.told import Summary, describe, found_or, of_program, unharmed

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Traced:
    """What is known of the graph of one specialization. `layout`: (inputs that forward writes, which of the forward's outputs
    have a tangent), where the graph's inputs and outputs are the program's own; else None."""

    graph: torch.fx.GraphModule
    record: Compilation
    outputs: int  # of the forward; new values of what it writes come first
    layout: tuple[list[int], list[int]] | None
    device: Host
    tune: str


class Call:
    """Made before the plan runs; it keeps copies of what the call is given. `names`: of the inputs, for messages."""

    def __init__(self, traced: Traced, inputs: Sequence[Tensor], constants: Sequence[Tensor], names: Sequence[str]):
        self.traced, self._names = traced, names
        self.generator = traced.device.generator().get_state()
        self.inputs = [copy(t) for t in inputs]
        self._constants = list(constants)
        self._again: Again | None = None
        self._forward: Oracle | None = None
        self._summary: Summary = traced.record.verified or Summary()
        traced.record.verified = self._summary
        self._results = list(next(iter(traced.graph.graph.find_nodes(op="output"))).args[0])
        self._tangents = len(list(traced.graph.graph.find_nodes(op="placeholder"))) - len(self.inputs) - len(self._constants)

    # -- the forward --------------------------------------------------------------------------------------------------

    def outputs(self, ours: Sequence[Any]) -> VerifyError | None:
        """What is wrong with the results of the forward's plan."""
        return self._summary.seen(unharmed(self._summary, None, lambda: self._outputs(ours)))

    def _outputs(self, ours: Sequence[Any]) -> VerifyError | None:
        case = self._case([None] * self._tangents, Draws(self.generator))
        nodes = self._results[: self.traced.outputs]
        self._forward = Oracle(self.traced.graph.graph.nodes, [*case.inputs, *case.tangents], nodes, case.device, case.draws)
        found = self._forward.distances([plain(x) if isinstance(x, Tensor) else x for x in ours])
        self._summary.calls += 1
        self._summary.see("outputs", found)
        if difference := parted(found):
            return describe(case, difference, self._output_name(difference[0]), self.traced.record.name)
        if not torch.equal(self._forward.state, self.traced.device.generator().get_state()):
            return describe(case, None, "the generator of random numbers", self.traced.record.name)
        return None

    def program(self, state: ModuleState, args: tuple, kwargs: dict) -> VerifyError | None:
        """What the program does otherwise than its trace, run again."""
        if self._forward is None:  # it was not looked at
            return None
        if self.traced.layout is None:
            self._summary.skipped = "forward gives parts of its arguments, or writes to them"
            return None
        written = self.traced.layout[0]

        def run() -> Again:
            given = [copy(t) if i in written else t for i, t in enumerate(self.inputs)]
            return Again(state, given, args, kwargs, self.traced.device, self.generator)

        try:
            self._again = again = run()
        except Exception as error:  # of a program that is captured there should be none
            self._summary.skipped = f"forward cannot be run again ({type(error).__name__}: {error})"
            return None
        return self._summary.seen(unharmed(self._summary, None, lambda: self._differs(again, run)))

    def _differs(self, again: Again, run: Callable[[], Again]) -> VerifyError | None:
        oracle, (written, _) = self._forward, self.traced.layout
        self._forward = None  # it holds the graph's values
        name = self.traced.record.name
        if again.changed:
            return of_program(name, again.changed)
        if others := again.written - set(written):
            return of_program(name, f"forward writes {self._names[min(others)]}")
        ours = [*(again.inputs[i] for i in written), *again.outputs]
        if len(ours) != self.traced.outputs:
            self._summary.skipped = "its results are not only tensors"
            self._again = None
            return None
        found = oracle.distances([t.detach() for t in ours])
        if difference := parted(found):
            place, far = difference
            case = self._case([None] * self._tangents, Draws(self.generator))
            node = found_or(lambda: first_other(case, place, run), case.results[place])
            return of_program(name, f"{self._output_name(place)} is another", far, node)
        if not torch.equal(again.state, oracle.state):
            return of_program(name, "forward draws other random numbers")
        self._summary.programs += 1
        return None

    # -- the backward -------------------------------------------------------------------------------------------------

    def gradients(
        self, tangents: Sequence[Tensor | None], ours: Sequence[Tensor | None], unmade: Sequence[int], late: Tensor
    ) -> tuple[VerifyError | None, bool, list[Tensor | None]]:
        """(what is wrong, whether with the trace and not with the plan, the gradients as PyTorch makes them). `late`: the
        generator's state when the backward began."""
        look = lambda: self._gradients(tangents, ours, unmade, late)  # noqa: E731
        error, of_trace, eager = unharmed(self._summary, (None, False, []), look)
        return self._summary.seen(error), of_trace, eager

    def _gradients(
        self, tangents: Sequence[Tensor | None], ours: Sequence[Tensor | None], unmade: Sequence[int], late: Tensor
    ) -> tuple[VerifyError | None, bool, list[Tensor | None]]:
        case = self._case(list(tangents), Draws(self.generator, late))
        nodes = self._results[self.traced.outputs :]
        oracle = Oracle(self.traced.graph.graph.nodes, case.values, nodes, case.device, case.draws)
        eager = [None if i in unmade else gradient for i, gradient in enumerate(oracle.eager)]
        found = oracle.distances(ours)
        self._summary.see("gradients", found)
        if difference := parted(found):
            place, distance = difference
            what = f"the gradient of {self._names[place]}"
            return describe(case, (place + self.traced.outputs, distance), what, self.traced.record.name), False, eager
        if self._again is not None:
            error, own = self._gradients_of_program(oracle, tangents, unmade)
            if error is not None:
                return error, True, own
        return None, False, eager

    def _gradients_of_program(
        self, oracle: Oracle, tangents: Sequence[Tensor | None], unmade: Sequence[int]
    ) -> tuple[VerifyError | None, list[Tensor | None]]:
        written, with_tangents = self.traced.layout
        name = self.traced.record.name
        with self.traced.device.generator_at(oracle.state):  # what its backward draws is not the program's
            made = self._again.gradients([i - len(written) for i in with_tangents], tangents)
        own = [made.get(i) for i in range(len(oracle.eager))]
        for i, gradient in made.items():
            if i >= len(oracle.eager):
                continue
            there = oracle.eager[i] is not None and i not in unmade
            if there != (gradient is not None):
                told = "has no gradient in PyTorch" if there else "has a gradient in PyTorch"
                return of_program(name, f"{self._names[i]} {told}"), own
        found = oracle.distances([None if i in unmade else g for i, g in enumerate(own)])
        if difference := parted(found):
            place, distance = difference
            what = f"the gradient of {self._names[place]} is another"
            return of_program(name, what, distance, self._results[self.traced.outputs + place]), own
        return None, own

    # -- in messages --------------------------------------------------------------------------------------------------

    def _case(self, tangents: list[Any], draws: Draws) -> Case:
        traced = self.traced
        given = [*(t.detach() if isinstance(t, Tensor) else t for t in self.inputs), *self._constants]
        return Case(
            "joint", traced.record.name, traced.graph, given, tangents, traced.outputs, draws, traced.device, traced.tune
        )

    def _output_name(self, place: int) -> str:
        written = self.traced.layout[0] if self.traced.layout is not None else []
        if place < len(written):
            return f"the new value of {self._names[written[place]]}"
        count = self.traced.outputs - len(written)
        return "its result" if count == 1 else f"its result {place - len(written)} of {count}"


def copy(tensor: Any) -> Any:
    """With memory of its own, and no history; it wants a gradient where `tensor` does."""
    if not isinstance(tensor, Tensor):
        return tensor
    mine = tensor.detach().clone()
    mine = torch.nn.Parameter(mine, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else mine
    return mine.requires_grad_(tensor.requires_grad)


__all__ = ["Call", "Traced", "copy"]
