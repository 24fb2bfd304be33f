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

# Of a tensor that nobody else holds anything of. The least of some measurements: a profiler may look at frames, and hold more.
ALONE = min(compat.holders_of_memory(torch.empty(1, device="cpu")) for _ in range(8))

Type = tuple[torch.dtype, Sequence[int], Sequence[int]]  # with shape and strides
Block = tuple[torch.Tensor, Type, int]  # the tensor that was last made in it, its type, where it lies


class Pool:
    """Blocks for one place of a plan, and of the plans for other sizes of the same graph.

    A block is out of the pool's list while it is looked at, and comes back with a tensor on it: so two threads, or a signal
    handler and what it interrupts, never get one block, and nobody waits for a lock. Who finds the list short makes a new one.
    """

    def __init__(self, device: Host = HOST) -> None:
        self.device = device
        self._blocks: list[Block] = []

    def tensor(self, size: int, type: Type) -> torch.Tensor:
        """In `size` bytes or more that nobody else holds."""
        if not self.device.pools:
            return self._in(self._new(size), type)
        in_use: list[Block] = []
        try:
            while (block := self._claim()) is not None:
                last, last_type, place = block
                if compat.holders_of_memory(last) > ALONE:
                    in_use.append(block)
                elif last.data_ptr() == place and last.untyped_storage().nbytes() >= size:
                    in_use.append(block if last_type is type else self._block(last.untyped_storage(), type))
                    return self._given(in_use[-1])
                # A free one that is too small goes: the new one will serve those who used it. So does one whose storage the
                # program has resized (to less, and in the same place, too), or moved to memory that it shares with other
                # processes, which may read it still.
            made = self._block(self._new(size), type)
            in_use[:] = [*in_use[-(KEPT - 1) :], made]
            return self._given(made)
        finally:
            self._blocks[:0] = in_use

    def _claim(self) -> Block | None:
        try:
            return self._blocks.pop(0)  # one step of Python: nobody else has it now
        except IndexError:
            return None

    def _new(self, size: int) -> torch.UntypedStorage:
        return self.device.empty((size,), (1,), torch.uint8).untyped_storage()

    def _in(self, storage: torch.UntypedStorage, type: Type) -> torch.Tensor:
        dtype, shape, stride = type
        return torch.empty(0, dtype=dtype, device=self.device.torch).set_(storage, 0, shape, stride)

    def _block(self, storage: torch.UntypedStorage, type: Type) -> Block:
        with torch.inference_mode(False):
            return self._in(storage, type), type, storage.data_ptr()

    def _given(self, block: Block) -> torch.Tensor:
        """A tensor of its own: the block's is copied, which is several times as quick as to lay one out."""
        last, type, _ = block
        if torch.is_inference_mode_enabled():  # which makes tensors of another kind
            return self._in(last.untyped_storage(), type)
        return last.data


class Results:
    """Fresh tensors for one result of a plan."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], device: Host = HOST):
        self.device = device
        self.dtype, self.shape, self.stride = dtype, tuple(shape), tuple(stride)
        self.bytes = span(self.shape, self.stride) * dtype.itemsize
        self._type: Type = (self.dtype, self.shape, self.stride)
        self.pool = Pool(device)

    def new(self) -> torch.Tensor:
        if self.bytes < SMALL or not self.device.pools:
            return self.device.empty(self.shape, self.stride, self.dtype)
        return self.pool.tensor(self.bytes, self._type)
