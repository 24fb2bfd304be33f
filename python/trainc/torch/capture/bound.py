"""How long a program may be that is traced: a loop of a thousand steps is a thousand copies of its body."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from trainc.base import config
from trainc.base.errors import NotCompiled
from trainc.base.patches import patched
from trainc.torch import compat


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """For the time of a trace: NotCompiled where the program does more operations than `config` allows. Those of its forward
    count twice, as they are traced."""
    setting, most = "max_operations", config.max_operations
    if not torch.is_grad_enabled():
        setting, most = "max_operations_without_gradients", config.max_operations_without_gradients
    dispatch, done = compat.FUNCTIONAL_DISPATCH.original(), 0

    def counted(mode: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal done
        done += 1
        if done > most:
            raise NotCompiled(f"its trace has more than {most} operations (trainc.config.{setting})", in_pytorch=True)
        return dispatch(mode, *args, **kwargs)

    with patched(*compat.FUNCTIONAL_DISPATCH, counted):
        yield


__all__ = ["bounded"]
