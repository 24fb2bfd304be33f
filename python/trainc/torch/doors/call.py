"""What `model(...)` does once trainc.compile has seen the model: look up the signature, run what was compiled for it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from trainc.base import config, messages, records
from trainc.base.errors import NotCompiled, SideEffect, UserError
from trainc.torch import compat, device, numbers
from trainc.torch.capture import distributed, turns
from trainc.torch.capture.disguise import Disguise
from trainc.torch.capture.structure import Flattener, changes, describe, leaves, unflatten
from trainc.torch.capture.trace import FlatCall, tracing
from trainc.torch.compat import DeviceContext, function_modes
from trainc.torch.doors.memory import Settings
from trainc.torch.graph import wire
from trainc.torch.graph.sizes import Symbols
from trainc.torch.guards import overlap
from trainc.torch.guards.guards import Guards, Untagged
from trainc.torch.guards.overlap import Overlapping
from trainc.torch.guards.reads import Reads
from trainc.torch.guards.state import Alike, ModuleState, Snapshot, Unchanged
from trainc.torch.guards.watch import Watched
from trainc.torch.joint import compiler as joint
from trainc.torch.joint import family
from trainc.torch.run.deferred import out_of_sight

MAX_VARIANTS = 256  # states of one module: attributes' values, parameters' types, training flags
CHEAP_VARIANTS = 4  # those that are recognised without reading the module: training, evaluation, and two more
Entry = Callable[..., Any]


@dataclasses.dataclass
class Signature:
    """What was compiled, in the user's terms."""

    arguments: dict[str, tuple]
    variant: int
    training: bool
    modes: tuple
    settings: tuple = ()  # of a step's optimizers: their formulas, their parameters (`step_guards.Binding`)
    reads: list[str] = dataclasses.field(default_factory=list)  # what the program reads that is other than in the call before

    def arguments_changed(self, new: Signature) -> list[str]:
        return changes(self.arguments, new.arguments)

    def modes_changed(self, new: Signature) -> list[str]:
        told = []
        if self.training != new.training:
            told.append("the model is in training now" if new.training else "the model is in evaluation now")
        if self.modes != new.modes:
            told.append(
                f"gradients are {'on' if new.modes[0] else 'off'}" if self.modes[0] != new.modes[0] else "another mode of torch"
            )
        if self.settings != new.settings:
            same = self.settings[0] == new.settings[0]
            told.append(
                "the parameters of an optimizer changed" if same
                else "a setting of an optimizer that its update is made of changed"
            )  # fmt: skip
        told += new.reads
        if self.variant != new.variant and not told:
            told.append("the module's modules, tensors or attributes changed")
        return told


def leaves_of(structure: tuple, arguments: list[torch.Tensor], function: Callable[..., Any]) -> dict[str, tuple]:
    """A call's arguments by their names in the `function` that takes them, a model's `forward`."""
    args, kwargs = structure[3]
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    found: dict[str, tuple] = {}
    for i, child in enumerate(args[3]):
        found |= leaves(child, arguments, names[i] if i < len(names) else str(i))
    return found | leaves(kwargs, arguments)


def stray(model: torch.nn.Module, tensors: list[torch.Tensor], given: dict[str, tuple]) -> str | None:
    """What to tell of an argument that does not lie where the model's tensors do; None where there is none such.
    `given`: `leaves_of` the call."""
    where = {str(place) for place in device.places(tensors)}
    for name, leaf in given.items():
        if leaf[0] == "tensor" and tensors and leaf[5] not in where and (leaf[5] != "cpu" or leaf[2]):
            there = " and ".join(sorted(where))
            return f"`{name}` is on {leaf[5]}, {type(model).__name__} on {there}: give it {name}.to({there!r})"
    return None


def _length(told: list[list[str]]) -> int:
    return sum(map(len, told))


@dataclasses.dataclass
class Attempt:
    """What came of compiling a call, and of the program's Python state while it was traced."""

    snapshot: Snapshot  # restored
    changed: str | None  # what the trace had changed, in the user's terms
    entry: Entry | None
    error: Exception | None  # without one, there is an entry
    family: family.Family | None = None
    in_pytorch: bool = False  # whether it does what Dynamo would not do


class CompiledCall:
    """Set as `model._compiled_call_impl`, which nn.Module's call uses and which copies and pickles leave out."""

    def __init__(self, model: torch.nn.Module, settings: Settings | None = None, fusing: Any = None):
        self._model = weakref.ref(model)
        self.settings, self._fusing = settings or Settings(), fusing
        self._state: ModuleState | None = None
        self._unchanged: dict[int, Unchanged] = {}  # by variant: how to see, for little, that the module is in it
        self._variants: list[tuple[list, list]] = []  # (values, tensors' types) that were seen: their index is in the key
        # by key: what serves calls, each while its family's guards hold (None: whatever else the program reads)
        self._entries: dict[Any, list[tuple[family.Family | None, Entry]]] = {}
        self._families: dict[Any, list[family.Family]] = {}
        self._known: set[int] = set()  # the addresses of tensors that forward may reach beside its arguments
        self._reads: list[Reads] = []  # of the traces of the attempt that is going on
        self._asked: set[str] = set()  # attributes that the last trace missed on tensors
        self._backwards: list[tuple[Reads, joint.Compiler]] = []  # of the program's own backwards in them
        self._compiled: list[Signature] = []  # in the user's terms, to say in what a new one differs
        self._seen_once: set[Any] = set()  # signatures seen under no_grad
        self._unsettled: set[Any] = set()  # kinds of calls whose tracing changed Python state, once
        self._stateful: dict[Any, Callable[..., Any]] = {}  # those that did so again, and what runs them
        self._numbers = numbers.Registry()
        self._prints: list[numbers.Print] = []  # what a trace with numbers is compared with
        self._busy = False
        self._snapshot: Snapshot | None = None  # of the module before the trace that is going on
        self._engine: Any = None  # of the first call that is going on
        self._dynamo: Callable[..., Any] | None = None
        self.compilations = records.of(model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        turns.wait_for(model)
        if self._busy or torch.compiler.is_compiling() or _in_transform():
            return model._call_impl(*args, **kwargs)
        try:
            kind, structure, arguments = self._kind(args, kwargs)
            if kind in self._stateful:
                return self._stateful[kind](args, kwargs)
            variant, tensors = self._variant()
            key = (variant, kind)
            if not self._known.isdisjoint(map(id, arguments)):
                self._check_apart(tensors, arguments)
            entry = self._entry(key)
            if entry is None and self._see_numbers(key):
                kind, structure, arguments = self._kind(args, kwargs)
                variant, tensors = self._variant()
                key = (variant, kind)
                entry = self._entry(key)
        except (NotCompiled, TypeError) as reason:  # TypeError: a constant that cannot be hashed
            return self._refused(str(reason), args, kwargs, getattr(reason, "in_pytorch", False))
        if entry is None:
            return self._first_call(key, structure, arguments, args, kwargs)
        return self._run(entry, [*tensors, *arguments], args, kwargs)

    def _run(self, entry: Callable[..., Any], inputs: list[torch.Tensor], args: tuple, kwargs: dict) -> Any:
        try:
            return numbered(entry)(inputs, args, kwargs)
        except Overlapping as reason:
            model = self._model()
            messages.warn_once(f"overlap {id(self)}", f"{type(model).__name__} runs in PyTorch where {reason}")
            return model._call_impl(*args, **kwargs)

    def prepare(self, args: tuple, kwargs: dict) -> None:
        """Compiles for these arguments, as their first call would, and runs nothing."""
        kind, structure, arguments = self._kind(args, kwargs)
        variant, _ = self._variant()
        if self._entry((variant, kind)) is None and kind not in self._stateful:
            self._first_call((variant, kind), structure, arguments, args, kwargs, run=False)

    def _check_apart(self, tensors: list[torch.Tensor], arguments: list[torch.Tensor]) -> None:
        """NotCompiled where an argument is itself a tensor that forward may reach otherwise: it may ask if they are the same."""
        watched = [guards.tensors for found in self._families.values() for each in found for guards in each.guards]
        for known in (tensors, *watched):
            if any(tensor is argument for tensor in known for argument in arguments):
                raise NotCompiled("an argument is a tensor that forward also reaches in another way", in_pytorch=True)

    def _entry(self, key: Any) -> Entry | None:
        """What was compiled for a key and for what the program would read now."""
        found = self._entries.get(key, ())
        for serving, entry in found:
            if (serving is None or serving.holds()) and (ready := numbered(entry)) is not None:
                return ready
        return None

    # -- numbers that change (numbers/) -------------------------------------------------------------------------------

    def _see_numbers(self, key: Any) -> bool:
        """Learns which numbers alone tell a call, of which nothing is known, from one that was compiled; whether there are any.
        Those that had another value before are inputs from now on."""
        self._prints = []
        if self._is_full():
            return False
        variant, training, structure, *rest = family.key_of(key)
        on_cpu = all(t.is_cpu for t in self._state.tensors()) and all(kind[-1] is True for kind in rest[-1])
        for (old_variant, old_training, old_structure, *old_rest), families in reversed(self._families.items()):
            if (training, rest) != (old_training, old_rest):
                continue
            paths = numbers.differing(old_structure, structure)
            values = self._other_values(old_variant, variant) if paths is not None else None
            for each in reversed(families) if values is not None else ():
                reads = [] if each.holds() else _other_reads(each)
                if reads is None:
                    continue
                if not (paths or values or reads):  # it differs in its sizes, or in nothing that is read
                    return False
                places = {(id(container), key): (container, key) for container, key in (*values, *reads)}
                slots = [self._numbers.of_place(*place) for place in places.values()]
                slots += [self._numbers.of_argument(path) for path in paths]
                if slots and on_cpu and not any(slot.state == "fixed" for slot in slots):
                    self._let_move(slots, each)
                    return True
        return False

    def _let_move(self, slots: list[numbers.Slot], known: family.Family) -> None:
        new = [slot for slot in slots if slot.state == "new"]
        self._numbers.set(new, "seen")
        if not new and any(each.tells(slots) for each in known.prints):
            self._numbers.set(slots, "moving")
            self._numbers_changed()
            self._prints = list(known.prints)

    def _is_full(self) -> bool:
        """Whether nothing more is compiled."""
        return self._traces() + len(self._unsettled) + len(self._stateful) >= config.max_signatures

    def _numbers_changed(self) -> None:
        self._unchanged = {}
        if self._state is not None:
            self._state.let_move(self._numbers.moving)

    def _other_values(self, old: int, new: int) -> list[tuple[Any, Any]] | None:
        """The numbers in which two variants of the module differ; None where they differ in anything else."""
        (old_values, old_types), (new_values, new_types) = self._variants[old], self._variants[new]
        if old_types != new_types or len(old_values) != len(new_values):
            return None
        found: list[tuple[Any, Any]] = []
        for i, (a, b) in enumerate(zip(old_values, new_values, strict=True)):
            if a != b:
                if (inside := self._state.number_at(i, a, b)) is None:
                    return None
                found += inside
        return found

    # -- the signature ------------------------------------------------------------------------------------------------

    def _kind(self, args: tuple, kwargs: dict) -> tuple[tuple, tuple, list[torch.Tensor]]:
        """What the arguments and the modes say of a call; the arguments' structure; their tensors."""
        flattener = Flattener()
        structure = self._numbers.without_numbers(flattener.flatten((args, kwargs)))
        types = tuple([_type(t) for t in flattener.tensors])
        return (self._model().training, structure, types, _modes()), structure, flattener.tensors

    def _variant(self) -> tuple[int, list[torch.Tensor]]:
        """Which of the states seen so far the module is in, and its tensors."""
        if not compat.has_global_module_hooks():
            for variant, unchanged in self._unchanged.items():
                if unchanged():
                    return variant, unchanged.tensors
        state = self._state
        if state is None or not state.is_current():
            state = self._walk()
        hooked = state.hooked()
        if hooked:
            raise NotCompiled(hooked)
        self._known.update(map(id, state._found))
        known = len(self._variants)
        variant, tensors = self._find_variant(state)
        # One that holds other tensors is of the past, and would keep them alive.
        self._unchanged = {v: u for v, u in self._unchanged.items() if all(map(operator.is_, u.tensors, tensors))}
        if variant < known:  # for the second time
            self._unchanged.pop(variant, None)
            while len(self._unchanged) >= CHEAP_VARIANTS:
                self._unchanged.pop(next(iter(self._unchanged)))
            self._unchanged[variant] = Unchanged(self._state, tensors)
        return variant, tensors

    def _find_variant(self, state: ModuleState) -> tuple[int, list[torch.Tensor]]:
        tensors, values = state.tensors(), state.values()
        types = [_stored(t) for t in tensors]
        for i, (seen_values, seen_types) in enumerate(self._variants):
            if seen_types == types and seen_values == values:
                return i, tensors
        if not state.covers_values():
            state = self._walk()
            tensors, values = state.tensors(), state.values()
            types = [_stored(t) for t in tensors]
        for tensor in tensors:
            _type(tensor)  # may refuse
        if len(self._variants) >= MAX_VARIANTS:
            raise NotCompiled("an attribute of a module has another value at nearly every call")
        self._variants.append((values, types))
        return len(self._variants) - 1, tensors

    def _walk(self) -> ModuleState:
        if found := distributed.beside_forward(self._model()):
            raise NotCompiled(found)
        self._unchanged = {}
        self._state = ModuleState(self._model())
        self._state.let_move(self._numbers.moving)
        self._variants.clear()
        self._entries.clear()
        self._families.clear()
        self._compiled = [dataclasses.replace(old, variant=-1) for old in self._compiled]
        self._seen_once.clear()
        return self._state

    # -- the first call of a signature --------------------------------------------------------------------------------

    def _first_call(
        self, key: Any, structure: tuple, arguments: list[torch.Tensor], args: tuple, kwargs: dict, run: bool = True
    ) -> Any:
        model = self._model()
        if not torch.is_grad_enabled() and key not in self._seen_once:
            if len(self._seen_once) < 10_000:
                self._seen_once.add(key)
            return model._call_impl(*args, **kwargs)  # as in generate(), where a shape may never come again
        if self._is_full():
            messages.warn_once(
                f"signatures {id(self)}",
                f"{type(model).__name__} was called with more than {config.max_signatures} different signatures; further ones "
                "run in PyTorch. Pad inputs to few shapes, or raise trainc.config.max_signatures.",
            )
            return model._call_impl(*args, **kwargs)
        given = leaves_of(structure, arguments, model.forward)
        if misplaced := stray(model, self._state.tensors(), given):
            return self._mixed(key, misplaced, args, kwargs)
        self._engine = None
        record = self._record(structure, arguments)
        attempt, kind = self._attempt(record, key, arguments), key[1]
        snapshot, changed, error = attempt.snapshot, attempt.changed, attempt.error
        if isinstance(error, numbers.Constant):  # then no number moves, and this does not happen twice in a call
            self._numbers.refuse(error)
            self._numbers_changed()
            kind, structure, arguments = self._kind(args, kwargs)
            variant, tensors = self._variant()
            entry = self._entry((variant, kind))
            if entry is None:
                return self._first_call((variant, kind), structure, arguments, args, kwargs, run)
            return self._run(entry, [*tensors, *arguments], args, kwargs) if run else None
        if error is None and changed is None:
            self._unsettled.discard(kind)
            self._keep(key, record, attempt, given)
            return self._run(attempt.entry, [*self._state.tensors(), *arguments], args, kwargs) if run else None
        if error is None and snapshot.state_changed and snapshot.only_set and kind not in self._unsettled:
            if (settled := self._settle(snapshot, kind, arguments)) is not None:
                settled_key, settled_record, settled_attempt = settled
                settled_entry = settled_attempt.entry
                settled_record.capture_seconds += record.capture_seconds
                settled_record.compile_seconds += record.compile_seconds
                same = wire.same_graph(record.captured, settled_record.captured, self._engine.device)
                self._keep(settled_key, settled_record, settled_attempt, given)
                if same:  # so the first call, too, computes what was traced
                    return self._run(settled_entry, [*self._state.tensors(), *arguments], args, kwargs) if run else None
                snapshot.restore()
                return model._call_impl(*args, **kwargs) if run else None
        if not run:
            return None
        result = model._call_impl(*args, **kwargs)  # where the model itself is at fault, this raises its own error
        if snapshot.state_changed or isinstance(error, SideEffect):
            if kind not in self._unsettled:  # a first call may set what later ones find: a cache, a default
                self._unsettled.add(kind)
                return result
            self._unsettled.discard(kind)
            # of any variant: what changes may be among the values that make one
            self._stateful[kind] = self._in_pytorch if attempt.in_pytorch else self._through_dynamo
        if error is not None and not config.fallback:
            raise error
        self._route(key, record, changed or family.first_line(error), attempt.in_pytorch)
        return result

    def _record(self, structure: tuple, arguments: list[torch.Tensor]) -> records.Compilation:
        model = self._model()
        return records.Compilation(
            type(model).__name__, signature=_describe(structure, arguments, model), tune=self.settings.tune
        )

    def _attempt(self, record: records.Compilation, key: tuple, arguments: list[torch.Tensor]) -> Attempt:
        """Compiles. The program's Python state is as it was before, also where a UserError or Ctrl-C passes through."""
        with turns.alone(self._model()):
            attempt = self._attempt_alone(record, key, arguments)
        if attempt.error is None and attempt.changed is None:  # here, for a trace changes a class of PyTorch's for its time
            try:
                self._watch(attempt.family)
                self._check_apart(self._state.tensors(), arguments)
            except NotCompiled as reason:
                attempt.error = reason
        if attempt.family is not None and (attempt.error is not None or attempt.changed is not None):
            attempt.family.forget(record)
        return attempt

    def _attempt_alone(self, record: records.Compilation, key: tuple, arguments: list[torch.Tensor]) -> Attempt:
        snapshot = self._snapshot = Snapshot(self._model())
        self._busy, start, self._reads, self._backwards = True, time.perf_counter(), [], []
        entry, error, serving = None, None, None
        try:
            with out_of_sight(self._state.tensors()):
                serving, entry = self._compile(record, key, arguments)
        except UserError:
            raise
        except Exception as caught:
            error = caught
        finally:
            self._busy, self._snapshot = False, None
            changed = self._put_back(snapshot)
        in_pytorch = getattr(error, "in_pytorch", False) or any(reads.in_pytorch for reads in self._reads)
        record.capture_seconds = time.perf_counter() - start - record.compile_seconds
        return Attempt(snapshot, changed, entry, error, serving, in_pytorch)

    def _watch(self, serving: family.Family) -> None:
        """From now on a family holds only while everything that its new trace may have read is as it is."""
        if self._reads:
            serving.guards.append(Guards(self._reads[-1], Alike, serving.slots))
            self._known.update(map(id, serving.guards[-1].tensors))
        if self._asked:
            serving.guards.append(Untagged(self._state, self._asked))
        for reads, compiler in self._backwards:
            guards = Guards(reads, Alike, serving.slots)
            serving.guards.append(guards)
            self._known.update(map(id, guards.tensors))
            compiler.before_backward = functools.partial(_check_backward, type(self._model()).__name__, guards)
        self._reads, self._backwards, self._asked = [], [], set()

    def _put_back(self, snapshot: Snapshot) -> str | None:
        """The program's Python state as it was before the traces; what they had changed, in the user's terms."""
        changed = snapshot.restore()
        for reads in [reads for reads, _ in self._backwards] + self._reads[::-1]:
            if other := reads.restore():
                changed = changed or other
                snapshot.state_changed, snapshot.only_set = True, False
        return changed

    def _keep(self, key: tuple, record: records.Compilation, attempt: Attempt, given: dict[str, tuple]) -> None:
        self._tell(record, Signature(given, key[0], self._model().training, key[1][3], reads=self._differing(key)))
        record.captured = record.expected = None
        self.compilations.append(record)
        self._add_entry(key, attempt.family, attempt.entry)

    def _add_entry(self, key: tuple, serving: family.Family | None, entry: Entry) -> None:
        found = self._entries.setdefault(key, [])
        found.insert(0 if serving is not None and serving.slots else len(found), (serving, entry))

    def _differing(self, key: tuple) -> list[str]:
        """Of a key that was compiled before: in what the program's state differs from then, in the user's terms."""
        for serving, _ in reversed(self._entries.get(key, ())):
            if serving is not None and (told := [each for guards in serving.guards for each in guards.differences()]):
                return told[:3]
        return []

    def _settle(
        self, snapshot: Snapshot, kind: tuple, arguments: list[torch.Tensor]
    ) -> tuple[tuple, records.Compilation, Attempt] | None:
        """Hugging Face's models set defaults in their configuration when they are first called. What the trace set is set for
        good, and the model traced again as later calls will find it, so that no later call waits. None, and nothing is set, where
        that is not the end of it."""
        settled = None
        snapshot.set_again()
        try:
            key = (self._variant()[0], kind)
            record = self._record(kind[1], arguments)
            attempt = self._attempt(record, key, arguments)
            if attempt.error is None and attempt.changed is None:
                settled = key, record, attempt
        except NotCompiled:  # what was set cannot be told from other values
            pass
        finally:
            if settled is None:
                snapshot.restore()
        return settled

    def _tell(self, record: records.Compilation, new: Signature) -> None:
        """Says why a model is compiled again. Another mode alone (a first evaluation) is recorded, not warned of."""
        others = ([old.arguments_changed(new), old.modes_changed(new)] for old in reversed(self._compiled))
        told = min(others, key=_length, default=None)
        self._compiled.append(new)
        if told is None:
            return
        arguments, modes = told
        record.recompiled = "; ".join([*arguments, *modes])
        if arguments and record.trace != "sizes":
            per_shape = f"; every shape is traced on its own: {record.trace_reason}" if record.trace_reason else ""
            messages.recompiled(record.name, record.recompiled + per_shape)

    def _traces(self) -> int:
        found = (entry for entries in self._entries.values() for _, entry in entries)
        return len({id(getattr(entry, "entry", entry)) for entry in found})  # the sizes of one trace have one

    def _compile(
        self, record: records.Compilation, key: tuple, arguments: list[torch.Tensor]
    ) -> tuple[family.Family, Entry]:
        """The entry of a new signature: new sizes of what was traced with symbols, or another trace."""
        tensors = self._state.tensors()
        if self._engine is None:
            self._engine = joint.new_engine(device.one(tensors or arguments, "the model's tensors"), self.settings.tune)
        record.fixed = self.settings.fixed(tensors, arguments)
        record.limit = self.settings.limit(record.fixed)
        record.expected = self._fusing and tensors
        record.prints = bool(self._numbers.slots)
        # Traced as if all lay apart; where they do not, and one is written, the call runs in PyTorch.
        originals = [*tensors, *arguments]
        separate = overlap.apart(originals)
        tensors, arguments = separate[: len(tensors)], separate[len(tensors) :]

        def static() -> Callable[..., Any]:
            return self._trace(record, key, [*tensors, *arguments], originals)

        def symbolic(symbols: Symbols) -> family.Serve:
            compiler = joint.Compiler(record, self._engine, symbols, self._fusing)
            entry = self._trace(record, key, symbols.inputs, originals, compiler)
            return lambda inputs, record: entry if compiler.add_sizes(inputs, record) else None

        shapes = self._family(key)
        return shapes, shapes.entry(record, tensors, arguments, static, symbolic)

    def _family(self, key: tuple) -> family.Family:
        """The family of a call's shapes whose traces hold for what the program would read now, or a new one."""
        families = self._families.setdefault(family.key_of(key), [])
        active = self._numbers.active()
        found = next((each for each in families if each.slots == active and each.holds()), None)
        if found is None:
            found = family.Family(slots=active, known=self._numbers.slots)
            families.append(found)
        if found.slots:
            found.prints += [each for each in self._prints if each not in found.prints]
        return found

    def _trace(
        self, record: records.Compilation, key: tuple, inputs: list[torch.Tensor], originals: list[torch.Tensor],
        compiler: joint.Compiler | None = None,
    ) -> Callable[..., Any]:  # fmt: skip
        """`inputs` may be fakes, or lie elsewhere; the program's own tensors are `originals`."""
        reads = Reads(self._state)
        self._reads.append(reads)
        disguise = Disguise()
        watched = Watched(disguise.beside(reads.enter), reads.read)
        program = compiler.symbols.numbers if compiler is not None and compiler.symbols is not None else None
        if program is not None:
            reads.in_place, program.reads = True, reads
        compiler = compiler or joint.Compiler(record, self._engine, fusing=self._fusing)

        def in_backward() -> Watched:
            own = Reads(self._state, "a backward")
            self._backwards.append((own, compiler))
            return Watched(disguise.beside(own.enter), own.read)

        # A program whose numbers move is asked as a whole what it could tell of them (numbers/questions.py).
        call = FlatCall(
            self._state, key[1][1], self._snapshot, watched, reads, functools.partial(disguise.dress, originals=originals),
            program, in_backward if program is None else None,
        )
        with tracing(), disguise.active(), call.watched():
            compiler.is_users, compiler.result = reads.is_users, lambda: call.result
            compiled = joint.compile_flat(call, inputs, record, compiler)
        if watched.logged:
            raise SideEffect(f"{watched.logged} would be written once, while the model is traced")
        self._asked = disguise.asked
        call.forget()  # `compiled` holds it
        result = call.result

        def entry(inputs: list[torch.Tensor], args: tuple, kwargs: dict) -> Any:
            return unflatten(result, compiled(*inputs))

        return entry

    # -- what is not captured -----------------------------------------------------------------------------------------

    def _route(self, key: Any, record: records.Compilation, reason: str, in_pytorch: bool) -> None:
        """Sends a signature through torch.compile's tracer, which sees Python itself, with trainc as its backend; to PyTorch
        where the tracer would do other than the program does: it draws from a copy of a generator."""
        record.route, record.reason, record.captured = "eager" if in_pytorch else "dynamo", reason, None
        where = "runs in PyTorch" if in_pytorch else "goes through torch.compile's tracer"
        if not any((other.route, other.reason) == (record.route, reason) for other in self.compilations):
            messages.warn(f"{record.name} {where}: {reason}")
        self.compilations.append(record)
        run = self._in_pytorch if in_pytorch else self._through_dynamo
        self._add_entry(key, None, lambda _inputs, args, kwargs: run(args, kwargs))

    def _in_pytorch(self, args: tuple, kwargs: dict) -> Any:
        return self._model()._call_impl(*args, **kwargs)

    def _mixed(self, key: Any, reason: str, args: tuple, kwargs: dict) -> Any:
        """A call with tensors of several devices: PyTorch may know what to do (forward moves them itself); where it does not, the
        error names the argument."""
        if not config.fallback:
            raise UserError(reason)
        model = self._model()
        try:
            result = model._call_impl(*args, **kwargs)
        except RuntimeError as error:
            raise UserError(f"{reason} ({family.first_line(error)})") from error
        self.compilations.append(records.Compilation(type(model).__name__, route="eager", reason=reason))
        messages.warn(f"{type(model).__name__} runs in PyTorch: {reason}")
        self._add_entry(key, None, lambda _inputs, args, kwargs: self._in_pytorch(args, kwargs))
        return result

    def _refused(self, reason: str, args: tuple, kwargs: dict, in_pytorch: bool) -> Any:
        model = self._model()
        if not any(record.reason == reason for record in self.compilations):
            route, where = ("eager", "runs in PyTorch") if in_pytorch else ("dynamo", "goes through torch.compile's tracer")
            self.compilations.append(records.Compilation(type(model).__name__, route=route, reason=reason))
            messages.warn(f"{type(model).__name__} {where}: {reason}")
        return self._in_pytorch(args, kwargs) if in_pytorch else self._through_dynamo(args, kwargs)

    def _through_dynamo(self, args: tuple, kwargs: dict) -> Any:
        model = self._model()
        if self._dynamo is None and any(map(is_lazy, model.parameters())):
            return model._call_impl(*args, **kwargs)  # Dynamo would initialise them without moving the generator on
        if self._dynamo is None and (found := distributed.beside_forward(model)):
            messages.warn(f"{type(model).__name__} runs in PyTorch: {found}")
            self._dynamo = model._call_impl
        if self._dynamo is None:
            from trainc.torch.doors.backend import backend

            self._dynamo = torch.compile(model._call_impl, backend=backend, options={"tune": self.settings.tune})
        try:
            return self._dynamo(*args, **kwargs)
        except compat.TorchDynamoException as error:
            messages.warn(f"{type(model).__name__} runs in PyTorch: {family.first_line(error)}")
            self._dynamo = model._call_impl
            return model._call_impl(*args, **kwargs)


def numbered(entry: Any) -> Any:
    """An entry with the numbers that are there now; None where it does not hold for them."""
    return entry.now() if type(entry) is numbers.Numbered else entry


def _other_reads(known: family.Family) -> list[tuple[Any, Any]] | None:
    """The numbers that the program would read now, and that were others when this family was traced; None where it would read
    anything else that is not as it was."""
    found: list[tuple[Any, Any]] = []
    for guards in known.guards:
        if (inside := guards.other_numbers()) is None:
            return None
        found += inside
    return found


def _check_backward(name: str, guards: Guards) -> None:
    """The values that the program's own backward (a Function's, a hook) reads were those of the trace when forward ran."""
    if not guards():
        raise UserError(
            f"{name}: {'; '.join(guards.differences()[:3])} between forward and backward, and a backward or a hook of yours "
            "reads it: the gradient was compiled for the value that forward found. Change it before forward, or after backward."
        )


def _stored(tensor: torch.Tensor) -> tuple:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.is_cpu or tensor.device


def _type(tensor: torch.Tensor) -> tuple:
    kind = type(tensor)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter and not isinstance(tensor, torch.nn.Buffer):
        raise NotCompiled(f"a tensor is a {kind.__qualname__}")
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        raise NotCompiled(f"a tensor is {tensor.layout}, conjugated or negated lazily")
    if not tensor.is_cpu:
        device.get(tensor.device)  # may refuse
    return (
        tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.is_leaf,
        kind is torch.nn.Parameter, tuple(vars(tensor)),  # attributes that the program has put on it
        tensor.is_cpu or tensor.device,
    )  # fmt: skip


def _modes() -> tuple:
    autocast = torch.is_autocast_enabled("cpu")
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast and (torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        device.flags() if device.gpu_in_use() else None,
        torch.get_default_device() if compat.count_function_modes() > 0 else None,
    )


def _in_transform() -> bool:
    return (
        compat.functorch_transform() is not None
        or compat.jit_tracing_state() is not None
        or compat.count_dispatch_modes() > 0
        or compat.caches_parametrizations()
        or compat.function_modes_enabled()
        and compat.count_function_modes() > 0
        and not all(isinstance(mode, DeviceContext) for mode in function_modes())
    )


def _describe(structure: tuple, arguments: list[torch.Tensor], model: torch.nn.Module) -> str:
    args, kwargs = structure[3]
    parts = describe(args, arguments) + describe(kwargs, arguments)
    mode = "training" if model.training else "evaluation"
    return ", ".join([*parts, mode if torch.is_grad_enabled() else f"{mode}, no_grad"])
