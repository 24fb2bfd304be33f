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
    """Blocks of one size for one place of a plan."""

    def __init__(self, size: int, device: Host = HOST):
        self.size, self.device = size, device
        self._blocks: list[torch.UntypedStorage] = []
        self._alone = 0  # use count of a block that only this pool holds

    def take(self) -> torch.UntypedStorage:
        if not self.device.pools:
            return self.device.empty((self.size,), (1,), torch.uint8).untyped_storage()
        for block in self._blocks:
            if torch._C._storage_Use_Count(block._cdata) == self._alone and block.nbytes() >= self.size:
                return block
        block = self.device.empty((self.size,), (1,), torch.uint8).untyped_storage()
        if not self._alone:
            self._alone = torch._C._storage_Use_Count(block._cdata)
        self._blocks = [*self._blocks[-(KEPT - 1) :], block]
        return block


class Results:
    """Fresh tensors for one result of a plan."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], device: Host = HOST):
        self.device = device
        self.dtype, self.shape, self.stride = dtype, tuple(shape), tuple(stride)
        span = 0 if 0 in self.shape else 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        self.bytes = span * dtype.itemsize
        self._pool = Pool(self.bytes) if device.pools and self.bytes >= SMALL else None

    def new(self) -> torch.Tensor:
        if self._pool is None:
            return self.device.empty(self.shape, self.stride, self.dtype)
        return torch.empty(0, dtype=self.dtype, device=self.device.torch).set_(self._pool.take(), 0, self.shape, self.stride)
