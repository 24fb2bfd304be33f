"""torch.compile's tracer as trainc calls it: what it would do otherwise than the program's Python is left to Python."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

from trainc.torch import compat
from trainc.torch.graph import wire
from trainc.torch.trust import is_trusted_code

Tell = Callable[[str, Exception], None]
Trace = Callable[[types.CodeType, dict[str, Any]], None]
TRACE = "trainc_trace"  # of a graph of Dynamo's: a `Trace` that its functions are told to, beside `as_python`
_tell: contextvars.ContextVar[Tell | None] = contextvars.ContextVar("tell", default=None)  # set within `as_python`
_trace: contextvars.ContextVar[Trace | None] = contextvars.ContextVar("trace", default=None)  # the same
_left: dict[int, types.CodeType] = {}  # that Dynamo does not trace


@contextlib.contextmanager
def as_python(tell: Tell, trace: Trace) -> Iterator[None]:
    """While active, a call of Dynamo's does what the program does (`compat.dynamo_as_python`). Random numbers of Python's and
    NumPy's are the program's: the graph breaks where one is drawn, and Python draws it at each call. A function that Dynamo fails
    to trace runs in Python, where it stands, after `tell(where, error)`, and what it calls may be compiled; to raise in `tell`
    ends the call. `trace(code, globals)`: of each function of the program's that it traces."""
    replace_tracer()
    before, traced = _tell.set(tell), _trace.set(trace)
    try:
        with compat.dynamo_as_python():
            yield
    finally:
        _tell.reset(before)
        _trace.reset(traced)


def leave(codes: list[types.CodeType]) -> None:
    """From now on Python runs the functions of these."""
    _left.update({id(code): code for code in codes})


def is_active() -> bool:
    """Whether Dynamo is called by trainc."""
    return _tell.get() is not None


@functools.cache
def replace_tracer() -> None:
    """For good, for two threads may be in it; who calls torch.compile himself has what he had."""
    supported, convert = getattr(*compat.DYNAMO_COPIES_GENERATOR), compat.DYNAMO_FRAME.original()
    inline = getattr(*compat.DYNAMO_INLINE)

    def is_supported(val: Any) -> bool:
        """Dynamo draws from a copy of a `random.Random`, and moves the program's own on by other numbers."""
        return _tell.get() is None and supported(val)

    @functools.wraps(convert)
    def converted(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        """Raised further, an error would end a call of which parts have run, and to run it again would do these twice."""
        if id(frame.f_code) in _left:
            return compat.leave_frame()
        _traces(_trace.get(), frame.f_code, frame.f_globals)
        try:
            return convert(self, frame, *args, **kwargs)
        except compat.TorchDynamoException as error:
            tell = _tell.get()
            if tell is None:
                raise
            tell(_place(frame.f_code), error)
            return compat.leave_frame()

    def inlined(parent: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        trace = _trace.get() or getattr(parent.output, TRACE, None)
        if trace is not None:
            _traces(trace, func.get_code(), func.get_globals())
        return inline(parent, func, *args, **kwargs)

    setattr(*compat.DYNAMO_INLINE, staticmethod(inlined))
    setattr(*compat.DYNAMO_COPIES_GENERATOR, staticmethod(is_supported))
    setattr(*compat.DYNAMO_FRAME, converted)


def _traces(trace: Trace | None, code: types.CodeType, variables: dict[str, Any]) -> None:
    if trace is not None and not is_trusted_code(code, variables):
        trace(code, variables)


def _place(code: types.CodeType) -> str:
    """A function in the user's terms: "Net.forward (model.py:41)"; of what Dynamo makes of its rest, where that begins."""
    name = re.sub(r"torch_dynamo_resume_in_(.+)_at_\d+$", r"\1", getattr(code, "co_qualname", code.co_name))
    return f"{name} ({wire.short(code.co_filename)}:{code.co_firstlineno})"


__all__ = ["TRACE", "as_python", "is_active", "leave", "replace_tracer"]
