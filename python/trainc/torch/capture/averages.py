"""DistributedDataParallel within a step's body, where the averages of its gradients are operations of the step itself.

While the body runs, a wrapper's forward is that of the module which it wraps, and a `backward()` ends with the mean of each of
its buckets (run/average.py). So the trace holds forward, backward, averages, clipping and updates, and the plan starts a bucket's
average as soon as its last gradient is made. Of what DDP does beside that, buffers are broadcast before the step.

Buckets are those that DDP itself would make of the parameters from the last to the first. Which parameters, in which buckets, in
which order: `layout`, in which all ranks must agree.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from trainc.base.errors import NotCompiled
from trainc.base.patches import replaced
from trainc.torch import compat
from trainc.torch.capture import turns
from trainc.torch.run import average

Tensor = torch.Tensor


class _Wrapper:
    """One DistributedDataParallel: names of its parameters, bucket by bucket."""

    def __init__(self, ddp: Any, hook: str):
        self.ddp, self.hook, self.group = ddp, hook, compat.group_name(ddp.process_group)
        named = [(name, p) for name, p in ddp.module.named_parameters() if p.requires_grad][::-1]
        buckets = compat.buckets_of(ddp, [p for _, p in named])
        self.buckets = [[named[i][0] for i in bucket] for bucket in buckets]
        self.parameters = [p for _, p in named]
        self.described = [[[named[i][0], list(named[i][1].shape), str(named[i][1].dtype)] for i in b] for b in buckets]

    def layout(self) -> list[Any]:
        return [self.group, self.hook, self.described]


class Averages:
    """Of all wrappers that a step reaches. NotCompiled where a wrapper does more than this knows."""

    def __init__(self, wrappers: Sequence[Any]):
        self._wrappers = [_Wrapper(ddp, _hook_of(ddp)) for ddp in wrappers]
        parameters = [p for each in self._wrappers for p in each.parameters]
        if len(set(map(id, parameters))) != len(parameters):
            raise NotCompiled("two DistributedDataParallel share a parameter")
        if len({each.group for each in self._wrappers}) > 1:
            raise NotCompiled("several DistributedDataParallel, of several process groups")
        if any(p.device.type != "cpu" for p in parameters):
            raise NotCompiled("parameters on a device: its plans start nothing")
        self.group = wrappers[0].process_group
        self._settings = self._now()
        self._forward: list[_Wrapper] = []  # whose forward ran and whose gradients are to be averaged
        self._averaged: list[_Wrapper] = []
        average.register()

    def _now(self) -> list[Any]:
        """What wrappers and parameters are set to, which no plan looks at again."""
        return [(_hook_of(w.ddp), [p.requires_grad for p in w.ddp.module.parameters()]) for w in self._wrappers]

    def check(self) -> None:
        """NotCompiled where, of what is no part of the body, something is other than it was."""
        for each in self._wrappers:
            if compat.is_joinable_now(each.ddp):
                raise NotCompiled("join(): ranks that are through with their data take part in DDP's own exchange")
        if self._now() != self._settings:
            raise NotCompiled("a DistributedDataParallel has another hook, or other parameters that learn, than before")

    def reduces(self) -> bool:
        """Whether the step is called outside of every no_sync()."""
        return all(each.ddp.require_backward_grad_sync for each in self._wrappers)

    def parameters(self) -> list[Any]:
        """Names and shapes of what is averaged."""
        return [each.described for each in self._wrappers]

    def parameters_of_wrappers(self) -> list[Tensor]:
        return [p for each in self._wrappers for p in each.parameters]

    def broadcast(self) -> None:
        """What DDP does before its forward: buffers of the first rank go to all."""
        for each in self._wrappers:
            compat.broadcast_buffers(each.ddp)

    def layout(self) -> str:
        """Of the body that ran last: what it averaged, in its order."""
        return json.dumps([each.layout() for each in self._averaged])

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """While the body runs."""
        self._forward, self._averaged = [], []
        with contextlib.ExitStack() as stack:
            for each in self._wrappers:
                forward = turns.mine(lambda *a, own=each, **k: self._called(own, *a, **k), each.ddp.forward)
                stack.enter_context(replaced(each.ddp.__dict__, "forward", forward))
            yield
        if self._forward:
            raise NotCompiled("a DistributedDataParallel is called, and no backward() averages its gradients")
        if any(compat.syncs_buffers(each.ddp) for each in self._wrappers if each not in self._averaged):
            raise NotCompiled("a DistributedDataParallel with buffers whose gradients are not averaged in the step")

    def _called(self, each: _Wrapper, *args: Any, **kwargs: Any) -> Any:
        ddp = each.ddp
        if torch.is_grad_enabled():
            if each in self._forward or each in self._averaged:
                raise NotCompiled("a DistributedDataParallel is called again after the call whose gradients are averaged")
            if ddp.require_backward_grad_sync:
                self._forward.append(each)
        elif compat.syncs_buffers(ddp):
            raise NotCompiled("a DistributedDataParallel with buffers is called without gradients within the step")
        return ddp.module(*args, **kwargs)

    def after_backward(self, got: set[int]) -> None:
        """`got`: ids of the tensors that the backward made a gradient of."""
        for each in [*self._forward, *self._averaged]:
            held = dict(each.ddp.module.named_parameters())
            parameters = [[held[name] for name in bucket] for bucket in each.buckets]
            count = sum(id(p) in got for bucket in parameters for p in bucket)
            if count == 0:
                continue
            if each in self._averaged:
                raise NotCompiled("a second backward() makes gradients of parameters whose gradients are averaged already")
            if count < sum(map(len, parameters)):
                missing = next(n for b, ps in zip(each.buckets, parameters, strict=True) for n, p in zip(b, ps, strict=True)
                               if id(p) not in got)  # fmt: skip
                raise NotCompiled(f"`{missing}` gets no gradient, which DistributedDataParallel looks at itself")
            self._forward.remove(each)
            self._averaged.append(each)
            with torch.no_grad():
                for number, bucket in enumerate(parameters, sum(len(w.buckets) for w in self._averaged[:-1])):
                    means = average.average([p.grad for p in bucket], each.group, each.hook, number)
                    for parameter, mean in zip(bucket, means, strict=True):
                        parameter.grad.copy_(mean)


def _hook_of(ddp: Any) -> str:
    """The name of the communication hook that averages (run/average.py). NotCompiled where it is none that is known, or where
    DDP is set to do something else."""
    if reason := compat.replicates_otherwise(ddp):
        raise NotCompiled(f"DistributedDataParallel with {reason}")
    registered = compat.communication_hooks(ddp)
    if not registered:
        return ""
    hook, state = registered[0]
    known = average.hooks()
    name = next((name for name, each in known.items() if each is hook), None)
    group = state if state is not None else torch.distributed.group.WORLD
    if len(registered) > 1 or name is None or group is not ddp.process_group:
        raise NotCompiled(f"DistributedDataParallel with the communication hook {getattr(hook, '__qualname__', hook)}")
    return name


__all__ = ["Averages"]
