"""`trainc run train.py`: each model that the program trains is compiled before its first call in training, with the optimizers
that hold its parameters by then, and with those that are made later."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import trainc
from trainc.base import messages
from trainc.base.report import count
from trainc.cli.told import NOTHING_TRAINED, say, tell_of_jax, telling
from trainc.torch.doors import door, trained

MOST = 20  # models that are told of at the end: those of a search are one like the other, and each is held until then


class Compiling(trained.Compiling):
    def __init__(
        self, explain: bool = False, tune: str = "fast", memory: Any = None, leave: Sequence[str] = (), report: Path | None = None
    ):  # fmt: skip
        """`memory`: as for trainc.compile. `leave`: names of classes that stay PyTorch's. `report`: where one is written at the
        end, wherever the program goes meanwhile: an absolute path."""
        super().__init__(tune, memory)
        self.explain, self.leave, self.report = explain, leave, report
        self._alive: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._process = os.getpid()
        # to be told of at the end, though the program may have let go of them
        self._kept: list[torch.nn.Module] = []
        self._updated_by: list[torch.optim.Optimizer] = []

    def meet(self, module: torch.nn.Module, optimizers: list[torch.optim.Optimizer], args: tuple, kwargs: dict) -> None:
        if type(module).__name__ in self.leave:
            self.refused += 1
        else:
            super().meet(module, optimizers, args, kwargs)

    def kept(self, module: torch.nn.Module) -> None:
        self._alive.add(module)
        if (self.explain or self.report) and len(self._kept) < MOST:
            self._kept.append(module)

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        super().add(optimizer)
        if self.report and len(self._kept) < MOST:
            self._updated_by.append(optimizer)

    def __enter__(self) -> Compiling:
        super().__enter__()
        if self.report:
            self._patches.enter_context(trainc.profile())
        return self

    def say(self, text: str) -> None:
        say(text)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if os.getpid() != self._process:
            return  # a process that the program has forked, and that ends as the program does
        with telling():
            self._tell(ended=error[0] is None)

    def _tell(self, ended: bool) -> None:
        if self.explain:
            for model in self._kept:
                messages.tell(str(trainc.explain(model)))
        if self.report:
            self._write_reports()
        jitted = tell_of_jax(self.explain)
        if self._kept and self.compiled > len(self._kept):
            self.say(f"{self.compiled} models were compiled; the first {len(self._kept)} are told of")
        if not self.compiled and not self.refused and not jitted and ended:
            self.say(f"nothing was compiled: {self.why_nothing()}")

    def told(self) -> list[str]:
        """A line for each model that was compiled and for each optimizer: what became of it."""
        found = (trainc.explain(each) for each in (*self._alive, *self._attached))
        return sorted({summary(explanation) for explanation in found if explanation.compilations})

    def _write_reports(self) -> None:
        """One for each model: report.html, report-2.html, ..."""
        for i, model in enumerate(self._kept):
            own = set(map(id, model.parameters()))
            optimizers = [o for o in self._updated_by if own & {id(p) for group in o.param_groups for p in group["params"]}]
            path = self.report.with_stem(f"{self.report.stem}-{i + 1}") if i else self.report
            try:
                self.say(str(trainc.report((model, *optimizers), path)))
            except trainc.UserError as error:
                self.say(str(error))

    def why_nothing(self) -> str:
        """Why nothing was."""
        if own := self.compile_themselves():
            return f"the program compiles {own} itself, which stays as it is"
        if not self.saw_training:
            return NOTHING_TRAINED
        return "no model was called in training: model(x) is compiled, model.forward(x) and single layers of a model are not"


def summary(explanation: Any) -> str:
    """Of a model or an optimizer: what was compiled and what was not, in a line."""
    compiled = [each for each in explanation.compilations if each.route != "eager"]
    if not compiled:
        last = explanation.compilations[-1]
        return f"left {explanation.title} to {last.framework}: {last.reason}"
    sum_ = explanation.totals
    calls = ", ".join(sorted({name.removesuffix(".default") for name, _ in explanation.externs}))
    inside = f" and {count(sum_.externs, 'call')} of PyTorch's ({calls})" if calls else ""
    parted = [each.framework for each in compiled if each.route in ("split", "dynamo")]
    parts = f", in parts, around what runs in {parted[0]}" if parted else ""
    work = f"{count(sum_.kernels, 'kernel')}{inside} for {count(len(compiled), 'signature')}{parts}"
    return f"compiled {explanation.title}: {work}"


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Whatever the program itself gives to torch.compile runs in PyTorch; so does what a trainer's callback gives to trainc."""
    with door.compiles_nothing(), torch.compiler.set_stance("force_eager"):
        yield


__all__ = ["Compiling", "eager"]
