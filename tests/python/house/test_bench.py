"""`make bench`'s program on a model small enough for a test, and what it makes of its measurements."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parents[3] / "bench"
sys.path.insert(0, str(BENCH))
import cases  # noqa: E402
import compare_plans  # noqa: E402
import contestant  # noqa: E402
import gpu  # noqa: E402
import kernels  # noqa: E402
import own_networks  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402
import xla  # noqa: E402

import trainc  # noqa: E402
from trainc.base import config  # noqa: E402


def bench(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, BENCH / "run.py", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})


def test_a_tiny_run_and_its_resumption(tmp_path, capsys):
    file = tmp_path / "results.json"
    words = ["--cases", "tiny", "--precisions", "fp32", "--steps", "1", "--contestants", "eager", "trainc", "--no-floor"]
    done = bench(*words, "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert "over eager" in done.stdout and "tiny" in done.stdout
    stored = json.loads(file.read_text())
    (row,) = stored["rows"]
    eager, trainc = row["contestants"]["eager"], row["contestants"]["trainc"]
    assert len(eager["seconds"]) == len(trainc["seconds"]) == 1
    assert trainc["losses"] == pytest.approx(eager["losses"], rel=1e-5)  # two steps: the second saw AdamW's first
    assert trainc["externs"] == 0
    # again, in this process: nothing is left to do
    words = [*words, "--json", str(file), "--resume"]
    assert run.run(run.arguments(words)) == stored
    assert "measured before" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="has steps 1, this run 2"):
        run.run(run.arguments([*words, "--steps", "2"]))


@pytest.mark.thorough
def test_another_tree_takes_part(tmp_path):
    words = ["--cases", "tiny", "--precisions", "fp32", "--steps", "1", "--contestants", "trainc", "--no-floor"]
    package = tmp_path / "python" / "trainc"
    package.mkdir(parents=True)
    with pytest.raises(SystemExit):
        run.arguments([*words, "--against", str(tmp_path)])  # nothing is built there
    (package / "_core.so").touch()
    (package / "__init__.py").write_text("raise ImportError('the other tree')\n")
    done = bench(*words, "--against", str(tmp_path), "--json", str(tmp_path / "results.json"))
    assert done.returncode == 0, done.stderr
    assert "trainc-other died: ImportError: the other tree" in done.stdout


NEST = "kernel {}\n  flops 8\n  parallel i in 0..{}  // m.py:3 (aten.add)\n"
PLAN = """plan f for avx2: 1 inputs
buffers:
  t0: temp +{} f32[4]
steps:
  0: {} = kernel {} over 1  // m.py:3
remarks:
  {}
"""


def test_kernels_and_the_report_tell_the_same_of_a_step(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "fallback", config.fallback)  # put back afterwards
    measured, through = [], contestant.through
    monkeypatch.setattr(contestant, "through", lambda *words: measured.append(through(*words)) or measured[-1])
    (wall,), (told,) = kernels.measure("tiny", False, steps=1, warm_up=1)
    figures = trainc.report(measured[0], tmp_path / "report.html").as_dict()

    def row(kernel: dict) -> tuple:
        return kernel["name"], kernel["flops"], kernel["bytes"], kernel["seconds"]

    assert sorted(map(row, figures["kernels"])) == sorted(map(row, told)) and len(told) > 5
    assert sum(k["seconds"] for k in told) == pytest.approx(figures["seconds"]) and figures["seconds"] <= figures["wall"] <= wall
    shown = kernels.table([wall], [told], figures["peaks"]["flops"], figures["peaks"]["bytes"], 99)
    assert f"{1e3 * figures['seconds']:.1f} ms of " in shown


def test_plans_are_compared_without_names_lines_and_remarks():
    ours = {"f.k0.a.loop": NEST.format("a", 4), "f.plan.txt": PLAN.format(0, "a", "a", "x")}
    moved = NEST.format("b", 4).replace("m.py:3", "m.py:5")
    theirs = {"f.k0.b.loop": moved, "f.plan.txt": PLAN.format(0, "b", "b", "y")}
    assert compare_plans.compared(ours, theirs) == ("1 nests equal, 0 only in the other, 0 only here; 1 plans equal", [])
    theirs = {"f.k0.a.loop": NEST.format("a", 8), "f.plan.txt": PLAN.format(64, "a", "a", "x")}
    told, lines = compare_plans.compared(ours, theirs)
    assert told == "0 nests equal, 1 only in the other, 1 only here; plans differ: f.plan.txt"
    assert "-  t0: temp +64 f32[4]" in lines and "+  parallel i in 0..4" in lines


def test_a_contestant_that_dies_says_why():
    start = contestant.Contestant
    with start("no such case", "eager", False, 600) as wrong, start("tiny", "eager", False, 600) as killed:
        with pytest.raises(contestant.Died, match="KeyError: 'no such case'"):
            wrong.answer()
        killed.process.kill()
        with pytest.raises(contestant.Died, match="killed by SIGKILL"):
            killed.ask("step")


def test_the_flops_of_a_transformer():
    tiny = cases.build("tiny")  # 2 rows of 16 tokens; 2 layers, 48 wide, 600 words
    linear = 2 * 32 * (2 * 12 * 48 * 48 + 600 * 48)
    attention = 2 * (2 * 2 * 2 * 16 * 16 * 48)
    assert contestant.flops_of(tiny.model, tiny.batch(0)) == 3 * (linear + attention)


@pytest.mark.parametrize("kind", ["dense", "strided", "grouped", "depthwise", "transposed"])
def test_the_flops_of_a_convolution(kind):
    layers = {
        "dense": torch.nn.Conv2d(6, 12, 3),
        "strided": torch.nn.Conv2d(6, 12, 3, 2, 1),
        "grouped": torch.nn.Conv2d(6, 12, 3, groups=3),
        "depthwise": torch.nn.Conv2d(6, 6, 3, groups=6),
        "transposed": torch.nn.ConvTranspose2d(6, 4, 2, 2),
    }
    layer, x = layers[kind], torch.randn(2, 6, 9, 9, requires_grad=True)
    places = 2 * (9 * 9 if kind == "transposed" else layer(x)[0, 0].numel())
    model = torch.nn.Module()
    model.forward = lambda x: types.SimpleNamespace(loss=layer(x).sum())
    assert contestant.flops_of(model, {"x": x}) == 3 * 2 * places * layer.weight.numel()


def test_the_flops_of_an_lstm():
    model = own_networks.LSTMLanguageModel(vocabulary=50, width=8)
    words = torch.randint(0, 50, (2, 5))
    of_a_token = 2 * (2 * 4 * 8 * (8 + 8)) + 2 * 8 * 50  # two layers' gates, the head
    first_state = 2 * 2 * (2 * 4 * 8 * 8)  # of 2 rows and 2 layers: nobody wants its gradient
    counted = contestant.flops_of(model, {"input_ids": words, "labels": words})
    assert counted == 3 * 10 * of_a_token - first_state


@pytest.mark.parametrize("shifted", [False, True])
def test_rows_without_a_label_are_no_work_that_matters(shifted):
    tiny = cases.build("tiny")
    some = cases._labelled(tiny, tiny.batch, 0.4, (600, 48), shifted)
    labels = some.batch(3)["labels"]
    assert torch.equal(labels, some.batch(3)["labels"])
    assert 0 < (labels != -100).sum() < 32
    rows = sum((row[1:] if shifted else row).ne(-100).sum().item() for row in labels)
    assert some.hidden_flops(some.batch(3)) == 3 * 2 * 600 * 48 * (32 - rows)
    assert tiny.hidden_flops(tiny.batch(3)) == 0


def test_padding_is_no_work_that_matters():
    tiny = cases.build("tiny")
    some = cases._padded(tiny, 0.6, 2, 48, 192)
    mask = some.batch(3)["attention_mask"]
    assert torch.equal(mask, some.batch(3)["attention_mask"])
    assert mask[0].all() and mask[:, 0].all() and 0 < (mask == 0).sum() < 16
    lengths = mask.sum(1).tolist()
    linear, attention = 2 * 12 * 48 * 48, 2 * 2 * 48
    rows, pairs = sum(16 - n for n in lengths), sum(16 * 16 - n * n for n in lengths)
    assert some.hidden_flops(some.batch(3)) == 3 * 2 * (rows * linear + pairs * attention)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", cases.CASES)
def test_cases_are_what_their_titles_say(name):
    """Parameters in millions, as published (embeddings shared with the head counted once)."""

    parameters = {"gpt2": 124.4, "roberta": 124.6, "resnet50": 25.6, "vit": 86.6, "llama": 56.4}
    parameters |= {"gpt2-1x64": 124.4, "gpt-2x256": 14.7, "gpt2-tuned": 124.4, "roberta-masked": 124.7, "roberta-padded": 124.6}
    parameters |= {"convnext": 28.6, "unet": 31.0, "lstm": 19.8, "lstm-256": 6.18, "mlp": 0.2}
    with torch.device("meta"):
        model = cases.CASES[name].build().model
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(parameters[name], abs=0.06)


def row(case="gpt2", precision="fp32", small=False, **contestants) -> dict:
    return {
        "case": case,
        "precision": precision,
        "small": small,
        "flops": 8e11,
        "parameters": 100_000_000,
        "contestants": contestants,
    }


def ran(*seconds: float) -> dict:
    return {"first": 10.0, "seconds": list(seconds), "losses": [2.0, 1.0], "peak_bytes": 4e9}


PEAKS = {
    "cpu": "a CPU", "level": "avx512", "threads": 2, "fp32_flops": 4e11, "bf16_flops": 8e11, "fp32_sustained": 3.2e11,
    "bf16_sustained": 8e11, "copy_bytes": 2.8e10,
}  # fmt: skip


def test_ratios_are_of_medians_and_their_spread_of_rounds():
    one = row(eager=ran(6.0, 5.0, 9.0), trainc=ran(3.0, 2.0, 2.0), inductor={"died": "killed"})
    assert report.ratio(one, "eager", "trainc") == (3.0, 2.0, 4.5)
    assert report.ratio(one, "inductor", "trainc") is None


def test_the_floor_is_arithmetic_and_the_optimizers_bytes():
    assert report.floor_seconds(row(), PEAKS) == pytest.approx(2.0 + 0.1)
    assert report.floor_seconds(row(precision="bf16"), PEAKS) == pytest.approx(1.0 + 0.1)
    assert report.floor_seconds(row(precision="bf16"), {**PEAKS, "bf16_flops": 0}) == pytest.approx(2.0 + 0.1)
    assert report.floor_seconds(row(), PEAKS, "sustained") == pytest.approx(2.5 + 0.1)
    assert report.floor_seconds(row(), {}) is None


def test_a_geomean_caps_each_ratio():
    assert report.geomean([1.0, 100.0]) == pytest.approx(3**0.5)


def test_the_table_names_the_dead_the_left_out_and_the_means(tmp_path):
    rows = [
        row(eager=ran(4.0), inductor=ran(3.0), trainc=ran(2.0)),
        row(precision="bf16", eager=ran(8.0), inductor={"died": "killed by SIGKILL"}, trainc=ran(2.0)),
        row("gpt2-1x64", small=True, eager=ran(0.2), trainc=ran(0.4)),
    ]
    results = {
        "rows": rows,
        "peaks": PEAKS,
        "doors": ["eager", "inductor", "trainc"],
        "left_out": ["vit fp32"],
        "torch": "2.13.0",
    }
    text = report.text(results)
    assert "gpt2 bf16: inductor died: killed by SIGKILL" in text
    assert "left out: vit fp32" in text
    assert "0.95x      0.77x" in text
    assert "over eager: geomean 2.45x, each capped at 3, least 2.00x (2 of 2 rows of large models)" in text
    assert "over Inductor: geomean 1.50x, each capped at 3, least 1.50x (1 of 2 rows of large models)" in text
    assert "over the faster peer, least: 0.50x (gpt2-1x64 fp32)" in text
    report.picture(results, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


# ---- XLA ---------------------------------------------------------------------------------------------------------------


def test_xla_takes_part_where_jax_is_installed(monkeypatch, capsys):
    monkeypatch.setattr(xla, "installed", lambda: False)
    assert "xla" not in run.arguments(["--no-floor"]).contestants
    with pytest.raises(SystemExit):
        run.arguments(["--no-floor", "--contestants", "eager", "xla"])
    assert "want JAX, which is not installed here: `pip install jax`" in capsys.readouterr().err
    monkeypatch.setattr(xla, "installed", lambda: True)
    args = run.arguments(["--no-floor"])
    assert run.doors_of("gpt2", args) == ["eager", "inductor", "xla", "trainc"]
    assert run.doors_of("resnet50", args) == ["eager", "inductor", "trainc"]  # nobody has written it in JAX


@pytest.mark.parametrize("bf16", [False, True])
def test_xla_trains_as_eager_does(bf16):
    """Without dropout, five steps; bf16 within what its rounding does to a loss near 6."""
    pytest.importorskip("jax", reason="JAX is no requirement: it is measured where it is installed")
    losses = {}
    for door in ("eager", "xla"):
        case = cases.build("tiny")
        case.model.config.update({"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0})
        for module in case.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        step = contestant.stepping(door, case.model, torch.optim.AdamW(case.model.parameters(), lr=1e-4), bf16)
        losses[door] = [step(case.batch(i)).item() for i in range(5)]
    assert losses["xla"] == pytest.approx(losses["eager"], rel=2e-3 if bf16 else 1e-5)


# ---- on a GPU ---------------------------------------------------------------------------------------------------------


def test_without_a_gpu_it_says_so():
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, BENCH / "gpu.py"], capture_output=True, text=True, env=hidden)
    assert done.returncode == 2 and done.stdout == ""
    assert "bench-cuda: nothing was measured: " in done.stderr


def test_what_is_measured_on_a_gpu():
    args = gpu.arguments([])
    assert (args.cases, args.precisions) == (["gpt2", "roberta", "llama", "resnet50", "vit"], ["bf16", "fp32"])
    assert args.contestants == ["eager", "inductor", "autotune", "trainc", "trainc-step"]


def rehearsed(door):
    cases.tokens_of(600)
    found = json.loads(json.dumps(gpu.contest("tiny", "fp32", door, 1, "cpu", gpu.Turns(None))))
    assert len(found["seconds"]) == 1 and len(found["losses"]) == 4 and found["launches"] == 0 and found["wall"] > 0
    assert bool(found["kernels"]) == (door != "eager")
    return found["losses"]


def test_a_rehearsal_on_the_cpu(monkeypatch):
    monkeypatch.setattr(config, "fallback", True)  # put back afterwards
    wanted = pytest.approx(rehearsed("eager"), rel=1e-5)
    assert rehearsed("trainc") == wanted
    assert rehearsed("trainc-step") == wanted


def test_contestants_are_measured_one_at_a_time(tmp_path):
    """While one measures, none gets ready and none measures; getting ready, they are not in each other's way."""
    code = (
        "import sys, time, gpu; turns = gpu.Turns(sys.argv[1], 20); say = lambda word: print(word, time.monotonic())\n"
        "turns.get_ready(); say('ready'); time.sleep(0.3); say('made')\n"
        "with turns.alone(): say('begins'); time.sleep(0.2); say('ends')\n"
    )
    command = [sys.executable, "-c", code, tmp_path / "lock"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=BENCH) for _ in range(3)]
    told = [dict(line.split() for line in process.communicate()[0].splitlines()) for process in running]
    spans = [(float(t[start]), float(t[end]), start) for t in told for start, end in (("ready", "made"), ("begins", "ends"))]
    for begin, end, what in spans:
        if what == "begins":
            assert all(b >= end or e <= begin for b, e, _ in spans if (b, e) != (begin, end)), spans


def test_who_is_not_ready_in_time_keeps_nobody_waiting(tmp_path):
    code = (
        "import sys, time, gpu; turns = gpu.Turns(sys.argv[1], float(sys.argv[2]))\n"
        "turns.get_ready(); time.sleep(float(sys.argv[3]))"
    )
    slow = subprocess.Popen([sys.executable, "-c", code, tmp_path / "lock", "1", "60"], cwd=BENCH)
    quick = f"{code}\nwith turns.alone(): print('measured')"
    done = subprocess.run([sys.executable, "-c", quick, tmp_path / "lock", "20", "0"], cwd=BENCH, capture_output=True, text=True)
    assert done.stdout == "measured\n" and slow.wait() == -signal.SIGALRM


def test_the_table_of_a_gpu():
    kernel = {"name": "contract", "launches": 12, "flops": 10**12, "bytes": 10**9, "seconds": 0.004}
    row = {"seconds": [0.1, 0.2, 0.15], "first": 3.0, "peak_bytes": 2e9, "losses": [4.0, 3.5], "launches": 99, "kernels": []}
    rows = [
        {"case": "gpt2", "precision": "bf16", "door": "eager", **row},
        {"case": "gpt2", "precision": "bf16", "door": "autotune", "died": "no answer in 5 s"},
        {"case": "gpt2", "precision": "bf16", "door": "trainc", **row, "seconds": [0.05], "kernels": [kernel]},
    ]
    for door, seconds in (("eager", 0.3), ("trainc", 0.1)):
        rows.append({"case": "vit", "precision": "bf16", "door": door, **row, "events": seconds})
    text = gpu.table(rows, {"name": "a GPU", "bf16": 500e12, "fp32": 50e12, "bytes": 1e12})
    assert "a GPU: 500.0 TFLOP/s bf16, 50.0 fp32, 1000 GB/s copied" in text
    assert "3.00x" in text and "did not finish: no answer in 5 s" in text and "150.00" in text
    assert re.search(r"vit bf16  trainc, trainc.compile +100.00 .* 3.00x", text)  # by the device's events, where there are such
    assert "50.0% of the roofline" in text  # 2 ms of FLOPs in 4 ms
