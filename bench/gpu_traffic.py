"""What the kernels of a training step ask of a GPU's memory, and how much of it the layout of their accesses wastes: sectors of
global memory that are read or written in part, and words of Shared memory that wait for each other's bank. No GPU is needed: the
interpreter follows a few blocks of each kernel, by its indices alone.

    python bench/gpu_traffic.py [--cases gpt2 llama] [--precisions bf16] [--layers 1] [--rows 12] [--check]

Models and batches are `make bench-cuda`'s, with fewer layers. Told of each: kernels, and of those that ask global memory for more
than `WASTEFUL` times what the same bytes need side by side, or whose Shared memory needs more wavefronts than the bytes do, each
buffer: requests of warps, bytes and sectors, or wavefronts, and how few would do. A cache may answer what is asked twice.
`--check` fails where one of them is not among those that are known (docs/cuda.md, "The interpreter").
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gpu_share

from trainc import _core

CASES = (*gpu_share.CASES, "resnet50")
WASTEFUL = 1.5  # rows that begin amid a sector cost up to one sector more a request of four

# by name; whether of Shared memory, of writes; bytes at most
KNOWN = [
    (re.compile(r"(map_slice|map_mul|map_pad|concat|columns_reduce)\b"), False, False, float("inf")),
    *((re.compile(r"map_(permute|slice)\b"), True, written, float("inf")) for written in (False, True)),
    (re.compile(r"contract"), False, True, float("inf")),
    (re.compile(r"contract"), False, False, float("inf")),
    (re.compile(r"rows_|scan"), False, False, 2e6),
    (re.compile(r"scan"), False, True, 2e6),
]


@dataclass(frozen=True)
class Access:
    """One kernel's requests to one buffer: `units` sectors or wavefronts, where `least` would do."""

    kernel: str
    buffer: str
    shared: bool
    written: bool
    requests: float
    units: float
    least: float
    bytes: float

    @property
    def excess(self) -> float:
        return self.units - self.least

    @property
    def known(self) -> bool:
        return any(
            name.match(self.kernel) and (self.shared, self.written) == (shared, written) and self.bytes < most
            for name, shared, written, most in KNOWN
        )

    @property
    def wasteful(self) -> bool:
        return self.units > self.least if self.shared else self.units > WASTEFUL * self.least


def accesses(nest: str) -> list[Access]:
    """Of one kernel's nest."""
    name = nest.split("\n", 1)[0].removeprefix("kernel ")
    return [Access(name, *row) for row in _core.memory_traffic(nest)]


def kernels(name: str, bf16: bool, layers: int) -> Iterator[str]:
    """The nests of a training step's kernels."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(TRAINC_DUMP="loop", TRAINC_DUMP_DIR=folder)
        gpu_share.steps_for_a_gpu(name, bf16, layers)
        for file in sorted(Path(folder).rglob("*.loop")):
            yield file.read_text()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--precisions", nargs="+", choices=("bf16", "fp32"), default=("bf16", "fp32"))
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--rows", type=int, default=12, help="of the worst, so many are told of")
    parser.add_argument("--check", action="store_true", help="fail where one is not among those that are known")
    asked = parser.parse_args(arguments)
    unknown = []
    for name in asked.cases:
        for precision in asked.precisions:
            all_of = [accesses(nest) for nest in kernels(name, precision == "bf16", asked.layers)]
            every = [access for of_kernel in all_of for access in of_kernel]
            sectors, least = (sum(getattr(a, what) for a in every if not a.shared) for what in ("units", "least"))
            unknown += [(name, precision, a) for a in every if a.wasteful and not a.known]
            bad = sorted((a for a in every if a.wasteful), key=lambda a: -a.excess)
            print(
                f"{name} {precision}: {len(all_of)} kernels, {len({a.kernel for a in bad})} of them wasteful; "
                f"sectors {sectors / max(least, 1):.2f} x the least",
                flush=True,
            )
            for a in bad[: asked.rows]:
                what = "wavefronts" if a.shared else "sectors"
                print(
                    f"    {a.kernel[:44]:44} {'writes' if a.written else 'reads':6} {a.buffer[:16]:16} "
                    f"{a.requests:11.3g} requests, "
                    f"{a.bytes / 1e6:9.3g} MB, {a.units:9.3g} {what}, {a.units / a.least:5.2f} x the least",
                    flush=True,
                )
    if asked.check and unknown:
        rows = [f"    {case} {precision}: {access}" for case, precision, access in unknown]
        sys.exit("\n".join(["not among those that are known:", *rows]))


if __name__ == "__main__":
    main()
