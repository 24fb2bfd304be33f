"""trainc.explain and the command line: what a person reads."""

from __future__ import annotations

import inspect
import itertools
import os
import re
import subprocess
import sys
import textwrap

import models
import pytest
import torch

import trainc
from trainc.base import records, report

LINES = ["model.py:41", "model.py:41", "model.py:42"]
STEPS = [
    {"name": "addmm", "kind": "kernel", "flops": 2_000_000_000, "bytes": 3_000_000, "origins": LINES},
    {"name": "gelu", "kind": "kernel", "flops": 1_000, "bytes": 1_000_000, "origins": ["model.py:43"], "seconds": 0.0021},
    {"name": "aten.cdist", "kind": "extern", "flops": 0, "bytes": 1_000_000, "origins": ["model.py:57"]},
]  # fmt: skip


class Plan:
    def __init__(self, name: str, steps: list[dict]):
        self.json = {
            "name": name,
            "cpu": "avx512",
            "temp_bytes": 2_000_000,
            "saved_bytes": 0,
            "steps": steps,
            "notes": ["a note"],
        }

    def report(self) -> dict:
        return self.json


@pytest.fixture
def model() -> torch.nn.Module:
    model = torch.nn.Linear(2, 2)
    compilation = records.Compilation(
        "Linear", signature="x f32[8, 2], training", engine="core", capture_seconds=1.5, compile_seconds=2.5
    )
    compilation.forward = Plan("Linear", STEPS)
    compilation.backward = {(True, True): Plan("Linear, backward", STEPS[:1]), (True, False): Plan("Linear, backward", STEPS[:2])}
    records.of(model).append(compilation)
    return model


def test_it_tells_what_was_compiled_and_what_was_not(model):
    text = str(trainc.explain(model))
    assert "Linear: compiled for 1 signature" in text
    assert "x f32[8, 2], training" in text
    assert "4 kernels, 1 call of PyTorch" in text  # of the backward's variants only the last counts
    assert "100.0% of 4 GFLOP, 88.9% of 9 MB" in text
    assert "capture 1.5 s, compile 2.5 s" in text
    assert re.search(r"addmm +2 GFLOP +3 MB +model.py:41, model.py:42", text)
    assert re.search(r"gelu +1 kFLOP +1 MB +2.10 ms +model.py:43", text)
    assert re.search(r"run by PyTorch:\n +aten.cdist +model.py:57", text)
    assert "not compiled" not in text
    assert "2 MB temporary" in text and "note: a note" in text


def test_figures_for_programs(model):
    explanation = trainc.explain(model)
    assert explanation.externs == [("aten.cdist", "model.py:57")]
    assert explanation.totals == report.Totals(4_000_002_000, 9_000_000, 4_000_002_000, 8_000_000, kernels=4, externs=1)
    assert explanation.totals.flops_share == 1.0


def test_what_runs_beside_the_kernels_is_no_kernel(model):
    send = {"name": "send", "kind": "start", "operation": "all_reduce", "flops": 0, "bytes": 5, "origins": []}
    wait = {"name": "wait", "kind": "wait", "flops": 0, "bytes": 0, "origins": [], "seconds": 0.00125}
    records.of(model)[0].forward = Plan("Linear", [send, *STEPS, send, wait, wait])
    explanation = trainc.explain(model)
    assert explanation.totals == report.Totals(4_000_002_000, 9_000_000, 4_000_002_000, 8_000_000, kernels=4, externs=1)
    assert "    beside the kernels: 2 x all_reduce, waited for 2.50 ms\n" in str(explanation)


class Refused(torch.nn.Module):
    """Nothing here can be one kernel."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 6))

    def forward(self, x):
        steps = (x @ self.weight).cumsum(1)  # scan
        sums = torch.tanh(steps)  # not fused
        return torch.cdist(sums, sums).sum()  # not compiled


def line_of(comment: str) -> str:
    lines, first = inspect.getsourcelines(Refused)
    return f"test_explain.py:{first + [line.partition('# ')[2].strip() for line in lines].index(comment)}"


def test_what_was_refused_is_told_with_its_line():
    model = trainc.compile(Refused())
    model(torch.randn(4, 8)).backward()
    explanation = trainc.explain(model)
    fuse = [r for r in explanation.remarks if r.reason == "a scan is a kernel of its own"]
    lines = (f"{line_of('not fused')} (aten.tanh)", f"{line_of('scan')} (aten.cumsum)")
    assert [(r.what, r.stage, r.count, r.bytes) for r in fuse] == [("fuse", "schedule", 1, 4 * 6 * 4)]
    assert tuple(origin.rsplit("/", 1)[-1] for origin in fuse[0].origins) == lines
    calls = [r for r in explanation.remarks if r.what == "compile" and line_of("not compiled") in r.origins[0]]
    assert {r.reason for r in calls} == {"trainc has no row for it"}
    assert "aten._cdist_forward.default" in {r.detail for r in calls}
    assert all(a.bytes >= b.bytes for a, b in itertools.pairwise(explanation.remarks))
    text = str(explanation)
    pair = rf"\S*{re.escape(lines[0])} <- \S*{re.escape(lines[1])}"
    assert re.search(rf"1 x +96 B  not fused: a scan is a kernel of its own\n +{pair}", text)
    call = rf"\S*{line_of('not compiled')} \(aten._cdist_forward\)"
    assert re.search(rf"aten._cdist_forward.default +{call}  trainc has no row for it", text)


def test_equal_refusals_are_one_and_the_largest_come_first():
    def remark(reason: str, count: int, size: int, *origins: str) -> dict:
        told = {"stage": "schedule", "what": "fuse", "reason": reason, "detail": ""}
        return {**told, "origins": origins, "count": count, "bytes": size}

    model = torch.nn.Linear(2, 2)
    compilation = records.Compilation("Linear", engine="core")
    compilation.forward = Plan("Linear", STEPS)
    compilation.forward.json["remarks"] = [
        remark("small", 1, 10, "m.py:1"),
        *(remark("large", 12, 1_000_000, f"m.py:{i}", "m.py:9") for i in range(5)),
        *(remark(f"rare{i}", 1, 1, "m.py:1") for i in range(20)),
    ]
    records.of(model).append(compilation)
    text = str(trainc.explain(model))
    assert re.search(r"60 x +5 MB  not fused: large\n +m.py:0 <- m.py:9\n(.*\n){2} +and 2 more\n", text)
    assert re.search(r"and 2 more\n +1 x +10 B  not fused: small", text)
    assert text.endswith("and 10 reasons of fewer bytes")
    assert len(trainc.explain(model).remarks) == 26


def test_many_kernels_are_cut_short():
    model = torch.nn.Linear(2, 2)
    compilation = records.Compilation("Linear")
    compilation.forward = Plan(
        "Linear", [{"name": f"k{i}", "kind": "kernel", "flops": 1, "bytes": 1, "origins": []} for i in range(20)]
    )
    records.of(model).append(compilation)
    assert "and 8 smaller ones: 8 FLOP, 8 B" in str(trainc.explain(model))


def test_a_model_that_runs_eagerly_says_why():
    model = torch.nn.Linear(2, 2)
    records.of(model).append(records.Compilation("Linear", route="eager", reason="its forward has a hook (train.py:12)"))
    assert "runs in PyTorch: its forward has a hook (train.py:12)" in str(trainc.explain(model))


def test_nothing_compiled_yet(tmp_path):
    trainc.explain(torch.nn.Linear(2, 2), tmp_path / "explanation.txt")
    assert "nothing is compiled yet" in (tmp_path / "explanation.txt").read_text()


def test_a_trained_model_is_explained():
    case = models.build("mlp")
    model = trainc.compile(case.model)
    case.step_loss(0, model).backward()
    text = str(trainc.explain(model))
    assert "Mlp: compiled for 1 signature" in text
    assert "models.py:" in text  # the user's lines


def test_the_backends_graphs_are_explained():
    case = models.build("mlp")
    model = torch.compile(case.model, backend="trainc")
    case.step_loss(0, model).backward()
    assert "captured by Dynamo" in str(trainc.explain(model))


# ---- the command ------------------------------------------------------------------------------------------------------


def command(*words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "trainc", *words], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_info_names_machine_and_versions():
    text = command("info").stdout
    assert re.search(r"trainc +0\.\d", text) and re.search(rf"PyTorch +{re.escape(torch.__version__)}", text)
    assert re.search(r"CPU level +(avx|amx)", text)


def test_info_says_when_the_level_is_forced():
    from trainc import _core

    said = re.search(r"CPU level +avx2(, forced by TRAINC_CPU)?", command("info", TRAINC_CPU="avx2").stdout)
    assert bool(said[1]) == (_core.machine_cpu_level() != "avx2")


def test_operations_are_listed():
    lines = command("operations").stdout.split()
    assert "aten.mm.default" in lines and lines == sorted(lines)


def test_help_and_wrong_command():
    assert "run a training script, compiled" in command("--help").stdout
    wrong = command("fly")
    assert wrong.returncode == 2 and "there is no command 'fly'" in wrong.stderr


def test_run_compiles_an_unchanged_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import sys, torch
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loss_of = torch.nn.MSELoss()
        for step in range(int(sys.argv[1])):
            loss = loss_of(model(torch.randn(16, 6)), torch.zeros(16, 1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"{loss.item():.5f}")
    """)
    )
    plain = subprocess.run([sys.executable, script, "3"], capture_output=True, text=True)
    compiled = command("run", "--explain", str(script), "3")
    assert compiled.returncode == 0, compiled.stderr
    assert compiled.stdout == plain.stdout and len(plain.stdout.split()) == 3
    assert "Sequential: compiled for 1 signature" in compiled.stderr


def test_run_hands_on_how_the_script_ends(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import sys\nsys.exit(7)\n")
    assert command("run", str(script)).returncode == 7


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)

    def forward(self, x):
        y = self.norm(self.layer(x))
        return y * 2 if y.sum() > 0 else y


def test_a_batch_that_is_not_compiled_has_its_reason(core):
    model = trainc.compile(Branches())
    for _ in range(2):
        text = str(trainc.explain(model, batch=torch.ones(2, 3)))
        assert len(re.findall(r"test_explain.py:\d+: reads the value of a tensor", text)) == 1, text
    assert model.norm.num_batches_tracked == 0
    with pytest.raises(RuntimeError, match="reduction dim|mat1 and mat2"):
        trainc.explain(model, batch=torch.ones(2, 5))


@pytest.mark.parametrize("what", [None, "model", 3])
def test_only_what_was_compiled_can_be_explained(what):
    with pytest.raises(trainc.UserError, match="wants a model"):
        trainc.explain(what)
