"""trainc.report: its figures against the plans' own, and the file that it writes."""

from __future__ import annotations

import json
import os
import re
import time

import pytest
import torch
from reported import step, timed_report, trained

import trainc
from trainc.base import records
from trainc.base.page.phases import Block, Kernel, Part, Phase
from trainc.base.report import scaled

# A line of a plan's text (src/plan/print.cpp)
BUFFER = re.compile(
    r"  (?P<name>.+): (?P<place>saved temp|saved|temp) \+(?P<offset>\d+) (?P<type>\w+\[[\d,]*\]( bits)?) strides \[[^]]*\], "
    r"(?P<bytes>\d+) bytes(?: over .+)?, live \[(?P<first>-?\d+), (?P<last>-?\d+)\]"
)


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
    kernels = report.figures.kernels
    assert [p.name for p in report.figures.phases] == ["forward", "backward", "optimizer"]
    assert all(0 < report.figures.roof(k) for k in kernels if k.flops and k.seconds)
    assert list(tmp_path.iterdir()) == [report.path]


def test_memory_lies_where_the_plans_text_says(tmp_path):
    report = timed_report(tmp_path / "report.html")
    seen = 0
    for phase in report.figures.phases:
        blocks = {block.name: block for block in phase.blocks}
        told = [m for m in map(BUFFER.match, phase.text.splitlines()) if m and int(m["first"]) >= 0 and m["bytes"] != "0"]
        assert sorted(blocks) == sorted(m["name"] for m in told)
        for m in told:
            block = blocks[m["name"]]
            arena = {"temp": "temporary", "saved": "saved", "saved temp": "saved, no slot"}[m["place"]]
            assert (block.arena, block.offset, block.bytes, block.type) == (arena, int(m["offset"]), int(m["bytes"]), m["type"])
            assert block.first <= int(m["first"]) and block.last >= int(m["last"])
            assert block.offset + block.bytes <= (phase.temporary if block.space == "temporary" else phase.kept)
            if arena != "saved":
                assert (block.first, block.last) == (int(m["first"]), int(m["last"]))
            elif phase.name == "forward":
                assert (block.first, block.last) == (int(m["first"]), phase.steps - 1)  # it outlasts the plan
            else:
                assert block.first == 0  # the forward wrote it
            seen += 1
        assert phase.peak()[1] <= phase.kept + phase.temporary
    assert seen > 3


class Lines(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(32, 48), torch.nn.Linear(48, 16)

    def forward(self, x):
        y = self.a(x).tanh()
        z = torch.exp(y * 0.1)
        return self.b(z).square().sum()


def test_what_is_kept_is_of_the_line_that_made_it(tmp_path):
    model = Lines()
    model, optimizer = trainc.compile(model, torch.optim.SGD(model.parameters()))
    model(torch.randn(8, 32)).backward()
    forward, backward = trainc.report(model, tmp_path / "a.html").figures.phases
    made = {b.offset: b for b in forward.blocks if b.arena == "saved"}
    found = [b for b in backward.blocks if b.arena == "saved" and not b.written]
    assert found and all((b.line, b.bytes) == (made[b.offset].line, made[b.offset].bytes) for b in found)
    assert all(b.line.startswith("test_report.py:") for b in found)


def test_memory_in_which_several_lie_counts_once():
    def block(name: str, offset: int, size: int, first: int, last: int, arena: str = "temporary", over: str = "") -> Block:
        return Block(arena, name, "u8[1]", offset, size, first, last, "", over=over)

    blocks = [
        block("a", 0, 100, 0, 1), block("b", 0, 60, 1, 2, over="a"), block("c", 100, 10, 1, 1), block("d", 0, 40, 1, 1, "saved"),
        block("e", 0, 120, 3, 3),
    ]  # fmt: skip
    assert Phase("forward", "p", "", None, [], blocks, 200, 40, 4).peak() == (1, 150)


def test_kernels_have_the_parts_of_their_threads(tmp_path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        model = torch.nn.Linear(256, 256)
        model, optimizer = trainc.compile(model, torch.optim.SGD(model.parameters()))
        with trainc.profile():
            model(torch.randn(256, 256)).square().sum().backward()
            optimizer.step()
    finally:
        torch.set_num_threads(before)
    figures = trainc.report((model, optimizer), tmp_path / "a.html").figures
    assert figures.one_step and 1 < len(figures.threads) <= 3
    assert figures.threads[0] == os.getpid()  # of the main thread: it called
    shared = [kernel for kernel in figures.kernels if len({part.thread for part in kernel.parts}) > 1]
    assert shared
    for kernel in figures.kernels:
        for part in kernel.parts:
            assert kernel.start - 1e-9 <= part.start and part.start + part.seconds <= kernel.start + kernel.seconds + 1e-9
        assert 0 <= kernel.idle() <= 1
    assert figures.kernels[0].start == 0
    assert figures.wall >= figures.seconds  # what lies between the plans is in it


def test_what_no_thread_works_on_is_idle():
    kernel = Kernel("forward", "p", 0, "k", "kernel", 1, 1, [], seconds=10.0, start=0.0)
    assert kernel.idle() == 0  # of a call of PyTorch nothing is known
    kernel.parts = [Part(1, 1.0, 2.0), Part(2, 2.0, 4.0)]
    assert kernel.idle() == pytest.approx(0.5)


def test_runs_of_different_steps_are_laid_end_to_end(tmp_path):
    model, optimizer = trained()
    with trainc.profile():
        step(model, optimizer)
        model(torch.randn(32, 64))
    report = trainc.report((model, optimizer), tmp_path / "a.html")
    figures = report.figures
    assert not figures.one_step and figures.wall == 0
    forward, backward, update = figures.phases
    assert forward.end == pytest.approx(backward.start) and backward.end == pytest.approx(update.start)
    assert "ran last in different steps" in report.path.read_text()


def test_the_signature_that_was_timed_last_is_shown(tmp_path):
    model, optimizer = trained()
    with trainc.profile():
        for rows in (32, 16, 32):
            step(model, optimizer, rows)
    figures = trainc.report((model, optimizer), tmp_path / "a.html").figures
    assert len(records.of(model)) == 2 and figures.one_step
    first = records.of(model)[0]
    assert figures.phases[0].kernels[0].flops == first.forward.report()["steps"][0]["flops"]
    assert figures.phases[0].text == first.forward.plan.text()


@pytest.mark.parametrize("which", ["groups", "rows"])
def test_an_optimizers_times_are_of_its_whole_step(tmp_path, which):
    """One kernel runs once for each group; one that is not elementwise once for each parameter."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
    if which == "groups":
        groups = [{"params": part.parameters(), "lr": 10.0**-i} for i, part in enumerate(model)]
        made = torch.optim.SGD(groups)
    else:
        made = torch.optim.Adafactor(model.parameters())
    model, optimizer = trainc.compile(model, made)
    figures = []
    for count in (1, 2):
        with trainc.profile():
            for p in [*model[0].parameters(), *(model[1].parameters() if count == 2 else [])]:
                p.grad = torch.ones_like(p)
            before = time.perf_counter()
            optimizer.step()
            after = time.perf_counter()
            optimizer.zero_grad()
        figures.append(trainc.report(optimizer, tmp_path / "a.html").figures)
    one, two = ([k for k in f.kernels if k.seconds] for f in figures)
    assert len(one) == len(two) > 0
    assert [k.flops for k in two] == [2 * k.flops for k in one] and [k.bytes for k in two] == [2 * k.bytes for k in one]
    if which == "groups":
        (kernel,) = two
        assert 2 <= len(kernel.parts) <= 2 * torch.get_num_threads()  # of this step alone
        assert kernel.seconds >= sum(part.seconds for part in kernel.parts) / torch.get_num_threads()
        (ran,) = records.of(optimizer)[0].reports()[0]["steps"]
        assert before <= ran["time"]["start"] and ran["time"]["start"] + ran["seconds"] <= after  # of Python's own clock


def test_a_step_as_one_plan_has_its_memory_and_graphs(tmp_path):
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @trainc.train_step
    def train(x):
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    with trainc.profile():
        train(torch.randn(8, 16))
    report = trainc.report(train, tmp_path / "a.html")
    (phase,) = report.figures.phases
    assert phase.name == "step" and phase.blocks and report.figures.one_step
    assert "Graph after the passes" in report.path.read_text()


def test_a_forward_without_a_backward_yet_is_a_forward(tmp_path):
    model, optimizer = trained()
    with trainc.profile():
        loss = model(torch.randn(32, 64)).square().sum()
        report = trainc.report((model, optimizer), tmp_path / "a.html")
        loss.backward()
    assert [phase.name for phase in report.figures.phases] == ["forward"]


def test_a_report_in_the_middle_changes_no_bit(tmp_path):
    weights = []
    for reported in (False, True):
        model, optimizer = trained()
        for _ in range(3):
            loss = model(torch.randn(32, 64)).square().sum()
            if reported:
                trainc.report((model, optimizer), tmp_path / "a.html")
            loss.backward()
            if reported:
                trainc.report((model, optimizer), tmp_path / "a.json")
            optimizer.step()
            optimizer.zero_grad()
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_after_a_call_that_failed_the_last_whole_step_is_there(tmp_path):
    model, optimizer = trained()
    with trainc.profile():
        step(model, optimizer)
        with pytest.raises(RuntimeError):
            model(torch.randn(32, 63))
    assert trainc.report((model, optimizer), tmp_path / "a.html").figures.timed


def test_times_are_taken_within_profile_alone():
    model, optimizer = trained()
    with trainc.profile():
        step(model, optimizer)
        assert records.of(model)[0].forward.plan.profile
    assert not records.of(model)[0].forward.plan.profile


@pytest.mark.parametrize(
    "value, text",
    [(999.4, "999 B"), (999.6, "1 kB"), (12345, "12.3 kB"), (999_600, "1 MB"), (2.5e9, "2.5 GB"), (999.6e12, "1 PB"), (0, "0 B")],
)
def test_three_digits_never_need_an_exponent(value, text):
    assert scaled(value, "B") == text


# ---- the file --------------------------------------------------------------------------------------------------------


def test_what_cannot_be_written(tmp_path):
    model = torch.nn.Linear(2, 2)
    for name in (tmp_path / "a.pdf", tmp_path / "a.HTML", tmp_path, "", None, 3):
        with pytest.raises(trainc.UserError, match="neither"):
            trainc.report(model, name)
    with pytest.raises(trainc.UserError, match="cannot write .*there is no folder"):
        trainc.report(model, tmp_path / "none" / "a.html")
    (tmp_path / "b.html").mkdir()
    for name in (tmp_path / "b.html", str(tmp_path / "a\0b.html"), tmp_path / ("n" * 300 + ".html")):
        with pytest.raises(trainc.UserError, match="cannot write"):
            trainc.report(model, name)
    with pytest.raises(trainc.UserError, match="no model"):
        trainc.report((), tmp_path / "a.html")
    assert [path.name for path in tmp_path.iterdir()] == ["b.html"]


def test_a_file_that_cannot_be_replaced_stays_whole(tmp_path, monkeypatch):
    path = tmp_path / "a.html"
    path.write_text("as it was")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(trainc.UserError, match="cannot write .*Permission denied"):
        trainc.report(torch.nn.Linear(2, 2), path)
    assert path.read_text() == "as it was" and list(tmp_path.iterdir()) == [path]


def test_a_readers_file_is_replaced_not_written_over(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("as it was")
    path.chmod(0o444)
    with open(path) as earlier:
        report = trainc.report(torch.nn.Linear(2, 2), str(path))
        assert earlier.read() == "as it was"
    assert json.loads(path.read_text())["otherData"] == {"timed": False, "one_step": True}
    assert str(path) in str(report)
