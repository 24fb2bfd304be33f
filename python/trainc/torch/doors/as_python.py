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
_tell: contextvars.ContextVar[Tell | None] = contextvars.ContextVar("tell", default=None)  # set within `as_python`
_trace: contextvars.ContextVar[Trace | None] = contextvars.ContextVar("trace", default=None)  # the same


@contextlib.contextmanager
def as_python(tell: Tell, trace: Trace) -> Iterator[None]:
    """While active, a call of Dynamo's does what the program does (`compat.dynamo_as_python`). Random numbers of Python's and
    NumPy's are the program's: the graph breaks where one is drawn, and Python draws it at each call. A function that Dynamo fails
    to trace runs in Python, where it stands, after `tell(where, error)`, and what it calls may be compiled; to raise in `tell`
    ends the call. `trace(code, globals)`: of each function of the program's that it traces."""
    _replace()
    before, traced = _tell.set(tell), _trace.set(trace)
    try:
        with compat.dynamo_as_python():
            yield
    finally:
        _tell.reset(before)
        _trace.reset(traced)


@functools.cache
def _replace() -> None:
    """For good, for two threads may be in it; who calls torch.compile himself has what he had."""
    supported, convert = getattr(*compat.DYNAMO_COPIES_GENERATOR), compat.DYNAMO_FRAME.original()
    inline = getattr(*compat.DYNAMO_INLINE)

    def is_supported(val: Any) -> bool:
        """Dynamo draws from a copy of a `random.Random`, and moves the program's own on by other numbers."""
        return _tell.get() is None and supported(val)

    @functools.wraps(convert)
    def converted(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        """Raised further, an error would end a call of which parts have run, and to run it again would do these twice."""
        _traces(frame.f_code, frame.f_globals)
        try:
            return convert(self, frame, *args, **kwargs)
        except compat.TorchDynamoException as error:
            tell = _tell.get()
            if tell is None:
                raise
            tell(_place(frame.f_code), error)
            return compat.leave_frame()

    def inlined(parent: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        if _trace.get() is not None:
            _traces(func.get_code(), func.get_globals())
        return inline(parent, func, *args, **kwargs)

    setattr(*compat.DYNAMO_INLINE, staticmethod(inlined))
    setattr(*compat.DYNAMO_COPIES_GENERATOR, staticmethod(is_supported))
    setattr(*compat.DYNAMO_FRAME, converted)


def _traces(code: types.CodeType, variables: dict[str, Any]) -> None:
    trace = _trace.get()
    if trace is not None and not is_trusted_code(code, variables):
        trace(code, variables)


def _place(code: types.CodeType) -> str:
    """A function in the user's terms: "Net.forward (model.py:41)"; of what Dynamo makes of its rest, where that begins."""
    name = re.sub(r"torch_dynamo_resume_in_(.+)_at_\d+$", r"\1", getattr(code, "co_qualname", code.co_name))
    return f"{name} ({wire.short(code.co_filename)}:{code.co_firstlineno})"


__all__ = ["as_python"]
