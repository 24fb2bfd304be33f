"""`trainc max-batch train.py`: the largest batch that fits, by the plan and not by crashing.

The script runs until it first calls a model in training (or a train_step). That call is compiled for other numbers of rows, and
nothing of it runs; then the script ends. What the script computes outside of the model, a loss for instance, is not counted.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import torch

from trainc.base import config, messages
from trainc.base.errors import UserError
from trainc.base.memory import Memory, checked, readable
from trainc.cli.ends import leave
from trainc.cli.machine import Machine
from trainc.cli.script import Program
from trainc.torch.compat import pytree
from trainc.torch.doors import step
from trainc.torch.doors.call import CompiledCall
from trainc.torch.doors.memory import ModelSettings
from trainc.torch.doors.trained import Finder

CLOSE = 0.01  # of the answer: no more is asked of it
LARGEST = 1 << 20


class Found(SystemExit):
    """Ends the script."""


class Looking(Finder):
    """While active, the first training call is looked at instead of run."""

    def __init__(self, program: Program, memory: str | None):
        super().__init__()
        self._program, self._limit = program, checked(memory)
        if isinstance(self._limit, float):
            raise UserError(f'--memory {memory}: write a size, "8GB"')

    def __enter__(self) -> Looking:
        super().__enter__()
        config.max_signatures = max(config.max_signatures, 1000)
        self._step_call = step.TrainStep.__call__

        def called(train_step: step.TrainStep, *args: Any, **kwargs: Any) -> Any:
            def peak(args: tuple, kwargs: dict) -> Memory | None:
                train_step.prepare(args, kwargs)
                return train_step.compilations[-1].memory()

            self._tell(train_step.__name__, peak, args, kwargs)

        step.TrainStep.__call__ = called  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop()
        if error[0] is None:
            raise SystemExit(f"trainc max-batch: {self._program} ended before it called a model in training")

    def _stop(self) -> None:
        step.TrainStep.__call__ = self._step_call  # type: ignore[method-assign]
        super().__exit__()

    def meet(self, module: torch.nn.Module, optimizers: list[torch.optim.Optimizer], args: tuple, kwargs: dict) -> None:
        def peak(args: tuple, kwargs: dict) -> Memory | None:
            call = CompiledCall(module, ModelSettings(None, next(iter(optimizers), None)))
            call.prepare(args, kwargs)
            return call.compilations[-1].memory()

        self._tell(type(module).__name__, peak, args, kwargs)

    def _tell(self, name: str, peak: Callable[[tuple, dict], Memory | None], args: tuple, kwargs: dict) -> None:
        self._stop()
        refused = None
        try:
            print(self._answer(name, peak, args, kwargs), flush=True)
        except UserError as error:
            refused = str(error)
        if threading.current_thread() is not threading.main_thread():  # whose end would end nothing else
            if refused:
                messages.tell(refused)
            leave(1 if refused else 0)
        raise Found(refused or 0)

    def _answer(self, name: str, peak: Callable[[tuple, dict], Memory | None], args: tuple, kwargs: dict) -> str:
        rows = rows_of((args, kwargs))

        def needed(batch: int) -> int:
            memory = peak(*with_rows((args, kwargs), rows, batch))
            self._there = 0 if memory is None else memory.model  # holds it already
            if memory is None:
                raise UserError(
                    f"trainc max-batch: {name} is not compiled (trainc run --explain says why), so its memory is not known"
                )
            return memory.total

        first = needed(rows)
        limit = Machine().available_memory() + self._there if self._limit is None else self._limit
        best, sizes = largest(needed, {rows: first}, limit)
        return report(name, rows, best, sizes, limit)


def report(name: str, rows: int, best: int, sizes: dict[int, int], limit: int) -> str:
    told = f"{name}: a batch of {rows} needs {readable(sizes[rows])}: model, gradients, optimizer state and the step itself."
    if best == 0:
        return (
            f"{told}\nNone fits in {readable(limit)}: a batch of 1 needs {readable(sizes[1])}. "
            "memory= computes again to need less."
        )
    above = min((b for b in sizes if b > best), default=None)
    if above is None and best >= LARGEST:
        return f"{told}\n{best} fit in {readable(limit)}, too ({readable(sizes[best])}); larger ones were not looked at."
    more = f"; {above} would need {readable(sizes[above])}" if above else ""
    return f"{told}\nThe largest that fits in {readable(limit)} is {best} ({readable(sizes[best])}){more}."


def largest(needed: Callable[[int], int], sizes: dict[int, int], limit: int) -> tuple[int, dict[int, int]]:
    """(the largest batch with needed(batch) <= limit, or 0; what was asked). `needed` grows, nearly as a straight line: the next
    guess lies on the line through the nearest two."""

    def size(batch: int) -> int:
        if batch not in sizes:
            sizes[batch] = needed(batch)
        return sizes[batch]

    low, high = 0, LARGEST + 1  # fits (or is nothing), does not fit
    guess = next(iter(sizes))
    while high - low > 1 and (low == 0 or high - low > CLOSE * low):
        if size(guess) <= limit:
            low = guess
        else:
            high = guess
        known = sorted(sizes, key=lambda b: abs(b - guess))[:2]
        if len(known) < 2:
            guess = 2 * guess if low == guess else guess // 2
        else:
            a, b = known
            slope = (sizes[b] - sizes[a]) / (b - a)
            guess = a + math.floor((limit - sizes[a]) / slope) if slope > 0 else 2 * a
            if guess == low:
                guess = low + 1
            elif guess == high:
                guess = high - 1
        guess = min(max(guess, low + 1), high - 1, LARGEST)
    return low, sizes


# ---- the batch --------------------------------------------------------------------------------------------------------


def rows_of(call: Any) -> int:
    """The number of rows: the first dimension of the first tensor among the arguments."""
    for tensor in pytree.tree_leaves(call):
        if isinstance(tensor, torch.Tensor) and tensor.dim() > 0 and len(tensor) > 0:
            return len(tensor)
    raise UserError("trainc max-batch: the call has no tensor whose first dimension could be the batch")


def with_rows(call: Any, rows: int, batch: int) -> Any:
    """`call` with every tensor of `rows` rows replaced by one of `batch`; their memory is never touched."""

    def resized(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and len(leaf) == rows and batch != rows:
            return leaf.new_zeros((batch, *leaf.shape[1:])).requires_grad_(leaf.requires_grad)
        return leaf

    return pytree.tree_map(resized, call)


__all__ = ["Looking", "largest"]
