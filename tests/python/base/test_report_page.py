"""The page of trainc.report, as text: what stands where, that it is whole, and that nothing in it comes from elsewhere."""

from __future__ import annotations

import html.parser
import os
import re
import sys

import pytest
import torch
from reported import step, timed_report, trained

import trainc
from trainc.base import records
from trainc.base.page import html as page_html
from trainc.base.page import timeline
from trainc.base.page.figures import Figures
from trainc.base.page.marks import seconds_text, steps_of
from trainc.base.page.phases import Part
from trainc.base.page.sources import source_of
from trainc.base.report import Explanation

HOSTILE = '</script><img src=x onerror="alert(1)">\'& \u00e9\u4e2d\U0001f642'
VOID = {"meta", "img", "input", "br"}


class Outline(html.parser.HTMLParser):
    """Checks that tags close in order and that ids are there once; keeps what links and marks lead to."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.leads: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        assert not [name for name in attributes if name.startswith("on")]
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.leads += [attributes["data-row"]] if "data-row" in attributes else []
        self.leads += [attributes["href"].removeprefix("#")] if attributes.get("href", "").startswith("#") else []
        self.addresses += [value for name, value in attrs if name in ("src", "href") and not value.startswith("#")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()


def outline(report) -> Outline:
    text = report.path.read_text()
    found = Outline(text)
    assert len(set(found.ids)) == len(found.ids) and set(found.leads) <= set(found.ids) and not found.addresses
    assert "http://" not in text and "https://" not in text and "url(" not in text and "@import" not in text
    return found


def test_the_page_is_whole_and_needs_no_network(tmp_path):
    report = timed_report(tmp_path / "report.html")
    found, text = outline(report), report.path.read_text()
    kernels = report.figures.kernels
    assert text.count('class="dot ') == len([k for k in kernels if k.flops and k.bytes and k.seconds]) > 0
    assert text.count("<rect ") >= len([b for p in report.figures.phases for b in p.blocks]) / 2 > 0
    assert {"signatures", "time", "roofline", "memory", "kernels", "externs", "inside"} <= set(found.ids)
    assert len(re.findall(r"<tr id=k\d+-\d+>", text)) == len(kernels)
    assert "Graph as it was captured" in text and "Graph after the passes" in text and "Plan: backward" in text
    assert "No step was timed" not in text and "Nothing." in text  # of calls of PyTorch
    assert os.path.getsize(report.path) < 200_000


def test_an_untimed_step_says_how_to_time_one(tmp_path):
    model, optimizer = trained()
    step(model, optimizer)
    report = trainc.report(model, tmp_path / "report.html")
    outline(report)
    assert not report.figures.timed and "no step was timed" in str(report)
    assert "with trainc.profile(model, optimizer):" in report.path.read_text()


def test_nothing_compiled_and_all_in_pytorch(tmp_path):
    model = trainc.compile(torch.nn.Linear(2, 2))
    report = trainc.report(model, tmp_path / "a.html")
    outline(report)
    assert "nothing is compiled yet" in report.path.read_text() and "nothing is compiled yet" in report._repr_html_()
    eager = torch.nn.Linear(2, 2)
    records.of(eager).append(records.Compilation("Linear", route="eager", reason="a <reason> of its own"))
    report = trainc.report(eager, tmp_path / "b.html")
    outline(report)
    assert "runs in PyTorch: a &lt;reason&gt; of its own" in report.path.read_text()


class Falls(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(16, 16)

    def forward(self, x):
        return torch.linalg.matrix_exp(self.a(x).tanh()).square().sum()


def test_externs_recompiles_and_what_verify_found_are_told(tmp_path):
    torch.manual_seed(0)
    model = Falls()
    model, optimizer = trainc.compile(model, torch.optim.SGD(model.parameters(), lr=0.01), verify=1)
    with trainc.profile(), pytest.warns(UserWarning, match="compiled again"):
        for rows in (2, 3, 3):
            model(torch.randn(rows, 16, 16)).backward()
            optimizer.step()
            optimizer.zero_grad()
    report = trainc.report((model, optimizer), tmp_path / "a.html")
    outline(report)
    text = report.path.read_text()
    externs = re.search(r"<section id=externs>.*?</section>", text, re.DOTALL)[0]
    assert "linalg_matrix_exp" in externs and "test_report_page.py:" in externs and re.search(r"[\d.]+ (ms|µs)<", externs)
    signatures = re.search(r"<section id=signatures>.*?</section>", text, re.DOTALL)[0]
    assert "compiled again: " in signatures and re.search(r"verified: \d+ (call|step)s? agrees? with PyTorch", signatures)
    assert "error over eager&#x27;s: outputs at most" in signatures


# ---- sources and dumps -----------------------------------------------------------------------------------------------


def test_a_kernel_leads_to_its_lines(tmp_path):
    model = Falls()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = trainc.compile(model, optimizer)
    model(torch.randn(16, 16)).backward()
    text = trainc.report(model, tmp_path / "a.html").path.read_text()
    assert re.search(r"<mark> *\d+ +return torch\.linalg\.matrix_exp\(self\.a\(x\)\.tanh\(\)\)\.square\(\)\.sum\(\)</mark>", text)


def test_lines_are_those_of_the_file_as_it_is(tmp_path, monkeypatch):
    file = tmp_path / "some_model.py"
    file.write_text("one\ntwo\n\nfour\n")
    monkeypatch.setitem(sys.modules, "some_model", type(sys)("some_model"))
    sys.modules["some_model"].__file__ = str(file)
    assert source_of("some_model.py:2 (aten.mm)") == [(1, "one", False), (2, "two", True), (4, "four", False)]
    assert source_of("no_such_model.py:2") == [] and source_of("some_model.py") == [] and source_of("") == []
    file.write_text("changed, longer\ntwo too\n")
    assert source_of("some_model.py:1") == [(1, "changed, longer", True), (2, "two too", False)]
    monkeypatch.setitem(sys.modules, "other", type(sys)("other"))
    (tmp_path / "other").mkdir()
    sys.modules["other"].__file__ = str(tmp_path / "other" / "some_model.py")
    (tmp_path / "other" / "some_model.py").write_text("another\n")
    assert source_of("some_model.py:1") == []  # of which of the two?


def test_dumps_are_of_the_very_code_that_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINC_DUMP", "loop,asm")
    monkeypatch.setenv("TRAINC_DUMP_DIR", str(tmp_path / "dump"))
    model, optimizer = trained()
    with trainc.profile():
        for rows in (32, 7):  # two signatures, whose plans have one name
            with torch.random.fork_rng():
                step(model, optimizer, rows)
    for rows, mine in ((7, "7"), (32, "32")):
        with trainc.profile():
            step(model, optimizer, rows)
        report = trainc.report((model, optimizer), tmp_path / f"{mine}.html")
        outline(report)
        text = report.path.read_text()
        for kernel in report.figures.kernels:
            row = re.search(rf"<tr id=k\d+-{kernel.number}>(?:(?!</tr>).)*<td>{kernel.phase}</td>", text, re.DOTALL)[0]
            for what, ending in (("loop nest", "loop"), ("assembly", "s")):
                (name,) = re.findall(rf"<a href=#(t\d+)>{what}</a>", row)
                (title,) = re.findall(rf"<details id={name}><summary>{what} ([^<]*)</summary>", text)
                assert title.endswith(f".{kernel.code}.{ending}")
                dumped = re.search(rf"<details id={name}>.*?<pre>(.*?)</pre>", text, re.DOTALL)[1]
                assert dumped.startswith("kernel ") if ending == "loop" else ".text" in dumped
                if ending == "loop" and kernel.flops and kernel.phase != "optimizer":
                    assert f"flops {kernel.flops}\n" in dumped
    monkeypatch.setenv("TRAINC_DUMP_DIR", str(tmp_path / "stale"))
    (tmp_path / "stale").mkdir()
    for file in (tmp_path / "dump").iterdir():  # other code by the same names
        stem, _, ending = file.name.rpartition(".")
        (tmp_path / "stale" / f"{stem.rpartition('.')[0]}.{'0' * 16}.{ending}").write_text("stale")
    text = trainc.report((model, optimizer), tmp_path / "c.html").path.read_text()
    assert "stale" not in text.replace("</", "") and "assembly</a>" not in text


# ---- names -----------------------------------------------------------------------------------------------------------


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
    outline(report)
    text = report.path.read_text()
    assert "<img" not in text and text.count("</script>") == 1
    assert text.count("&lt;/script&gt;") > 8 and "\u4e2d\U0001f642" in text
    assert "25% in compiled kernels" in text
    for shown in (report._repr_html_(), trainc.explain(model)._repr_html_()):
        assert "<img" not in shown and "&lt;img" in shown
        Outline(shown)
    trace = trainc.report(model, tmp_path / "a.json").path.read_text()
    assert trace.isascii()


def test_a_name_that_is_no_text_is_written_all_the_same(tmp_path):
    model = torch.nn.Linear(2, 2)
    records.of(model).append(records.Compilation("x", route="eager", reason="\udc80"))
    assert "\\udc80" in trainc.report(model, tmp_path / "a.html").path.read_text()


# ---- pictures --------------------------------------------------------------------------------------------------------


class Timed:
    """A plan whose kernels ran at these (start, seconds), on thread 1."""

    def __init__(self, name: str, times: list[tuple[float, float]]):
        self.name, self.times = name, times

    def report(self) -> dict:
        steps = [
            {"name": f"k{i}", "kind": "kernel", "flops": 5, "bytes": 7, "origins": [f"model.py:{i}"], "seconds": seconds,
             "time": {"start": start, "thread": 1, "parts": []}}
            for i, (start, seconds) in enumerate(self.times)
        ]  # fmt: skip
        return {"name": self.name, "steps": steps}


def figures_of(forward: Timed, backward: Timed) -> Figures:
    record = records.Compilation("x", engine="core", forward=forward, backward={(True,): backward})
    return Figures(Explanation("x", [record]))


def test_a_long_gap_between_plans_is_cut():
    figures = figures_of(Timed("f", [(100.0, 1.0)]), Timed("b", [(106.0, 2.0), (108.5, 0.5)]))
    assert figures.gaps == [5.0] and figures.wall == 9.0 and figures.seconds == 3.5
    scale = timeline.Scale(figures)
    ((start, end, seconds, cut),) = scale.gaps
    assert (seconds, cut) == (5.0, True) and end - start == pytest.approx(timeline.LONGEST_GAP * 3.5)
    assert scale.at(0) == 0 and scale.at(9.0) == pytest.approx(1000)
    assert scale.at(1.0) < scale.at(3.0) == scale.at(6.0) < scale.at(7.0)  # a time within the gap is at its end
    assert "+5 s" in timeline.timeline(figures) and "not to scale" in timeline.timeline(figures)


def test_time_in_which_no_thread_works_is_told():
    figures = figures_of(Timed("f", [(1.0, 1.0)]), Timed("b", [(2.0, 3.0)]))
    assert figures.idle == 0 and "no thread works" not in page_html.page(figures)
    figures.kernels[1].parts = [Part(1, 1.0, 1.0)]
    assert figures.idle == pytest.approx(0.5)
    assert "In 50% of the plans' time no thread works" in page_html.page(figures)


def test_many_short_kernels_are_few_marks():
    many = [(i * 1e-6, 1e-6) for i in range(20_000)]
    text = timeline.timeline(figures_of(Timed("f", many), Timed("b", [(1.0, 1.0)])))
    lane = text.count("<rect ")
    assert lane < 1000 / timeline.NARROW + 2 and re.search(r"\d+ short kernels, \d+", text)


@pytest.mark.parametrize(
    "seconds, text",
    [(1234.5, "1234 s"), (12.34, "12.3 s"), (0.9996, "1 s"), (0.0123, "12.3 ms"), (0.00099996, "1 ms"), (1.5e-6, "1.5 µs")],
)
def test_times_need_no_exponent(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize("most", [1e-6, 0.0123, 1, 7, 10, 123456, 2.5e9])
def test_an_axis_has_few_round_numbers(most):
    steps = steps_of(most)
    assert 2 <= len(steps) <= 7 and steps[0] == 0 and steps[-1] <= most * (1 + 1e-9)
    assert re.fullmatch(r"[125](\.0+)?e[+-]\d+", f"{steps[1]:.6e}")
