"""`trainc.explain` of a model, an optimizer or a train_step."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from trainc.base import records
from trainc.base.errors import UserError
from trainc.base.report import Explanation, written
from trainc.torch import compat
from trainc.torch.capture import distributed
from trainc.torch.doors import backend
from trainc.torch.doors.step import TrainStep


def explain(model: Any, file: Any = None, batch: Any = None) -> Explanation:
    """What was compiled for `model`, or for an optimizer. `file`: a path, or something with `write`, that gets the text too.
    `batch`: arguments of a call to compile for first."""
    model = distributed.inner_of(model)
    if not callable(model) and not isinstance(model, torch.optim.Optimizer):
        kind = type(model).__name__
        raise UserError(f"trainc.explain wants a model, an optimizer or what trainc.train_step returned, got {kind}")
    if batch is not None:
        compiled = model if hasattr(model, "prepare") else compat.compiled_call(model)
        if not hasattr(compiled, "prepare"):
            raise UserError("trainc.explain(batch=...) wants a model after trainc.compile, or what trainc.train_step returned")
        args, kwargs = ((), batch) if isinstance(batch, dict) else (batch if isinstance(batch, (tuple, list)) else (batch,), {})
        compiled.prepare(tuple(args), kwargs)
    parts = model.parts() if isinstance(model, TrainStep) else []
    compilations = [compilation for part in (model, *parts) for compilation in records.of(part)]
    original = compat.dynamo_original(model)
    title = getattr(model, "__name__", type(model if original is None else original).__name__)
    if original is not None or any(compilation.route in ("dynamo", "split") for compilation in compilations):
        compilations += backend.compilations  # Dynamo does not say whose graph it was: those of all models
    if compilations and isinstance(model, TrainStep) and (reason := model.why_in_parts()):
        both = "; ".join(filter(None, (compilations[0].reason, reason)))
        compilations[0] = dataclasses.replace(compilations[0], reason=both)
    return written(Explanation(title, compilations), file)


__all__ = ["explain"]
