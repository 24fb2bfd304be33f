"""`trainc.report`: explain's findings, the last timed step and this machine's peaks, as a file."""

from __future__ import annotations

import time
from typing import Any

import torch

from trainc.base.errors import UserError
from trainc.base.page.report import Report, path_of
from trainc.torch.doors.explain import explain


def report(models: Any, path: Any, batch: Any = None) -> Report:
    """`models`: what `explain` takes, or several in a tuple."""
    path_of(path)
    several = list(models) if isinstance(models, (tuple, list)) else [models]
    if not several:
        raise UserError("trainc.report: of what? It got no model")
    explained = [explain(model, None, batch if i == 0 else None) for i, model in enumerate(several)]
    return Report.of(explained, path, peaks)


def peaks(size: int = 1024, words: int = 1 << 24, tries: int = 8) -> dict:
    """FLOP/s and bytes/s of this machine as PyTorch reaches them now, with its threads: a quarter of a second."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        a, out = torch.rand(size, size, generator=generator), torch.empty(size, size)
        large, copy = torch.ones(words), torch.empty(words)
        product = min(_seconds(lambda: torch.mm(a, a, out=out)) for _ in range(tries))
        copied = min(_seconds(lambda: copy.copy_(large)) for _ in range(tries))
    threads = f"{torch.get_num_threads()} thread{'' if torch.get_num_threads() == 1 else 's'}"
    where = f"measured now by PyTorch's float32 product of {size} and a copy of {4 * words >> 20} MiB, {threads}"
    return {"flops": 2 * size**3 / product, "bytes": 2 * 4 * words / copied, "from": where}


def _seconds(run: Any) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


__all__ = ["report"]
