"""What trainc says to the user: warnings that come once, the progress bar, and with TRAINC_LOG=info what goes on."""

import contextlib
import sys
import warnings

from trainc.base import config
from trainc.base.errors import InternalError, NotCompiled, UserError, VerifyError

_said: set[str] = set()
_NOT_THE_USERS = {"trainc", "torch", "jax", "keras", "tensorflow", "contextlib"}


class TraincWarning(UserWarning):
    """A part of the program runs in its framework; the message says which and why. `python -W ignore::trainc.TraincWarning` has
    none of them."""

    __module__ = "trainc"  # where users find it


class RecompileWarning(UserWarning):
    """A signature of a model is compiled that differs from those before it; the message says in what."""

    __module__ = "trainc"


class VerifyWarning(TraincWarning):
    """`verify=`: a compiled step's numbers are not PyTorch's. The message names the operation, the user's line and a file that
    shows it again; training goes on in PyTorch, from eager's numbers."""

    __module__ = "trainc"


def recompiled(what: str, why: str) -> None:
    _warn(f"{what} is compiled again: {why}", RecompileWarning)


def warn(message: str) -> None:
    _warn(message, TraincWarning)


def _warn(message: str, kind: type[Warning]) -> None:
    try:
        warnings.warn(f"trainc: {message}", kind, stacklevel=_level())
    except ValueError:  # the program has closed stderr; Python itself only minds where it has none
        if not getattr(sys.stderr, "closed", False):
            raise


def tell(line: str) -> None:
    """On stderr. A program that has none, has closed it, or reads no more of it, is not to fail by what trainc tells."""
    if sys.stderr is not None:  # print() would take stdout
        with contextlib.suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)


def _level() -> int:
    """How far up from `warnings.warn` the user's own line is."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS:
        frame, level = frame.f_back, level + 1
    return level


def warn_once(key: str, message: str) -> None:
    if key not in _said:
        _said.add(key)
        warn(message)


def logs() -> bool:
    """Whether `info` says anything."""
    if config.log not in (None, "info"):
        warn_once("log", f"TRAINC_LOG={config.log!r} is no such level, and is ignored: there is TRAINC_LOG=info")
    return config.log == "info"


def info(message: str) -> None:
    """What goes on, for whoever asked for it."""
    if logs():
        tell(f"trainc: {message}")


def falls_back() -> bool:
    """Whether what cannot be compiled, or is not as eager, runs in the framework. No other code asks `trainc.config.fallback`."""
    return config.fallback


def require_fallback(error: BaseException) -> None:
    """What cannot be compiled, because of `error`, is to run in the framework: raises it where that is not wanted."""
    if not falls_back():
        raise error


def fell_back(what: str, error: BaseException, framework: str = "PyTorch") -> None:
    """Says that `what` runs in its framework because of `error`, a failure of ours or NotCompiled; raises it (a UserError, where
    it is NotCompiled) where `trainc.config.fallback` is off."""
    if isinstance(error, NotCompiled):
        require_fallback(UserError(f"{what} is not compiled: {error}"))
        return warn(f"{what} runs in {framework}: {error}")
    require_fallback(error)
    if isinstance(error, VerifyError):
        return _warn(str(error), VerifyWarning)
    kind = "internal error" if isinstance(error, InternalError) else type(error).__name__
    return warn(f"{what} runs in {framework}; {kind}: {error}")


@contextlib.contextmanager
def progress(name: str):
    """Yields the function (done, total) that the compiler calls, or None where nothing is shown."""
    if not config.show_progress():
        yield None
        return
    with _bar()(desc=f"trainc: {name}", unit="kernel", leave=False) as bar:

        def update(done: int, total: int) -> None:
            if bar.total != total:
                bar.reset(total)  # a notebook's would not see the attribute alone
            bar.update(done - bar.n)

        yield update


def _bar():
    """tqdm's: in a notebook that has widgets its own kind, else text."""
    if config.in_notebook():
        from tqdm import notebook

        if notebook.IProgress is not None:
            return notebook.tqdm
    from tqdm import tqdm

    return tqdm
