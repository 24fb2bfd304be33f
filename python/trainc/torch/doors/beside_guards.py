"""torch.compile(model, backend="trainc"): what Dynamo does not watch is watched by a guard of its own graphs.

Each frame that Dynamo traces for this backend gets one guard more, which is asked after Dynamo's own: whether all that the
functions it traced may read, and that Dynamo takes for settled, is as it was (beside_dynamo.py). Where it is not, Dynamo traces
the frame again, as after any other guard that fails, and leaves it to Python past its limit.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from typing import Any

import torch

from trainc.base import messages
from trainc.torch import compat
from trainc.torch.doors import as_python
from trainc.torch.doors.beside_dynamo import BesideDynamo, Filled, is_changed
from trainc.torch.guards.places import IGNORED, MISSING, Place, Setting
from trainc.torch.guards.reads import Reads
from trainc.torch.trust import is_trusted_code

WORDS = ["trainc: what these functions read is as it was, where torch.compile's tracer does not look"]
LOST = "the results of `{}` changed between calls, which torch.compile's tracer does not see"
Codes = dict[int, tuple[types.CodeType, dict[str, Any]]]


class Frame(BesideDynamo):
    """Of one frame that Dynamo has traced, with the functions that it called."""

    def __init__(self, codes: Codes, variables: Any, further: str | None):
        """`variables`: the frame's; `further`: which of them are keyword arguments without a parameter."""
        self._alone = torch.nn.Module()  # stands for a model where the frame has none
        models = [value for value in dict(variables).values() if isinstance(value, torch.nn.Module)]
        super().__init__(models[0] if models else self._alone, lambda: None)
        self._codes, self._known = codes, max(1, len(codes))  # none of the program's, where its forward is PyTorch's
        self._further, self._order = further, tuple(variables[further]) if further else ()
        self._moving: set[tuple[str, Any]] = set()  # entries that change, and whose values Dynamo guards
        if models:  # what is watched must not keep a model alive
            weakref.finalize(models[0], _forget, weakref.ref(self)).atexit = False
        if (walk := self._walk()) is not None:
            self._variants.add(0)
            self._bind(walk)

    def holds(self, variables: Any) -> bool:
        """The guard, of the frame's variables at a call."""
        try:
            return self._is_as_it_was(variables)
        except Exception:  # an object of the program's that cannot be looked at any more
            self._lose("an object")
            return False

    def _is_as_it_was(self, variables: Any) -> bool:
        if self._further and tuple(variables[self._further]) != self._order:
            return False
        if self.lost is None and not self._holds():
            changed, before = [place for place in self._places if is_changed(place)], self._guarded
            filled = next((place for place in changed if isinstance(place, Filled)), None)
            if filled is not None:  # a trace would run its function once more, as that of now did
                as_python.leave([code for code, _ in self._codes.values()])
                messages.warn_once(f"{filled.path} {id(self)}", f"Functions run in Python where {LOST.format(filled.path)}")
            self._compare(0)
            if self.lost is None:
                self._settle(changed, before | self._guarded)
        return self.lost is None

    def _settle(self, changed: list[Place], guarded: set[str]) -> None:
        """Entries that changed, and that Dynamo guards, are not looked at again: a counter would cost a walk at each call."""
        for place in changed:
            if isinstance(place.thing, dict):
                held = dict(zip(place.held[::2], place.held[1::2], strict=True))
                self._moving |= {
                    (place.path, key) for key, value in place.thing.items()
                    if held.get(key, MISSING) is not value and f"{place.path}.{key}" in guarded
                }  # fmt: skip
            elif type(place) in (Place, Setting) and place.path in guarded:
                self._by_program.add(place.path)

    def _watched(self, walk: Reads) -> list[Place]:
        return [*walk.places, *walk.own_places()]  # trainc.compile has the latter in a call's signature

    def _expected(self, place: Place) -> list[Any]:
        if not self._moving or not isinstance(place.thing, dict):
            return place.held
        keys = place.held[::2]
        return [
            each for key, value in zip(keys, place.held[1::2], strict=True)
            for each in (key, IGNORED if (place.path, key) in self._moving else value)
        ]  # fmt: skip


def _forget(frame: weakref.ref[Frame]) -> None:
    if (there := frame()) is not None:
        there._lose("the model")


@functools.cache
def watch() -> None:
    """From now on, for frames that Dynamo traces for trainc's backend."""
    as_python.replace_tracer()
    _keep_writes()
    init = compat.DYNAMO_GRAPH.original()

    @functools.wraps(init)
    def with_guard(graph: Any, *args: Any, **kwargs: Any) -> None:
        init(graph, *args, **kwargs)
        if as_python.is_active() or not is_ours(graph.compiler_fn) or compat.dynamo_saves_guards():
            return
        codes: Codes = {}

        def trace(code: types.CodeType, variables: dict[str, Any]) -> None:
            codes.setdefault(id(code), (code, variables))

        def create(builder: Any, guard: Any) -> None:
            """Once the frame is traced."""
            code, scope = graph.tracing_context.traced_code[0], builder.scope
            if not is_trusted_code(code, scope["G"]):
                trace(code, scope["G"])
            elif not codes and not any(isinstance(value, torch.nn.Module) for value in dict(scope["L"]).values()):
                return  # a function of PyTorch's own
            compat.add_guard(builder, Frame(codes, scope["L"], _further(code)).holds, WORDS)

        setattr(graph, as_python.TRACE, trace)
        graph.guards.add(compat.GlobalStateSource().make_guard(create))

    setattr(*compat.DYNAMO_GRAPH, with_guard)


def _keep_writes() -> None:
    """Dynamo takes inputs that hold a number (float64, without dimensions) out of its graph where their value was looked at and
    nothing else is done with them; and by mistake every write of such a tensor whose result nobody uses. Of our graphs it is
    shown the inputs alone."""
    take_out = compat.DYNAMO_TAKES_OUT.original()

    @functools.wraps(take_out)
    def of_inputs(graph: Any) -> None:
        tables = [node.meta for node in graph.graph.nodes if node.op != "placeholder"] if is_ours(graph.compiler_fn) else []
        hidden = [(table, table.pop(compat.EXAMPLE)) for table in tables if compat.EXAMPLE in table]
        try:
            take_out(graph)
        finally:
            for table, example in hidden:
                table[compat.EXAMPLE] = example

    setattr(*compat.DYNAMO_TAKES_OUT, of_inputs)


def is_ours(compiler: Any) -> bool:
    """Whether a compiler of Dynamo's, as it has wrapped it, is trainc's backend."""
    while compiler is not None:
        if getattr(compiler, "trainc_backend", False):
            return True
        compiler = compat.compiler_within(compiler)
    return False


def _further(code: types.CodeType) -> str | None:
    """The name of the parameter that takes further keyword arguments."""
    if not code.co_flags & inspect.CO_VARKEYWORDS:
        return None
    return code.co_varnames[code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)]


__all__ = ["Frame", "is_ours", "watch"]
