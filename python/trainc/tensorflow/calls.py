"""A plan as an operation of TensorFlow's: its XLA calls it, with its own buffers."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from trainc.tensorflow import compat
from trainc.tensorflow.draws import STATE_TYPE
from trainc.tensorflow.lowering import Lowered, is_variable, type_of
from trainc.xla import modules
from trainc.xla.plans import TARGET, XlaPlan


class Called:
    """A lowered function whose body is a plan. To be called with the function's own arguments, while TensorFlow traces: the
    variables' new values lie where the old ones did, wherever nobody else holds these (which TensorFlow knows)."""

    def __init__(self, lowered: Lowered, plan: XlaPlan, state: tf.Variable | None):
        """`state`: of random numbers, where the function draws."""
        self._lowered = lowered
        self._drawn_from = [state.handle] if state is not None else []
        self._constants = [tf.constant(c) for c in lowered.constants]
        types = [*lowered.argument_types, *(type_of(c) for c in self._constants), *(STATE_TYPE for _ in self._drawn_from)]
        self._module = modules.calling(plan.name, types, lowered.result_types, plan.aliases(lowered.given_away))
        self._function = tf.function(self._body, autograph=False, jit_compile=True)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        return list(self._function(*arguments))

    def _body(self, *arguments: Any) -> list[Any]:
        lowered = self._lowered
        captured = [_read(c) if is_variable(c) else c for c in lowered.captured]
        state = [_read(v) for v in self._drawn_from]
        specs = [*lowered.specs, *(tf.TensorSpec(s.shape, s.dtype) for s in state)]
        given = compat.call_module(self._module, [*arguments, *captured, *self._constants, *state], specs)
        changed = [*(lowered.captured[place] for place in lowered.updated), *self._drawn_from]
        results = len(given) - len(changed)
        for variable, value in zip(changed, given[results:], strict=True):
            tf.raw_ops.AssignVariableOp(resource=variable, value=value)
        return given[:results]


def _read(variable: Any) -> Any:
    return tf.raw_ops.ReadVariableOp(resource=variable, dtype=compat.shape_of_variable(variable).dtype)


@functools.cache
def register_handler() -> None:
    """InternalError where TensorFlow's XLA refuses it."""
    from trainc import _core

    _core.register_xla_handler(compat.xla_interface(), TARGET)


__all__ = ["Called", "register_handler"]
