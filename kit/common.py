"""What the parts of the kit share: where tensors lie, what a part answers, and what an error tells."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = Path(os.environ.get("KIT_WORK", "gpu-results/work"))
REHEARSE = os.environ.get("KIT_REHEARSE", "")  # "short", "long", or "" on a GPU
KIND = "cpu" if REHEARSE else "cuda"


class Answer:
    """A part's facts, written to its file whenever one is added."""

    def __init__(self, path: Path | None):
        self._path, self.facts = path, {}

    def add(self, **facts: Any) -> None:
        self.facts |= facts
        print(json.dumps(facts, default=str)[:2000], flush=True)
        if self._path:
            self._path.write_text(json.dumps(self.facts, default=str))


def told(error: BaseException) -> dict:
    """An error with all that is needed to mend it: its words, where it came from, and the text of the kernel that it names."""
    text = f"{type(error).__name__}: {error}"
    lines = traceback.format_exception(error)[-12:]
    return {"what": text[:3000], "lines": [line for each in lines for line in each.rstrip().splitlines()] + kernel_of(text)}


def kernel_of(text: str) -> list[str]:
    """Of the kernel that a message names, the first lines of its CUDA C++, where TRAINC_DUMP wrote it."""
    named = re.search(r"kernel (\w+)|\b(\w+)\.cu\(\d+\)", text)
    if not named:
        return []
    name = named[1] or named[2]
    found = sorted((WORK / "dump").rglob(f"*.{name}.cu"), key=lambda file: file.stat().st_mtime)
    if not found:
        return []
    body = found[-1].read_text()
    return [f"--- {found[-1].name}", *body[body.find('extern "C"') :].splitlines()[:40]]


def dump_kernels() -> None:
    os.environ["TRAINC_DUMP"], os.environ["TRAINC_DUMP_DIR"] = "asm", str(WORK / "dump")


class Place:
    """Where a part's tensors lie, and what trainc knows of it: a GPU, or a stand-in."""

    def __init__(self) -> None:
        import torch

        from trainc.base import config
        from trainc.torch import device

        config.name_nvrtc()
        config.fallback = False
        if REHEARSE:
            from standin import StandIn

            self.where: Any = StandIn(seed=0x1234_5678_9ABC_DEF0)
            device._devices[torch.device("cpu")] = self.where
            device.gpu_in_use = lambda: True
        else:
            self.where = device.get(torch.device("cuda", torch.cuda.current_device()))
        self.kind = KIND

    def taken(self, graph: Any) -> Any:
        """A graph that was traced on the CPU, as one of tensors there: where a plan's results lie is asked of it."""
        for node in graph.nodes:
            node.meta["device"] = self.where.torch
        return graph

    def to(self, tensor: Any) -> Any:
        """The tensor there, lying in memory as it does here."""
        import torch

        if not tensor.untyped_storage().nbytes():
            return tensor.to(self.kind)
        flat = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(tensor.untyped_storage())
        return flat.to(self.kind, copy=True).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def wait(self) -> None:
        if self.kind == "cuda":
            import torch

            torch.cuda.synchronize()

    @contextlib.contextmanager
    def eagerly(self, seed: int = 0) -> Iterator[None]:
        """PyTorch's own results, with the masks that it draws there; the generator is where it was afterwards."""
        if not REHEARSE:
            yield
            return
        from standin import EagerDropout

        with EagerDropout(self.where) as dropout:
            yield
        self.where.offset = dropout.offset

    def seed(self, number: int) -> None:
        import torch

        torch.manual_seed(number)
        if REHEARSE:
            self.where.seed, self.where.offset = number, 0

    def drawn(self) -> int:
        """How far the generator has come."""
        return int.from_bytes(bytes(self.where.generator().get_state().tolist()[8:16]), "little")


def main(commands: dict[str, Callable[..., None]]) -> None:
    """`file COMMAND words ... --answer FILE`; an exit status of 1 where it raised, with the error among its facts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=commands)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--answer", type=Path)
    args = parser.parse_args()
    answer = Answer(args.answer)
    try:
        commands[args.command](answer, *args.words)
    except Exception as error:
        traceback.print_exc()
        answer.add(error=told(error))
        sys.exit(1)


def require(ok: bool, what: str) -> None:
    if not ok:
        raise AssertionError(what)
