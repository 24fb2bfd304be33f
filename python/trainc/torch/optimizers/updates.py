"""Updates of parameters within a plan: what the optimizers give to it before it runs, and what is counted afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainc.base.errors import NotCompiled
from trainc.torch import compat
from trainc.torch.device import Host
from trainc.torch.graph import wire
from trainc.torch.guards.overlap import Apart, Overlapping
from trainc.torch.guards.state import TypeGuard
from trainc.torch.optimizers import Count, Variant, formula_of, optimizer
from trainc.torch.optimizers.kernels import trace_formula
from trainc.torch.optimizers.state import Numbers, count_of, fresh_numbers, fresh_state

Tensor = torch.Tensor


@dataclass
class Slot:
    """The parameter that one gradient updates."""

    optimizer: int
    group: int
    parameter: Tensor
    primal: int  # among the graph's inputs


@dataclass(frozen=True)
class ScalarKey:
    """What the scalars of an update depend on: its group, and the numbers in the parameter's state."""

    optimizer: int
    group: int
    variant: Variant
    count: Count


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
        self._numbers = Numbers()
        self._made: list[tuple[Slot, dict[str, Any]]] = []  # states that the optimizers lack, until the step is done

    def scalar_keys(self) -> list[ScalarKey]:
        """Of each slot, for the next step; makes no state."""
        keys, variants, counts, groups = [], {}, {}, {}
        for slot in self.slots:
            owner, kind = self.optimizers[slot.optimizer], (slot.optimizer, slot.group, slot.parameter.dtype)
            if kind[:2] not in groups:
                groups[kind[:2]] = self._group(slot)
            group = groups[kind[:2]]
            if kind not in variants:
                variants[kind] = optimizer.variant_of(owner, group, slot.parameter.dtype)
            v, formula = variants[kind], formula_of(owner)
            state = owner.state.get(slot.parameter, {})  # a look must not make an entry
            first = any(state.get(name) is None for name in v.states)
            if first and formula.numbers:
                state, first = fresh_numbers(owner, group, slot.parameter), False
            numbers = [state[name] for name in formula.numbers]
            old, dtypes = tuple([self._numbers.read(n) for n in numbers]), tuple([n.dtype for n in numbers])
            found = (slot.optimizer, slot.group, old, first, dtypes)
            if found not in counts:
                counts[found] = count_of(formula, group, old, first, dtypes)
            keys.append(ScalarKey(slot.optimizer, slot.group, v, counts[found]))
        return keys

    def _group(self, slot: Slot) -> dict:
        """A slot's group, with the settings that eager would find."""
        owner = self.optimizers[slot.optimizer]
        updated = [s.parameter for s in self.slots if (s.optimizer, s.group) == (slot.optimizer, slot.group)]
        return formula_of(owner).settings(owner.param_groups[slot.group], updated)

    def states(self, keys: list[ScalarKey]) -> list[list[Tensor]]:
        """The state's tensors of each slot. What is missing is made, and becomes the optimizers' own in `finish` alone: a step
        that comes to nothing leaves no state behind, by which the next would not be a first one."""
        states, self._made = [], []
        for slot, key in zip(self.slots, keys, strict=True):
            owner, v, made = self.optimizers[slot.optimizer], key.variant, {}
            state = owner.state.get(slot.parameter, {})
            if not state and (v.states or v.formula.numbers):
                state = made = fresh_state(owner, owner.param_groups[slot.group], slot.parameter)
            made |= {name: v.formula.start(name, slot.parameter) for name in v.states if state.get(name) is None}
            if made:
                self._made.append((slot, made))
            states.append([made[name] if name in made else state[name] for name in v.states])
        return states

    def scalars(self, key: ScalarKey) -> list[float]:
        return key.variant.values(self.optimizers[key.optimizer].param_groups[key.group], key.count)

    def finish(self, keys: list[ScalarKey], states: list[list[Tensor]]) -> None:
        """The step is done: what was made for it is the optimizers', and what they count goes on."""
        for slot, made in self._made:
            self.optimizers[slot.optimizer].state[slot.parameter].update(made)
        self._made = []
        columns: dict[tuple, tuple[list[Tensor], list[float]]] = {}
        for slot, key in zip(self.slots, keys, strict=True):
            state = self.optimizers[slot.optimizer].state.get(slot.parameter, {})
            for name, value in zip(key.variant.formula.numbers, key.count.new, strict=True):
                numbers, values = columns.setdefault((slot.optimizer, name), ([], []))
                numbers.append(state[name])
                values.append(value)
        for numbers, values in columns.values():
            self._numbers.column(numbers).write(values)
        written = [t for slot, state in zip(self.slots, states, strict=True) for t in (slot.parameter, *state)]
        torch.autograd.graph.increment_version(written)
        for owner in self.optimizers:
            compat.mark_stepped(owner)


def distinct_keys(keys: list[ScalarKey]) -> tuple[list[int], list[ScalarKey]]:
    """The keys without repetition: (of each key, its index among the distinct ones; the distinct ones). A plan is made for the
    former, and given scalars of the latter."""
    distinct = list(dict.fromkeys(keys))
    return [distinct.index(key) for key in keys], distinct


class Misfit(NotCompiled):
    """The tensors of a call are not such that a plan could do all that it writes. Nothing has run yet."""


class PlanMemory:
    """Whether the tensors of a plan with updates are of the types that it was made for, and lie apart where it writes. `written`:
    those of its inputs, by place, that it writes."""

    def __init__(self, written: Sequence[int]):
        self._written, self._apart = list(written), Apart()
        self._types: TypeGuard | None = None  # of the states, as they were found last

    def check(self, slots: Sequence[Slot], states: list[list[Tensor]], inputs: Sequence[Tensor]) -> None:
        """Misfit where types or memory are other than the plan was made for."""
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
        for tensor, values in zip(self._scalars, scalars, strict=True):
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


__all__ = ["Misfit", "PlanMemory", "PlanUpdates", "ScalarKey", "Slot", "Updates", "distinct_keys", "shared_memory"]
