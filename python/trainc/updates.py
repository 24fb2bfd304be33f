"""Updates of parameters within a plan: what the optimizers give to it before it runs, and what is counted afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainc import optimizer, wire
from trainc.device import Host
from trainc.optimizer import Variant
from trainc.optimizer_state import Steps

Tensor = torch.Tensor


@dataclass
class Slot:
    """The parameter that one gradient updates."""

    optimizer: int
    group: int
    parameter: Tensor
    primal: int  # among the graph's inputs


STATE = {"adam": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), "sgd": ("momentum_buffer",)}


@dataclass(frozen=True)
class Launch:
    """What the scalars of an update depend on: its group, and how many steps came before."""

    optimizer: int
    group: int
    variant: Variant
    step: float  # of Adam: this step's number; of SGD: 1 for the first, which starts the momentum


def shared_memory(parameters: Mapping[int, Tensor], inputs: Mapping[int, Tensor]) -> Tensor | None:
    """One of `parameters` whose memory another of them or of `inputs` lies in, which its update would change; None where there is
    none. Both by their places among a graph's inputs; `inputs` may hold the parameters, too."""
    storages = {place: t.untyped_storage().data_ptr() for place, t in {**inputs, **parameters}.items()}
    uses = Counter(storages.values())
    return next((p for place, p in parameters.items() if p.numel() and uses[storages[place]] > 1), None)


class Updates:
    """The optimizers' side of a step: state made by torch's own code, scalars computed on the host."""

    def __init__(self, slots: list[Slot], optimizers: list[torch.optim.Optimizer]):
        self.slots, self.optimizers = slots, optimizers
        self._steps = Steps()

    def launches(self) -> list[Launch]:
        """Of each slot, for the next step; makes no state."""
        launches, variants = [], {}
        for slot in self.slots:
            kind = slot.optimizer, slot.group, slot.parameter.dtype
            if kind not in variants:
                owner = self.optimizers[slot.optimizer]
                variants[kind] = optimizer.variant_of(owner, owner.param_groups[slot.group], slot.parameter.dtype)
            v = variants[kind]
            state = self.optimizers[slot.optimizer].state.get(slot.parameter, {})  # a look must not make an entry
            if v.kind == "adam":
                step = self._steps.number(state["step"]) + 1 if state else 1.0
            else:
                step = 1.0 if v.momentum and state.get("momentum_buffer") is None else 2.0
            launches.append(Launch(slot.optimizer, slot.group, v, step))
        return launches

    def states(self, launches: list[Launch]) -> list[list[Tensor]]:
        """The state's tensors of each slot; makes what is missing."""
        states = []
        for slot, launch in zip(self.slots, launches, strict=True):
            owner, v = self.optimizers[slot.optimizer], launch.variant
            state = owner.state.get(slot.parameter, {})
            if v.kind == "adam" and not state:
                state = _make_state(owner, owner.param_groups[slot.group], slot.parameter)
            elif v.kind == "sgd" and v.momentum and state.get("momentum_buffer") is None:
                state = owner.state[slot.parameter]
                state["momentum_buffer"] = torch.zeros_like(slot.parameter)
            states.append([state[name] for name in STATE[v.kind][: v.tensors() - 2]])
        return states

    def scalars(self, launch: Launch) -> list[float]:
        group, v = self.optimizers[launch.optimizer].param_groups[launch.group], launch.variant
        if v.kind == "adam":
            return optimizer.adam_scalars(group, launch.step, v)
        # The first step's buffer is the gradient: 0 * momentum + 1 * gradient.
        first = launch.step == 1 and v.momentum
        named = zip(optimizer.sgd_scalar_names(v), optimizer.sgd_scalars(group, v), strict=True)
        return [1.0 if first and name == "rest" else value for name, value in named]

    def finish(self, states: list[list[Tensor]]) -> None:
        steps = [self.optimizers[s.optimizer].state.get(s.parameter, {}).get("step") for s in self.slots]
        steps = [step for step in steps if isinstance(step, Tensor)]
        if steps:
            self._steps.count(steps)
        written = [t for slot, state in zip(self.slots, states, strict=True) for t in (slot.parameter, *state)]
        torch.autograd.graph.increment_version(written)
        for owner in self.optimizers:
            owner._opt_called = True  # learning rate schedulers ask


def _make_state(owner: torch.optim.Optimizer, group: dict, parameter: Tensor) -> dict:
    """torch's own initial state; it looks at parameters that have a gradient."""
    before, parameter.grad = parameter.grad, parameter.detach()
    try:
        owner._init_group({**group, "params": [parameter]}, *[[] for _ in range(6)])
    finally:
        parameter.grad = before
    return owner.state[parameter]


def classes_of(launches: list[Launch]) -> tuple[list[int], list[Launch]]:
    """(which of the distinct launches each is, the distinct ones). A plan is made for the former, given scalars of the latter."""
    distinct = list(dict.fromkeys(launches))
    return [distinct.index(launch) for launch in launches], distinct


class PlanUpdates:
    """The updates as a plan's compiler is told them, and what the plan is given for them: the state's tensors, then the scalars
    of each distinct launch.

    `gradients`, `parameters`: of each slot, its result of the backward, and its place among the plan's inputs. `first`: the place
    of the first state.
    """

    def __init__(
        self, classes: list[int], distinct: list[Launch], gradients: Sequence[int], parameters: Sequence[int], first: int,
        where: Host,
    ):  # fmt: skip
        variants = [distinct[i].variant for i in classes]
        self._formulas, self._where = list(dict.fromkeys(variants)), where
        sizes = [optimizer.formula_of(launch.variant)[1] for launch in distinct]
        sized = zip(sizes, distinct, strict=True)
        self._scalars = [torch.empty(size, dtype=launch.variant.dtype, device=where.torch) for size, launch in sized]
        self._views = [view for scalars in self._scalars for view in scalars.unbind()]
        first_scalar = first + sum(v.tensors() - 2 for v in variants)
        places = [first_scalar + sum(sizes[:i]) for i in range(len(distinct))]
        self.listed: list[tuple[int, int, list[int]]] = []  # (formula, gradient, inputs of the plan; -1: the gradient)
        for gradient, parameter, v, launch in zip(gradients, parameters, variants, classes, strict=True):
            states = range(first, first + v.tensors() - 2)
            first = states.stop
            scalars = range(places[launch], places[launch] + sizes[launch])
            self.listed.append((self._formulas.index(v), gradient, [parameter, -1, *states, *scalars]))

    def told(self, name: str) -> list[Any]:
        """What the compiler wants to know: the formulas, and which of them updates what."""
        return [self.formulas(name), self.listed]

    def formulas(self, name: str) -> list[tuple[str, list[int]]]:
        """(graph, inputs that its results replace) of each."""
        graphs = [wire.graph_json(optimizer.trace_formula(v).graph, f"{name}_update") for v in self._formulas]
        return [(graph, list(optimizer.formula_of(v)[2])) for graph, v in zip(graphs, self._formulas, strict=True)]

    def inputs(self, states: list[list[Tensor]], scalars: list[list[float]]) -> list[Tensor]:
        for tensor, values in zip(self._scalars, scalars, strict=True):
            tensor.copy_(torch.tensor(values, dtype=torch.float64, device="cpu").to(tensor.dtype), non_blocking=True)
        return [*(t for state in states for t in state), *self._views]


__all__ = ["Launch", "PlanUpdates", "Slot", "Updates", "classes_of", "shared_memory"]
