"""A module as the compiled call sees it: its tensors as inputs, and everything else that its forward may read as guards.

`ModuleState` walks the modules once; `tensors()` and `values()` then read the same places through flat lists of
(dictionary, key). `StateGuard` tells, for much less, that there is nothing to read since the last call.
"""

from __future__ import annotations

import operator
import random
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from trainc.base.errors import NotCompiled, SideEffect
from trainc.torch import compat
from trainc.torch.compat import tensor_guards
from trainc.torch.guards.guards import expect, positions
from trainc.torch.guards.kinds import code_of, token
from trainc.torch.guards.places import contents, contents_guard, held
from trainc.torch.numbers import Slot
from trainc.torch.trust import is_trusted_module

# nn.Module's own attributes; the rest of a module's __dict__ is the user's
_OWN = compat.MODULE_ATTRIBUTES - {"training"}
_SIMPLE = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_CONTAINERS = (list, tuple, dict, set)
_BASES = (torch.nn.Module, object)  # which read their own attributes alone


class ModuleState:
    def __init__(self, root: torch.nn.Module):
        self.root = root
        self._modules: list[tuple[dict, Any, Any]] = []  # where each submodule hangs
        self._sizes: list[tuple[dict, int]] = []  # attributes of each module: none came, none went
        self._orders: list[tuple[dict, tuple]] = []  # in which order modules hang: a ModuleDict calls them so
        self._tensors: list[tuple[dict, Any]] = []  # where tensors hang (parameters, buffers, attributes)
        self._values: list[tuple[dict, Any]] = []  # where plain values hang
        # by module: the hooks around its forward, and which of these are given keywords; those around its backward
        self.hooks: list[tuple[str, dict, dict]] = []
        self._backward_hooks: list[tuple[str, dict]] = []
        self._unread: set[int] = set()  # which of the values no compiled code reads
        self._moving: list[tuple[int, list[Slot]]] = []  # which of the values are, or hold, numbers that change
        self.names: list[str] = []  # of self._tensors
        self._objects: dict[int, Any] = {}  # configuration objects that were walked, by id
        self._plain: set[int] = set()  # attributes' tables of modules whose code is all the program's own
        for path, module in root.named_modules():
            self._visit(path, module)
        # tied tensors are one input: place -> index among the distinct ones
        found = [where[key] for where, key in self._tensors]
        self._found = found
        index: dict[int, int] = {}
        self.places = [index.setdefault(id(tensor), len(index)) for tensor in found]
        firsts: dict[int, int] = {}
        for place, i in enumerate(self.places):
            firsts.setdefault(i, place)
        self._distinct = [self._tensors[place] for place in firsts.values()]

    def _visit(self, path: str, module: torch.nn.Module) -> None:
        if isinstance(module, torch.jit.ScriptModule):  # its tensors are TorchScript's, and cannot be replaced while it is traced
            raise NotCompiled(f"{path or 'the model'} is a module of TorchScript (torch.jit)", in_pytorch=True)
        attributes = module.__dict__
        if all(base in _BASES or not is_trusted_module(base.__module__) for base in type(module).__mro__):
            self._plain.add(id(attributes))
        self._sizes.append((attributes, len(attributes)))
        for tables in ("_parameters", "_buffers"):
            table = attributes[tables]
            self._sizes.append((table, len(table)))
            for key, tensor in table.items():
                if tensor is None:
                    self._values.append((table, key))
                else:
                    self._add_tensor(table, key, f"{path}.{key}" if path else key)
        for key, child in attributes["_modules"].items():
            self._modules.append((attributes["_modules"], key, child))
        self._sizes.append((attributes["_modules"], len(attributes["_modules"])))
        if len(attributes["_modules"]) > 1:
            self._orders.append((attributes["_modules"], tuple(attributes["_modules"])))
        for key, flags in compat.FORWARD_HOOKS.items():
            self.hooks.append((f"{path or type(module).__name__}.{key.strip('_')}", attributes[key], attributes[flags]))
        self._backward_hooks += [(path or type(module).__name__, attributes[key]) for key in compat.BACKWARD_HOOKS]
        for key, value in attributes.items():
            if key in _OWN:
                continue
            if isinstance(value, torch.Tensor):
                self._add_tensor(attributes, key, f"{path}.{key}" if path else key)
            else:
                self._values.append((attributes, key))
                self._visit_object(value)

    def _visit_object(self, value: Any) -> None:
        """A configuration object: its plain attributes are guarded too."""
        if not _is_object(value) or id(value) in self._objects:
            return
        attributes = value.__dict__
        self._objects[id(value)] = value
        self._sizes.append((attributes, len(attributes)))
        self._values += [(attributes, key) for key in attributes]

    def _add_tensor(self, table: dict, key: Any, name: str) -> None:
        self._tensors.append((table, key))
        self.names.append(name)

    # -- read at every call -------------------------------------------------------------------------------------------

    def is_current(self) -> bool:
        """Whether the structure is the one that was walked: same modules, same places, same ties."""
        if any(len(table) != size for table, size in self._sizes):
            return False
        if any(table.get(key) is not child for table, key, child in self._modules):
            return False
        if any(tuple(table) != keys for table, keys in self._orders):
            return False
        try:
            found = [table[key] for table, key in self._tensors]
        except KeyError:
            return False
        if all(map(operator.is_, found, self._found)):
            return True
        if not all(isinstance(tensor, torch.Tensor) for tensor in found):
            return False
        index: dict[int, int] = {}
        if [index.setdefault(id(tensor), len(index)) for tensor in found] != self.places:
            return False
        self._found = found
        return True

    def tensors(self) -> list[torch.Tensor]:
        """The distinct tensors, in the order of the compiled call's inputs."""
        return [table[key] for table, key in self._distinct]

    def values(self) -> list[Any]:
        """Everything plain that forward may read. Containers are copied one level deep, so that a later change shows."""
        found = [_frozen(table.get(key)) for table, key in self._values]
        for i, slots in self._moving:
            found[i] = _without_numbers(self._values[i], found[i], slots)
        for i in self._unread:
            found[i] = _UNREAD
        hooked = (each for each in self.hooks if each[1])
        found.append([(path, [(code_of(hook), at in flags) for at, hook in table.items()]) for path, table, flags in hooked])
        return found

    def read_alone(self, named: set[str] | None) -> set[int]:
        """From now on the attributes of the program's own modules that are not among `named` (None: all are) are no part of the
        values: what a loop keeps in its model (a list of rewards) changes at every step. A list of the model's own tensors is.
        Gives those that were none until now."""
        own = set(map(id, self._found))
        unread = set() if named is None else {
            i for i, (table, key) in enumerate(self._values)
            if id(table) in self._plain and isinstance(key, str) and key not in _OWN | named
            and not (keeps_tensors(held := table.get(key)) and any(id(_tensor_of(item)) in own for item in _items(held)))
        }  # fmt: skip
        before, self._unread = self._unread, unread
        return before - unread

    def leave_out(self, values: list[Any]) -> None:
        """Of `values()` of before, what is no part of them now."""
        for i in self._unread:
            values[i] = _UNREAD

    def check_seen(self, came: set[int]) -> None:
        """NotCompiled where a trace ran with tensors in a container that was taken for unread."""
        for i in came:
            table, key = self._values[i]
            value = table.get(key)
            if isinstance(value, torch.Tensor) or keeps_tensors(value) or _is_object(value) and id(value) not in self._objects:
                raise NotCompiled(f"forward reads `{key}` now, which holds tensors or an object")

    def let_move(self, slots: Sequence[Slot]) -> None:
        """From now on these numbers are no part of the values (numbers/)."""
        found = [(i, [s for s in slots if s.holds(*at) or s.path is None and s.container is at[0].get(at[1])])
                 for i, at in enumerate(self._values)]  # fmt: skip
        self._moving = [(i, inside) for i, inside in found if inside]

    def number_at(self, i: int, old: Any, new: Any) -> list[tuple[Any, Any]] | None:
        """Where the numbers are in which two of `values()` differ at `i`, as containers and keys; None where they differ in
        anything else."""
        if i == len(self._values):  # hooks
            return None
        table, key = self._values[i]
        if _is_number(old) and _is_number(new):
            return [(table, key)]
        value = table.get(key)
        if not isinstance(old, list) or not isinstance(new, list) or len(old) != len(new) or type(value) not in (list, dict):
            return None
        found = []
        for at, (a, b) in enumerate(zip(old, new, strict=True)):
            if isinstance(value, dict):
                if a[0] != b[0]:
                    return None
                at, a, b = list(value)[at], a[1], b[1]
            if a != b:
                if not _is_number(a) or not _is_number(b):
                    return None
                found.append((value, at))
        return found

    def covers_values(self) -> bool:
        """Whether what now stands where plain values were is plain, or was walked itself. Asked when a value is new."""
        values = [table.get(key) for i, (table, key) in enumerate(self._values) if i not in self._unread]
        return not any(isinstance(v, torch.Tensor) or _is_object(v) and id(v) not in self._objects for v in values)

    def refuse_hooks(self) -> None:
        """NotCompiled where there are hooks that no trace of forward has: it runs those around a module's forward alone."""
        if found := next((path for path, table in self._backward_hooks if table), None):
            raise NotCompiled(f"`{found}` has backward hooks")
        if any(table for _, table, _ in self.hooks):
            for path, module in self.root.named_modules():
                if module.__dict__[compat.HOOKS_AFTER_ERRORS]:
                    name = path or type(module).__name__
                    raise NotCompiled(f"`{name}` has a hook that is called after an error, too", in_pytorch=True)

    # -- while tracing ------------------------------------------------------------------------------------------------

    def swapped(self, tensors: list[torch.Tensor]) -> _Swap:
        """A context in which the modules hold `tensors` in the place of their own."""
        return _Swap(self, tensors)


class TypeGuard:
    """Tensors' types, to see at once that others have them, by torch.compile's own check in C++. It knows the tensors that it was
    made of again."""

    def __init__(self, tensors: list[torch.Tensor]):
        self._count = len(tensors)
        self._types = tensor_guards.TensorGuards(
            *tensors,
            dynamic_dims_sizes=[list(t.shape) for t in tensors],
            dynamic_dims_strides=[list(t.stride()) for t in tensors],
        )

    def __call__(self, tensors: list[torch.Tensor]) -> bool:
        return len(tensors) == self._count and self._types.check(*tensors)


class StateGuard:
    """Whether a module is in the state that it was in when this was made: its dictionaries, lists and sets hold the same objects,
    its hooks are the same, and torch's own check of types finds its tensors as they were. May say no where nothing changed
    (then the state is read), never yes where something did. Hooks on all modules are not in it."""

    def __init__(self, state: ModuleState, tensors: list[torch.Tensor]):
        values = [table.get(key) for i, (table, key) in enumerate(state._values) if i not in state._unread]
        containers = [value for value in values if type(value) in (list, set) or isinstance(value, dict)]
        self._containers = [*[table for table, _ in state._sizes], *[table for _, table, _ in state.hooks],
                            *[table for _, table in state._backward_hooks], *containers]  # fmt: skip
        self._contents = contents(self._containers)
        self._same = contents_guard(self._containers, self._contents)
        moving = list({id(slot): slot for _, slots in state._moving for slot in slots}.values())
        self._numbers = positions([(place, held(place)) for place in self._containers], moving) if moving else []
        self.tensors = tensors
        self._type_guard = TypeGuard(tensors)

    def __call__(self) -> bool:
        expect(self._numbers, self._contents)
        return self._same() and self._type_guard(self.tensors)


def _is_object(value: Any) -> bool:
    """Whether this is an object with plain attributes, such as a model's configuration."""
    if isinstance(value, (*_SIMPLE, *_CONTAINERS, type, torch.nn.Module, torch.Tensor)) or callable(value):
        return False
    return isinstance(getattr(value, "__dict__", None), dict)


class _Swap:
    def __init__(self, state: ModuleState, tensors: list[torch.Tensor]):
        self._state = state
        self._new = [tensors[i] for i in state.places]
        self._containers: list[tuple[dict, Any, Any, Any]] = []

    def __enter__(self) -> None:
        state = self._state
        self._old = [table[key] for table, key in state._tensors]
        traced = {id(old): new for old, new in zip(self._old, self._new, strict=True)}
        for i, (table, key) in enumerate(state._values):  # nn.LSTM keeps its parameters in a list as well
            value = table.get(key)
            if i not in state._unread and keeps_tensors(value):
                self._containers.append((table, key, value, _mapped(value, traced)))
        for (table, key), new in zip(state._tensors, self._new, strict=True):
            table[key] = new
        for table, key, _, swapped in self._containers:
            table[key] = swapped

    def __exit__(self, kind: Any, *_: Any) -> None:
        state, changed = self._state, None
        for (table, key), old, new, name in zip(state._tensors, self._old, self._new, state.names, strict=True):
            if table.get(key) is not new:
                changed = changed or name
            table[key] = old
        for table, key, value, swapped in self._containers:
            if table.get(key) is not swapped:
                changed = changed or str(key)
            table[key] = value
        if changed and kind is None:
            raise SideEffect(f"forward assigns a new tensor to `{changed}`")


def keeps_tensors(value: Any) -> bool:
    return isinstance(value, (list, tuple, dict)) and any(_tensor_of(item) is not None for item in _items(value))


def _items(value: Any) -> Iterator[Any]:
    return iter(value.values() if isinstance(value, dict) else value)


def _tensor_of(item: Any) -> torch.Tensor | None:
    """The tensor that a container's item is or, in nn.LSTM, refers to weakly."""
    item = item() if isinstance(item, weakref.ref) else item
    return item if isinstance(item, torch.Tensor) else None


def _mapped(value: Any, traced: dict[int, torch.Tensor]) -> Any:
    def of(item: Any) -> Any:
        tensor = _tensor_of(item)
        if tensor is None:
            return item
        if id(tensor) not in traced:
            raise NotCompiled("a module keeps tensors in a list that are neither its parameters nor its buffers")
        new = traced[id(tensor)]
        return weakref.ref(new) if isinstance(item, weakref.ref) else new

    if isinstance(value, dict):
        return {key: of(item) for key, item in value.items()}
    return type(value)(of(item) for item in value)


class _Held:
    """An object of the user's, compared by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self.value is other.value


def _frozen(value: Any) -> Any:
    if type(value) in _SIMPLE_TYPES:
        return token(value)
    if (type(value) in (list, tuple, set) or isinstance(value, dict)) and len(value) <= 64:
        if isinstance(value, dict):
            return [(token(key), _item(item)) for key, item in value.items()]
        return [_item(item) for item in value]
    return _Held(value)


def _is_number(value: Any) -> bool:
    return type(value) is tuple and len(value) == 2 and value[0] is float


_ANY = (float, "any")
_UNREAD = ("not", "read")


def _without_numbers(place: tuple[dict, Any], value: Any, slots: list[Slot]) -> Any:
    """A frozen value, with numbers that change left out."""
    table, key = place
    if _is_number(value):
        return _ANY
    container = table.get(key)
    moving = {slot.key for slot in slots if slot.container is container}
    if not moving or type(value) is not list:
        return value
    if isinstance(container, dict):
        keyed = zip(container, value, strict=True)
        return [(k, _ANY) if own in moving and _is_number(item) else (k, item) for own, (k, item) in keyed]
    return [_ANY if i in moving and _is_number(item) else item for i, item in enumerate(value)]


def _item(value: Any) -> Any:
    return token(value) if type(value) in _SIMPLE_TYPES else _Held(value)


_SIMPLE_TYPES = frozenset(_SIMPLE)


# ---- side effects ---------------------------------------------------------------------------------------------------


class Snapshot:
    """The Python side of a program before its forward is traced; what tracing changed is put back and named."""

    def __init__(self, root: torch.nn.Module):
        # known once restored: whether an attribute or a container had changed; the attributes that were set to plain values, and
        # whether that is all that changed
        self.state_changed = False
        self.set: list[tuple[dict, Any, Any]] = []
        self.only_set = True
        self.drawn: str | None = None  # that it draws from Python's or NumPy's global generator; known once restored
        self._random, self._torch = random.getstate(), torch.get_rng_state()
        self._numpy = _numpy_state()
        self._attributes = []
        seen: set[int] = set()
        for path, module in root.named_modules():
            self._add(path or type(module).__name__, module.__dict__, seen)

    def _add(self, owner: str, attributes: dict, seen: set[int]) -> None:
        if id(attributes) in seen:
            return
        seen.add(id(attributes))
        contents = {}
        for key, value in attributes.items():
            if type(value) in (list, set) or isinstance(value, dict):
                contents[key] = (value, type(value)(value) if type(value) in (list, set) else dict(value))
            elif key not in _OWN and _is_object(value):
                self._add(f"{owner}.{key}", value.__dict__, seen)
        self._attributes.append((owner, attributes, dict(attributes), contents))

    def restore(self, others_draw: bool = False) -> str | None:
        """Puts everything back; returns what had changed in the user's terms, or None. `others_draw`: another thread may have
        drawn from PyTorch's generator, and no trace has."""
        changed = self.restore_attributes()
        self.state_changed = changed is not None
        if random.getstate() != self._random:
            random.setstate(self._random)
            self.drawn = "forward draws from Python's `random`"
        if _numpy_state() != self._numpy:
            _set_numpy_state(self._numpy)
            self.drawn = "forward draws from `numpy.random`"
        if not others_draw and not torch.equal(torch.get_rng_state(), self._torch):
            torch.set_rng_state(self._torch)
            self.only_set = False
            changed = changed or "forward sets or draws from torch's generator beside its operations"
        return changed

    def restore_attributes(self) -> str | None:
        """`restore` for the modules' attributes, lists and dictionaries alone."""
        changed = None
        self.set, self.only_set = [], True
        for owner, attributes, before, containers in self._attributes:
            for key in {*attributes, *before}:
                if key not in attributes or key not in before or attributes[key] is not before[key]:
                    if key in attributes and key in before and _same(attributes[key], before[key]):
                        continue
                    changed = changed or f"forward changes `{owner}.{key}`"
                    self.set.append((attributes, key, attributes.get(key)))
                    self.only_set &= key in attributes and isinstance(attributes[key], _SIMPLE)
            if changed:
                attributes.clear()
                attributes.update(before)
            for key, (container, content) in containers.items():
                if not _same_content(container, content):
                    changed = changed or f"forward changes what is in `{owner}.{key}`"
                    self.only_set = False
                    container.clear()
                    container.extend(content) if isinstance(container, list) else container.update(content)
        return changed

    def set_again(self) -> None:
        """After `restore`: what was set is set, for good."""
        for attributes, key, value in self.set:
            attributes[key] = value


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and isinstance(a, _SIMPLE) and a == b


def _same_content(now: Any, before: Any) -> bool:
    if len(now) != len(before):
        return False
    if isinstance(now, set):
        return now == before
    if isinstance(now, dict):
        return all(key in before and before[key] is value for key, value in now.items())
    return all(map(operator.is_, now, before))


def _numpy_state() -> Any:
    import numpy

    name, keys, *rest = numpy.random.get_state()
    return (name, keys.tobytes(), *rest)


def _set_numpy_state(state: Any) -> None:
    import numpy

    name, keys, *rest = state
    numpy.random.set_state((name, numpy.frombuffer(keys, dtype=numpy.uint32), *rest))
