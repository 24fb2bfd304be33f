"""One case through one door: what became of it."""

from __future__ import annotations

import contextlib
import gc
import traceback
import warnings
from collections.abc import Callable, Iterator

import torch
from doors import DOORS, NOTHING, Door, Tracer, is_of_dynamo
from observe import UNSIGNED, ZERO, Observed, differences, run
from opinfos import Case
from program import Program, in_float64

from trainc.base import config

CLASSES = {
    "compiled": "compiled, every operation",
    "extern": "compiled, with calls of PyTorch's operations inside the plan",
    "split": "compiled in the parts that torch.compile's tracer makes: around code that depends on tensors' values (where it is "
    "all, a product by 1 before it); with hooks",
    "refused": "not compiled; with the fallback on it runs in PyTorch, with eager's result",
    "tracer": "Dynamo cannot trace it in one graph, or PyTorch's tracer differs from eager in the same way without a compiler",
    "skipped": "no such case: the table's own sample cannot be made or run",
    "wrong": "another result than eager's",
    "crash": "the process died",
    "hang": "not done within the time limit",
}


@contextlib.contextmanager
def fallback(on: bool) -> Iterator[None]:
    before, config.fallback = config.fallback, on
    try:
        yield
    finally:
        config.fallback = before


def judge(case: Case, door: str) -> dict:
    """{"case", "door", "class", "reason"}, and of what is wrong "differences" and "program"."""
    verdict = {"case": case.name, "door": door}
    try:
        program = case.make()
        eager = called_twice(program.module(), program.arguments)
    except Exception as error:
        return {**verdict, "class": "skipped", "reason": first_line(error)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = _judged(program, case, DOORS[door], eager)
    gc.collect()
    return {**verdict, **found}


def called_twice(module: torch.nn.Module, arguments: Callable, tangents: torch.dtype | None = None) -> list[Observed]:
    """Two calls, for what is compiled is compiled at the second where the first is under no_grad. Running statistics move on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = run(module, module, *arguments(), tangents)
        return [first, run(module, module, *arguments(), tangents) if first.buffers and first.error is None else first]


def true(program: Program, eager: Observed) -> list[Observed] | list[None]:
    """The same program in float64; None where that says nothing of it (other random numbers, no such operation)."""
    nothing = [None, None]
    if eager.drew or eager.error is not None or "torch.float" in program.source or "torch.bfloat" in program.source:
        return nothing  # a type by name in the program's text stays what it is
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        module = program.module().double()
        of_outputs = next((x.dtype for x in eager.outputs if x.requires_grad), None)
        truth = called_twice(module, lambda: in_float64(program.arguments()), of_outputs)
        return truth if truth[0].error is None else nothing
    except Exception:
        return nothing
    finally:
        torch.set_default_dtype(default)


def _judged(program: Program, case: Case, kind: type[Door], eagers: list[Observed]) -> dict:
    truths, eager = true(program, eagers[0]), eagers[0]
    signed = case.name.split("/")[1] not in UNSIGNED

    def through(kind: type[Door]) -> tuple[Door, list[Observed], list[str]]:
        """Two calls; what the first gave is looked at again after the second."""
        door = kind(program.module())
        runs, told = [], []
        for wanted, truth in zip(eagers, truths, strict=True):
            runs.append(run(door.call, door.module, *program.arguments()))
            told += [d for d in differences(runs[-1], wanted, truth, case.values) if signed or ZERO not in d]
            if runs[-1].error is not None:
                return door, runs, told
        again = differences(runs[0], eager, truths[0], case.values) if not told and signed else []
        return door, runs, told + [f"after a second call: {d}" for d in again]

    with fallback(False):
        door, runs, told = through(kind)
    error = runs[-1].error
    if error is None or eager.error is not None:
        if told and kind.__name__ == "Backend" and error is not None and eager.error is not None:
            told = []  # Dynamo wraps what the program raises while it is traced
        if not told:
            cls, reason = (
                door.outcome() if error is None else ("compiled", f"raises {type(eager.error).__name__}, as eager does")
            )
            if reason.startswith(NOTHING) and program.between is not None:
                between = program.between
                found = _judged(between, case, kind, called_twice(between.module(), between.arguments))
                if found["class"] in ("split", "wrong"):
                    return {**found, "reason": f"between others: {found['reason']}"}
            return {"class": cls, "reason": reason}
        found = {"reason": told[0], "differences": told, "program": program.text(), **_tracers(program, through)}
        theirs = found["aot_eager"] == told  # an error that AOTAutograd does not raise, a view that it gives as a copy
        return {**found, "class": "tracer" if theirs else "wrong"}
    reason = f"{type(error).__name__}: {first_line(error)}"
    if is_of_dynamo(error):
        return {"class": "tracer", "reason": reason}
    with fallback(True):
        _, again, told = through(kind)
    if told:
        told = [f"with the fallback on: {d}" for d in told]
        return {"class": "wrong", "reason": told[0], "differences": told, "refused": reason, "program": program.text()}
    return {"class": "refused", "reason": reason, "trace": traceback.format_exception(error)[-3:]}


def _tracers(program: Program, through) -> dict:
    """What PyTorch's own tracer and partitioner make of it, without a compiler: a difference that they have, too, is theirs."""
    try:
        _, runs, told = through(Tracer)
    except Exception as error:
        return {"aot_eager": [first_line(error)]}
    return {"aot_eager": told}


def first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


__all__ = ["CLASSES", "first_line", "judge"]
