"""Places of a program's state: what each holds, whether it still does, how it is put back.

`same_contents` compares many of them with what they held, in C; `Place` is one of them, with its path in the user's terms.
"""

from __future__ import annotations

import abc
import collections
import contextvars
import functools
import operator
import random
import types
from _abc import _get_dump
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from trainc.base.errors import UserError
from trainc.base.patches import MISSING, Name
from trainc.torch.compat import FakeTensor, FunctionalTensor, disable_current_modes
from trainc.torch.guards.kinds import contents_of
from trainc.torch.guards.known_functions import answer_of
from trainc.torch.numbers import Group, Number
from trainc.torch.strided import is_freed

IGNORED = Name("ignored")
STEPPING = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)  # a step is compiled for the very ones


def held(place: Any) -> list[Any]:
    """What a place holds: of a dictionary its keys and values, of a list, set or deque its items, of (dictionary, key) or
    (object, slot) the value, of (dictionary,) its size, of a class its version, of a function its code and defaults, of a cell or
    context variable its contents, of an array its bytes."""
    if isinstance(place, dict):
        return [each for item in dict.items(place) for each in item]
    if isinstance(place, (list, set, frozenset, collections.deque)):
        return contents_of(place)
    if isinstance(place, tuple):
        if len(place) == 1:
            return [len(place[0])]
        owner, key = place
        return [dict.get(owner, key, MISSING) if isinstance(owner, dict) else getattr(owner, key, MISSING)]
    if isinstance(place, type):
        return [type_version(place)]
    if isinstance(place, types.FunctionType):
        return [place.__code__, place.__defaults__, place.__kwdefaults__]
    if isinstance(place, types.CellType):
        try:
            return [place.cell_contents]
        except ValueError:
            return [MISSING]
    if isinstance(place, contextvars.ContextVar):
        return [place.get(MISSING)]
    return [place.tobytes() if hasattr(place, "tobytes") else bytes(place)]


def default_of(variable: contextvars.ContextVar) -> Any:
    """What a context variable gives where nobody has set it."""
    try:
        return contextvars.Context().run(variable.get)
    except LookupError:
        return MISSING


def contents(places: list[Any]) -> list[Any]:
    """What places hold, each followed by itself: for `same_contents`."""
    return [each for place in places for each in (*held(place), place)]


try:
    from trainc import _core

    type_version = _core.type_version
    # (places, expected) -> whether places hold the very objects that they held: by identity, without calling Python. In
    # `expected` a dictionary's value may be IGNORED.
    same_contents = functools.partial(_core.same_contents, IGNORED, MISSING)

    def contents_guard(
        places: list[Any], expected: list[Any], objects: Sequence[Any] = (), classes: Sequence[type] = ()
    ) -> Callable[[], bool]:
        """`same_contents` of the same lists again and again, and whether `objects` are of `classes`. `expected` may be changed
        where what it stands for has changed."""
        return _core.ContentsGuard(IGNORED, MISSING, places, expected, list(objects), list(classes)).holds
except (ImportError, AttributeError):  # the package without its compiler

    def same_contents(places: list[Any], expected: list[Any]) -> bool:
        found = contents(places)
        return len(found) == len(expected) and all(
            a is b or b is IGNORED or type(a) in (int, bytes) and type(a) is type(b) and a == b
            for a, b in zip(found, expected, strict=True)
        )

    def contents_guard(
        places: list[Any], expected: list[Any], objects: Sequence[Any] = (), classes: Sequence[type] = ()
    ) -> Callable[[], bool]:
        return lambda: same_contents(places, expected) and list(map(type, objects)) == list(classes)

    def type_version(kind: type) -> int:
        return hash(tuple((key, id(value)) for each in kind.__mro__ for key, value in each.__dict__.items())) or 1


# ---- places ---------------------------------------------------------------------------------------------------------


class Place:
    """One thing that may change, as it was found. `held` (with `same_contents`): what it held."""

    __slots__ = ("held", "path", "thing")
    guards = True  # whether a later call asks if it changed, too
    asked = False  # whether `changed` is asked at each call: no C check of contents tells
    by_dynamo = True  # whether torch.compile's tracer makes the changes that the program makes here

    def __init__(self, path: str, thing: Any, held: list[Any]):
        self.path, self.thing, self.held = path, thing, held

    def changed(self) -> bool:
        return not same_contents([self.thing], [*self.held, self.thing])

    def restore(self) -> None:
        thing, held = self.thing, self.held
        if isinstance(thing, dict):
            kind = collections.OrderedDict if isinstance(thing, collections.OrderedDict) else dict
            kind.clear(thing)
            kind.update(thing, zip(held[::2], held[1::2], strict=True))
        elif isinstance(thing, list):
            list.__setitem__(thing, slice(None), held)
        elif isinstance(thing, set):
            set.clear(thing)
            set.update(thing, held)
        elif isinstance(thing, collections.deque):
            thing.clear()
            thing.extend(held)
        elif isinstance(thing, types.CellType):
            if held[0] is MISSING:
                del thing.cell_contents
            else:
                thing.cell_contents = held[0]
        elif isinstance(thing, contextvars.ContextVar):
            thing.set(default_of(thing) if held[0] is MISSING else held[0])
        elif isinstance(thing, types.FunctionType):
            thing.__code__, thing.__defaults__, thing.__kwdefaults__ = held
        elif isinstance(thing, tuple):
            owner, key = thing
            if isinstance(owner, dict):
                owner.pop(key, None) if held[0] is MISSING else owner.__setitem__(key, held[0])
            elif held[0] is MISSING:
                delattr(owner, key)
            else:
                setattr(owner, key, held[0])


class Attributes(Place):
    """The attributes of an object or a module, all of them to see whether one is changed; those that are not read are ignored by
    the guards."""

    __slots__ = ()


class Size(Place):
    """How many variables a module has."""

    __slots__ = ()

    def changed(self) -> bool:
        return False  # imports within forward add some


class Version(Place):
    """A class of PyTorch's, by its version."""

    __slots__ = ()

    def changed(self) -> bool:
        return False


class Class(Place):
    """A class: its version for the guards, its attributes to see what changed."""

    __slots__ = ("attributes",)
    by_dynamo = False  # 2.11's does not see what is set; 2.13's finds the old value where an instance is asked for it

    def __init__(self, path: str, thing: type):
        super().__init__(path, thing, held(thing))
        self.attributes = dict(thing.__dict__)

    def changed(self) -> bool:
        return bool(self._changes())

    def _changes(self) -> list[str]:
        now = self.thing.__dict__
        keys = {*now, *self.attributes} - CLASS_CACHES
        return [key for key in keys if now.get(key, MISSING) is not self.attributes.get(key, MISSING)]

    def restore(self) -> None:
        for key in self._changes():
            if key in self.attributes:
                type.__setattr__(self.thing, key, self.attributes[key])
            else:
                type.__delattr__(self.thing, key)


CLASS_CACHES = {"__annotations__", "__doc__", "__weakref__", "__dict__", "_abc_impl", "__abstractmethods__", "__annotate__"}


class Order(Place):
    """The order of an OrderedDict, which it keeps beside its table: `same_contents` reads the table."""

    __slots__ = ()
    guards = by_dynamo = False
    asked = True

    def __init__(self, path: str, thing: collections.OrderedDict):
        super().__init__(path, thing, list(thing))

    def changed(self) -> bool:
        return len(self.thing) != len(self.held) or not all(map(operator.is_, self.thing, self.held))

    def restore(self) -> None:
        for key in self.held:
            if key in self.thing:
                collections.OrderedDict.move_to_end(self.thing, key)


class Answer(Place):
    """What a function without arguments says of a state that cannot be looked into (`known_functions.ANSWERED`)."""

    __slots__ = ()
    guards = False
    asked = True

    def __init__(self, path: str, thing: Callable[[], Any]):
        super().__init__(path, thing, [answer_of(thing)])

    def changed(self) -> bool:
        return answer_of(self.thing) != self.held[0]

    def restore(self) -> None:
        pass  # what changes it is refused


class Registry(Place):
    """The classes that were registered with an abstract base class, by which `isinstance` and `issubclass` answer."""

    __slots__ = ("_token",)
    guards = False
    asked = True

    def __init__(self, path: str, thing: type):
        super().__init__(path, thing, [registered(thing)])
        self._token = abc.get_cache_token()  # another one after each registration with any class

    def changed(self) -> bool:
        if (token := abc.get_cache_token()) == self._token:
            return False
        if registered(self.thing) != self.held[0]:
            return True
        self._token = token
        return False

    def restore(self) -> None:
        pass  # nothing takes a class out again


def registered(kind: type) -> frozenset[int]:
    return frozenset(id(found) for reference in _get_dump(kind)[0] if (found := reference()) is not None)


class Cache(Place):
    """A functools.cache: what a trace adds to it is no side effect, for a call adds it, too. But the trace's own tensors and
    numbers must not stay there."""

    __slots__ = ("_look",)
    guards = False

    def __init__(self, path: str, thing: Any, look: Callable[[], tuple[dict, dict[int, Any]]]):
        super().__init__(path, thing, [])
        self._look = look

    def changed(self) -> bool:
        table, results = self._look()
        return any(map(_of_trace, (*table, *results.values())))

    def restore(self) -> None:
        self.thing.cache_clear()  # the only way to take something out


class Kept(Place):
    """A result in the table of a functools.cache. What a trace's calls put out is not put back: the table is C's own."""

    __slots__ = ()

    def changed(self) -> bool:
        return False


def _of_trace(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict)):
        return any(map(_of_trace, value.values() if isinstance(value, dict) else value))
    return type(value) is Number or isinstance(value, (FakeTensor, FunctionalTensor))


class Buffer(Place):
    """An array, by its bytes."""

    __slots__ = ()

    def restore(self) -> None:
        if isinstance(self.thing, numpy.ndarray):
            self.thing[...] = numpy.frombuffer(self.held[0], dtype=self.thing.dtype).reshape(self.thing.shape)
        else:
            memoryview(self.thing).cast("B")[:] = self.held[0]

    def changed(self) -> bool:
        return held(self.thing) != self.held


class Written(Place):
    """A tensor that is none of the module's: whether the program writes it. Its values are an input of what is compiled."""

    __slots__ = ("_copy",)
    guards = False

    def __init__(self, path: str, thing: torch.Tensor, copied: bool):
        super().__init__(path, thing, [thing._version])
        freed = type(thing) in (torch.Tensor, torch.nn.Parameter) and is_freed(thing)
        self._copy = thing.detach().clone() if copied and not freed else None

    def changed(self) -> bool:  # a write below autograd does not raise the version
        if self._copy is None or self.thing.shape != self._copy.shape or self.thing.dtype != self._copy.dtype:
            return self.thing._version != self.held[0]
        with disable_current_modes():
            return not torch.equal(_as_bytes(self.thing), _as_bytes(self._copy))

    def restore(self) -> None:
        if self._copy is None:
            raise UserError(f"forward writes `{self.path}`, a large tensor that is none of the module's: make it a buffer")
        with torch.no_grad(), disable_current_modes():
            self.thing.copy_(self._copy)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


class Generator(Place):
    """A generator of random numbers, by its state. Not watched: forward cannot read its state but by drawing from it, and that is
    seen while it is traced."""

    __slots__ = ("_set",)
    guards = False

    def __init__(self, path: str, thing: Any, get: Callable[[], Any], set_: Callable[[Any], None]):
        super().__init__(path, thing, [get])
        self.held.append(get())
        self._set = set_

    def changed(self) -> bool:
        return _plain(self.held[0]()) != _plain(self.held[1])

    def restore(self) -> None:
        self._set(self.held[1])


def _plain(state: Any) -> Any:
    """A generator's state with its arrays as bytes, which can be compared."""
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return state.tobytes() if isinstance(state, numpy.ndarray) else state


def generator_of(path: str, value: Any) -> Generator | None:
    if isinstance(value, random.Random):
        return Generator(path, value, value.getstate, value.setstate)
    if isinstance(value, numpy.random.RandomState):
        return Generator(path, value, lambda: value.get_state(legacy=False), value.set_state)
    bits = value.bit_generator if isinstance(value, numpy.random.Generator) else value
    if isinstance(bits, numpy.random.BitGenerator):
        return Generator(path, value, lambda: bits.state, lambda state: setattr(bits, "state", state))
    return None


class AllAttributes(Place):
    """All attributes of an object, read or not: what a program changes of them is a side effect. `by_dynamo`: not of a function,
    of a tensor, nor of a dictionary."""

    __slots__ = ("_by_dynamo",)
    guards = False

    def __init__(self, path: str, owner: Any):
        super().__init__(path, owner.__dict__, held(owner.__dict__))
        self._by_dynamo = not isinstance(owner, (types.FunctionType, torch.Tensor, dict, list, set, tuple, collections.deque))

    @property
    def by_dynamo(self) -> bool:
        return self._by_dynamo


class Setting(Place):
    """A setting of an optimizer's group. `by_dynamo`: where a program writes one, Dynamo would also set `capturable`."""

    __slots__ = ("group",)
    by_dynamo = False

    def __init__(self, path: str, thing: tuple[dict, Any], held: list[Any], group: Group):
        super().__init__(path, thing, held)
        self.group = group


class Table(Place):
    """All that a dictionary of one of PyTorch's objects holds, as the program has it: a trace may have put other things there.
    What the program changes is a side effect, but where it is IGNORED."""

    __slots__ = ()
    guards = by_dynamo = False

    def restore(self) -> None:
        now = dict(self.thing)
        held = zip(self.held[::2], self.held[1::2], strict=True)
        items = [(key, now.get(key, MISSING) if value is IGNORED else value) for key, value in held]
        self.thing.clear()
        self.thing.update((key, value) for key, value in items if value is not MISSING)


class Length(Place):
    """How many batches a DataLoader has. It asks its dataset, which may be of any size: so its answer is watched instead."""

    __slots__ = ()
    guards = False
    asked = True

    def __init__(self, path: str, thing: Any):
        super().__init__(path, thing, [length_of(thing)])

    def changed(self) -> bool:
        return length_of(self.thing) != self.held[0]

    def restore(self) -> None:
        pass  # where what it is made of can be reached, it is put back there


def length_of(loader: Any) -> Any:
    with disable_current_modes():
        try:
            return len(loader)
        except Exception as error:  # a stream has none
            return type(error)


__all__ = [
    "CLASS_CACHES", "IGNORED", "MISSING", "STEPPING", "AllAttributes", "Answer", "Attributes", "Buffer", "Cache", "Class",
    "Generator", "Kept", "Length", "Order", "Place", "Registry", "Setting", "Size", "Table", "Version", "Written",
    "contents", "contents_guard", "default_of", "generator_of", "held", "same_contents", "type_version",
]  # fmt: skip
