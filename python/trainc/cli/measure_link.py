"""Latency and bandwidth of a process group that runs: `--link measured` under torchrun."""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Callable

import torch

from trainc.base.network import Link, Network, fitted

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24)  # bytes
TIMES = 7
TIMEOUT = datetime.timedelta(seconds=60)


def measured(tell: Callable[[str], None]) -> Network | None:
    """Of the ranks in the environment, which is as torchrun sets it; None on all ranks but the first."""
    distributed = torch.distributed
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=TIMEOUT)
    try:
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
        if rank == 0:
            tell(f"all-reduces of {ranks} ranks ...")
        link = link_of_group()
        distributed.barrier()
    finally:
        distributed.destroy_process_group()
    return Network(link) if rank == 0 else None


def link_of_group() -> Link:
    """All ranks call it. The same on each: the slowest rank's times count."""
    ranks = torch.distributed.get_world_size()
    return fitted({size: _all_reduce(size) for size in SIZES}, ranks)


def _all_reduce(size: int) -> float:
    """Seconds of an all-reduce of so many bytes, median."""
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    data, spent = torch.zeros(size // 4, device=device), []
    for _ in range(TIMES + 1):
        torch.distributed.barrier()
        start = time.perf_counter()
        torch.distributed.all_reduce(data)
        if device == "cuda":
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - start)
    median = torch.tensor(statistics.median(spent[1:]), device=device)
    torch.distributed.all_reduce(median, torch.distributed.ReduceOp.MAX)
    return float(median)


__all__ = ["link_of_group", "measured"]
