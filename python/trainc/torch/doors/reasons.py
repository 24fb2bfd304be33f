"""Why something was not traced, in the user's terms; and whether the error was the program's own."""

from __future__ import annotations

from types import TracebackType

from trainc.base.errors import InternalError, NotCompiled, SideEffect
from trainc.torch import compat
from trainc.torch.graph import wire
from trainc.torch.joint import family


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


def was_raised_by_user(error: BaseException) -> bool:
    """Whether the program raised it itself, by no operation of PyTorch's."""
    return is_users(error) and not wire.is_internal_file(_frames(error)[-1].tb_frame.f_code.co_filename)


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


__all__ = ["asks_for_data", "is_users", "line_of", "meets_a_real_tensor", "reason_of", "was_raised_by_user"]
