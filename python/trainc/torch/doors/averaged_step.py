"""`trainc.train_step` over DistributedDataParallel as one plan on every rank, or on none.

A plan's averages and DDP's reducer send other things in another order, so all ranks do the one or the other: they tell each
other once, before the first step, whether their body could be traced and what it averages (capture/averages.py). A later call of
another kind that no plan can serve runs in PyTorch, and averages by the same operations in the same order, so that the other
ranks, which may run their plans, find what they wait for.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from trainc.base import messages
from trainc.base.errors import NotCompiled, UserError
from trainc.base.patches import patched
from trainc.torch import compat
from trainc.torch.capture import turns
from trainc.torch.capture.averages import Averages
from trainc.torch.doors.agreement import bound_of, came

# An update of PyTorch's rounds otherwise than a plan's. The difference does not grow: all ranks add the same means to weights.
APART = (
    ". Gradients are averaged with the other ranks' all the same; where these run their plans, weights differ between ranks in"
    " their last bits from here on"
)
_count: dict[str, int] = {}  # by group and what is averaged: how many steps agreed


class AveragedStep:
    """What the ranks agreed on, and a body that runs in PyTorch by it. NotCompiled where DDP is set to do more."""

    def __init__(self, name: str, wrappers: Sequence[Any]):
        self.averages, self._name = Averages(wrappers), name
        self.agreed: str | None = None  # the layout, once it is
        self._said: set[str] = set()

    def agree(self, reason: str) -> str:
        """Whether every rank has traced its body, for the same averages: empty, or why not. `reason`: why this rank has not."""
        layout = None if reason else self.averages.layout()
        if not self._agree(layout):
            return reason or "another rank cannot compile its step, or averages other gradients"
        self.agreed = layout
        return ""

    def _agree(self, layout: str | None) -> bool:
        group = self.averages.group
        size, rank = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
        if size == 1:
            return layout is not None
        name = f"{compat.group_name(group)}/{_digest(self.averages.parameters())}"
        number = _count[name] = _count.get(name, 0) + 1
        store = torch.distributed.PrefixStore(f"trainc/step/{name}/{number}", compat.group_store(group))
        return agreed(store, rank, size, "" if layout is None else _digest(layout), bound_of(group))

    def check(self) -> None:
        """NotCompiled where the body that was traced averages something else than what was agreed on."""
        if self.agreed is not None and self.averages.layout() != self.agreed:
            raise NotCompiled("it averages other gradients, or in another order, than the first step did")

    def in_pytorch(self, fn: Callable[..., Any], args: tuple, kwargs: dict, reason: str) -> Any:
        """Runs the body as it is written, its gradients averaged as the plans of other ranks do it."""
        if reason not in self._said:
            self._said.add(reason)
            apart = "" if torch.distributed.get_world_size(self.averages.group) == 1 else APART
            messages.warn(f"trainc.train_step: {self._name} runs in PyTorch for this kind of call: {reason}{apart}")
        try:
            with self.averages.active(), self._backwards():
                result = fn(*args, **kwargs)
        except NotCompiled as error:
            raise UserError(f"trainc.train_step: {error}; the other ranks may wait for it") from None
        return compat.pytree.tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, result)

    @contextlib.contextmanager
    def _backwards(self) -> Iterator[None]:
        """Every backward() ends with the averages of what it made."""
        got: set[int] = set()

        def then_average(backward: Callable[..., Any]) -> Callable[..., Any]:
            def whole(*args: Any, **kwargs: Any) -> Any:
                got.clear()
                backward(*args, **kwargs)
                self.averages.after_backward(got)

            return turns.mine(whole, backward)

        parameters = self.averages.parameters_of_wrappers()
        handles = [p.register_post_accumulate_grad_hook(lambda p: got.add(id(p))) for p in parameters]
        # Tensor.backward() calls torch.autograd.backward().
        try:
            with patched(*compat.AUTOGRAD_BACKWARD, then_average(torch.autograd.backward)):
                yield
        finally:
            for handle in handles:
                handle.remove()


def agreed(store: Any, rank: int, size: int, mine: str, bound: float) -> bool:
    """Whether all ranks have the same `mine`, which is empty where a rank wants none; on all the same. Who waits for longer than
    `bound` seconds decides that they do not, if nobody has decided yet."""
    if rank == 0:
        store.set("first", mine)
        everybody = came(store, "all", time.monotonic() + bound, size)
        return _decide(store, everybody and bool(mine) and store.add("others", 0) == 0)
    if came(store, "first", time.monotonic() + bound, size):
        if not mine or store.get("first").decode() != mine:
            store.add("others", 1)
        if store.add("came", 1) == size - 1:
            store.set("all", "")
        came(store, "verdict", time.monotonic() + 1.5 * bound, size)  # the first rank may wait for others
    return _decide(store, False)


def _decide(store: Any, same: bool) -> bool:
    """What the first to decide says."""
    return store.compare_set("verdict", "", "same" if same else "different") == b"same"


def _digest(value: Any) -> str:
    return hashlib.sha256(str(value).encode()).hexdigest()[:32]


__all__ = ["AveragedStep", "agreed"]
