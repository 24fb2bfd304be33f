"""Trains one architecture eagerly and compiled: the same losses by the rule of docs/numerics.md, and the same first gradients."""

from __future__ import annotations

import dataclasses
import functools
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inputs
import make
import numpy
import same_code
import torch
from torch import nn

import trainc

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "python"), str(TESTS / "conformance")]
import doors  # noqa: E402
import loss_rule  # noqa: E402

STEPS = 4
COMPILED = ("compiled", "extern", "split")
GRADIENT_FLOOR = 1e-5  # of the norm of all gradients
CLASSES = {
    "compiled": "every operation",
    "extern": "compiled, with calls of PyTorch's operations inside the plan",
    "split": "compiled in the parts that torch.compile's tracer makes: around code that depends on tensors' values; with hooks",
    "refused": "not compiled, with the reason; run again with the fallback on, it has eager's losses",
    "tracer": "the backend's door alone: torch.compile itself fails before it asks a backend",
    "skipped": "this generator makes no model of it that eager trains",
    "wrong": "losses or gradients differ",
    "crash": "the process died",
    "hang": "not done in time",
}


Run = tuple[list[float], dict[str, torch.Tensor | None]]


def train(made: make.Made, model: nn.Module, call: Any) -> Run:
    """The losses of STEPS steps, and the gradients of the first."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(7)  # dropout's masks; NumPy draws those of sounds, Python which layers are left out
    numpy.random.seed(7)
    random.seed(7)
    losses, gradients = [], {}
    for step in range(STEPS):
        loss = inputs.loss_of(call(**made.batch))
        loss.backward()
        if step == 0:
            gradients = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, gradients


class Eager:
    """What PyTorch makes of an architecture, for both doors; its disturbed runs, three times as long, only where they decide."""

    def __init__(self, made: make.Made):
        self.made = made
        model = made.model()
        self.code = same_code.fingerprint(model, made.batch)

    @functools.cached_property
    def run(self) -> Run:
        model = self.made.model()
        return train(self.made, model, model)

    @functools.cached_property
    def disturbed(self) -> list[Run]:
        return [self._disturbed(seed) for seed in loss_rule.SEEDS]

    def _disturbed(self, seed: int) -> Run:
        loss_rule.disturb(model := self.made.model(), seed)
        return train(self.made, model, model)


@functools.lru_cache(maxsize=1)
def _eager(model_type: str) -> Eager | make.CannotMake:
    try:
        return Eager(make.make(model_type))
    except make.CannotMake as error:
        return error


def judge(model_type: str, door: str, known: dict[str, dict]) -> dict[str, Any]:
    """`known`: verdicts of this door, by the fingerprint of the code (same_code.py)."""
    verdict: dict[str, Any] = {"case": model_type, "door": door}
    if isinstance(eager := _eager(model_type), make.CannotMake):
        return {**verdict, "class": "skipped", "reason": str(eager)[:2000]}
    made = eager.made
    verdict |= {"model": made.kind.__name__, "inputs": list(made.batch), "variant": dataclasses.astuple(made.variant)}
    verdict["code"] = eager.code
    if (same := known.get(eager.code)) is not None and same["case"] != model_type:
        return {**verdict, "as": same["case"], "class": same["class"], "reason": same["reason"]}
    for fallback in (False, True):
        trainc.config.fallback = fallback
        opened = doors.Compile(made.model()) if door == "compile" else doors.Backend(made.model(), fullgraph=False)
        try:
            with warnings.catch_warnings(), torch._dynamo.config.patch(use_numpy_random_stream=True):
                # Else Dynamo, for whatever backend, draws NumPy's random numbers from PyTorch's generator: not eager's.
                warnings.simplefilter("ignore")
                mine = train(made, opened.module, opened.call)
        except Exception as error:
            kind, reason = "tracer" if doors.is_of_dynamo(error) else "refused", f"{type(error).__name__}: {error}"
            if fallback:
                kind = "wrong"  # eager trains it
        else:
            kind, reason = opened.outcome()
            if kind in ("compiled", "extern") and (parts := len(opened.records())) > 1:
                reason = f"{parts} graphs{'; ' if reason else ''}{reason}"
            if told := differences(eager.run, lambda: eager.disturbed, mine):
                kind, reason = "wrong", "; ".join(told)
        if not fallback:
            first = kind, reason
        if kind not in ("refused", "tracer"):
            break
    if kind != "wrong":
        kind, reason = first
    return {**verdict, "class": kind, "reason": reason[:2000]}


def differences(eager: Run, disturbed: Callable[[], list[Run]], mine: Run) -> list[str]:
    """One line for each way in which `mine` is not eager's. `disturbed` is asked where the floors of the rules do not decide."""
    told = _differences(eager, [eager], mine)
    return _differences(eager, disturbed(), mine) if told else told


def _differences(eager: Run, disturbed: list[Run], mine: Run) -> list[str]:
    told = loss_rule.violations(mine[0], eager[0], [losses for losses, _ in disturbed])
    whole = torch.stack([g.double().norm() for g in eager[1].values() if g is not None]).norm()
    for name, wanted in eager[1].items():
        found = mine[1][name]
        if (found is None) != (wanted is None):
            told.append(f"the gradient of {name} is {'None' if found is None else 'there'}, eager's is not")
        elif wanted is not None:
            spread = max(_distance(gradients[name], wanted) for _, gradients in disturbed)
            allowed = max(GRADIENT_FLOOR * whole, loss_rule.SHARE * spread)
            if not (distance := _distance(found, wanted)) <= allowed:
                told.append(f"the gradient of {name} differs by {distance:.2e}, allowed {allowed:.2e}")
    return told[:10]


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.double() - b.double()).norm().item()
