"""Models that several processes or devices train: what of them is compiled, and what is refused.

What makes such a wrapper right happens beside its forward: gradients are reduced by hooks that autograd runs, parameters are
gathered before a module is called. So a plan holds a model's own computation alone, and the wrapper's code runs around it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from trainc.base.errors import NotCompiled, UserError
from trainc.torch import compat
from trainc.torch.run import gloo_threads as gloo_threads  # at the program's end it waits for them

SHARDED = ("FSDPModule", "FullyShardedDataParallel")
COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor")


def compiled_part(model: torch.nn.Module, what: str = "trainc.compile") -> torch.nn.Module:
    """The module whose forward is compiled: the model's own, or the one that DistributedDataParallel calls, whose autograd node
    gives its gradients to DDP's hooks. UserError, and nothing is changed, where a wrapper's work would be lost."""
    inner = inner_of(model)
    if found := beside_forward(inner):
        raise UserError(f"{what}: {found}")
    return inner


def beside_forward(model: torch.nn.Module) -> str | None:
    """What of a model works beside its forward, so that it cannot be compiled, and what to do; None for an ordinary one. (A
    step's root says which DistributedDataParallel its plan stands for.)"""
    averaged = getattr(model, "averaged", ()) if type(model).__module__.startswith("trainc.") else ()
    for path, module in model.named_modules():
        if id(module) not in averaged and (name := _wrapper(module)):
            where = f"`{path}`" if path else "the model"
            return f"{where} is a {name}, which works beside its forward {ADVICE[name]}"
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if _is_distributed(tensor):
            return f"`{name}` is a DTensor{ADVICE['DTensor']}"
    return None


def inner_of(model: Any) -> Any:
    """The module within DistributedDataParallel (or DataParallel on no more than one device); any other itself."""
    while _wrapper(model) == "DistributedDataParallel" or (_wrapper(model) == "DataParallel" and len(model.device_ids) <= 1):
        model = model.module
    return model


def replicated(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The outermost DistributedDataParallel modules of a model."""
    if _wrapper(model) == "DistributedDataParallel":
        return [model]
    return [found for child in model.children() for found in replicated(child)]


def replicating(model: torch.nn.Module) -> Any:
    """The DistributedDataParallel whose forward calls `model` now; None where there is none such."""
    active = _active()
    return active if active is not None and active.module is model else None


def _active() -> Any:
    """The DistributedDataParallel whose forward runs now; None where there is none."""
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    return None if parallel is None else compat.active_wrapper(parallel.DistributedDataParallel)


def shards(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The innermost modules of `fully_shard`, or FullyShardedDataParallel, within a model (or the model itself)."""
    sharded = [m for m in model.modules() if is_shard(m)]
    return [m for m in sharded if not any(map(is_shard, list(m.modules())[1:]))]


def is_shard(module: torch.nn.Module) -> bool:
    return _wrapper(module) in SHARDED


def sharded_part(shard: torch.nn.Module) -> torch.nn.Module | None:
    """The module that a FullyShardedDataParallel calls between its gathering and its freeing; None of one of `fully_shard`, whose
    hooks are the module's own."""
    return shard.module if _wrapper(shard) == "FullyShardedDataParallel" else None


def reducing() -> Any:
    """The DistributedDataParallel whose forward this is within, if the backward of this call reduces gradients, and nothing but
    PyTorch's own code runs as it does: a hook of the program's may update parameters that a backward has yet to read."""
    active = _active()
    if active is None or not active.require_backward_grad_sync or not compat.reduces_alone(active):
        return None
    return active


ADVICE = {
    "DistributedDataParallel": "on the gradients: compile it alone, trainc.compile(ddp_model, optimizer), or what it wraps",
    "DataParallel": "on copies of the model on several devices: use DistributedDataParallel, a process for each device",
    "FSDPModule": "on parts of the parameters: give trainc.compile what fully_shard returned",
    "FullyShardedDataParallel": "on parts of the parameters: give trainc.compile the whole of it, or its layers before they are "
    "wrapped",
    "DTensor": ", a part of which lies on each process (tensor parallelism): its layers exchange tensors within forward, which "
    "no plan does. They are PyTorch's; torch.compile(model, backend='trainc') compiles what lies between the exchanges",
}


def _wrapper(module: Any) -> str | None:
    """What a module is that works on others beside their forward; None where it is an ordinary one."""
    if isinstance(module, torch.nn.parallel.DataParallel):
        return "DataParallel"
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if parallel is not None and isinstance(module, parallel.DistributedDataParallel):
        return "DistributedDataParallel"
    sharded = sys.modules.get("torch.distributed.fsdp")
    for name in SHARDED:
        if sharded is not None and isinstance(module, getattr(sharded, name, ())):
            return name
    return None


def _is_distributed(tensor: torch.Tensor) -> bool:
    """Whether this is one process's view of a tensor that lies on several."""
    dtensor = sys.modules.get("torch.distributed.tensor")
    return dtensor is not None and isinstance(tensor, dtensor.DTensor)


def refuse_collectives(graph: torch.fx.Graph) -> None:
    """NotCompiled where processes talk to each other within a graph: PyTorch finds the end of a collective by the storage that
    it was given, and a plan's memory has none."""
    for node in collectives(graph):
        raise NotCompiled(f"forward calls {node.target}: what processes exchange is left to PyTorch")


def collectives(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    return (n for n in graph.nodes if n.op == "call_function" and getattr(n.target, "namespace", "") in COLLECTIVES)


__all__ = ["beside_forward", "compiled_part", "inner_of", "reducing", "refuse_collectives", "replicated", "replicating",
           "sharded_part", "shards"]  # fmt: skip
