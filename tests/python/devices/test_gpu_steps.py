"""Whole training steps of the five models on the stand-in for a GPU: what each emitted kernel computes, interpreted and as CUDA
C++ on the host, is what the captured graph and the optimizer's formula mean in fp64; a step asks the driver for the same calls
each time, and waits for nothing.

`make test-cuda` runs every combination, and puts each kernel through NVRTC; here is one of each model."""

from __future__ import annotations

import os

import gpu_steps
import nvrtc_table
import pytest

WHOLE = os.environ.get("TRAINC_ALL_GPU_STEPS") == "1"
# model, bf16 autocast, products by the vendor's library
ALL = [(name, bf16, products) for name in gpu_steps.MODELS for bf16 in (False, True) for products in (False, True)]
SAMPLE = [
    ("gpt2", True, False), ("roberta", False, True), ("llama", True, True), ("vit", False, False), ("resnet50", True, False)
]  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> dict[str, str]:
    """Each distinct kernel; filled by the steps, compiled by the last test."""
    return {}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name, bf16, products", ALL if WHOLE else SAMPLE)
def test_a_step_is_what_it_means(name, bf16, products, monkeypatch, tmp_path, kernels):
    monkeypatch.setenv("TRAINC_DUMP", "loop")
    monkeypatch.setenv("TRAINC_DUMP_DIR", str(tmp_path / "dump"))
    step = gpu_steps.recorded(name, bf16, products, monkeypatch)
    nvrtc_table.collect(tmp_path / "dump", kernels)
    (tmp_path / "text").mkdir()
    results, after, calls = gpu_steps.as_text(step, tmp_path / "text")

    truth, rounded = gpu_steps.meant(step, "truth"), gpu_steps.meant(step, "rounded")
    interpreted = gpu_steps.errors(step, step.results, step.after, truth, rounded)
    text = gpu_steps.errors(step, results, after, truth, rounded)
    digits = [error for error in text if error.tells]
    worst, share = max(digits, key=lambda e: e.got), max(error.got / error.bound(bf16) for error in digits)
    print(
        f"\n{name:9}{'bf16' if bf16 else 'fp32':5}{calls['kernels']:4} distinct kernels in {calls['launches']:3} launches, "
        f"{calls['products']:2} products; {len(text):3} tensors, worst error {worst.got:.1e} (ideal {worst.ideal:.1e}), "
        f"{share:4.0%} of the bound; interpreted: no finding"
    )
    for how, found in (("interpreted", interpreted), ("text", text)):
        wrong = [error for error in found if not error.got <= error.bound(bf16)]
        assert not wrong, (how, wrong)
    assert calls["launches"] > 0 and (calls["products"] > 0) == products

    *_, before, last = calls["runs"]
    assert last == before
    assert last[0].startswith("copy in ") and last[1] == "graph"  # the table of pointers, and one replay
    assert {call.split()[0] for call in last[2:]} <= {"launch", "multiply"}  # which is these: nothing waits, or allocates
    assert len(last) == 2 + calls["launches"] + calls["products"]


if WHOLE:

    def test_no_kernel_spills(kernels):
        assert kernels, "run this test with the steps"
        assert not nvrtc_table.spilled(kernels)
