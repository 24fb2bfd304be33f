"""The trace that trainc.report writes, and what torch.profiler shows of plans: every kernel, in its place, with its line."""

from __future__ import annotations

import collections
import json
import re

import pytest
import torch
from reported import step, timed_report, trained

import trainc
from trainc.base import records


def nested(events: list[dict]) -> None:
    """Events of one thread lie within one another or apart, to the nanosecond, which is what Perfetto reads."""
    open_: list[int] = []
    for begin, end in sorted((nanoseconds(e["ts"]), -nanoseconds(e["ts"]) - nanoseconds(e["dur"])) for e in events):
        while open_ and open_[-1] <= begin:
            open_.pop()
        assert not open_ or -end <= open_[-1], (begin, -end, open_)
        open_.append(-end)


def nanoseconds(microseconds: float) -> int:
    assert abs(microseconds * 1e3 - round(microseconds * 1e3)) < 1e-3
    return round(microseconds * 1e3)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_trace_is_chromes(tmp_path, threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        report = timed_report(tmp_path / "trace.json", steps=2)
    finally:
        torch.set_num_threads(before)
    trace = json.loads(report.path.read_text())
    events, figures = trace["traceEvents"], report.figures
    assert trace["otherData"] == {"timed": True, "one_step": True}
    assert {event["ph"] for event in events} == {"M", "X"} and {event["pid"] for event in events} == {1}
    whole = [e for e in events if e["ph"] == "X"]
    lanes = collections.defaultdict(list)
    for event in whole:
        assert event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["tid"], int)
        lanes[event["tid"]].append(event)
    for lane in lanes.values():
        nested(lane)
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(named) == set(lanes) and sorted(named.values()) == [f"thread {i + 1}" for i in range(len(lanes))]
    kernels = [e for e in whole if e["cat"] in ("kernel", "extern", "random")]
    assert sum(e["dur"] for e in kernels) == pytest.approx(1e6 * figures.seconds, abs=1e-3 * len(kernels))  # microseconds
    assert [e["name"] for e in whole if e["cat"] == "plan"] == ["forward", "backward", "optimizer"]
    assert all({"lines", "flops", "bytes", "plan", "step"} <= e["args"].keys() for e in kernels)
    parts = [e for e in whole if e["cat"] == "part"]
    assert len(parts) == sum(part.thread != k.thread for k in figures.kernels for part in k.parts)
    for part in parts:  # while its kernel ran, on another thread
        kernel = next(e for e in kernels if e["ts"] <= part["ts"] and part["ts"] + part["dur"] <= e["ts"] + e["dur"])
        assert kernel["name"] == part["name"] and kernel["tid"] != part["tid"]


def test_a_trace_of_nothing_timed_says_so(tmp_path):
    model, optimizer = trained()
    step(model, optimizer)
    report = trainc.report(model, tmp_path / "trace.json")
    trace = json.loads(report.path.read_text())
    assert not trace["otherData"]["timed"] and not [e for e in trace["traceEvents"] if e["ph"] == "X"]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x):
        y = self.a(x).tanh()
        return self.b(torch.linalg.matrix_exp(y)).square().sum()


def test_kernels_have_names_and_lines_in_torchs_profiler(tmp_path):
    torch.manual_seed(0)
    model = Net()
    model, optimizer = trainc.compile(model, torch.optim.AdamW(model.parameters()))
    x = torch.randn(16, 16)

    def train():
        model(x).backward()
        optimizer.step()
        optimizer.zero_grad()

    train()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        train()
    ours = [event for event in profiler.events() if event.name.startswith("trainc: ")]
    for plan in (records.of(model)[0].forward, *records.of(model)[0].backward.values()):
        (span,) = [event for event in ours if event.name == f"trainc: {plan.plan.name}"]
        inside = [event for event in ours if event.cpu_parent is span]
        steps = plan.report()["steps"]
        assert len(inside) == len(steps) > 0
        for event, step_ in zip(sorted(inside, key=lambda e: e.time_range.start), steps, strict=True):
            line = next(filter(None, step_["origins"]), "")
            assert event.name == f"trainc: {step_['name']}" + (f" ({line})" if line else "")
        assert any(re.search(r"\(test_report_trace\.py:\d+ \(", event.name) for event in inside)
    matrix_exp = [event for event in profiler.events() if event.name == "aten::linalg_matrix_exp"]
    assert matrix_exp and all("linalg_matrix_exp" in event.cpu_parent.name for event in matrix_exp)  # within its step
    assert any(event.name == "trainc: AdamW step" for event in ours)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    assert "test_report_trace.py:" in (tmp_path / "trace.json").read_text()


def test_a_step_that_fails_leaves_no_span_open():
    class Broken(torch.nn.Module):
        def forward(self, x, i):
            return x[i].exp().sum()

    model = trainc.compile(Broken())
    x = torch.randn(8, requires_grad=True)
    model(x, torch.tensor([1, 2])).backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        with pytest.raises(IndexError):
            model(x, torch.tensor([1, 20]))
        torch.ones(1).add(1)
    (after,) = [event for event in profiler.events() if event.name == "aten::add"]
    assert after.cpu_parent is None
