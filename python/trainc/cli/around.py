"""What `trainc run` has around a program. PyTorch's part of it begins when the program has imported PyTorch: a program of JAX's,
or a name that is misspelled, does not wait for PyTorch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import trainc
from trainc.base import messages
from trainc.base.memory import checked
from trainc.base.on_import import when_imported
from trainc.base.page.report import path_of
from trainc.base.patches import patched
from trainc.cli.told import NOTHING_TRAINED, say, tell_of_jax, telling
from trainc.jax import on_import


class OncePyTorchIsThere:
    """Within it, what `make` gives is entered when the program has imported PyTorch, and left at the end. Where it has not,
    `without(ended)` is called at the end."""

    def __init__(self, make: Callable[[], AbstractContextManager], without: Callable[[bool], None] = lambda ended: None):
        self._make, self._without = make, without
        self._entered: AbstractContextManager | None = None
        self._over, self._process = False, os.getpid()

    def __enter__(self) -> None:
        when_imported("torch", self._enter)

    def _enter(self, _: Any) -> None:
        if self._over:
            return
        try:
            around = self._make()
            around.__enter__()
        except Exception as error:  # ours: the program's import goes on
            messages.fell_back("the program", error)
        else:
            self._entered = around

    def __exit__(self, *error: Any) -> None:
        self._over = True
        if self._entered is not None:
            self._entered.__exit__(*error)
        elif os.getpid() == self._process:
            self._without(error[0] is None)


def compiling(explain: bool, tune: str, memory: str | None, leave: list[str], report: str | None) -> AbstractContextManager:
    """As for `compiling.Compiling`; UserError, before the program runs, where it cannot be so."""
    limit = memory_of(memory)
    checked(limit)
    path = None if report is None else path_of(report).absolute()

    def make() -> AbstractContextManager:
        from trainc.cli.compiling import Compiling

        return Compiling(explain, tune, limit, leave, path)

    def without(ended: bool) -> None:
        with telling():
            if not tell_of_jax(explain) and ended:
                say(f"nothing was compiled: {NOTHING_TRAINED}")

    on_import.watch()
    return OncePyTorchIsThere(make, without)


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Whatever the program itself gives to torch.compile or trainc runs in its framework."""

    def given_back(model: Any, optimizer: Any = None, **_: Any) -> Any:
        return model if optimizer is None else (model, optimizer)

    def jit(*functions: Any, **arguments: Any) -> Any:
        from trainc.jax.door import jit_by_jax  # here, for a program of PyTorch's needs no JAX

        return jit_by_jax(*functions, **arguments)

    def make() -> AbstractContextManager:
        from trainc.cli.compiling import eager as eager_torch

        return eager_torch()

    instead = {"compile": given_back, "train_step": lambda fn, **_: fn, "jit": jit}
    with contextlib.ExitStack() as patches:
        for name, value in instead.items():
            patches.enter_context(patched(trainc, name, value))
        patches.enter_context(OncePyTorchIsThere(make))
        yield


def memory_of(text: str | None) -> Any:
    """`--memory`, as trainc.compile's memory=: "4GB", or a share as a number."""
    with contextlib.suppress(ValueError, TypeError):
        return share if (share := float(text)) <= 1 else text  # type: ignore[arg-type]
    return text


__all__ = ["compiling", "eager"]
