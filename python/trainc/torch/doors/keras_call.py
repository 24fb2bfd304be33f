"""`trainc.compile` of a Keras model on PyTorch: the forward and the backward of its steps.

Keras keeps what its layers depend on in variables of the thread, which our own capture does not see into and Dynamo guards. So
the model's call goes through torch.compile's tracer, with trainc as its backend.
"""

from __future__ import annotations

from typing import Any

import torch

from trainc.base import records, tuning
from trainc.base.errors import UserError
from trainc.torch import compat
from trainc.torch.capture import turns
from trainc.torch.doors.call import CompiledCall
from trainc.torch.doors.memory import ModelSettings


class KerasCall(CompiledCall):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        plain = getattr(model, "run_eagerly", False) or turns.is_compiling() or compat.dynamo_callback() is not None
        if plain or _has_no_numbers((args, kwargs)):
            return compat.uncompiled_call(model)(*args, **kwargs)
        if not self.compilations:
            self.compilations.append(records.Compilation(type(model).__name__, route="dynamo"))
        return self._through_dynamo([], args, kwargs)

    def prepare(self, args: tuple, kwargs: dict) -> None:
        raise UserError("trainc.explain(batch=...) of a Keras model is not there: train a step first")


def compile_call(model: Any, tune: str) -> None:
    tuning.check(tune)
    compat.dynamo_takes_lists()
    compat.set_compiled_call(model, KerasCall(model, ModelSettings(tune=tune)))


def _has_no_numbers(arguments: Any) -> bool:
    """Whether Keras only asks for shapes and dtypes, before the first step."""
    leaves = compat.pytree.tree_leaves(arguments)
    return any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in leaves)


__all__ = ["compile_call"]
