"""Memory for what a plan writes: arenas of saved values and large results.

A block is used again only when its storage's use count says that nobody else holds it: no `.grad`, no saved tensor, no
user. So two forwards before a backward, `retain_graph` and a backward that never comes need no bookkeeping.
"""

from __future__ import annotations

import torch

from trainc.device import HOST, Host

SMALL = 1 << 16  # below this, the allocator is quicker than looking for a free block
KEPT = 4  # free blocks kept per place


class Pool:
    """Blocks for one place of a plan, and of the plans for other sizes of the same graph."""

    def __init__(self, device: Host = HOST) -> None:
        self.device = device
        self._blocks: list[torch.UntypedStorage] = []
        self._alone = 0  # use count of a block that only this pool holds

    def take(self, size: int) -> torch.UntypedStorage:
        """At least `size` bytes that nobody else holds."""
        if not self.device.pools:
            return self.device.empty((size,), (1,), torch.uint8).untyped_storage()
        free = [block for block in self._blocks if torch._C._storage_Use_Count(block._cdata) == self._alone]
        for block in free:
            if block.nbytes() >= size:
                return block
        new = self.device.empty((size,), (1,), torch.uint8).untyped_storage()
        if not self._alone:
            self._alone = torch._C._storage_Use_Count(new._cdata)
        # free ones are all too small: the new one will serve those who used them
        held = [block for block in self._blocks if not any(block is other for other in free)]
        self._blocks = [*held[-(KEPT - 1) :], new]
        return new


class Results:
    """Fresh tensors for one result of a plan."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], device: Host = HOST):
        self.device = device
        self.dtype, self.shape, self.stride = dtype, tuple(shape), tuple(stride)
        span = 0 if 0 in self.shape else 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        self.bytes = span * dtype.itemsize
        self.pool = Pool(device)

    def new(self) -> torch.Tensor:
        if self.bytes < SMALL or not self.device.pools:
            return self.device.empty(self.shape, self.stride, self.dtype)
        return torch.empty(0, dtype=self.dtype).set_(self.pool.take(self.bytes), 0, self.shape, self.stride)
