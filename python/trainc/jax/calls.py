"""A plan as an operation of JAX's: XLA calls it, with its own buffers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr
from jax.interpreters import mlir
from jaxlib.mlir import ir

from trainc.base.errors import InternalError
from trainc.jax import compat
from trainc.xla.plans import TARGET, XlaPlan


@dataclasses.dataclass(frozen=True, eq=False)
class Original:
    """What a plan was made of. `refused` is told why it stands in the plan's place."""

    jaxpr: ClosedJaxpr
    refused: Callable[[str], None]

    def of(self, needed: tuple[int, ...], values: tuple[Any, ...]) -> list[Any]:
        """Its results, of those arguments that the plan needs: no other's value matters."""
        given = dict(zip(needed, values, strict=True))
        jaxpr, used = compat.without_unused(self.jaxpr)
        avals = [(i, aval) for i, aval in enumerate(self.jaxpr.in_avals) if used[i]]
        arguments = [given[i] if i in given else jnp.zeros(aval.shape, aval.dtype) for i, aval in avals]
        return jax.core.eval_jaxpr(jaxpr, self.jaxpr.consts, *arguments)


plan_p = jax.extend.core.Primitive(TARGET)
plan_p.multiple_results = True


@plan_p.def_abstract_eval
def _results(*_: Any, results: tuple[Any, ...], **__: Any) -> tuple[Any, ...]:
    return results


@plan_p.def_impl
def _outside_of_jit(*arguments: Any, **parameters: Any) -> Any:
    """Where a jaxpr that holds it is evaluated operation by operation."""
    return jax.jit(lambda *a: plan_p.bind(*a, **parameters))(*arguments)


def _lower(
    context: Any, *operands: ir.Value, plan: str, results: tuple[Any, ...], aliases: tuple[tuple[int, int], ...],
    needed: tuple[int, ...], original: Original,
) -> Any:  # fmt: skip
    # Where arguments lie is known here, and not while the function is traced. XLA would give each device the whole of all.
    if (devices := compat.devices_of(context)) > 1:
        original.refused(f"it runs on several devices ({devices})")
        return mlir.lower_fun(lambda *values: original.of(needed, values), multiple_results=True)(context, *operands)
    types = [mlir.aval_to_ir_type(context.module_context, result) for result in results]
    rule = jax.ffi.ffi_lowering(
        TARGET, operand_layouts=[_row_major(v.type) for v in operands], result_layouts=[_row_major(t) for t in types],
        operand_output_aliases=dict(aliases),
    )  # fmt: skip
    return rule(context, *operands, plan=plan)


mlir.register_lowering(plan_p, _lower, platform="cpu")


def _row_major(type_: ir.Type) -> list[int]:
    return list(reversed(range(ir.RankedTensorType(type_).rank)))


def call(
    plan: XlaPlan, arguments: list[Any], results: list[Any], given_away: tuple[tuple[int, int], ...], original: Original
) -> list[Any]:
    """Within a traced function. `results`: the abstract values of what it gives; `given_away`: inputs whose memory results may
    take, as the plan was asked for them. (An argument that nothing reads is not passed: jax.jit drops it likewise, and so
    does not delete it where it is donated.)"""
    place = {i: k for k, i in enumerate(plan.needed)}
    aliases = tuple((place[i], k) for i, k in plan.aliases(given_away))
    return plan_p.bind(
        *(arguments[i] for i in plan.needed), plan=plan.name, results=tuple(results), aliases=aliases,
        needed=tuple(plan.needed), original=original,
    )  # fmt: skip


@functools.cache
def register_handler() -> None:
    """Once XLA's CPU backend is there: a handler that it refuses would keep it from starting."""
    from trainc import _core

    try:
        jax.local_devices(backend="cpu")
        jax.ffi.register_ffi_target(TARGET, _core.xla_handler(), platform="cpu")
    except Exception as error:
        raise InternalError(f"jaxlib {jax.lib.__version__} refuses trainc's handler: {error}") from error


__all__ = ["Original", "call", "register_handler"]
