"""trainc.report: the page and the trace against the plans' own figures."""

from __future__ import annotations

import json
import re

import pytest
import torch

import trainc
from trainc.base import records

HOSTILE = '</script><img src=x onerror="alert(1)">'


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 8))
    model, optimizer = trainc.compile(model, torch.optim.AdamW(model.parameters()))
    return model, optimizer


def step(model, optimizer) -> None:
    model(torch.randn(32, 64)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_its_times_and_memory_are_the_plans(tmp_path):
    model, optimizer = trained()
    with trainc.profile(model, optimizer):
        step(model, optimizer)
    before = [p.clone() for p in model.parameters()]
    report = trainc.report((model, optimizer), tmp_path / "report.html")
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    plans = [*records.of(model)[0].reports(), *records.of(optimizer)[0].reports()]
    seconds = sum(s["seconds"] for plan in plans for s in plan["steps"])
    assert report.figures.timed and seconds > 0
    assert sum(k["seconds"] for k in report.as_dict()["kernels"]) == pytest.approx(seconds)
    memory = trainc.explain(model).memory
    assert report.as_dict()["memory"]["total"] == memory.total > 0
    for phase in report.figures.phases:
        for b in phase.blocks:
            assert b.offset + b.bytes <= (phase.temporary if b.arena == "temporary" else phase.kept)
    page = report.path.read_text()
    kernels = [k for phase in report.figures.phases for k in phase.kernels]
    assert page.count('class="dot"') == len([k for k in kernels if k.flops and k.bytes and k.seconds]) > 0
    assert "http://" not in page and "https://" not in page and "No step was timed" not in page
    assert {p.name for p in report.figures.phases} == {"forward", "backward", "optimizer"}
    assert all(0 < report.figures.roof(k) for k in kernels if k.flops and k.seconds)
    assert list(tmp_path.iterdir()) == [report.path]


def test_the_trace_has_every_kernel_one_after_another(tmp_path):
    model, optimizer = trained()
    with trainc.profile():
        step(model, optimizer)
    report = trainc.report((model, optimizer), tmp_path / "trace.json")
    events = json.loads(report.path.read_text())["traceEvents"]
    kernels = [e for e in events if e["ph"] == "X"]
    assert sum(e["dur"] for e in kernels) == pytest.approx(1e6 * report.figures.seconds)
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {"forward", "backward", "optimizer"}
    for before, after in zip(kernels, kernels[1:], strict=False):
        assert before["ts"] + before["dur"] <= after["ts"] + 1e-6


def test_an_untimed_step_says_how_to_time_one(tmp_path):
    model, optimizer = trained()
    step(model, optimizer)
    report = trainc.report(model, tmp_path / "report.html")
    assert not report.figures.timed and "no step was timed" in str(report)
    assert "with trainc.profile(model, optimizer):" in report.path.read_text()


def test_times_are_taken_within_profile_alone():
    model, optimizer = trained()
    with trainc.profile():
        step(model, optimizer)
        assert records.of(model)[0].forward.plan.profile
    assert not records.of(model)[0].forward.plan.profile


def test_nothing_compiled_and_all_in_pytorch(tmp_path):
    model = trainc.compile(torch.nn.Linear(2, 2))
    assert "nothing is compiled yet" in trainc.report(model, tmp_path / "a.html").path.read_text()
    eager = torch.nn.Linear(2, 2)
    records.of(eager).append(records.Compilation("Linear", route="eager", reason="a <reason> of its own"))
    assert "runs in PyTorch: a &lt;reason&gt; of its own" in trainc.report(eager, tmp_path / "b.html").path.read_text()


class Plan:
    def report(self) -> dict:
        step = {"name": HOSTILE, "kind": "kernel", "flops": 5, "bytes": 7, "origins": [HOSTILE], "seconds": 1e-3}
        call = {"name": HOSTILE, "kind": "extern", "flops": 0, "bytes": 7, "origins": [], "seconds": 3e-3, "reason": HOSTILE}
        remark = {"stage": "schedule", "what": "fuse", "reason": HOSTILE, "detail": HOSTILE, "origins": [HOSTILE]}
        plan = {"name": HOSTILE, "cpu": HOSTILE, "temp_bytes": 1, "saved_bytes": 0, "steps": [step, call]}
        return {**plan, "remarks": [{**remark, "count": 1, "bytes": 1}]}


def test_names_are_escaped(tmp_path):
    model = type(HOSTILE, (torch.nn.Linear,), {})(2, 2)
    record = records.Compilation(HOSTILE, signature=HOSTILE, engine="core", reason=HOSTILE, recompiled=HOSTILE)
    record.forward = Plan()
    records.of(model).append(record)
    report = trainc.report(model, tmp_path / "a.html")
    page = report.path.read_text()
    assert "<img" not in page and page.count("</script>") == 1
    assert page.count("&lt;/script&gt;") > 8
    assert "25.0% of it in compiled kernels" in page
    assert "<img" not in report._repr_html_() and "<img" not in trainc.explain(model)._repr_html_()


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(trainc.UserError, match="neither"):
        trainc.report(torch.nn.Linear(2, 2), tmp_path / "a.pdf")
    with pytest.raises(trainc.UserError, match="cannot write"):
        trainc.report(torch.nn.Linear(2, 2), tmp_path / "none" / "a.html")


def test_plans_have_names_in_torchs_profiler():
    model, optimizer = trained()
    step(model, optimizer)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step(model, optimizer)
    names = [event.key for event in profiler.key_averages() if event.key.startswith("trainc: ")]
    assert any(re.search("backward", name) for name in names) and len(names) >= 2
