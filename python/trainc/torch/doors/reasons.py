"""Why something was not traced, in the user's terms; and whether the error was the program's own."""

from __future__ import annotations

import os
from types import TracebackType

import torch

from trainc.base.errors import InternalError, NotCompiled, RefusedByEager, SideEffect
from trainc.torch import compat
from trainc.torch.capture import layouts, trace
from trainc.torch.capture.writes import Writes
from trainc.torch.graph import wire
from trainc.torch.joint import family

# What a trace's tensors say that they do not have; and where PyTorch has what eager does not go through.
_OF_TRACES = (compat.REASON_OF_COLLECTIVES, "FunctionalTensor", "FakeTensor", "data pointer", "storage", "deepcopy")
_TRACERS = tuple(
    os.path.join(os.path.dirname(torch.__file__), name)
    for name in ("_subclasses", "fx", "_functorch", "_dynamo", "_higher_order_ops")
)


def reason_of(error: BaseException, otherwise: str) -> str:
    """The message for what could not be traced, with the user's line. `otherwise`: what to do instead of asking a tensor."""
    if isinstance(error, (NotCompiled, SideEffect)):
        return str(error)
    line, text = line_of(error), family.first_line(error)
    if asks_for_data(error):
        what = "reads the value of a tensor (item(), float(), if)"
        if "DynamicOutputShape" in type(error).__name__:
            what = f"{text} gives as many elements as values decide"
        text = f"{what}, which is not known while it is traced{otherwise}"
    elif meets_a_real_tensor(error):
        text = "uses a tensor that no module holds (a global, an element of a list); as a buffer of the module it is an input"
    elif compat.REASON_OF_COLLECTIVES in text:
        text = (
            "processes talk to each other here, which no plan of a whole step does: train DistributedDataParallel(model), whose "
            "gradients a step averages itself, or compile the model and its optimizer by trainc.compile"
        )
    return f"{line}: {text}" if line else text


def asks_for_data(error: BaseException) -> bool:
    return any(word in f"{type(error).__name__} {family.first_line(error)}" for word in compat.REASONS_OF_DATA)


def meets_a_real_tensor(error: BaseException) -> bool:
    """Whether the program has brought a tensor that is none of its modules', which a trace of a model's call has no input for."""
    return compat.REASON_OF_REAL_TENSORS in str(error)


def is_users(error: BaseException) -> bool:
    """Whether the program may have raised it: it was on its way through the program's own lines, for no reason of the trace's."""
    return not isinstance(error, (NotCompiled, SideEffect, InternalError)) and not asks_for_data(error) and bool(line_of(error))


def eagers(error: BaseException) -> BaseException | None:
    """The error that eager raises where a trace raised this one; None where it may raise none. What an operation refuses in a
    trace, eager is asked about: it has words of its own, or no such limits."""
    if isinstance(error, RefusedByEager):
        return error.error
    if isinstance(error, (NotCompiled, SideEffect, InternalError)) or asks_for_data(error):
        return None
    frames = [each.tb_frame for each in _frames(error)]
    if not wire.is_internal_file(frames[-1].f_code.co_filename):
        return error  # raised by the program itself
    if meets_a_real_tensor(error) or any(word in str(error) for word in _OF_TRACES):
        return None
    if trace.has_called_program(frames[-1].f_code):  # with other arguments than it takes
        return error
    own = [i for i, frame in enumerate(frames) if not wire.is_internal_file(frame.f_code.co_filename)]
    below = frames[own[-1] + 1 :] if own else frames
    operation = next((frame for frame in below if frame.f_code is Writes.functional.__code__), None)
    if operation is not None:
        call = [operation.f_locals[name] for name in ("func", "args", "kwargs")]
        raised = layouts.raised(*call) if isinstance(call[0], compat.OpOverload) else None
        return raised.with_traceback(error.__traceback__) if raised is not None else None
    last = frames[-1].f_code
    traces = last.co_filename.startswith(_TRACERS) and last.co_name != "__torch_function__"  # which calls what raises
    return error if own and not traces else None


def line_of(error: BaseException) -> str:
    """The innermost line of the program's that it came through: "model.py:41", or ""."""
    lines = [(each.tb_frame.f_code.co_filename, each.tb_lineno) for each in _frames(error)]
    return next((f"{wire.short(path)}:{line}" for path, line in reversed(lines) if not wire.is_internal_file(path)), "")


def _frames(error: BaseException) -> list[TracebackType]:
    frames, frame = [], error.__traceback__
    while frame is not None:
        frames.append(frame)
        frame = frame.tb_next
    return frames


__all__ = ["asks_for_data", "eagers", "is_users", "line_of", "meets_a_real_tensor", "reason_of"]
