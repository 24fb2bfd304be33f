"""What is known of a program, a model's call or a step's body, from the calls before: what serves a call of this signature."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from trainc.base import messages, records
from trainc.base.errors import NotCompiled
from trainc.torch import numbers
from trainc.torch.doors.signature import Call, Signature
from trainc.torch.doors.variants import Variants
from trainc.torch.joint import family

Entry = Callable[..., Any]  # (inputs, args, kwargs) -> what the call gives


class Signatures:
    """`model()` gives the program's module; `is_full()`: whether nothing more is compiled; `forgotten()` is called when the
    module's structure has changed, and all that was compiled for the old one is dropped."""

    def __init__(
        self, model: Callable[[], torch.nn.Module], is_full: Callable[[], bool], forgotten: Callable[[], None] = lambda: None
    ):
        self.numbers = numbers.Registry()
        self.variants = Variants(model, lambda: self.numbers.moving, self._forget)
        self._is_full, self._forgotten = is_full, forgotten
        # by key: what serves calls, each while its family's guards hold (None: whatever else the program reads)
        self._entries: dict[Any, list[tuple[family.Family | None, Entry]]] = {}
        self._families: dict[Any, list[family.Family]] = {}
        self._dropped: list[family.Family] = []
        self._prints: list[numbers.Print] = []  # what a trace with numbers is compared with
        self._compiled: list[Signature] = []  # in the user's terms, to say in what a new one differs

    # -- what serves a call -------------------------------------------------------------------------------------------

    def find(self, call: Call) -> Entry | None:
        """What was compiled for a call's key and for what the program would read now."""
        if call.entry is not None:
            return call.entry
        for serving, entry in self._entries.get(call.key, ()):
            if (serving is None or serving.holds()) and (ready := numbered(entry)) is not None:
                return ready
        return None

    def look_up(self, call_of: Callable[[], Call]) -> tuple[Call, Entry | None]:
        """The call, and what serves it. Where it differs from a compiled one in numbers alone, these may be inputs from now on,
        and the call has another key."""
        call = call_of()
        entry = self.find(call)
        if entry is None and self._see_numbers(call.key):
            call = call_of()
            entry = self.find(call)
        return call, entry

    def compiled(self, call: Call, call_of: Callable[[], Call], compile: Callable[[Call], Entry]) -> tuple[Call, Entry]:
        """What `compile` makes for a call that nothing serves. Where a number that moves must be a constant after all, none
        moves now, and the call is looked up again: this does not happen twice in a call."""
        try:
            entry = numbered(compile(call))
        except numbers.Constant as reason:
            self.numbers.refuse(reason)
            self.variants.let_move()
            call = call_of()
            entry = self.find(call) or numbered(compile(call))
        call.tensors = self.variants.state.tensors()  # a first call may have set other ones
        return call, entry

    def serve(self, call_of: Callable[[], Call], compile: Callable[[Call], Entry]) -> tuple[Call, Entry]:
        """The call, and what serves it, which is compiled where there is nothing yet."""
        call, entry = self.look_up(call_of)
        return (call, entry) if entry is not None else self.compiled(call, call_of, compile)

    def add(self, key: tuple, serving: family.Family | None, entry: Entry) -> None:
        found = self._entries.setdefault(key, [])
        found.insert(0 if serving is not None and serving.slots else len(found), (serving, entry))

    def serve_by(self, entry: Entry, concerns: Callable[[tuple], bool]) -> None:
        """From now on `entry` alone serves calls whose kind this `concerns`."""
        self._entries.update({key: [(None, entry)] for key in self._entries if concerns(key[1])})

    def drop(self, concerns: Callable[[tuple], bool]) -> None:
        """Calls whose kind this `concerns` are traced anew. Those that wait for their backward still ask the old families."""
        for key in [key for key in self._entries if concerns(key[1])]:
            del self._entries[key]
            self._dropped += self._families.pop(family.key_of(key), [])

    def traces(self) -> int:
        """The sizes of one trace have one entry."""
        found = (entry for entries in self._entries.values() for _, entry in entries)
        return len({id(getattr(entry, "entry", entry)) for entry in found})

    def sizes(self) -> int:
        """All sets of sizes that were compiled."""
        return sum(len(each.shapes) for found in self._families.values() for each in found)

    def family(self, key: tuple) -> family.Family:
        """The family of a call's shapes whose traces hold for what the program would read now, or a new one."""
        families = self._families.setdefault(family.key_of(key), [])
        active = self.numbers.active()
        found = next((each for each in families if each.slots == active and each.holds()), None)
        if found is None:
            found = family.Family(slots=active, known=self.numbers.slots)
            families.append(found)
        if found.slots:
            found.prints += [each for each in self._prints if each not in found.prints]
        return found

    def check_apart(self, call: Call) -> None:
        """NotCompiled where an argument is itself a tensor that the program may reach otherwise: it may ask whether it is."""
        if self.variants.reachable.isdisjoint(map(id, call.arguments)):
            return
        watched = [guards.tensors for found in self._families.values() for each in found for guards in each.guards]
        for known in (self.variants.state.tensors(), *watched):
            if any(tensor is argument for tensor in known for argument in call.arguments):
                raise NotCompiled("an argument is a tensor that forward also reaches in another way", in_pytorch=True)

    def _forget(self) -> None:
        self._entries.clear()
        self._families.clear()
        self._compiled = [dataclasses.replace(old, variant=-1) for old in self._compiled]
        self._forgotten()

    # -- numbers that change (numbers/) -------------------------------------------------------------------------------

    def _see_numbers(self, key: tuple) -> bool:
        """Learns which numbers alone tell a call, of which nothing is known, from one that was compiled; whether there are any.
        Those that had another value before are inputs from now on."""
        self._prints = []
        if self._is_full():
            return False
        variant, training, structure, *rest = family.key_of(key)
        on_cpu = all(t.is_cpu for t in self.variants.state.tensors()) and all(kind[-1] is True for kind in rest[-1])
        for (old_variant, old_training, old_structure, *old_rest), families in reversed(self._families.items()):
            if (training, rest) != (old_training, old_rest):
                continue
            paths = numbers.differing(old_structure, structure)
            values = self.variants.numbers_between(old_variant, variant) if paths is not None else None
            for each in reversed(families) if values is not None else ():
                reads = [] if each.holds() else each.other_numbers()
                if reads is None:
                    continue
                if not (paths or values or reads):  # it differs in its sizes, or in nothing that is read
                    return False
                places = {(id(container), key): (container, key) for container, key in (*values, *reads)}
                slots = [self.numbers.of_place(*place) for place in places.values()]
                slots += [self.numbers.of_argument(path) for path in paths]
                if slots and on_cpu and not any(slot.state == "fixed" for slot in slots):
                    self._let_move(slots, each)
                    return True
        return False

    def _let_move(self, slots: list[numbers.Slot], known: family.Family) -> None:
        new = [slot for slot in slots if slot.state == "new"]
        self.numbers.set(new, "seen")
        if not new and any(each.tells(slots) for each in known.prints):
            self.numbers.set(slots, "moving")
            self.variants.let_move()
            self._prints = list(known.prints)

    # -- in the user's terms ------------------------------------------------------------------------------------------

    def differences(self, key: tuple) -> list[str]:
        """Of a key that was compiled before: in what the program's state differs from then."""
        for serving, _ in reversed(self._entries.get(key, ())):
            if serving is not None and (told := [each for guards in serving.guards for each in guards.differences()]):
                return told[:3]
        return []

    def tell(self, record: records.Compilation, new: Signature) -> None:
        """Says why a program is compiled again. Another mode alone (a first evaluation) is recorded, not warned of."""
        messages.info(f"{record.name}: captured for {record.signature or 'a call'} in {record.capture_seconds:.2f} s")
        others = ([old.arguments_changed(new), old.modes_changed(new)] for old in reversed(self._compiled))
        told = min(others, key=lambda each: sum(map(len, each)), default=None)
        self._compiled.append(new)
        if told is None:
            return
        arguments, other = told
        record.recompiled = "; ".join([*arguments, *other])
        if arguments and record.trace != "sizes":
            per_shape = f"; every shape is traced on its own: {record.trace_reason}" if record.trace_reason else ""
            messages.recompiled(record.name, record.recompiled + per_shape)


def numbered(entry: Any) -> Any:
    """An entry with the numbers that are there now; None where it does not hold for them."""
    return entry.now() if type(entry) is numbers.Numbered else entry


__all__ = ["Entry", "Signatures", "numbered"]
