"""Updates of parameters within a plan: what the optimizers give to it before it runs, and what is counted afterwards. (What the
plan is told of them: plan_updates.py.)"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trainc.torch import compat
from trainc.torch.guards.places import contents, contents_guard
from trainc.torch.guards.state import TypeGuard
from trainc.torch.optimizers import Count, Variant, formula_of, optimizer
from trainc.torch.optimizers.state import Column, Numbers, are_apart, count_of, fresh_numbers, fresh_state

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


@dataclass
class Found:
    """What a step finds of its slots, before it. A plan is made for `classes`, of each slot the index of its key, and given the
    scalars of the `distinct` keys. `again`: what knows the states, where they are as the last step left them."""

    classes: list[int]
    distinct: list[ScalarKey]
    again: KnownStates | None = None
    apart: bool = True  # whether each of the states' numbers is one parameter's

    def keys(self) -> list[ScalarKey]:
        """Of each slot."""
        return [self.distinct[i] for i in self.classes]


class Updates:
    """The optimizers' side of a step: state made by torch's own code, scalars computed on the host."""

    def __init__(self, slots: list[Slot], optimizers: list[torch.optim.Optimizer]):
        self.slots, self.optimizers = slots, optimizers
        self._numbers = Numbers()
        self._made: list[tuple[Slot, dict[str, Any]]] = []  # states that the optimizers lack, until the step is done
        self._known: KnownStates | None = None
        self._updated: dict[tuple[int, int], list[Tensor]] = {}  # parameters of each group
        for slot in slots:
            self._updated.setdefault((slot.optimizer, slot.group), []).append(slot.parameter)
        own = weakref.ref(self)

        def forget(*_: Any) -> None:
            if (updates := own()) is not None:
                updates._known = None  # it holds the state that is replaced

        for each in optimizers:
            weakref.finalize(self, each.register_load_state_dict_pre_hook(forget).remove).atexit = False

    def look(self) -> Found:
        """What the next step finds; makes no state."""
        if self._known is not None and (found := self._known.look()) is not None:
            return found
        self._known = None
        keys, variants, counts, groups, counted = [], {}, {}, {}, []
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
            else:
                counted += [state[name] for name in formula.numbers]
            numbers = [state[name] for name in formula.numbers]
            old, dtypes = tuple([self._numbers.read(n) for n in numbers]), tuple([n.dtype for n in numbers])
            found = (slot.optimizer, slot.group, old, first, dtypes)
            if found not in counts:
                counts[found] = count_of(formula, group, old, first, dtypes)
            keys.append(ScalarKey(slot.optimizer, slot.group, v, counts[found]))
        distinct = list(dict.fromkeys(keys))
        return Found([distinct.index(key) for key in keys], distinct, apart=are_apart(counted))

    def _group(self, slot: Slot) -> dict:
        """A slot's group, with the settings that eager would find."""
        owner = self.optimizers[slot.optimizer]
        return formula_of(owner).settings(owner.param_groups[slot.group], self._updated[slot.optimizer, slot.group])

    def states(self, found: Found) -> list[list[Tensor]]:
        """The state's tensors of each slot. What is missing is made, and becomes the optimizers' own in `finish` alone: a step
        that comes to nothing leaves no state behind, by which the next would not be a first one."""
        states, self._made = [], []
        if found.again is not None:
            return found.again.states
        for slot, key in zip(self.slots, found.keys(), strict=True):
            owner, v, made = self.optimizers[slot.optimizer], key.variant, {}
            state = owner.state.get(slot.parameter, {})
            if not state and (v.states or v.formula.numbers):
                state = made = fresh_state(owner, owner.param_groups[slot.group], slot.parameter)
            made |= {name: v.formula.start(name, slot.parameter) for name in v.states if state.get(name) is None}
            if made:
                self._made.append((slot, made))
            states.append([made[name] if name in made else state[name] for name in v.states])
        return states

    def scalars(self, found: Found) -> list[list[float]]:
        """Of each distinct key."""
        groups = [self.optimizers[key.optimizer].param_groups[key.group] for key in found.distinct]
        return [key.variant.values(group, key.count) for key, group in zip(found.distinct, groups, strict=True)]

    def finish(self, found: Found, states: list[list[Tensor]]) -> None:
        """The step is done: what was made for it is the optimizers', and what they count goes on."""
        made, self._made = self._made, []
        for slot, state in made:
            self.optimizers[slot.optimizer].state[slot.parameter].update(state)
        known = found.again or KnownStates(self, found, states)
        for key, columns in zip(found.distinct, known.columns, strict=True):
            for value, column in zip(key.count.new, columns, strict=True):
                column.fill(value)
        torch.autograd.graph.increment_version(known.written)
        for owner in self.optimizers:
            compat.mark_stepped(owner)
        self._known = None if made else known  # a first step's dictionaries may lack what the next one's have


class KnownStates:
    """What a step found of the slots' states, and whether the next one finds it again: the very objects, of the same types, and
    of each class one count."""

    def __init__(self, updates: Updates, found: Found, states: list[list[Tensor]]):
        slots, optimizers = updates.slots, updates.optimizers
        self.states, self._updates, self._classes, self._keys = states, weakref.ref(updates), found.classes, found.distinct
        self._tables = [(each, each.state) for each in optimizers]
        tables = [table for _, table in self._tables]
        own = [tables[slot.optimizer].get(slot.parameter) for slot in slots]
        places = [*tables, *[each for each in own if each is not None]]
        self._same = contents_guard(places, contents(places))
        self.written = [t for slot, state in zip(slots, states, strict=True) for t in (slot.parameter, *state)]
        self._slots: list[Slot] = []  # one of each class
        self.columns: list[list[Column]] = []  # of each class: a column for each number of its formula
        self._dtypes: list[list[torch.dtype]] = []  # theirs
        self._numbers: list[Tensor] = []
        for i, key in enumerate(found.distinct):
            those = [place for place, of in enumerate(found.classes) if of == i]
            self._slots.append(slots[those[0]])
            numbers = [[own[place][name] for place in those] for name in key.variant.formula.numbers]
            self.columns.append(list(map(updates._numbers.column, numbers)))
            self._dtypes.append([column[0].dtype for column in numbers])
            self._numbers += itertools.chain.from_iterable(numbers)
        self._types = TypeGuard(self._numbers) if self._numbers else None

    def look(self) -> Found | None:
        """What the next step finds, where that is known by this."""
        if any(owner.state is not table for owner, table in self._tables) or not self._same():
            return None
        if self._types is not None and not self._types(self._numbers):
            return None
        updates, groups, distinct = self._updates(), {}, []
        if not all([column.is_there() for columns in self.columns for column in columns]):
            return None
        for slot, old, dtypes, its in zip(self._slots, self._keys, self._dtypes, self.columns, strict=True):
            place = slot.optimizer, slot.group
            group = groups[place] = groups[place] if place in groups else updates._group(slot)
            owner = updates.optimizers[slot.optimizer]
            if optimizer.variant_of(owner, group, slot.parameter.dtype) != old.variant:
                return None
            rows = set(zip(*[column.read() for column in its], strict=True)) if its else {()}
            if len(rows) != 1:
                return None
            distinct.append(ScalarKey(*place, old.variant, count_of(old.variant.formula, group, rows.pop(), False, dtypes)))
        return Found(self._classes, distinct, self)


__all__ = ["Found", "KnownStates", "ScalarKey", "Slot", "Updates", "shared_memory"]
