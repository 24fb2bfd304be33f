"""A plan as an operation of JAX's: XLA calls it, with its own buffers."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

import jax
import jax.extend
from jax.interpreters import mlir
from jaxlib.mlir import ir

from trainc.base import timing
from trainc.base.errors import InternalError

TARGET = "trainc_plan"  # the name of the handler (src/runtime/xla/handler.h)

plan_p = jax.extend.core.Primitive("trainc_plan")
plan_p.multiple_results = True


@plan_p.def_abstract_eval
def _results(*_: Any, results: tuple[Any, ...], **__: Any) -> tuple[Any, ...]:
    return results


@plan_p.def_impl
def _outside_of_jit(*arguments: Any, **parameters: Any) -> Any:
    """Where a jaxpr that holds it is evaluated operation by operation."""
    return jax.jit(lambda *a: plan_p.bind(*a, **parameters))(*arguments)


def _lower(context: Any, *operands: ir.Value, plan: str, results: tuple[Any, ...], aliases: tuple[tuple[int, int], ...]) -> Any:
    types = [mlir.aval_to_ir_type(context.module_context, result) for result in results]
    rule = jax.ffi.ffi_lowering(
        TARGET, operand_layouts=[_row_major(v.type) for v in operands], result_layouts=[_row_major(t) for t in types],
        operand_output_aliases=dict(aliases),
    )  # fmt: skip
    return rule(context, *operands, plan=plan)


mlir.register_lowering(plan_p, _lower, platform="cpu")


def _row_major(type_: ir.Type) -> list[int]:
    return list(reversed(range(ir.RankedTensorType(type_).rank)))


class XlaPlan:
    """A plan that XLA calls by its name: a hash of what it does, so that no stored executable of XLA's calls another."""

    def __init__(self, plan: Any, from_cache: bool, flushes_denormals: bool):
        from trainc import _core

        _register_handler()
        self.plan, self.from_cache = plan, from_cache
        self.graph: Any = None  # base/plans.py
        timing.add(self)
        self.name = hashlib.sha256(plan.save() + bytes([flushes_denormals])).hexdigest()
        _core.publish(self.name, plan, flushes_denormals)
        kept = [(info[3], i) for i, info in enumerate(plan.output_info) if info[3] >= 0]  # inputs that are results as they are
        self._in_place = {*plan.given_away, *kept}

    def __call__(self, arguments: list[Any], results: list[Any], given_away: tuple[tuple[int, int], ...]) -> list[Any]:
        """Within a traced function. `results`: the abstract values of what it gives; `given_away`: inputs whose memory results
        may take, as the plan was asked for them."""
        aliases = tuple(pair for pair in given_away if pair in self._in_place)
        return plan_p.bind(*arguments, plan=self.name, results=tuple(results), aliases=aliases)

    def report(self) -> dict:
        return {**json.loads(self.plan.report()), "from_cache": self.from_cache}


@functools.cache
def _register_handler() -> None:
    """Once XLA's CPU backend is there: a handler that it refuses would keep it from starting."""
    from trainc import _core

    try:
        jax.local_devices(backend="cpu")
        jax.ffi.register_ffi_target(TARGET, _core.xla_handler(), platform="cpu")
    except Exception as error:
        raise InternalError(f"jaxlib {jax.lib.__version__} refuses trainc's handler: {error}") from error


__all__ = ["XlaPlan"]
