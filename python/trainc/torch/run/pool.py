"""Memory for what a plan writes: arenas of saved values and large results.

A block is used again only when its storage's use count says that nobody else holds it: no `.grad`, no saved tensor, no
user. So two forwards before a backward, `retain_graph` and a backward that never comes need no bookkeeping.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainc.torch import compat
from trainc.torch.device import HOST, Host
from trainc.torch.strided import span

SMALL = 1 << 16  # below this, the allocator is quicker than looking for a free block
KEPT = 4  # free blocks kept per place


class Pool:
    """Blocks for one place of a plan, and of the plans for other sizes of the same graph.

    A block is out of the pool's list while it is looked at, and comes back with a tensor on it: so two threads, or a signal
    handler and what it interrupts, never get one block, and nobody waits for a lock. Who finds the list short makes a new one.
    """

    def __init__(self, device: Host = HOST) -> None:
        self.device = device
        self._blocks: list[torch.UntypedStorage] = []
        self._alone = 0  # use count of a block that only this pool holds

    def tensor(self, size: int, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        """In `size` bytes or more that nobody else holds."""
        made = torch.empty(0, dtype=dtype, device=self.device.torch)
        if not self.device.pools:
            return made.set_(self._new(size), 0, shape, stride)
        in_use: list[torch.UntypedStorage] = []
        try:
            while (block := self._claim()) is not None:
                if compat.holders_of(block) != self._alone:
                    in_use.append(block)
                elif block.nbytes() >= size:
                    in_use.append(block)
                    return made.set_(block, 0, shape, stride)
                # a free one that is too small goes: the new one will serve those who used it
            block = self._new(size)
            if not self._alone:
                self._alone = compat.holders_of(block)
            in_use[:] = [*in_use[-(KEPT - 1) :], block]
            return made.set_(block, 0, shape, stride)
        finally:
            self._blocks[:0] = in_use

    def _claim(self) -> torch.UntypedStorage | None:
        try:
            return self._blocks.pop(0)  # one step of Python: nobody else has it now
        except IndexError:
            return None

    def _new(self, size: int) -> torch.UntypedStorage:
        return self.device.empty((size,), (1,), torch.uint8).untyped_storage()


class Results:
    """Fresh tensors for one result of a plan."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], device: Host = HOST):
        self.device = device
        self.dtype, self.shape, self.stride = dtype, tuple(shape), tuple(stride)
        self.bytes = span(self.shape, self.stride) * dtype.itemsize
        self.pool = Pool(device)

    def new(self) -> torch.Tensor:
        if self.bytes < SMALL or not self.device.pools:
            return self.device.empty(self.shape, self.stride, self.dtype)
        return self.pool.tensor(self.bytes, self.dtype, self.shape, self.stride)
