"""Updates of parameters as a plan has them: what its compiler is told, its inputs, and the memory that it may write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trainc.base.errors import NotCompiled
from trainc.torch.device import Host
from trainc.torch.graph import wire
from trainc.torch.guards.overlap import Apart, Overlapping
from trainc.torch.guards.state import TypeGuard
from trainc.torch.optimizers import NUMBERS
from trainc.torch.optimizers.kernels import trace_formula
from trainc.torch.optimizers.updates import Found, ScalarKey, Slot

Tensor = torch.Tensor


class Misfit(NotCompiled):
    """The tensors of a call are not such that a plan could do all that it writes. Nothing has run yet."""


class PlanMemory:
    """Whether the tensors of a plan with updates are of the types that it was made for, and lie apart where it writes. `written`:
    those of its inputs, by place, that it writes."""

    def __init__(self, written: Sequence[int]):
        self._written, self._apart = list(written), Apart()
        self._types: TypeGuard | None = None  # of the states, as they were found last

    def check(self, slots: Sequence[Slot], found: Found, states: list[list[Tensor]], inputs: Sequence[Tensor | None]) -> None:
        """Misfit where types or memory are other than the plan was made for."""
        if not found.apart:
            raise Misfit("one number in the optimizer's state (its step) is that of several parameters")
        flat = [state for each in states for state in each]
        if self._types is None or not self._types(flat):
            for slot, each in zip(slots, states, strict=True):
                shape, kind = slot.parameter.shape, slot.parameter.dtype
                if any(state.shape != shape or state.dtype != kind for state in each):
                    raise Misfit(
                        f"an optimizer's state of a parameter of shape {list(shape)} has another type or shape than the parameter"
                    )
            self._types = TypeGuard(flat)
        try:
            self._apart.check([*inputs, *flat], [*self._written, *range(len(inputs), len(inputs) + len(flat))])
        except Overlapping as reason:
            raise Misfit(str(reason)) from None


class PlanUpdates:
    """The updates as a plan's compiler is told them, and what the plan is given for them: the state's tensors, then the scalars
    of each distinct key.

    `gradients`, `parameters`: of each slot, its result of the backward, and its place among the plan's inputs. `first`: the place
    of the first state. `narrow`: of a gradient that has another dtype than its parameter, that dtype.
    """

    def __init__(
        self, classes: list[int], distinct: list[ScalarKey], gradients: Sequence[int], parameters: Sequence[int], first: int,
        where: Host, narrow: Mapping[int, torch.dtype] | None = None,
    ):  # fmt: skip
        variants = self._variants = [distinct[i].variant for i in classes]
        self._classes, self._gradients, self._parameters = classes, gradients, parameters
        kinds = [(v, (narrow or {}).get(gradient)) for v, gradient in zip(variants, gradients, strict=True)]
        self._formulas, self._where = list(dict.fromkeys(kinds)), where
        sizes = [len(key.variant.scalars) for key in distinct]
        sized = zip(sizes, distinct, strict=True)
        self._scalars = [torch.empty(size, dtype=key.variant.dtype, device=where.torch) for size, key in sized]
        self._on_host = [
            (NUMBERS[t.dtype] * t.numel()).from_address(t.data_ptr()) if t.is_cpu and t.dtype in NUMBERS else None
            for t in self._scalars
        ]
        self._views = [view for scalars in self._scalars for view in scalars.unbind()]
        first_scalar = first + sum(len(v.states) for v in variants)
        places = [first_scalar + sum(sizes[:i]) for i in range(len(distinct))]
        self._listed: list[tuple[int, int, list[int]]] = []  # (formula, gradient, inputs of the plan; -1: the gradient)
        for gradient, parameter, kind, distinct_key in zip(gradients, parameters, kinds, classes, strict=True):
            v = kind[0]
            states = range(first, first + len(v.states))
            first = states.stop
            scalars = range(places[distinct_key], places[distinct_key] + sizes[distinct_key])
            self._listed.append((self._formulas.index(kind), gradient, [parameter, -1, *states, *scalars]))

    def arguments(self, name: str) -> list[Any]:
        """What the compiler wants to know (base/step_graph.py)."""
        graphs = [wire.graph_json(trace_formula(*kind).graph, f"{name}_update") for kind in self._formulas]
        return [[(graph, v.in_place) for graph, (v, _) in zip(graphs, self._formulas, strict=True)], self._listed]

    def inputs(self, states: list[list[Tensor]], scalars: list[list[float]]) -> list[Tensor]:
        for tensor, memory, values in zip(self._scalars, self._on_host, scalars, strict=True):
            if memory is not None:
                memory[:] = values
            else:
                tensor.copy_(torch.tensor(values, dtype=torch.float64, device="cpu").to(tensor.dtype), non_blocking=True)
        return [*(t for state in states for t in state), *self._views]

    def run(
        self, inputs: Sequence[Tensor], gradients: Sequence[Tensor], states: list[list[Tensor]], scalars: list[list[float]]
    ) -> None:
        """The same in PyTorch, by the formulas. `inputs`: the plan's; `gradients`: its results of the backward."""
        with torch.no_grad():
            for i, v in enumerate(self._variants):
                parameter, gradient = inputs[self._parameters[i]], gradients[self._gradients[i]]
                numbers = [torch.tensor(value, dtype=v.dtype, device=parameter.device) for value in scalars[self._classes[i]]]
                row = [parameter, gradient.to(parameter.dtype), *states[i]]
                for place, result in zip(v.in_place, v.update(*row, *numbers), strict=True):
                    row[place].copy_(result)


__all__ = ["Misfit", "PlanMemory", "PlanUpdates"]
