"""trainc.compile: checks what it was given, then attaches itself to the model and the optimizer."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator

import torch

from trainc.base import cache, config, tuning
from trainc.base.accelerate import inner_optimizer
from trainc.base.errors import UserError
from trainc.torch import compat
from trainc.torch.capture import distributed
from trainc.torch.doors import shared_plans
from trainc.torch.doors.call import CompiledCall
from trainc.torch.doors.fuse import StepFusion
from trainc.torch.doors.memory import ModelSettings, checked
from trainc.torch.doors.sharded import compile_shards
from trainc.torch.optimizers import fits_a_plan, formula_of, names
from trainc.torch.optimizers.optimizer import attach, replaced
from trainc.torch.verify.verification import Verification, check_verify

cache.peers = shared_plans.peers
_compiles = True


@contextlib.contextmanager
def compiles_nothing() -> Iterator[None]:
    """Meanwhile what is to be compiled is checked, and stays PyTorch's (`trainc run --eager`)."""
    global _compiles
    _compiles, before = False, _compiles
    try:
        yield
    finally:
        _compiles = before


def compile_objects(model, given, *, tune, memory, fuse_step, verify):
    optimizer = inner_optimizer(given)
    check(model, optimizer, tune, memory, fuse_step, verify)
    if not _compiles:
        return model if optimizer is None else (model, given)
    if config.cache:
        cache.directory()  # says so now where plans cannot be kept
        config.cache_bytes()
    if compile_shards(model, tune, memory=memory, fuse_step=fuse_step, verify=verify):
        return model if optimizer is None else (attach(optimizer), (model, given))[1]
    inner = distributed.compiled_part(model)
    fusion = StepFusion(optimizer) if fuse_step else None
    counts_calls = optimizer is None or formula_of(optimizer) is None or replaced(optimizer) is not None
    verification = Verification.of(verify, inner, counts_calls)
    settings = ModelSettings(memory, optimizer, tune, fuse_step)
    compat.set_compiled_call(inner, CompiledCall(inner, settings, fusion, verification))
    if optimizer is None:
        return model
    attach(optimizer, fusion, verification)
    return model, given


def compile_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Compiles the step of an optimizer that was made after its model was compiled."""
    if _compiles:
        attach(optimizer)


def check(model, optimizer, tune, memory, fuse_step, verify=False) -> None:
    if isinstance(model, type) and issubclass(model, torch.nn.Module):
        raise UserError(f"trainc.compile wants a model, got the class {model.__name__}: call it first, {model.__name__}(...)")
    if not isinstance(model, torch.nn.Module):
        doors = 'trainc.train_step takes the body of a loop, torch.compile(f, backend="trainc") a function of tensors'
        hint = f": {doors}" if isinstance(model, types.FunctionType) else ""
        raise UserError(f"trainc.compile wants a torch.nn.Module, got {_kind(model)}{hint}")
    if isinstance(model, torch.jit.ScriptModule):
        raise UserError("trainc.compile cannot see into a torch.jit.ScriptModule; give it the module before torch.jit.script")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        if callable(optimizer) or isinstance(optimizer, torch.optim.lr_scheduler.LRScheduler):
            hint = ": give it the optimizer that steps these parameters, torch.optim.AdamW(model.parameters())"
        else:
            hint = ""
        raise UserError(f"trainc.compile wants a torch.optim.Optimizer as its second argument, got {_kind(optimizer)}{hint}")
    tuning.check(tune)
    checked(memory)
    if not isinstance(fuse_step, bool):
        raise UserError(f"fuse_step={fuse_step!r} is neither True nor False")
    check_verify(verify)
    if fuse_step and not fits_a_plan(optimizer):
        if optimizer is None:
            raise UserError("fuse_step=True wants the optimizer, too: trainc.compile(model, optimizer, fuse_step=True)")
        raise UserError(f"fuse_step=True wants {names('or', in_plans=True)}, not {type(optimizer).__name__}: leave it out")


def _kind(value) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
