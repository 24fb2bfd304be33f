"""A concrete function of TensorFlow's -> a captured step."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import tensorflow as tf

from trainc.base.errors import InternalError, NotCompiled
from trainc.base.step_graph import StepGraph
from trainc.tensorflow import compat, draws
from trainc.xla import modules, wire

_MISSING = re.compile(r"\(No registered '(\w+)' OpKernel")
Pairs = tuple[tuple[int, int], ...]
# MLIR's names of dtypes
_ELEMENTS = {
    tf.float64: "f64", tf.float32: "f32", tf.float16: "f16", tf.bfloat16: "bf16", tf.int64: "i64", tf.int32: "i32",
    tf.int16: "i16", tf.int8: "i8", tf.bool: "i1", tf.uint64: "ui64", tf.uint32: "ui32", tf.uint16: "ui16", tf.uint8: "ui8",
    tf.complex64: "complex<f32>", tf.complex128: "complex<f64>",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Lowered:
    """XLA's module takes the function's arguments, then what it captured, tensors and the values of variables, in the order in
    which the function met them; it gives the function's results, then the new values of some variables."""

    step: StepGraph
    captured: list[Any]  # tensors, and the variables' resources
    constants: list[np.ndarray]  # large ones of the module, inputs behind these
    draws: bool  # whether the last input and the last output are the state of random numbers (draws.py)
    updated: list[int]  # variables, by their places among what is captured, whose new values are behind the results
    argument_types: list[str]  # of the inputs before the constants, as MLIR has them
    result_types: list[str]
    specs: list[tf.TensorSpec]  # of the results and the new values
    given_away: Pairs  # inputs that are variables, with the outputs that are their new values


def lowered(concrete: Any, name: str) -> Lowered:
    """NotCompiled where XLA cannot do what the function does."""
    arguments = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
    captured = list(concrete.captured_inputs)
    for v in filter(is_variable, captured):
        if getattr(v, "device", "") and not v.device.endswith("device:CPU:0"):
            raise NotCompiled(f"a variable lies on {v.device.rpartition('/')[2]}; trainc.function is for the first CPU")
        if not compat.shape_of_variable(v).shape.is_fully_defined():
            raise NotCompiled("a variable's shape may change: a plan is for the one that it has")
    try:
        hlo = compat.hlo_of(concrete)
    except (tf.errors.OpError, ValueError) as error:
        raise NotCompiled(_reason(error)) from error
    module = modules.of_hlo(hlo)
    argument_types, result_types = modules.types_of_main(module)
    if not result_types:
        raise NotCompiled("it gives nothing and changes no variable")
    wanted = [*arguments, *(compat.shape_of_variable(c) if is_variable(c) else c for c in captured)]
    if len(argument_types) != len(wanted):
        raise NotCompiled("XLA must know the value of an argument to compile it (a shape, an axis)")
    if any(w.shape.is_fully_defined() and type_of(w) != found for w, found in zip(wanted, argument_types, strict=True)):
        raise InternalError(f"{name}: XLA takes {', '.join(argument_types)}, in another order than the function's inputs")
    first = len(arguments)
    given_away = tuple(sorted((i, j) for j, i in modules.overwritten(module).items()))
    results = concrete.outputs
    updated = [i - first for i, j in sorted(given_away, key=lambda pair: pair[1])]
    if len(results) + len(updated) != len(result_types) or any(i < 0 or not is_variable(captured[i]) for i in updated):
        raise InternalError(f"{name}: XLA gives {len(result_types)} results of {len(results)} and {len(updated)} variables")
    graph, constants = wire.written(module, name, [i in dict(given_away) for i in range(len(wanted))])
    inputs = len(wanted) + len(constants)
    if (drawing := draws.with_state(graph)) is not None:
        graph, given_away = drawing, (*given_away, (inputs, len(result_types)))
        inputs, result_types = inputs + 1, [*result_types, draws.STATE_TYPE]
    specs = [*(tf.TensorSpec(r.shape, r.dtype) for r in results), *(compat.shape_of_variable(captured[k]) for k in updated)]
    step = StepGraph("inference", name, inputs, 0, len(result_types), lambda: graph, given_away=given_away)
    return Lowered(step, captured, constants, drawing is not None, updated, argument_types, result_types, specs, given_away)


def is_variable(captured: Any) -> bool:
    return captured.dtype == tf.resource


def type_of(tensor: Any) -> str:
    """As MLIR writes it, of a tensor or its description."""
    return f"tensor<{''.join(f'{n}x' for n in tensor.shape)}{_ELEMENTS.get(tensor.dtype, tensor.dtype.name)}>"


def _reason(error: BaseException) -> str:
    """Of what XLA says, the operations that it has not; else its first line."""
    text = getattr(error, "message", None) or str(error)
    missing = dict.fromkeys(_MISSING.findall(text))
    if missing:
        return f"XLA has no {', no '.join(missing)} for the CPU"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


__all__ = ["Lowered", "is_variable", "lowered", "type_of"]
