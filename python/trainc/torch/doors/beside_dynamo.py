"""Programs that go through torch.compile's tracer: what it does not watch is watched here.

Dynamo takes what a program reads for settled where it has no guard: methods and attributes of classes, a list in a tuple, the
environment, results of a cache, the sign of a zero. So the functions that it traces are told to the walk that a trace of ours
has (guards/reads.py), and each later call first asks whether everything that they may have read is as it was. What the program's
own calls change is Dynamo's to see, and so are values of attributes and variables, which it guards. After any other change the
program runs in PyTorch.
"""

from __future__ import annotations

import inspect
import os
import struct
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from trainc.torch.guards.kinds import module_of
from trainc.torch.guards.places import Attributes, Cache, Class, Place, Setting, Version, contents_guard, same_contents
from trainc.torch.guards.reads import Reads
from trainc.torch.guards.state import ModuleState
from trainc.torch.trust import is_trusted_module

# By the class of a model: what Dynamo traced of it, by the code's address, for Dynamo keeps its graphs by code as well.
_traced: weakref.WeakKeyDictionary[type, dict[int, tuple[types.CodeType, dict[str, Any]]]] = weakref.WeakKeyDictionary()


class Filled(Place):
    """A functools.cache, by the number of its results: Dynamo runs its function past it, and puts none there."""

    __slots__ = ()
    guards = False
    asked = True

    def __init__(self, cache: Cache):
        super().__init__(cache.path, cache.thing, [cache.thing.cache_info().currsize])

    def changed(self) -> bool:
        return self.thing.cache_info().currsize != self.held[0]


class BesideDynamo:
    """Of one model. `state()`: the modules' state as it was found last, or None."""

    def __init__(self, model: torch.nn.Module, state: Callable[[], ModuleState | None]):
        self._model, self._state = weakref.ref(model), state
        self._codes = _traced.setdefault(type(model), {})
        self._parameters = _named_parameters(model)
        self._orders: dict[frozenset[str], tuple[str, ...]] = {}  # of keyword arguments without a parameter, by their names
        self.lost: str | None = None  # what changed that Dynamo may not see
        self._known = 0  # how many of the codes were walked
        self._environment: dict[str, str] | None = None  # as it was before the first call
        self._of: ModuleState | None = None  # the state that was walked
        self._variants: set[int] = set()  # numbers of the states that were compared
        self._by_program: set[str] = set()  # what its own calls change
        self._places: list[Place] = []
        self._asked: list[Place] = []
        self._outline: dict[tuple[str, int], Any] = {}
        self._guarded: set[str] = set()  # those whose values Dynamo guards
        self._same: Callable[[], bool] = lambda: True

    def trace(self, code: types.CodeType, variables: dict[str, Any]) -> None:
        """Dynamo traces a function of this code, whose globals are `variables`."""
        self._codes.setdefault(id(code), (code, variables))

    def before(self, variant: int, kwargs: dict[str, Any]) -> bool:
        """Before a call, in the state of this number: whether it must run in PyTorch."""
        self._compare(variant)
        if not self._known:
            self._environment = dict(os.environ)
        further = tuple(kwargs) if self._parameters is None else tuple([key for key in kwargs if key not in self._parameters])
        if len(further) > 1 and self._orders.setdefault(frozenset(further), further) != further:
            self._lose("the order of the keyword arguments changed between calls")
        return self.lost is not None

    def _compare(self, variant: int) -> None:
        if self.lost is not None or not self._known or variant in self._variants and self._holds():
            return
        changed = [place for place in self._places if is_changed(place)]
        plain = all(type(place) in (Place, Setting, Attributes, Version) for place in changed)
        whole = not plain or variant not in self._variants
        within = [name for place in changed for name in (place.path, f"{module_of(place.thing)}.{place.path}")]
        same_modules = self._of is self._state()
        walk = self._walk()
        if walk is None:
            return
        now, guarded = walk.outline, self._guarded | _guarded_by_dynamo(walk)
        other = [key for key in {**self._outline, **now} if self._outline.get(key) != now.get(key)] if same_modules else []
        told = [
            path for path, turn in other
            if (whole or _is_within(path, within)) and not _is_within(path, self._by_program)
            and not (path in guarded and _is_guarded(self._outline.get((path, turn)), now.get((path, turn))))
        ]  # fmt: skip
        told = [place.path for place in changed if isinstance(place, Filled)] or told
        if told:
            self._lose(f"`{told[0]}` changed between calls")
        else:
            self._variants.add(variant)
            self._bind(walk)

    def after(self, variant: int) -> None:
        """After a call: what it changed itself, and what else Dynamo traced."""
        if self.lost is not None or self._known == len(self._codes) and self._holds():
            return
        if self._environment is not None and self._environment != os.environ:
            self._lose("forward changes `os.environ`")
            return
        self._environment = None
        for place in self._places:
            if is_changed(place):
                if not place.by_dynamo and place.changed():
                    self._lose(f"forward changes `{place.path}`")
                    return
                self._by_program.add(place.path)
        if (walk := self._walk()) is not None:
            self._known = len(self._codes)
            self._variants.add(variant)
            self._bind(walk)

    def _lose(self, what: str) -> None:
        self.lost = f"{what}, which torch.compile's tracer may not see"
        self._places, self._asked, self._outline, self._same = [], [], {}, lambda: True

    def _holds(self) -> bool:
        return self._same() and not any([place.changed() for place in self._asked])

    def _bind(self, walk: Reads) -> None:
        self._of = self._state()
        # The walk itself is not kept: it holds all that it came by, the results of the last call among that.
        places = [place for place in self._watched(walk) if not _is_within(place.path, self._by_program)]
        self._places, self._outline, self._guarded = [p for p in places if p.guards], walk.outline, _guarded_by_dynamo(walk)
        caches = [Filled(place) for place in places if isinstance(place, Cache)]
        self._asked = [*caches, *[place for place in places if place.asked]]
        self._same = contents_guard(
            [place.thing for place in self._places],
            [each for place in self._places for each in (*self._expected(place), place.thing)],
        )
        self._places += self._asked

    def _watched(self, walk: Reads) -> list[Place]:
        return walk.places

    def _expected(self, place: Place) -> list[Any]:
        """What it is to hold."""
        return place.held

    def _walk(self) -> Reads | None:
        """What all that Dynamo traced can reach now; None where the modules are none that a walk goes through."""
        try:
            walk = Reads(self._state() or ModuleState(self._model()), forgiving=True)
            for code, variables in list(self._codes.values()):
                walk.runs(code, variables)
        except Exception:  # an object of the program's that cannot be looked at; Dynamo's guards are what there is then
            return None
        return walk


def _named_parameters(model: torch.nn.Module) -> frozenset[str] | None:
    """Those of `forward`; None where that cannot be told."""
    try:
        return frozenset(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return None


def is_changed(place: Place) -> bool:
    if place.asked or isinstance(place, Class):
        return place.changed()
    return not same_contents([place.thing], [*place.held, place.thing])


def _guarded_by_dynamo(walk: Reads) -> set[str]:
    """The paths whose values Dynamo guards: attributes of modules and objects, variables of modules, and what is in the lists
    and dictionaries there."""
    found = set(walk.own_attributes())
    for place in walk.places:
        if type(place) is Attributes and not is_trusted_module(module_of(walk.outline.get((place.path, 1), (None,))[0])):
            found.update(f"{place.path}.{key}" for key in place.held[::2])
        elif type(place) in (Place, Setting) and isinstance(place.thing, (tuple, types.CellType)):  # a variable, a slot
            found.add(place.path)
        elif type(place) is Place and type(place.thing) in (dict, list) and place.path in found:  # those above it come first
            keys = place.held[::2] if type(place.thing) is dict else range(len(place.held))
            found.update(f"{place.path}[{key!r}]" for key in keys)
    return found


def _is_guarded(old: Any, new: Any) -> bool:
    """Whether Dynamo tells these two values of an attribute apart: tokens of `kinds.token`, or None where there is none."""
    kinds = [each[0] for each in (old, new) if each is not None]
    if any(kind not in (int, float, bool, str, type(None), torch.Tensor, torch.nn.Parameter) for kind in kinds):
        return False
    return not kinds == [float, float] or struct.unpack("d", old[1]) != struct.unpack("d", new[1])


def _is_within(path: str, places: Any) -> bool:
    return any(path == place or path.startswith((f"{place}.", f"{place}[")) for place in places)


__all__ = ["BesideDynamo", "is_changed"]
