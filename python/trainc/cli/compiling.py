"""`trainc run train.py`: each model that the program trains is compiled before its first call in training, with the optimizers
that hold its parameters by then, and with those that are made later."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import trainc
from trainc.base.report import count
from trainc.torch.doors import trained


class Compiling(trained.Compiling):
    def __init__(
        self, explain: bool = False, tune: str = "fast", memory: str | None = None, leave: Sequence[str] = ()
    ):  # fmt: skip
        """`leave`: names of classes that stay PyTorch's."""
        super().__init__(tune, memory_of(memory))
        self.explain, self.leave = explain, leave
        self._kept: list[torch.nn.Module] = []  # to be explained, though the program may have let go of them
        self._alive: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def meet(self, module: torch.nn.Module, optimizers: list[torch.optim.Optimizer], args: tuple, kwargs: dict) -> None:
        if type(module).__name__ in self.leave:
            self.refused += 1
        else:
            super().meet(module, optimizers, args, kwargs)

    def kept(self, module: torch.nn.Module) -> None:
        self._alive.add(module)
        if self.explain:
            self._kept.append(module)

    def say(self, text: str) -> None:
        print(f"trainc run: {text}", file=sys.stderr, flush=True)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for model in self._kept:
            print(trainc.explain(model), file=sys.stderr)
        if not self.compiled and not self.refused and error[0] is None:
            self.say(f"nothing was compiled: {self.why_nothing()}")

    def told(self) -> list[str]:
        """A line for each model that was compiled and for each optimizer: what became of it."""
        found = (trainc.explain(each) for each in (*self._alive, *self._attached))
        return sorted({summary(explanation) for explanation in found if explanation.compilations})

    def why_nothing(self) -> str:
        """Why nothing was."""
        if own := self.compile_themselves():
            return f"the program compiles {own} itself, which stays as it is"
        if not self.saw_training:
            return "no optimizer was made, and no backward called, in this process (those that it starts run in PyTorch)"
        return "no model was called in training: model(x) is compiled, model.forward(x) and single layers of a model are not"


def summary(explanation: Any) -> str:
    """Of a model or an optimizer: what was compiled and what was not, in a line."""
    compiled = [each for each in explanation.compilations if each.route != "eager"]
    if not compiled:
        return f"left {explanation.title} to PyTorch: {explanation.compilations[-1].reason}"
    sum_ = explanation.totals
    calls = ", ".join(sorted({name.removesuffix(".default") for name, _ in explanation.externs}))
    inside = f" and {count(sum_.externs, 'call')} of PyTorch's ({calls})" if calls else ""
    parts = ", in parts, around what runs in PyTorch" if any(each.route in ("split", "dynamo") for each in compiled) else ""
    work = f"{count(sum_.kernels, 'kernel')}{inside} for {count(len(compiled), 'signature')}{parts}"
    return f"compiled {explanation.title}: {work}"


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Whatever the program itself gives to torch.compile or trainc runs in PyTorch."""
    compile_before, step_before = trainc.compile, trainc.train_step
    trainc.compile = lambda model, optimizer=None, **_: model if optimizer is None else (model, optimizer)
    trainc.train_step = lambda fn, **_: fn
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        trainc.compile, trainc.train_step = compile_before, step_before


def memory_of(text: str | None) -> Any:
    """`--memory`, as trainc.compile's memory=: "4GB", or a share as a number."""
    with contextlib.suppress(ValueError, TypeError):
        return share if (share := float(text)) <= 1 else text
    return text


__all__ = ["Compiling", "eager"]
