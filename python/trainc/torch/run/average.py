"""The mean of a bucket of gradients over the processes of a group: a step of a plan that is started, and waited for later.

What DistributedDataParallel's reducer does with a bucket, in the same order and with the same arithmetic: gradients go into one
tensor, divided by the number of processes; the group adds these up; the means go back to where the gradients were. A
communication hook of PyTorch's that compresses does in the place of the two in the middle what it does there.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainc.base.errors import InternalError
from trainc.torch import compat
from trainc.torch.device import HOST
from trainc.torch.run.executable import tensor_at

Tensor = torch.Tensor
Hook = Callable[[Any, Any], "torch.futures.Future[Any]"]

_library = torch.library.Library("trainc_started", "FRAGMENT")
# `group`: its name. `hook`: one of `hooks`. `number`: of the bucket, for buckets of equal gradients are two all the same.
_library.define("average(Tensor[] gradients, str group, str hook, int number) -> Tensor[]")
TARGET = "trainc_started.average.default"


class Bucket:
    """What a hook is given, as a GradBucket; `like`: the gradients, flat."""

    def __init__(self, like: Sequence[Tensor], number: int):
        self._sizes = [tensor.numel() for tensor in like]
        self._number, self._buffer = number, torch.empty(sum(self._sizes), dtype=like[0].dtype)
        self._gradients = list(self._buffer.split(self._sizes))

    def index(self) -> int:
        return self._number

    def buffer(self) -> Tensor:
        return self._buffer

    def gradients(self) -> list[Tensor]:
        return self._gradients

    def split(self, flat: Tensor) -> list[Tensor]:
        """The gradients' parts of a tensor of the buffer's length."""
        return self._gradients if flat is self._buffer else list(flat.view(-1).split(self._sizes))


def _all_reduce(group: Any, bucket: Bucket) -> torch.futures.Future[Any]:
    """Without a hook: gradients are divided as they go into the bucket."""
    return torch.distributed.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()


def hooks() -> dict[str, Hook]:
    """By name, those that may stand in a plan: they change gradients alone. "": none is registered."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    names = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")
    return {"": _all_reduce} | {name: getattr(default_hooks, name) for name in names} | MORE_HOOKS


MORE_HOOKS: dict[str, Hook] = {}  # by their names; of measurements


class Flight:
    """A bucket on its way. It has memory of its own, so that whoever wants it no more need not wait for the others."""

    def __init__(self, average: Average, bucket: Bucket, gradients: Sequence[Tensor], results: Sequence[Tensor]):
        self._average, self._bucket, self._results = average, bucket, results
        self._over, self.over_at = threading.Event(), 0.0
        with torch.no_grad(), compat.DisableAutocast():
            if average.hook == "":
                share = 1.0 / average.group.size()
                for part, gradient in zip(bucket.gradients(), gradients, strict=True):
                    torch.mul(gradient, share, out=part)
            else:
                for part, gradient in zip(bucket.gradients(), gradients, strict=True):
                    part.copy_(gradient)
            self._future = hooks()[average.hook](average.group, bucket)
        self._future.add_done_callback(self._done)

    def _done(self, _: Any) -> None:
        self.over_at = time.perf_counter()
        self._over.set()

    def over(self, seconds: float) -> bool:
        return self._over.wait(seconds)

    def finish(self) -> None:
        """Puts the means where they are wanted; raises what the group failed with."""
        value = self._future.value()
        flat = value[0] if isinstance(value, (list, tuple)) else value
        with torch.no_grad():
            for result, part in zip(self._results, self._bucket.split(flat), strict=True):
                result.copy_(part)
        self._average.free.append(self._bucket)

    def cancel(self) -> None:
        self._over.set()


class Average:
    """A step of a plan. `arguments`: the operation's, as the plan has them; `layouts`: of the step's buffers, the gradients
    (those that are equal once) and then the means."""

    def __init__(self, arguments: str, layouts: Sequence[tuple[str, Sequence[int], Sequence[int]]]):
        gradients, name, self.hook, self._number = json.loads(arguments)["args"]
        self._places = [gradient["$"] for gradient in gradients]
        self._layouts, self._means = list(layouts), len(layouts) - len(self._places)
        self.group = compat.group_named(name)
        self.free: list[Bucket] = []  # none of them is on its way
        self._known: tuple[Sequence[int], list[Tensor], list[Tensor]] = ((), [], [])

    def __call__(self, pointers: Sequence[int]) -> Flight:
        if self._known[0] != pointers:
            tensors = [tensor_at(p, *layout, HOST).view(-1) for p, layout in zip(pointers, self._layouts, strict=True)]
            self._known = pointers, [tensors[i] for i in self._places], tensors[self._means :]
        _, gradients, means = self._known
        bucket = self.free.pop() if self.free else Bucket(gradients, self._number)
        return Flight(self, bucket, gradients, means)


def _average(gradients: list[Tensor], group: str, hook: str, number: int) -> list[Tensor]:
    """The same at once, where PyTorch runs a graph."""
    means = [gradient.new_empty(gradient.shape) for gradient in gradients]
    flat = [gradient.reshape(-1) for gradient in gradients]
    arguments = json.dumps({"args": [[{"$": i} for i in range(len(gradients))], group, hook, number]})
    step = Average(arguments, [("", (), ())] * 2 * len(gradients))
    flight = Flight(step, Bucket(flat, number), flat, [mean.view(-1) for mean in means])
    while not flight.over(1.0):  # signals are looked at
        pass
    flight.finish()
    return means


_library.impl("average", _average, "CompositeExplicitAutograd")
torch.fx.node.has_side_effect(torch.ops.trainc_started.average.default)  # the other ranks take part, whoever reads it here
_library.impl("average", lambda gradients, *_: [g.new_empty(g.shape) for g in gradients], "Meta")


def register() -> None:
    """From now on, plans with this step are loaded."""
    from trainc import _core

    _core.register_operation(TARGET, Average)


def average(gradients: list[Tensor], group: str, hook: str, number: int) -> list[Tensor]:
    """The means of `gradients`, of one type, over the processes of a group; each process calls with the same numbers in the same
    order."""
    if any(gradient.dtype is not gradients[0].dtype for gradient in gradients):
        raise InternalError("a bucket of gradients of two types")
    return torch.ops.trainc_started.average(gradients, group, hook, number)


__all__ = ["MORE_HOOKS", "TARGET", "Average", "average", "hooks", "register"]
