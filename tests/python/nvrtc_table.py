"""Kernels that were dumped (TRAINC_DUMP=loop), through NVRTC for every architecture: no GPU is needed."""

from __future__ import annotations

import concurrent.futures
import pathlib

from trainc import _core
from trainc.base import config

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")


def plain(nest: str) -> str:
    """A nest's text without what says nothing to a compiler: identical layers differ there."""
    return "\n".join(line for line in nest.splitlines() if not line.startswith(("kernel ", "  origin ", "  flops ", "  bytes ")))


def collect(folder: pathlib.Path, kernels: dict[str, str]) -> None:
    """Into `kernels`: each distinct one's text, by what tells it from others."""
    for file in pathlib.Path(folder).rglob("*.loop"):
        text = file.read_text()
        kernels.setdefault(plain(text), text)


def spilled(kernels: dict[str, str]) -> list[str]:
    """Prints what each needs; gives those that spill."""
    config.name_nvrtc()
    found = []
    with concurrent.futures.ThreadPoolExecutor() as pool:
        jobs = {(text, gpu): pool.submit(_core.compile_cuda, text, gpu) for text in kernels.values() for gpu in ARCHITECTURES}
        print(f"\n{len(kernels)} kernels: registers/shared bytes/spilled bytes for {', '.join(ARCHITECTURES)}")
        for text in kernels.values():
            name = text.split("\n", 1)[0].removeprefix("kernel ")
            needs = [jobs[text, gpu].result() for gpu in ARCHITECTURES]
            print(f"{name:50}", "  ".join(f"{registers:3}/{shared:5}/{spills}" for registers, shared, _, spills in needs))
            found += [f"{name} on {gpu}" for gpu, (_, _, _, spills) in zip(ARCHITECTURES, needs, strict=True) if spills]
    return found
