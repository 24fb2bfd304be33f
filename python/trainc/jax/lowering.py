"""A call of a JAX function -> a captured step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from trainc.base.errors import NotCompiled
from trainc.base.step_graph import StepGraph
from trainc.jax import compat, wire

PLATFORM = "trainc"  # nobody has registered it: every operation is lowered as for a platform that JAX does not know


def lowered(traced: Any, name: str, donated: list[bool]) -> tuple[StepGraph, list[np.ndarray]]:
    """Of a function that was traced with all its arguments kept, and the large constants that are inputs behind these. `donated`:
    of each array among the arguments. NotCompiled where JAX cannot lower it, or it does more than to compute its results."""
    effect = _effect(traced.jaxpr)
    if effect is not None:
        raise NotCompiled(effect)
    try:
        module = compat.module_on_cpu(traced, PLATFORM)
    except NotImplementedError as error:  # a primitive that is lowered for platforms by name alone
        raise NotCompiled(str(error).partition("\n")[0].replace(f" for platform {PLATFORM}", "")) from error
    for what in ("partitions", "replicas"):
        with module.context:
            count = ir.IntegerAttr(module.operation.attributes[f"mhlo.num_{what}"]).value
        if count != 1:
            raise NotCompiled(f"it runs on several devices ({count} {what})")
    graph, constants = wire.written(module, name, donated)
    inputs, results = len(donated) + len(constants), jax.tree.leaves(traced.out_avals)
    pairs = _given_away(jax.tree.leaves(traced.in_avals), donated, results)
    return StepGraph("inference", name, inputs, 0, len(results), lambda: graph, given_away=pairs), constants


def _given_away(arguments: list[Any], donated: list[bool], results: list[Any]) -> tuple[tuple[int, int], ...]:
    """The donated arguments with the results that JAX has take their memory: the first with the first of one shape and dtype. (If
    an operation had other pairs, XLA would copy.)"""
    free: dict[tuple, list[int]] = {}
    for i, argument in enumerate(arguments):
        if donated[i]:
            free.setdefault((argument.shape, str(argument.dtype)), []).append(i)
    pairs = []
    for i, result in enumerate(results):
        of_kind = free.get((result.shape, str(result.dtype)))
        if of_kind:
            pairs.append((of_kind.pop(0), i))
    return tuple(pairs)


def _effect(jaxpr: Any) -> str | None:
    """The first operation that does something beside its results, with its line."""
    if not jaxpr.effects:
        return None
    for equation in _equations(jaxpr.jaxpr):
        if equation.effects and not any(True for _ in jax.extend.core.jaxprs_in_params(equation.params)):
            return f"{equation.primitive.name} at {compat.line_of(equation)} does something beside its result"
    return f"it does something beside its results: {', '.join(map(str, jaxpr.effects))}"


def operations_of(traced: Any) -> int:
    """How many operations a traced function has, with those of the functions within it."""
    return sum(1 for _ in _equations(traced.jaxpr.jaxpr))


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Of a jaxpr and those within it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _equations(inner)


__all__ = ["lowered", "operations_of"]
