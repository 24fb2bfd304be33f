"""One run of `trainc compare`: the program from a given seed, compiled in one way, of which losses, times and memory are written
down. It ends after so many optimizer steps, by a SystemExit that unwinds the program as its own end would."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import trainc
from trainc.base.errors import UserError
from trainc.base.patches import patched
from trainc.cli.around import eager
from trainc.cli.compiling import Compiling
from trainc.cli.ends import leave
from trainc.cli.loss_rule import disturb
from trainc.cli.machine import Machine
from trainc.torch import compat
from trainc.torch.doors.trained import Finder

WAYS = ("eager", "inductor", "trainc")
TIMES = 3  # that the program is asked to end


class Enough(SystemExit):
    """Ends the program."""


class Inductor(Finder):
    def meet(self, module: torch.nn.Module, optimizers: list[torch.optim.Optimizer], args: tuple, kwargs: dict) -> None:
        module.compile()


class Disturbing(Finder):
    """Eager, with every weight of what is trained disturbed in the last bit before its first step (loss_rule.py)."""

    def __init__(self, seed: int):
        super().__init__()
        self._seed = seed

    def meet(self, module: torch.nn.Module, optimizers: list[torch.optim.Optimizer], args: tuple, kwargs: dict) -> None:
        disturb(module, self._seed)


class Observing:
    """While active, writes down each step. A step ends with the step of the optimizer that steps first (the other optimizers' of
    a GAN lie in between); where there is no optimizer, with each backward."""

    def __init__(self, way: str, steps: int, seed: int, file: str, disturbance: int | None = None, tune: str = "fast"):
        self._steps, self._seed, self._file = steps, seed, file
        self._finder = {"inductor": Inductor, "trainc": lambda: Compiling(tune=tune)}.get(way, Finder)()
        if disturbance is not None:
            self._finder = Disturbing(disturbance)
        self._is_eager = way == "eager"
        self._losses: list[list[float]] = [[]]  # of each step: the tensors whose backward was called
        self._ends: list[float] = []
        self._leading: torch.optim.Optimizer | None = None
        self._process, self._asked = os.getpid(), 0
        self._around = contextlib.ExitStack()

    def __enter__(self) -> None:
        random.seed(self._seed)
        numpy.random.seed(self._seed % 2**32)
        torch.manual_seed(self._seed)
        backward = compat.AUTOGRAD_BACKWARD.original()
        self._around.enter_context(patched(*compat.AUTOGRAD_BACKWARD, self._observed(backward)))
        hook = register_optimizer_step_post_hook(self._stepped)
        self._around.callback(hook.remove)
        if self._is_eager:
            self._around.enter_context(eager())
        else:
            self._around.enter_context(patched(trainc, "train_step", _refuse_step))
        self._around.enter_context(self._finder)
        self._cpu, self._begin = Machine().busy(), time.perf_counter()

    def __exit__(self, *error: Any) -> None:
        ended = error[0] is None or (error[0] is SystemExit and error[1].code in (None, 0))
        if ended and not self._asked:  # before so many steps
            self._write()
        self._around.__exit__(*error)

    def _observed(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def observed(tensors: Any, *args: Any, **kwargs: Any) -> None:
            backward(tensors, *args, **kwargs)
            given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            self._losses[-1] += [float(t.detach().double().sum()) for t in given if isinstance(t, torch.Tensor)]
            if self._leading is None and not self._finder.has_optimizers():
                self._end_of_step()

        return observed

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._leading = self._leading or optimizer
        if optimizer is self._leading:
            self._end_of_step()

    def _end_of_step(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._ends.append(time.perf_counter() - self._begin)
        if len(self._ends) >= self._steps:
            self._end_the_program()
        self._next_step()

    def _end_the_program(self) -> None:
        """By an exception; at once where that would not end it: in another thread than the main one, and where it is caught."""
        if not self._asked:
            self._write()
        self._asked += 1
        if self._asked < TIMES and threading.current_thread() is threading.main_thread():
            raise Enough(0)
        leave(0)

    def _next_step(self) -> None:
        self._losses.append([])

    def _write(self) -> None:
        if os.getpid() != self._process:
            return  # one that the program has forked: it ends after so many steps, too
        Path(self._file).write_text(json.dumps(self._record()))

    def _record(self) -> dict[str, Any]:
        others = Machine().busy(self._cpu) / (time.perf_counter() - self._begin)
        return {
            "losses": [losses for losses in self._losses if losses], "ends": self._ends, "peak": peak_bytes(),
            "others": max(others, 0.0), "compiled": self._finder.told() if isinstance(self._finder, Compiling) else None,
            "reason": self._finder.why_nothing() if isinstance(self._finder, Compiling) else None,
        }  # fmt: skip


def _refuse_step(*_: Any, **__: Any) -> None:
    raise UserError(
        "trainc compare looks at backward() and optimizer.step(), which a trainc.train_step has not: time the program as it is "
        "and under trainc run --eager"
    )


def peak_bytes() -> int:
    """The most memory that the process has had: resident, or on the GPU where it uses one."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


__all__ = ["WAYS", "Observing"]
