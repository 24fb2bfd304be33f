"""Which equations of a traced function are not compiled, and why."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Var

from trainc.base.errors import NotCompiled
from trainc.jax import compat, equations
from trainc.jax.lowering import module_of
from trainc.xla import wire

jax_jit = jax.jit  # everywhere.py may put ours in its place
RUN = 64  # equations that are asked for together: a call of each would take longer to trace than what it calls
_CALLEE = re.compile(r"trainc_run_(\d+)(_\d+)?")
_SCOPE = re.compile(r"jit\(trainc_run_\d+\)/")


def found(jaxpr: ClosedJaxpr, name: str) -> tuple[ClosedJaxpr, dict[int, str]]:
    """The reasons, by the equations' places in the jaxpr that is given beside them: the same function, where calls of functions
    that hold a refused operation are replaced by what they call. NotCompiled where it cannot be told."""
    for look in (_with_effects, functools.partial(_refused, name=name)):
        refused = look(jaxpr)
        while opened := {i for i in refused if equations.call_of(jaxpr.jaxpr.eqns[i]) is not None}:
            jaxpr = _without_calls(jaxpr, opened)
            refused = look(jaxpr)
    return jaxpr, refused


def _with_effects(jaxpr: ClosedJaxpr) -> dict[int, str]:
    return {i: equations.effect_of(e) for i, e in enumerate(jaxpr.jaxpr.eqns) if equations.has_effects(e)}


def _refused(jaxpr: ClosedJaxpr, name: str) -> dict[int, str]:
    """Of runs of equations first, then of the equations of those that are refused."""
    all_, refused = jaxpr.jaxpr.eqns, _with_effects(jaxpr)
    runs = _runs(len(all_), refused)
    while True:
        try:
            found = _refused_runs(jaxpr, refused, runs, name)
        except NotCompiled:  # one of them cannot be lowered
            not_lowered = {i: why for i, e in enumerate(all_) if i not in refused and (why := _why_not_lowered(e))}
            if not not_lowered:
                raise
            refused |= not_lowered
            runs = _runs(len(all_), refused)
            continue
        if all(len(runs[k]) == 1 for k in found):
            return refused | {runs[k][0]: why for k, why in found.items()}
        runs = [part for k, run in enumerate(runs) for part in ([[i] for i in run] if k in found else [run])]


def _runs(count: int, without: Any) -> list[list[int]]:
    left = [i for i in range(count) if i not in without]
    return [left[k : k + RUN] for k in range(0, len(left), RUN)]


def _refused_runs(jaxpr: ClosedJaxpr, without: Any, runs: list[list[int]], name: str) -> dict[int, str]:
    from trainc import _core

    text = _as_calls(jaxpr, without, runs, name)
    body = json.loads(text)["functions"]["main"]["body"]
    found = {}
    for place, why in _core.refused_operations(text):
        callee = _CALLEE.fullmatch(str(body[place]["attrs"].get("callee", "")))
        if callee is None:
            raise NotCompiled(why)  # no equation's
        found[int(callee[1])] = _SCOPE.sub("", why)
    return found


def _as_calls(jaxpr: ClosedJaxpr, without: Any, runs: list[list[int]], name: str) -> str:
    """The wire format of a function that calls one function for each run of equations, by its number. Results of those that it is
    `without` are arguments."""
    all_ = jaxpr.jaxpr.eqns
    given = [*jaxpr.jaxpr.invars, *(v for i in without for v in all_[i].outvars)]
    given = [v for v in given if isinstance(v.aval, jax.core.ShapedArray)]  # no array that is changed in place

    def function(*arguments: Any) -> list[Any]:
        values: dict[Var, Any] = dict(zip(given, arguments, strict=True)) | dict(
            zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True)
        )
        for k, run in enumerate(runs):
            call, inputs, outputs = _as_function([all_[i] for i in run], f"trainc_run_{k}")
            values.update(zip(outputs, call(*(values[v] for v in inputs)), strict=True))
        return []

    function.__name__ = name
    traced = jax_jit(function, keep_unused=True).trace(*(v.aval for v in given))
    return wire.written(module_of(traced), name, [False] * len(given))[0].text()


def _as_function(run: list[Any], name: str) -> tuple[Any, list[Var], list[Var]]:
    """A jitted function of these equations alone, and the variables that it takes and gives."""
    outputs = [v for equation in run for v in equation.outvars]
    made = set(outputs)
    inputs = [v for v in equations.variables([v for equation in run for v in equation.invars]) if v not in made]

    def function(*given: Any) -> list[Any]:
        values = dict(zip(inputs, given, strict=True))
        for equation in run:
            results = compat.bind(equation, equations.read(equation.invars, values))
            values.update(zip(equation.outvars, results, strict=True))
        return [values[v] for v in outputs]

    function.__name__ = name
    return jax_jit(function, keep_unused=True), inputs, outputs


def _why_not_lowered(equation: Any) -> str:
    call, inputs, _ = _as_function([equation], "equation")
    try:
        module_of(call.trace(*(v.aval for v in inputs)))
    except NotCompiled as error:
        return f"{equation.primitive.name} at {compat.line_of(equation)}: {error}"
    return ""


def _without_calls(jaxpr: ClosedJaxpr, opened: set[int]) -> ClosedJaxpr:
    def one(place: int, equation: Any, values: list[Any]) -> list[Any]:
        if place not in opened:
            return compat.bind(equation, values)
        return equations.call_of(equation)(*values)  # type: ignore[misc]

    def function(*arguments: Any) -> list[Any]:
        values = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True)) | dict(
            zip(jaxpr.jaxpr.invars, arguments, strict=True)
        )
        return equations.evaluate(jaxpr.jaxpr, values, one)

    return jax_jit(function, keep_unused=True).trace(*jaxpr.in_avals).jaxpr


__all__ = ["found"]
