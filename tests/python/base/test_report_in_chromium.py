"""The page of trainc.report as a person sees it, in Chromium: nothing sticks out, nothing overlaps, every key does what it says.
Skipped where there is none; `make test-page` installs it and keeps pictures of the pages."""

from __future__ import annotations

import os
import re
from pathlib import Path

import browser
import pytest
import torch
from reported import timed_report

import trainc
from trainc.base import records

pytestmark = pytest.mark.skipif(not browser.CHROMIUM, reason=browser.MISSING)
WIDTHS = (400, 1600)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.a, self.b = torch.nn.LayerNorm(64), torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)

    def forward(self, x):
        y = torch.nn.functional.gelu(self.a(self.norm(x)))
        return x + torch.nn.functional.dropout(self.b(y), 0.1, self.training)


class Deep(torch.nn.Module):
    def __init__(self, blocks: int = 12):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.head = torch.nn.Linear(64, 8)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return torch.linalg.matrix_exp(self.head(x).tanh()).square().mean()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Of a model with enough kernels for every part of the page, with dumps and a call of PyTorch."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINC_DUMP", "loop,asm")
        patch.setenv("TRAINC_DUMP_DIR", str(folder / "dump"))
        torch.manual_seed(0)
        model = Deep()
        model, optimizer = trainc.compile(model, torch.optim.AdamW(model.parameters()))
        with trainc.profile():
            for _ in range(2):
                model(torch.randn(8, 64)).backward()
                optimizer.step()
                optimizer.zero_grad()
        return trainc.report((model, optimizer), folder / "report.html")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    opened = browser.Browser(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


def keep(page, name: str) -> None:
    """A picture for whoever wants to look."""
    if folder := os.environ.get("TRAINC_PICTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.picture(Path(folder) / f"{name}.png")


# Elements with words of their own that reach out of the window, or are cut by their own box
STICKS_OUT = """
[...document.querySelectorAll('h1,h2,h3,p,dd,small,li,summary,button,input,.plot span,.axis b,.up span')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width && !e.closest('[hidden]') && !e.closest('.wide table') && (box.left < -1 || box.right > innerWidth + 1);
}).map(e => e.outerHTML.slice(0, 80))
"""
# Short words that a narrow column breaks in two
BROKEN = """
[...document.querySelectorAll('td')].filter(e => /^\\S{1,10}$/.test(e.textContent)).filter(e => {
  const range = document.createRange(); range.selectNodeContents(e);
  return new Set([...range.getClientRects()].map(b => Math.round(b.top))).size > 1;
}).map(e => e.textContent)
"""
OVERLAP = """
(selector => {
  const boxes = [...document.querySelectorAll(selector)].map(e => [e, e.getBoundingClientRect()]).filter(([, b]) => b.width);
  return boxes.flatMap(([a, x], i) => boxes.slice(i + 1).filter(([, y]) =>
    x.left < y.right - 1 && y.left < x.right - 1 && x.top < y.bottom - 1 && y.top < x.bottom - 1
  ).map(([b]) => a.textContent + ' / ' + b.textContent));
})
"""
# The smallest contrast of words with what lies behind them (WCAG: 4.5 is needed for small text)
CONTRAST = """
(() => {
  const light = c => { const v = c.map(x => x / 255).map(x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
    return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
  const colour = text => text.match(/[\\d.]+/g).map(Number);
  const behind = e => { for (; e; e = e.parentElement) { const c = colour(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  let least = [99, ''];
  const words = 'h1,h2,p,a,dt,dd,small,td,th,th button,summary,pre,mark,.legend b,.plot span,.axis span,.up span';
  for (const e of document.querySelectorAll(words)) {
    const a = light(colour(getComputedStyle(e).color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < least[0]) least = [ratio, e.outerHTML.slice(0, 60)];
  }
  return least;
})()
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_and_can_be_read(page, report, width, dark):
    page.open(report.path, width, dark=dark)
    keep(page, f"report-{width}-{'dark' if dark else 'light'}")
    assert page.errors == [] and page.requested == [report.path.resolve().as_uri()]  # itself, and nothing else
    assert page.ask("document.documentElement.scrollWidth") <= width
    assert page.ask(STICKS_OUT) == [] and page.ask(BROKEN) == []
    for words in (".plot span", ".up span", ".lanes .axis span", "nav a", "header > *", "dl.facts > div"):
        assert page.ask(f"{OVERLAP}('{words}')") == [], words
    ratio, where = page.ask(CONTRAST)
    assert ratio >= 4.5, where
    assert page.ask("getComputedStyle(document.body).backgroundColor") == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")


def test_dots_lie_where_the_figures_say(page, report):
    page.open(report.path, 1600)
    figures = report.figures
    dots = page.ask(
        "[...document.querySelectorAll('.dot')].map(d => { const b = d.getBoundingClientRect(), "
        "p = d.parentElement.getBoundingClientRect(); return [d.dataset.row, (b.x + b.width / 2 - p.x) / p.width, "
        "(b.y + b.height / 2 - p.y) / p.height]; })"
    )
    wanted = [k for k in figures.kernels if k.seconds and k.flops and k.bytes]
    assert len(dots) == len(wanted) > 20
    phases = [phase.name for phase in figures.phases]
    place = {row: (x, y) for row, x, y in dots}
    fast, slow = (f(wanted, key=lambda k: k.flops / k.seconds) for f in (max, min))
    assert place[f"k{phases.index(fast.phase)}-{fast.number}"][1] < place[f"k{phases.index(slow.phase)}-{slow.number}"][1]
    assert all(-0.01 <= x <= 1.01 and -0.01 <= y <= 1.01 for _, x, y in dots)


def test_without_a_script_it_is_whole(page, report):
    page.open(report.path, 1600, script=False)
    keep(page, "report-no-script")
    assert page.ask("document.querySelectorAll('#kernels tbody tr').length") == len(report.figures.kernels)
    assert page.ask("getComputedStyle(document.querySelector('#sources')).display") == "block"
    assert page.ask("getComputedStyle(document.querySelector('#theme')).display") == "none"
    assert page.ask("document.querySelectorAll('.dot[title]').length") > 20
    assert page.ask("document.querySelectorAll('rect > title').length") > 20


def test_tables_sort_and_search(page, report):
    page.open(report.path, 1600)
    shown = "[...document.querySelectorAll('#kernels tbody tr')].filter(r => !r.hidden)"
    column = f"{shown}.map(r => r.cells[%d].dataset.value ?? r.cells[%d].textContent)"
    kernels = report.figures.kernels
    assert len(kernels) > 60 and page.ask(f"{shown}.length") == 40
    times = [float(value) for value in page.ask(column % (2, 2))]
    assert times == sorted(times, reverse=True) and times[0] == pytest.approx(max(k.seconds for k in kernels), rel=1e-6)
    head = "document.querySelectorAll('#kernels th button')[%d].click()"
    page.ask(head % 4)  # bytes: the most first
    sizes = [float(value) for value in page.ask(column % (4, 4))]
    assert sizes == sorted((float(k.bytes) for k in kernels), reverse=True)[:40]
    page.ask(head % 4)
    assert [float(v) for v in page.ask(column % (4, 4))] == sorted(float(k.bytes) for k in kernels)[:40]
    assert page.ask("document.querySelectorAll('#kernels th[aria-sort]').length") == 1
    page.ask(head % 1)  # a word: from a to z first
    assert page.ask(column % (1, 1))[0] == "backward"
    page.ask("document.querySelector('#kernels button.all').click()")
    assert page.ask(f"{shown}.length") == len(kernels)
    page.press("/")
    assert page.ask("document.activeElement.type") == "search"
    page.type("MATRIX_exp")
    found = [k for k in kernels if "matrix_exp" in k.name]
    assert page.ask(f"{shown}.length") == len(found) > 0
    assert page.ask("document.querySelector('#kernels [role=status]').textContent") == f"{len(found)} of {len(kernels)}"
    page.type(" no such word")
    assert page.ask(f"{shown}.length") == 0
    assert page.ask("document.querySelector('#kernels [role=status]').textContent") == "nothing has these words"
    page.press("Escape")
    assert page.ask("document.activeElement.tagName") == "BODY"


def test_a_kernel_unfolds_below_its_row(page, report):
    page.open(report.path, 400)
    with_lines = "[...document.querySelectorAll('#kernels details.uses')].find(d => d.querySelectorAll('a').length > 2)"
    page.ask(f"{with_lines}.querySelector('summary').click()")
    page.ask("new Promise(done => setTimeout(done, 100))")
    keep(page, "report-400-unfolded")
    texts = page.ask("[...document.querySelectorAll('#kernels tr.more pre')].map(p => p.textContent)")
    titles = page.ask("[...document.querySelectorAll('#kernels tr.more .soft')].map(p => p.textContent)")
    assert titles[-2:] == ["loop nest", "assembly"] and re.match(r"test_report_in_chromium\.py:\d+", titles[0])
    assert texts[-2].startswith("kernel ") and ".text" in texts[-1] and "\n" in texts[0]
    assert page.ask("document.querySelector('#kernels tr.more').previousElementSibling.querySelector('details').open")
    page.ask("document.querySelectorAll('#kernels th button')[4].click()")  # sorting folds it
    page.ask("new Promise(done => setTimeout(done, 100))")
    assert page.ask("document.querySelectorAll('#kernels tr.more').length") == 0


def test_marks_tell_and_lead(page, report):
    page.open(report.path, 1600)
    assert page.ask("[...document.querySelectorAll('.marks')].every(p => p.querySelectorAll('[tabindex=\"0\"]').length === 1)")
    page.ask("document.querySelector('.lanes .marks [tabindex=\"0\"]').focus()")
    first = page.ask("document.querySelector('#tip').textContent")
    assert "forward, step " in first and not page.ask("document.querySelector('#tip').hidden")
    page.press("ArrowRight")
    second = page.ask("document.querySelector('#tip').textContent")
    assert second != first and ("forward, step " in second or "short kernels" in second)
    row = page.ask("document.activeElement.dataset.row")
    page.press("Enter")
    assert page.ask("document.querySelector('tr.found').id") == row
    assert page.ask("document.querySelector('#tip').hidden") and page.ask("document.activeElement.tagName") == "SUMMARY"
    box = page.ask("(b => [b.top, b.bottom])(document.querySelector('tr.found').getBoundingClientRect())")
    assert 0 <= box[0] < box[1] <= 900
    x, y = page.ask(
        "(d => (d.scrollIntoView({block: 'center'}), (b => [b.x + b.width / 2, b.y + b.height / 2])(d.getBoundingClientRect())))"
        "([...document.querySelectorAll('.dot')].at(-1))"
    )
    page.ask("new Promise(done => setTimeout(done, 100))")
    page.move(x, y)
    assert "FLOP" in page.ask("document.querySelector('#tip').textContent")
    tip = page.ask("(b => [b.left, b.right])(document.querySelector('#tip').getBoundingClientRect())")
    assert 0 <= tip[0] and tip[1] <= 1600
    page.press("Escape")
    assert page.ask("document.querySelector('#tip').hidden")


def test_light_and_dark_by_key(page, report):
    page.open(report.path, 1600)
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.ask(ground)
    page.press("d")
    assert page.ask(ground) != before
    page.press("d")
    assert page.ask(ground) == before


HOSTILE = "</script><img src=x onerror=\"window.hurt=1\">'&\u00e9\u4e2d\U0001f642" + "_very" * 60


def test_hostile_and_long_names(page, tmp_path):
    step = {"name": HOSTILE, "kind": "kernel", "flops": 5, "bytes": 7, "origins": [HOSTILE], "seconds": 1e-3}

    class Plan:
        def report(self):
            return {"name": HOSTILE, "steps": [step, {**step, "kind": "extern", "reason": HOSTILE}]}

    model = type(HOSTILE, (torch.nn.Linear,), {})(2, 2)
    records.of(model).append(records.Compilation(HOSTILE, signature=HOSTILE, engine="core", forward=Plan()))
    report = trainc.report(model, tmp_path / "a.html")
    for width in WIDTHS:
        page.open(report.path, width)
        keep(page, f"hostile-{width}")
        assert page.errors == [] and page.ask("window.hurt === undefined") and page.ask("document.images.length") == 0
        assert page.ask("document.documentElement.scrollWidth") <= width and page.ask(STICKS_OUT) == []
        page.ask("document.querySelector('.dot').focus()")
        assert page.ask("document.querySelector('#tip').textContent").startswith("</script><img src=x")


@pytest.mark.parametrize("what", ["nothing", "untimed", "evaluation"])
def test_empty_states(page, tmp_path, what):
    if what == "nothing":
        report = trainc.report(trainc.compile(torch.nn.Linear(2, 2)), tmp_path / "a.html")
    elif what == "untimed":
        model = trainc.compile(torch.nn.Linear(2, 2))
        model(torch.randn(2, 2)).sum().backward()
        report = trainc.report(model, tmp_path / "a.html")
    else:
        model = trainc.compile(torch.nn.Linear(2, 2).requires_grad_(False))
        with trainc.profile():
            model(torch.randn(2, 2))
        report = trainc.report(model, tmp_path / "a.html")
    for width in WIDTHS:
        page.open(report.path, width)
        keep(page, f"{what}-{width}")
        assert page.errors == [] and page.ask("document.documentElement.scrollWidth") <= width and page.ask(STICKS_OUT) == []
        assert len(page.ask("document.querySelector('main').innerText")) > 40


def test_a_small_step_is_a_page_too(page, tmp_path):
    report = timed_report(tmp_path / "a.html")
    page.open(report.path, 400)
    assert page.errors == [] and page.ask("document.documentElement.scrollWidth") <= 400
