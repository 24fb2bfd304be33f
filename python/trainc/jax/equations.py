"""Equations of a jaxpr, one at a time: what is within them, what they do beside their results, how they are traced again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, Var, jaxprs_in_params

from trainc.jax import compat

# Calls whose body may stand in their place once derivatives are taken, and where they keep it.
_CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr", "remat2": "jaxpr", "checkpoint": "jaxpr",
}  # fmt: skip

Function = Callable[..., list[Any]]  # flat values -> flat results


def within(jaxpr: Any) -> Iterator[Any]:
    """Of a jaxpr and those within it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from within(inner)


def variables(atoms: list[Any]) -> list[Var]:
    return list(dict.fromkeys(atom for atom in atoms if isinstance(atom, Var)))


def has_effects(equation: Any) -> bool:
    """Whether it does something beside its results, or has to do with an array that is changed in place."""
    atoms = [*equation.invars, *equation.outvars]
    return bool(equation.effects) or not all(isinstance(atom.aval, jax.core.ShapedArray) for atom in atoms)


def effect_of(equation: Any) -> str:
    """The first operation of an equation that does something beside its result, with its line."""
    for inner in (e for jaxpr in jaxprs_in_params(equation.params) for e in within(jaxpr)):
        if inner.effects and not any(True for _ in jaxprs_in_params(inner.params)):
            equation = inner
            break
    return f"{equation.primitive.name} at {compat.line_of(equation)} does something beside its result"


def call_of(equation: Any) -> Function | None:
    """Of an equation that only calls a function: that function."""
    field = _CALLS.get(equation.primitive.name)
    if field is None or compat.is_placed(equation):
        return None
    body = equation.params[field]
    if not isinstance(body, ClosedJaxpr):
        body = ClosedJaxpr(body, ())
    if len(body.jaxpr.invars) != len(equation.invars):
        return None

    def call(*values: Any) -> list[Any]:
        if equation.params.get("differentiated") and equation.params.get("prevent_cse"):
            values = tuple(lax.optimization_barrier(values))  # what is to be computed again is not kept, as JAX lowers it
        inputs = dict(zip(body.jaxpr.constvars, body.consts, strict=True)) | dict(zip(body.jaxpr.invars, values, strict=True))
        return evaluate(body.jaxpr, inputs, lambda _, inner, given: compat.bind(inner, given, equation))

    return call


def bodies_of(equation: Any) -> list[ClosedJaxpr]:
    """What a loop runs, or a choice chooses between; empty of any other."""
    parameters = equation.params
    match equation.primitive.name:
        case "scan":
            return [parameters["jaxpr"]]
        case "while":
            return [parameters["body_jaxpr"]]
        case "cond":
            return list(parameters["branches"])
    return []


def carried(equation: Any) -> list[tuple[int, int]]:
    """Arguments of a loop's body with the results that are the next trip's."""
    parameters = equation.params
    if equation.primitive.name == "scan":
        return [(parameters["num_consts"] + k, k) for k in range(parameters["num_carry"])]
    if equation.primitive.name == "while":
        first = parameters["body_nconsts"]
        return [(first + k, k) for k in range(len(parameters["body_jaxpr"].out_avals))]
    return []


def with_bodies(equation: Any, bodies: list[Function], values: list[Any]) -> list[Any]:
    """A loop or a choice with other functions in the place of `bodies_of`."""
    parameters = equation.params
    match equation.primitive.name:
        case "scan":
            kept = parameters["num_consts"]
            among = kept + parameters["num_carry"]

            def trip(carry: Any, row: Any) -> Any:
                results = bodies[0](*values[:kept], *carry, *row)
                return tuple(results[: len(carry)]), tuple(results[len(carry) :])

            carry, rows = lax.scan(
                trip, tuple(values[kept:among]), tuple(values[among:]), length=parameters["length"],
                reverse=parameters["reverse"], unroll=parameters["unroll"],
            )  # fmt: skip
            return [*carry, *rows]
        case "while":
            first, second = parameters["cond_nconsts"], parameters["body_nconsts"]
            test, own = parameters["cond_jaxpr"], values[first : first + second]
            rows = test.out_avals[0].shape  # of a loop under vmap: it runs until no row goes on, and a row that is done stays

            def goes_on(carry: Any) -> Any:
                return jax.core.eval_jaxpr(test.jaxpr, test.consts, *values[:first], *carry)[0]

            def next_of(carry: Any) -> Any:
                results = bodies[0](*own, *carry)
                return tuple(map(functools.partial(_where, goes_on(carry)), results, carry) if rows else results)

            any_goes_on = (lambda carry: goes_on(carry).any()) if rows else goes_on
            return list(lax.while_loop(any_goes_on, next_of, tuple(values[first + second :])))
    return list(lax.switch(values[0], [lambda *v, body=body: tuple(body(*v)) for body in bodies], *values[1:]))


def _where(rows: Any, x: Any, y: Any) -> Any:
    """x in these rows, y in the others. rows: bool, of the first axes."""
    return lax.select(lax.broadcast_in_dim(rows, x.shape, range(rows.ndim)), x, y)


def evaluate(jaxpr: Any, values: dict[Var, Any], one: Callable[[int, Any, list[Any]], list[Any]]) -> list[Any]:
    """What a jaxpr gives, `one(place, equation, values)` computing the results of an equation. `values`: of its inputs."""
    for place, equation in enumerate(jaxpr.eqns):
        results = one(place, equation, read(equation.invars, values))
        values.update(zip(equation.outvars, results, strict=True))
    return read(jaxpr.outvars, values)


def read(atoms: list[Any], values: dict[Var, Any]) -> list[Any]:
    return [atom.val if isinstance(atom, Literal) else values[atom] for atom in atoms]


__all__ = [
    "Function", "bodies_of", "call_of", "carried", "effect_of", "evaluate", "has_effects", "read", "variables", "with_bodies",
    "within",
]  # fmt: skip
