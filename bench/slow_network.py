"""A network of a given speed between processes of one machine, for overlap.py and cluster.py: gloo's own all-reduce of each
bucket of DistributedDataParallel, and after it a delay until the bucket has taken as long as it would there."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import torch


class Line:
    """One line: what is put on it goes one after the other. `seconds(bytes)`: how long a bucket takes; None: gloo alone."""

    def __init__(self) -> None:
        self.seconds: Callable[[int], float] | None = None
        self.log: list[tuple[float, float, int]] = []  # begin, end, bytes
        self._queue: queue.Queue = queue.Queue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def hook(self) -> Callable:
        """For `register_comm_hook`."""

        def reduced(_, bucket):
            done = torch.futures.Future()
            self._queue.put((bucket.buffer(), done))
            return done

        # DDP looks at the types themselves, which would be text here.
        reduced.__annotations__ = {
            "bucket": torch.distributed.GradBucket, "return": torch.futures.Future[torch.Tensor],
        }  # fmt: skip
        # trainc hands gradients out in stages only where a hook changes nothing but gradients, which it knows of PyTorch's own.
        reduced.__module__ = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
        return reduced

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (given := self._queue.get()) is not None:
            buffer, done = given
            begin = time.perf_counter()
            torch.distributed.all_reduce(buffer.div_(torch.distributed.get_world_size()))
            if self.seconds is not None:
                time.sleep(max(begin + self.seconds(buffer.nbytes) - time.perf_counter(), 0.0))
            self.log.append((begin, time.perf_counter(), buffer.nbytes))
            done.set_result(buffer)


def start(program: str, ranks: int, *words: str) -> str:
    """Runs `program --rank R FOLDER words` for each rank, one thread each, and returns what the first printed."""
    with tempfile.TemporaryDirectory() as folder:
        cache = {"TRAINC_CACHE_DIR": os.environ.get("TRAINC_CACHE_DIR", os.path.join(folder, "cache"))}
        own = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **cache}
        processes = [
            subprocess.Popen(
                [sys.executable, program, "--rank", str(rank), folder, *words], env={**os.environ, **own},
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, text=True,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        try:
            said, _ = processes[0].communicate()
            codes = [process.wait(timeout=60) for process in processes]
        finally:
            for process in processes:
                process.kill()
    if any(codes):
        raise SystemExit(f"a rank failed: exit codes {codes}")
    return said


def join(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=ranks)


def model_of(layers: int, width: int) -> torch.nn.Module:
    """Layers whose backward takes the same time each, and whose gradients are of the same size."""
    torch.manual_seed(0)
    parts = [m for _ in range(layers) for m in (torch.nn.Linear(width, width, bias=False), torch.nn.Tanh())]
    return torch.nn.Sequential(*parts)

