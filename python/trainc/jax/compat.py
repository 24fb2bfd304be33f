"""Every private name of JAX's, with what it is for."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax._src import source_info_util
from jax._src.core import trace_state_clean
from jax._src.interpreters import mlir, partial_eval
from jax._src.lax.control_flow import conditionals
from jax._src.sharding_impls import UnspecifiedValue

from trainc.base import PACKAGE

source_info_util.register_exclusion(PACKAGE)  # what is traced again is of the user's line, not of ours


def is_tracing() -> bool:
    """Whether a function is being traced on this thread: what is called now becomes a part of it."""
    return not trace_state_clean()


def line_of(equation: Any) -> str:
    """The user's line of an equation of a jaxpr: "/path/train.py:41:8 (step)"."""
    return source_info_util.summarize(equation.source_info)


def bind(equation: Any, values: list[Any], caller: Any = None) -> list[Any]:
    """An equation of a jaxpr traced again, with its own line and configuration. `caller`: the equation in whose place it stands,
    the call of a function that may not know its line."""
    parameters = equation.primitive.get_bind_params(equation.params)
    names = source_info_util.current_name_stack()
    names = (names + caller.source_info.name_stack if caller is not None else names) + equation.source_info.name_stack
    traceback = equation.source_info.traceback
    if caller is not None and caller.source_info.traceback is not None:
        traceback = caller.source_info.traceback if traceback is None else traceback + caller.source_info.traceback
    with source_info_util.user_context(traceback, name_stack=names), equation.ctx.manager:
        results = equation.primitive.bind(*values, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]


def without_unused(jaxpr: Any) -> tuple[Any, list[bool]]:
    """A closed jaxpr's jaxpr without the inputs that no result or effect depends on, as jax.jit drops them; which stay."""
    return partial_eval.dce_jaxpr(jaxpr.jaxpr, [True] * len(jaxpr.jaxpr.outvars))


def used_inputs(jaxpr: Any) -> list[bool]:
    """Of a closed jaxpr: which of its inputs a result or an effect depends on."""
    return without_unused(jaxpr)[1]


def is_placed(equation: Any) -> bool:
    """Whether a call says on which devices its values lie."""
    parameters = equation.params
    shardings = [*parameters.get("in_shardings", ()), *parameters.get("out_shardings", ())]
    mesh = parameters.get("ctx_mesh")
    return not all(isinstance(s, UnspecifiedValue) for s in shardings) or (mesh is not None and not mesh.empty)


def devices_of(context: Any) -> int:
    """How many devices the module is for that a lowering rule writes to."""
    axes = context.module_context.axis_context
    return axes.mesh.size if hasattr(axes, "mesh") else getattr(axes, "num_devices", 1)


def module_on_cpu(traced: Any, platform: str) -> Any:
    """The StableHLO module of a traced function, lowered for a platform that JAX does not know but for what chooses by the
    platform (`lax.platform_dependent`): that is of the CPU."""
    return traced.lower(lowering_platforms=(platform,), _private_parameters=_ON_CPU).compiler_ir("stablehlo")


def _cpus(platforms: Any) -> int:
    """Of the branches of a choice by the platform."""
    for i, names in enumerate(platforms):
        if names is None or "cpu" in names:
            return i
    raise NotImplementedError(f"none of the branches for {platforms} is for the CPU")


def _index_on_cpu(context: Any, *, platforms: Any) -> Any:
    return [mlir.ir_constant(np.int32(_cpus(platforms)))]


def _cond_on_cpu(context: Any, index: Any, *operands: Any, branches: Any, branches_platforms: Any = None, **others: Any) -> Any:
    if branches_platforms is not None:
        branches = (branches[_cpus(branches_platforms)],)  # an index beyond the last branch is the last one's
    return conditionals._cond_lowering(context, index, *operands, branches=branches, **others)


_ON_CPU = mlir.LoweringParameters(
    override_lowering_rules=((conditionals.platform_index_p, _index_on_cpu), (jax.lax.cond_p, _cond_on_cpu))
)

__all__ = ["bind", "devices_of", "is_placed", "is_tracing", "line_of", "module_on_cpu", "used_inputs", "without_unused"]
