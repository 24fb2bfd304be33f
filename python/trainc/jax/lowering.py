"""A call of a JAX function -> a captured step."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib.mlir import ir

from trainc.base.errors import NotCompiled
from trainc.base.step_graph import StepGraph
from trainc.jax import compat, equations
from trainc.xla import wire

PLATFORM = "trainc"  # nobody has registered it: every operation is lowered as for a platform that JAX does not know

Pairs = tuple[tuple[int, int], ...]


def lowered(traced: Any, name: str, given_away: Pairs) -> tuple[StepGraph, list[np.ndarray]]:
    """Of a function that was traced with all its arguments kept, and the large constants that are inputs behind these.
    `given_away`: arguments with the results that may take their memory. NotCompiled where JAX cannot lower it, or it does more
    than to compute its results."""
    effect = _effect(traced.jaxpr)
    if effect is not None:
        raise NotCompiled(effect)
    arguments, results = (len(jax.tree.leaves(avals)) for avals in (traced.in_avals, traced.out_avals))
    gone = {i for i, _ in given_away}
    graph, constants = wire.written(module_of(traced), name, [i in gone for i in range(arguments)])
    return StepGraph("inference", name, arguments + len(constants), 0, results, lambda: graph, given_away=given_away), constants


def module_of(traced: Any) -> ir.Module:
    """The StableHLO module of a traced function. NotCompiled where JAX cannot lower it, or it runs on several devices."""
    try:
        module = compat.module_on_cpu(traced, PLATFORM)
    except Exception as error:  # a primitive that is lowered for platforms by name alone: they say so in several ways
        raise NotCompiled(
            str(error).partition("\n")[0].replace(f" for platform {PLATFORM}", "").replace(f" on {PLATFORM} backend", "")
        ) from error
    for what in ("partitions", "replicas"):
        with module.context:
            count = ir.IntegerAttr(module.operation.attributes[f"mhlo.num_{what}"]).value
        if count != 1:
            raise NotCompiled(f"it runs on several devices ({count} {what})")
    return module


def pairs_of(traced: Any, donated: list[bool]) -> Pairs:
    """The donated arguments with the results that JAX has take their memory: the first with the first of one shape and dtype. (If
    an operation had other pairs, XLA would copy.) One that nothing reads it drops."""
    free: dict[tuple, list[int]] = {}
    used = compat.used_inputs(traced.jaxpr)
    for i, argument in enumerate(jax.tree.leaves(traced.in_avals)):
        if donated[i] and used[i]:
            free.setdefault((argument.shape, str(argument.dtype)), []).append(i)
    pairs = []
    for i, result in enumerate(jax.tree.leaves(traced.out_avals)):
        of_kind = free.get((result.shape, str(result.dtype)))
        if of_kind:
            pairs.append((of_kind.pop(0), i))
    return tuple(pairs)


def on_its_mesh(jaxpr: Any, results: list[Any]) -> list[Any]:
    """Within a traced function: what a plan gives, on the mesh (of one device) that the function says its values lie on: from one
    of the results JAX knows it of all, as it does of the function itself."""
    constraints = (e for e in equations.within(jaxpr.jaxpr) if e.primitive.name == "sharding_constraint")
    sharding = next((e.params["sharding"] for e in constraints), None)
    if not results or not isinstance(sharding, NamedSharding):
        return results
    anywhere = NamedSharding(sharding.mesh, PartitionSpec())
    return [jax.lax.with_sharding_constraint(results[0], anywhere), *results[1:]]


def _effect(jaxpr: Any) -> str | None:
    """The first operation that does something beside its results, with its line."""
    if not jaxpr.effects:
        return None
    for equation in jaxpr.jaxpr.eqns:
        if equation.effects:
            return equations.effect_of(equation)
    return f"it does something beside its results: {', '.join(map(str, jaxpr.effects))}"


def operations_of(traced: Any) -> int:
    """How many operations a traced function has, with those of the functions within it."""
    return sum(1 for _ in equations.within(traced.jaxpr.jaxpr))


__all__ = ["lowered", "module_of", "on_its_mesh", "operations_of", "pairs_of"]
