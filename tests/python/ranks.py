"""Processes that train together: `start` runs a test file as a program once a rank; in it, `join_group` makes the process group
(gloo on this machine, met through a file), and `told` leaves for the test what a rank found."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import forked
import torch

from trainc.torch.run import gloo_threads

RANKS = int(os.environ.get("TRAINC_TEST_RANKS", "2"))  # in a rank's process: of how many it is one


class Ranks:
    """The processes of one run: their exit codes, what they printed, and what each `told`. `timeout`: seconds, without those in
    which the busiest process only waited for a processor that others had; after them a process that still runs hangs."""

    def __init__(self, program: str, *arguments: str, timeout: float, environment: dict[str, str] | None = None, ranks: int = 2):
        with tempfile.TemporaryDirectory() as folder:
            own = {
                "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TRAINC_CACHE": "1",
                "TRAINC_CACHE_DIR": os.path.join(folder, "cache"), "TRAINC_TEST_RANKS": str(ranks), **(environment or {}),
            }  # fmt: skip
            start, self.seconds = time.monotonic(), [float("inf")] * ranks
            files = [os.path.join(folder, f"said.{rank}") for rank in range(ranks)]
            processes = [
                forked.start([program, rank, folder, *arguments], file, file, env={**os.environ, **own})
                for rank, file in enumerate(files)
            ]
            try:
                while any(p.poll() is None for p in processes) and (
                    (spent := time.monotonic() - start) < timeout or spent < timeout + max(map(_queued, processes))
                ):
                    time.sleep(0.02)
                    for rank, process in enumerate(processes):
                        if process.poll() is not None:
                            self.seconds[rank] = min(self.seconds[rank], time.monotonic() - start)
                self.codes = [process.poll() for process in processes]  # None: it hung
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
            self.said = [Path(file).read_text() for file in files]
            self.found = [_read(os.path.join(folder, f"told.{rank}")) for rank in range(ranks)]

    def check(self) -> list[dict]:
        """What the ranks told, where all of them came to their end."""
        assert self.codes == [0] * len(self.codes), f"exit codes {self.codes}\n" + "\n".join(said[-6000:] for said in self.said)
        return self.found


def _queued(process: forked.Process) -> float:
    """Seconds for which its threads could have run and had no processor, of the one that had to wait the longest."""
    with contextlib.suppress(OSError):  # it is gone
        threads = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
        return max((int(thread.read_text().split()[1]) for thread in threads), default=0) / 1e9
    return 0.0


def _read(path: str) -> dict:
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        return json.load(file)


def join_group(rank: int, folder: str, seconds: float = 60) -> None:
    """`seconds`: after which a collective that others do not come to is an error."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=RANKS,
        timeout=datetime.timedelta(seconds=seconds),
    )  # fmt: skip


def leave_group() -> None:
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    gloo_threads.wait_for_rest()  # before Python ends: a rank of eager's alone has no hook of trainc's at its end


def told(rank: int, folder: str, found: dict) -> None:
    with open(f"{folder}/told.{rank}", "w") as file:
        json.dump(found, file)


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """The same for tensors of the same bits."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
