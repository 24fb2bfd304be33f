"""Cases of PyTorch's own table of optimizers: some steps of a small model, and what they leave."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from judge import fallback, first_line
from observe import tensor_differences
from opinfos import DTYPES
from torch.testing._internal.common_optimizers import _get_optim_inputs_including_global_cliquey_kwargs, optim_db

import trainc
from trainc.base import records

STEPS = 4


@functools.cache
def optimizers() -> dict[str, Any]:
    return {info.optim_cls.__name__: info for info in optim_db}


def groups(dtypes: list[str]) -> Iterator[tuple[str, str, str]]:
    for dtype in dtypes:
        if DTYPES[dtype].is_floating_point:
            yield from (("optim", name, dtype) for name in optimizers())


@dataclass
class Case:
    name: str
    cls: type[torch.optim.Optimizer]
    kwargs: dict
    dtype: torch.dtype
    closure: bool
    sparse: bool


def cases(name: str, dtype: str, most: int | None) -> Iterator[Case]:
    info = optimizers()[name]
    inputs = _get_optim_inputs_including_global_cliquey_kwargs("cpu", DTYPES[dtype], info)
    for i, given in enumerate(inputs[:most]):
        label = f"optim/{name}/{dtype}/{i} {given.desc}"
        yield Case(
            label,
            info.optim_cls,
            given.kwargs,
            DTYPES[dtype],
            info.step_requires_closure,
            info.only_supports_sparse_grads,
        )


class Model(torch.nn.Module):
    """Parameters of several shapes, one that is frozen, and one that the loss does not reach."""

    def __init__(self, sparse: bool):
        super().__init__()
        self.table = torch.nn.Embedding(5, 6, sparse=sparse)
        if sparse:
            return
        self.one, self.two = torch.nn.Linear(6, 7), torch.nn.Linear(7, 3, bias=False)
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.unused = torch.nn.Parameter(torch.ones(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.table(ids)
        if not hasattr(self, "one"):
            return h.square().sum()
        return (self.two(torch.tanh(self.one(h))) * self.scale + self.frozen).square().mean()


def trained(case: Case, dtype: torch.dtype, door: str = "") -> tuple[list, list, list]:
    """(parameters and states, records, externs) after some steps."""
    torch.manual_seed(0)
    model = Model(case.sparse).to(case.dtype).to(dtype)
    kwargs = copy.deepcopy(case.kwargs)
    parameters = list(model.parameters())
    optimizer = case.cls(
        parameters if case.sparse else [{"params": parameters[:2]}, {"params": parameters[2:]}], **kwargs
    )
    if case.cls is torch.optim.LBFGS:
        optimizer = case.cls(parameters, **kwargs)
    step = optimizer.step
    if door == "compile":
        trainc.compile(model, optimizer)
        step = optimizer.step
    elif door in ("backend", "aot_eager"):
        from trainc.torch.doors.backend import backend, compilations

        torch._dynamo.reset()
        compilations.clear()
        step = torch.compile(optimizer.step, backend=backend if door == "backend" else door)
    for i in range(STEPS):
        ids = torch.tensor([0, 3, i % 5, 1])

        def closure(ids=ids):
            optimizer.zero_grad()
            loss = model(ids)
            loss.backward()
            return loss

        if case.closure:
            step(closure)
        else:
            closure()
            step()
    left = [("parameter", p.detach().clone()) for p in parameters]
    for i, p in enumerate(parameters):
        for key, value in sorted(optimizer.state.get(p, {}).items()):
            left.append((f"state {key} of {i}", value.clone() if isinstance(value, torch.Tensor) else value))
    if door == "backend":
        return left, list(compilations), []
    return left, [*records.of(model), *records.of(optimizer)] if door else [], []


def judge(case: Case, door: str) -> dict:
    verdict = {"case": case.name, "door": door}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            eager, _, _ = trained(case, case.dtype)
        except Exception as error:
            return {**verdict, "class": "skipped", "reason": first_line(error)}
        try:
            truth, _, _ = trained(case, torch.float64)
        except Exception:
            truth = eager
        try:
            with fallback(False):
                got, made, _ = trained(case, case.dtype, door)
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            try:
                with fallback(True):
                    got, _, _ = trained(case, case.dtype, door)
            except Exception as again:
                return {
                    **verdict,
                    "class": "wrong",
                    "reason": f"with the fallback on: {type(again).__name__}: {first_line(again)}",
                }
            told = _differences(got, eager, truth)
            return {
                **verdict,
                "class": "wrong" if told else "refused",
                "reason": told[0] if told else reason,
                "differences": told,
            }
    told = _differences(got, eager, truth)
    if told:
        # Dynamo loses what is written to a 0-dim float64 parameter, whatever compiles its graph, and counts steps in float32.
        uncompiled = _in_float32(trained(case, case.dtype, "aot_eager")[0]) if door == "backend" else []
        theirs = door == "backend" and not _differences(_in_float32(got), uncompiled, uncompiled)
        return {
            **verdict,
            "class": "tracer" if theirs else "wrong",
            "reason": told[0],
            "differences": told,
            "program": f"{case.cls.__name__} {case.kwargs}",
        }
    refused = [
        f"{r.route}: {r.reason}" for r in made if r.route == "eager" or (r.route != "compiled" and door == "compile")
    ]
    if door == "compile" and not any(r.optimizer is not None for r in made):
        refused.append("the optimizer's step is PyTorch's")
    externs = sorted({name for r in made for name, _ in r.externs()})
    if refused:
        return {**verdict, "class": "refused", "reason": refused[0]}
    return {**verdict, "class": "extern" if externs else "compiled", "reason": ", ".join(externs)}


def _in_float32(left: list) -> list:
    return [(name, value.float() if isinstance(value, torch.Tensor) else value) for name, value in left]


def _differences(got: list, want: list, truth: list) -> list[str]:
    if [name for name, _ in got] != [name for name, _ in want]:
        return [
            f"states: {[n for n, _ in got if n not in dict(want)]} for {[n for n, _ in want if n not in dict(got)]}"
        ]
    told = []
    for i, ((name, g), (_, w)) in enumerate(zip(got, want, strict=True)):
        if isinstance(w, torch.Tensor) and isinstance(g, torch.Tensor):
            t = truth[i][1] if len(truth) == len(want) and isinstance(truth[i][1], torch.Tensor) else None
            told += [f"{name}: {d}" for d in tensor_differences(g, w, t)]
        elif type(w) is not type(g) or (isinstance(w, (int, float)) and w != g):
            told.append(f"{name}: {g!r} for {w!r}")
    return told
