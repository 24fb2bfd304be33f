"""What trainc says to the user: warnings that come once, and the progress bar."""

import contextlib
import warnings

from trainc.base import config
from trainc.base.errors import InternalError

_said: set[str] = set()


class TraincWarning(UserWarning):
    """A part of the program runs in PyTorch; the message says which and why."""


class RecompileWarning(UserWarning):
    """A signature of a model is compiled that differs from those before it; the message says in what."""


def recompiled(what: str, why: str) -> None:
    warnings.warn(f"trainc: {what} is compiled again: {why}", RecompileWarning, stacklevel=4)


def warn(message: str, stacklevel: int = 3) -> None:
    warnings.warn(f"trainc: {message}", TraincWarning, stacklevel=stacklevel)


def warn_once(key: str, message: str) -> None:
    if key not in _said:
        _said.add(key)
        warn(message, stacklevel=4)


def fell_back(what: str, error: BaseException) -> None:
    """Says that `what` runs in PyTorch because of `error`; an error where `trainc.config.fallback` is off."""
    if not config.fallback:
        raise error
    kind = "internal error" if isinstance(error, InternalError) else type(error).__name__
    warn(f"{what} runs in PyTorch; {kind}: {error}", stacklevel=4)


@contextlib.contextmanager
def progress(name: str):
    """Yields the function (done, total) that the compiler calls, or None where nothing is shown."""
    if not config.show_progress():
        yield None
        return
    from tqdm import tqdm

    with tqdm(desc=f"trainc: {name}", unit="kernel", leave=False) as bar:

        def update(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield update
