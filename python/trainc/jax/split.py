"""A function in parts: what is not compiled stays JAX's, in the same executable of XLA's; what lies between becomes plans.

Parts alternate: all equations that need nothing of JAX's, then those of JAX's that need no more than these, then what needs
their results, and so on. So a part is as large as it can be, and what does something beside its results does it in its order.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Var

from trainc.base.errors import InternalError, NotCompiled
from trainc.jax import compat, equations, refusals

FEWEST = 12  # operations of a part that is compiled, but for one with a large contraction: XLA calls it across its own fusions
LARGE = 1 << 20  # multiplications of such a contraction, about

jax_jit = jax.jit  # everywhere.py may put ours in its place

Pairs = tuple[tuple[int, int], ...]  # inputs, and outputs that may take their memory
# A traced function, the types of its results, the pairs -> what computes it within a traced function: flat values -> results.
Compile = Callable[[Any, list[Any], Pairs], equations.Function]


@dataclasses.dataclass
class Part:
    equations: list[Any]
    inputs: list[Var] = dataclasses.field(default_factory=list)
    outputs: list[Var] = dataclasses.field(default_factory=list)
    plan: equations.Function | None = None  # None: it is JAX's
    bodies: dict[int, list[equations.Function]] = dataclasses.field(default_factory=dict)  # of JAX's loops, by their place


class Split:
    """A function whose parts are compiled. `reasons`: of what is JAX's."""

    def __init__(self, jaxpr: ClosedJaxpr, parts: list[Part], reasons: list[str]):
        self._jaxpr, self._parts, self.reasons = jaxpr, parts, reasons

    def __call__(self, *arguments: Any) -> list[Any]:
        """Within a traced function."""
        jaxpr = self._jaxpr.jaxpr
        values = dict(zip(jaxpr.constvars, self._jaxpr.consts, strict=True)) | dict(zip(jaxpr.invars, arguments, strict=True))
        for part in self._parts:
            if part.plan is not None:
                results = part.plan(*equations.read(part.inputs, values))
                values.update(zip(part.outputs, results, strict=True))
                continue
            for place, equation in enumerate(part.equations):
                given, bodies = equations.read(equation.invars, values), part.bodies.get(place)
                results = equations.with_bodies(equation, bodies, given) if bodies else compat.bind(equation, given)
                values.update(zip(equation.outvars, results, strict=True))
        return equations.read(jaxpr.outvars, values)


def split(jaxpr: ClosedJaxpr, name: str, given_away: Pairs, compile_: Compile) -> Split | None:
    """`given_away`: arguments whose memory results may take. None where no part is worth a plan; NotCompiled or InternalError
    where it cannot be told what is compiled."""
    jaxpr, refused = refusals.found(jaxpr, name)
    parts = _parts(jaxpr.jaxpr, refused)
    pairs = [(jaxpr.jaxpr.invars[i], jaxpr.jaxpr.outvars[k]) for i, k in given_away]
    reasons = list(dict.fromkeys(refused.values()))
    for place, part in enumerate(parts):
        later = {v for other in parts[place + 1 :] for v in other.inputs}
        ours = not any(i in refused for i, e in enumerate(jaxpr.jaxpr.eqns) if e is part.equations[0])
        if ours:
            away = [(a, r) for a, r in pairs if a in part.inputs and r in part.outputs and a not in later]
            part.plan = _compiled(part, name, away, compile_, reasons)
        else:
            part.bodies = {i: b for i, e in enumerate(part.equations) if (b := _bodies(e, name, compile_, reasons))}
    if not any(part.plan or part.bodies for part in parts):
        return None
    return Split(jaxpr, parts, reasons)


def _compiled(part: Part, name: str, away: list, compile_: Compile, reasons: list[str]) -> equations.Function | None:
    traced = jax_jit(_function(part, name), keep_unused=True).trace(*(v.aval for v in part.inputs))
    held = list(equations.within(traced.jaxpr.jaxpr))
    if len(held) < FEWEST and not any(_contracted(e) >= LARGE for e in held):
        return None
    pairs = tuple((part.inputs.index(a), part.outputs.index(r)) for a, r in away)
    try:
        return compile_(traced, [v.aval for v in part.outputs], pairs)
    except (NotCompiled, InternalError) as error:
        reasons.append(str(error))
        return None


def _function(part: Part, name: str) -> Callable:
    def function(*arguments: Any) -> list[Any]:
        values = dict(zip(part.inputs, arguments, strict=True))
        for equation in part.equations:
            results = compat.bind(equation, equations.read(equation.invars, values))
            values.update(zip(equation.outvars, results, strict=True))
        return equations.read(part.outputs, values)

    function.__name__ = name
    return function


def _bodies(equation: Any, name: str, compile_: Compile, reasons: list[str]) -> list[equations.Function]:
    """Of a loop or a choice of JAX's: what it runs, in parts where that is worth it; empty where none of it is."""
    found, any_ = [], False
    for body in equations.bodies_of(equation):
        fits = [(i, k) for i, k in equations.carried(equation) if _kind(body.in_avals[i]) == _kind(body.out_avals[k])]
        parts = split(body, name, tuple(fits), compile_)
        any_ |= parts is not None
        reasons += [why for why in (parts.reasons if parts else []) if why not in reasons]
        found.append(parts or (lambda *values, body=body: jax.core.eval_jaxpr(body.jaxpr, body.consts, *values)))
    return found if any_ else []


# ---- which equations go together ------------------------------------------------------------------------------------


def _parts(jaxpr: Any, refused: dict[int, str]) -> list[Part]:
    """Those of needed equations, ours before JAX's of a level, with what they take and give."""
    needed = _needed(jaxpr)
    levels = _levels(jaxpr, refused, needed)
    _sink(jaxpr, refused, levels)
    groups: dict[tuple[int, bool], list[int]] = {}
    for place in needed:
        groups.setdefault((levels[place], place in refused), []).append(place)
    parts = [Part([jaxpr.eqns[i] for i in groups[key]]) for key in sorted(groups)]
    wanted = set(equations.variables(jaxpr.outvars))
    for part in reversed(parts):
        made = {v for e in part.equations for v in e.outvars}
        part.outputs = [v for v in dict.fromkeys(v for e in part.equations for v in e.outvars) if v in wanted]
        part.inputs = [v for v in equations.variables([v for e in part.equations for v in e.invars]) if v not in made]
        wanted |= set(part.inputs)
    return parts


def _needed(jaxpr: Any) -> list[int]:
    """Equations that a result depends on, or that do something beside their results."""
    wanted, found = set(equations.variables(jaxpr.outvars)), []
    for place in reversed(range(len(jaxpr.eqns))):
        equation = jaxpr.eqns[place]
        if equations.has_effects(equation) or any(v in wanted for v in equation.outvars):
            found.append(place)
            wanted |= set(equations.variables(equation.invars))
    return found[::-1]


def _levels(jaxpr: Any, refused: dict[int, str], needed: list[int]) -> dict[int, int]:
    """How many changes from JAX's equations to ours lie before an equation at least."""
    of_ours: dict[Var, int] = {}  # the least level at which ours may read it; JAX's
    of_jax: dict[Var, int] = {}
    levels: dict[int, int] = {}
    effects = 0  # the level of the equation that did something last
    for place in needed:
        equation, jaxs = jaxpr.eqns[place], place in refused
        level = max(((of_jax if jaxs else of_ours).get(v, 0) for v in equations.variables(equation.invars)), default=0)
        if equations.has_effects(equation):
            level = effects = max(level, effects)
        levels[place] = level
        of_ours.update(dict.fromkeys(equation.outvars, level + jaxs))  # JAX's stand behind ours of a level
        of_jax.update(dict.fromkeys(equation.outvars, level))
    return levels


def _sink(jaxpr: Any, refused: dict[int, str], levels: dict[int, int]) -> None:
    """Moves equations of ours whose results are no smaller than what they are made of to the part that reads them: it would
    take more memory to keep the results than to make them there."""
    kept = set(equations.variables(jaxpr.outvars))
    reader: dict[Var, int] = {}
    for place in reversed(levels):
        equation = jaxpr.eqns[place]
        inputs = equations.variables(equation.invars)
        first = min((reader[v] for v in equation.outvars if v in reader), default=levels[place])
        moves = place not in refused and not kept.intersection(equation.outvars)
        if moves and sum(map(_bytes, inputs)) <= sum(map(_bytes, equation.outvars)):
            levels[place] = max(levels[place], first)
        for v in inputs:
            reader[v] = min(reader.get(v, levels[place]), levels[place])


def _contracted(equation: Any) -> float:
    """The multiplications of a contraction, about: each of its three axes is one of two tensors."""
    if equation.primitive.name not in ("dot_general", "conv_general_dilated"):
        return 0
    return math.sqrt(math.prod(v.aval.size for v in (*equation.invars, *equation.outvars)))


def _bytes(variable: Var) -> int:
    return variable.aval.size * variable.aval.dtype.itemsize


def _kind(aval: Any) -> tuple:
    return aval.shape, aval.dtype


__all__ = ["FEWEST", "Split", "split"]
