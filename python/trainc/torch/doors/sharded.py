"""FSDP2 (`fully_shard`) and FSDP1: of each innermost sharded module, what its forward does between FSDP's own hooks is compiled.

These hooks gather the module's parameters before its forward and its backward, and put ordinary tensors in the place of the
DTensors; afterwards they free them, and scatter the gradients. None of it may be part of a plan, and all of it stays as it is: a
compiled call takes the place of the module's `forward` alone. What lies between the sharded modules runs in PyTorch. A
FullyShardedDataParallel (FSDP1) has the same in its own forward, and calls the module that it wraps: that call is compiled.
"""

from __future__ import annotations

from typing import Any

import torch

from trainc.base import records
from trainc.base.errors import UserError
from trainc.torch import compat
from trainc.torch.capture import distributed
from trainc.torch.doors.call import CompiledCall
from trainc.torch.doors.memory import ModelSettings

# What FSDP puts on a module, and what `Forward` does
_NOT_ITS_OWN = {*compat.FORWARD_HOOKS, *compat.FORWARD_HOOKS.values(), *compat.BACKWARD_HOOKS, compat.HOOKS_AFTER_ERRORS,
                compat.COMPILED_CALL, "forward"}  # fmt: skip


def compile_shards(model: torch.nn.Module, tune: str, **others: Any) -> bool:
    """False, and nothing is done, where `model` has no sharded module."""
    shards = distributed.shards(model)
    if not shards:
        return False
    if given := next((name for name, value in others.items() if value not in (None, False)), None):
        raise UserError(f"trainc.compile: {given}= is not there for sharded models: leave it out")
    for shard in shards:
        hooked = [key for key in compat.BACKWARD_HOOKS if shard.__dict__[key]]
        if hooked:
            raise UserError(f"trainc.compile: {type(shard).__name__} has backward hooks of its own; compile it before they come")
    parts = [distributed.sharded_part(shard) for shard in shards]
    for found in filter(None, (part and distributed.beside_forward(part) for part in parts)):
        raise UserError(f"trainc.compile: {found}")
    for shard, part in zip(shards, parts, strict=True):
        if part is None:
            shard.forward = Forward(shard, records.of(model), tune)
        else:
            records.share(part, records.of(model))
            compat.set_compiled_call(part, CompiledCall(part, ModelSettings(None, None, tune), wrapped=True))
    return True


class Forward:
    """A sharded module's forward: that of a module without hooks which has its tables of parameters, buffers and modules, and its
    attributes."""

    def __init__(self, shard: torch.nn.Module, compilations: list[records.Compilation], tune: str):
        kind = compat.unsharded_class(type(shard))
        self._attributes, self._bare = shard.__dict__, kind.__new__(kind)
        self._plain = {key: value for key, value in torch.nn.Module().__dict__.items() if key in _NOT_ITS_OWN}
        self._bare.__dict__.update(self._plain)
        self._take()
        records.share(self._bare, compilations)
        compat.set_compiled_call(self._bare, CompiledCall(self._bare, ModelSettings(None, None, tune), wrapped=True))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._take()
        try:
            return self._bare(*args, **kwargs)
        finally:
            self._give_back()

    def _take(self) -> None:
        own, bare = self._attributes, self._bare.__dict__
        for key in bare.keys() - own.keys() - _NOT_ITS_OWN:
            del bare[key]
        bare.update({key: value for key, value in own.items() if key not in _NOT_ITS_OWN})

    def _give_back(self) -> None:
        """What forward put on its module."""
        own = self._attributes
        own.update({
            key: value for key, value in self._bare.__dict__.items()
            if key not in _NOT_ITS_OWN and own.get(key, self) is not value
        })  # fmt: skip


__all__ = ["compile_shards"]
