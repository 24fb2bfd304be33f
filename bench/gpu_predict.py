"""What a training step should take on a GPU, kernel by kernel, from the description of the device. No GPU is needed, and nothing
is measured: plans are made for one, and what each of their steps computes and moves is known.

    python bench/gpu_predict.py [--cases gpt2 llama] [--precisions bf16] [--device H200] [--kernels 12] [--own-products]

Models and batches are `make bench-cuda`'s. A step of a plan takes as long as its FLOPs at 0.75 of the device's peak, or its bytes
at 0.85 of its bandwidth ("roofline"; a gather is taken to read all that it picks from). "As built" has four things more. Kernels
of few threads cannot have that much memory in flight: what they ask for at a time (16 bytes a thread) is divided by its latency.
Products whose rows begin at no multiple of 16 bytes are taken for slower. Each thread of a scatter that is dealt by
place walks over the places of its sources. Contractions by kernels of ours reach less of the peak, and their last blocks leave
multiprocessors idle; `--own-products` predicts a step in which the vendor's library multiplies nothing.

Plans are traced on the CPU for one layer and for two; each layer more takes what the second one does. Attention is the
framework's fused call, whose dropout costs nothing here, and convolutions are taken for its own, at the same 0.75.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import defaultdict
from dataclasses import dataclass

import gpu_share

from trainc.base import config

FLOPS_SHARE, BYTES_SHARE = 0.75, 0.85  # of the peaks
MISALIGNED_SHARE = 0.3  # of the peak: a guess at a product whose rows begin at no multiple of 16 bytes
# of the peak, guesses at kernels of ours. On tensor cores: mma.sync, which is all that they ask for, reaches some 0.6 of what
# wgmma does, and copying ahead does not hide all. By FMA: nothing is copied ahead
OWN_SHARE = {"bf16": 0.4, "fp32": 0.5}
# cycles of a multiprocessor for each place that a thread of a scatter reads: of 8 at a time, which lie in Shared memory, ten
# instructions and some 50 cycles until it is known whether one of them is its own (src/lower/dealt_scatter.cpp)
WALK = 8
CLOCK = 1.8e9  # of a multiprocessor
LATENCY = 0.7e-6  # seconds from a load to its value, of memory that no cache holds
IN_FLIGHT = 16  # bytes that a thread asks for at a time
RESIDENT = 2048  # threads of a multiprocessor


PICKS = re.compile(r"nll_loss_forward|aten\.(embedding|gather|index_select)\)")
CASES = (*gpu_share.CASES, "resnet50")
TOKENS = {"gpt2": 16 * 1024, "roberta": 64 * 512, "llama": 4 * 2048}  # a batch has so many


@dataclass(frozen=True)
class Gpu:
    """Dense FLOP/s of products (fp32 without tensor cores), bytes/s of memory: the vendor's data sheets."""

    flops: dict[str, float]
    bytes: float
    multiprocessors: int


DEVICES = {
    "H200": Gpu({"bf16": 989e12, "fp32": 67e12}, 4.8e12, 132),
    "H100": Gpu({"bf16": 989e12, "fp32": 67e12}, 3.35e12, 132),
}
LAYERS = {"gpt2": 12, "roberta": 12, "llama": 22, "vit": 12}
# batch, heads, length, width of a head, share of it that a mask leaves
ATTENTION = {
    "gpt2": (16, 12, 1024, 64, 0.5), "roberta": (64, 12, 512, 64, 1),
    "llama": (4, 32, 2048, 64, 0.5), "vit": (64, 12, 197, 64, 1),
}  # fmt: skip


@dataclass
class Row:
    """Steps of one name."""

    launches: float = 0
    flops: float = 0
    bytes: float = 0
    floor: float = 0  # seconds by the roofline
    built: float = 0  # and with the memory in flight that its threads allow

    def add(self, other: Row, times: float = 1) -> None:
        for name in vars(self):
            setattr(self, name, getattr(self, name) + times * getattr(other, name))


def step_row(
    flops: float, moved: float, threads: int, gpu: Gpu, precision: str, aligned: bool = True, walked: int = 0, tiles: int = 0
) -> Row:
    """Of one step. `threads`: 0 where it is the library's or the framework's. `walked`: places that each thread reads. `tiles`:
    blocks of a contraction by a kernel of ours."""
    bandwidth = BYTES_SHARE * gpu.bytes
    by_flops = flops / (FLOPS_SHARE * gpu.flops[precision])
    built_flops = by_flops if aligned else flops / (MISALIGNED_SHARE * gpu.flops[precision])
    if tiles:
        waves = tiles / gpu.multiprocessors
        built_flops = flops / (OWN_SHARE[precision] * gpu.flops[precision]) * math.ceil(waves) / waves
    reached = bandwidth
    if threads:
        reached = min(bandwidth, min(threads, gpu.multiprocessors * RESIDENT) * IN_FLIGHT / LATENCY)
    built = max(built_flops, moved / reached, walked * WALK / CLOCK)
    return Row(1, flops, moved, max(by_flops, moved / bandwidth), built)


def attention_rows(name: str, gpu: Gpu, precision: str) -> dict[str, Row]:
    """Forward, and backward, which computes the scores again: five products for two."""
    batch, heads, length, width, seen = ATTENTION[name]
    size = 2 if precision == "bf16" else 4
    product, tensor = 2 * batch * heads * length * length * width * seen, batch * heads * length * width * size
    return {
        "attention (PyTorch's)": step_row(2 * product, 4 * tensor, 0, gpu, precision),
        "attention backward (PyTorch's)": step_row(5 * product, 8 * tensor, 0, gpu, precision),
    }


def walked_by(step: dict, tokens: int) -> int:
    """How many places each thread of an embedding's gradient reads: those of all tokens (src/lower/lower.cpp, lower_scatter)."""
    return tokens if step["name"] == "scatter" else 0


def rows_of(steps: list[dict], gpu: Gpu, precision: str, tokens: int) -> dict[str, Row]:
    """By name; without those steps that the framework runs."""
    rows: dict[str, Row] = defaultdict(Row)
    for step in steps:
        if step["kind"] not in ("kernel", "product", "random"):
            continue
        origins = step["origins"]
        contraction = step["name"].startswith("contract") and step["kind"] == "kernel"
        convolution = contraction and "conv" in " ".join(origins)
        picks = "gather" in step["name"] or PICKS.search(" ".join(origins))  # its bytes are those of all that it picks from
        tiles = step["blocks"] if contraction and not convolution else 0
        threads = 0 if contraction or picks or step["kind"] == "product" else step["blocks"] * step["threads"]
        rows["convolution (PyTorch's)" if convolution else step["name"]].add(
            step_row(
                step["flops"], step["bytes"], threads, gpu, precision, step.get("aligned", True), walked_by(step, tokens), tiles
            )
        )
    return rows


def predicted(name: str, precision: str, gpu: Gpu) -> dict[str, Row]:
    """Of a whole step of the model, by kernel."""
    if name not in LAYERS:
        return rows_of(gpu_share.steps_for_a_gpu(name, precision == "bf16", 0)[0], gpu, precision, 0)
    tokens = TOKENS.get(name, 0)
    one, two = (rows_of(gpu_share.steps_for_a_gpu(name, precision == "bf16", n)[0], gpu, precision, tokens) for n in (1, 2))
    rows: dict[str, Row] = defaultdict(Row)
    for kernel in {**one, **two}:
        rows[kernel].add(one.get(kernel, Row()), 2 - LAYERS[name])
        rows[kernel].add(two.get(kernel, Row()), LAYERS[name] - 1)
    for kernel, row in attention_rows(name, gpu, precision).items():
        rows[kernel].add(row, LAYERS[name])
    return rows


def table(title: str, rows: dict[str, Row], kernels: int) -> str:
    total = Row()
    for row in rows.values():
        total.add(row)
    lines = [
        f"{title}: {total.floor * 1e3:.1f} ms by the roofline, {total.built * 1e3:.1f} ms as built, "
        f"{total.launches:.0f} launches, {total.flops / 1e12:.2f} TFLOP, {total.bytes / 1e9:.1f} GB",
        f"    {'':40}{'launches':>9}{'TFLOP':>8}{'GB':>8}{'roofline':>10}{'as built':>10}",
    ]
    shown = sorted(rows.items(), key=lambda item: -item[1].built)
    for kernel, row in shown[:kernels]:
        lines.append(
            f"    {kernel[:40]:40}{row.launches:9.0f}{row.flops / 1e12:8.2f}{row.bytes / 1e9:8.2f}"
            f"{row.floor * 1e3:7.2f} ms{row.built * 1e3:7.2f} ms"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--precisions", nargs="+", choices=("bf16", "fp32"), default=("bf16", "fp32"))
    parser.add_argument("--device", choices=DEVICES, default="H200")
    parser.add_argument("--kernels", type=int, default=12, help="of the longest, so many are told of")
    parser.add_argument("--own-products", action="store_true", help="no product is the vendor's library's")
    asked = parser.parse_args(arguments)
    if asked.own_products:
        config.vendor_product_flops = 0
    for name in asked.cases:
        for precision in asked.precisions:
            rows = predicted(name, precision, DEVICES[asked.device])
            print(table(f"{name} {precision}, {asked.device}", rows, asked.kernels), flush=True)


if __name__ == "__main__":
    main()
