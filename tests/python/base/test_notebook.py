"""What a notebook shows: progress bars of its own kind, and explanations as HTML."""

from __future__ import annotations

import html
import re
import sys
import types
import warnings

import pytest
import torch
from tqdm import notebook

import trainc
from trainc.base import config, messages, records


class Shell:
    config = {"IPKernelApp": {}}


@pytest.fixture
def in_notebook(monkeypatch):
    module = types.ModuleType("IPython")
    module.get_ipython = Shell
    monkeypatch.setitem(sys.modules, "IPython", module)


class Bar:
    """As tqdm's for notebooks: whatever is set but by `reset` is not drawn."""

    made: list[Bar] = []

    def __init__(self, **_):
        self.n, self.total, self.drawn = 0, None, []
        Bar.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed = True

    def reset(self, total):
        self.n, self.total = 0, total

    def update(self, by):
        self.n += by
        self.drawn.append((self.n, self.total))


def test_progress_in_a_notebook_is_a_notebooks(in_notebook, monkeypatch):
    monkeypatch.setattr(config, "progress", None)
    monkeypatch.setattr(notebook, "IProgress", object)
    monkeypatch.setattr(notebook, "tqdm", Bar)
    Bar.made.clear()
    with messages.progress("Net") as update:
        for done in (0, 1, 3):
            update(done, 3)
    (bar,) = Bar.made
    assert bar.drawn == [(0, 3), (1, 3), (3, 3)] and bar.closed


def test_without_widgets_it_is_text(in_notebook, monkeypatch, capsys):
    monkeypatch.setattr(config, "progress", None)
    monkeypatch.setattr(notebook, "IProgress", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with messages.progress("Net") as update:
            update(1, 2)
    assert "trainc: Net" in capsys.readouterr().err


def test_elsewhere_progress_is_of_terminals(monkeypatch):
    monkeypatch.setattr(config, "progress", None)
    assert config.show_progress() == sys.stderr.isatty()
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: None  # loaded, but no shell runs
    monkeypatch.setitem(sys.modules, "IPython", module)
    assert not config.in_notebook()
    module.get_ipython = types.SimpleNamespace  # a shell in a terminal
    assert not config.in_notebook()


def test_a_compiled_model_counts_its_kernels(in_notebook, monkeypatch):
    monkeypatch.setattr(config, "progress", None)
    monkeypatch.setattr(notebook, "IProgress", object)
    monkeypatch.setattr(notebook, "tqdm", Bar)
    Bar.made.clear()
    model = trainc.compile(torch.nn.Linear(4, 4))
    model(torch.randn(2, 4)).sum().backward()
    assert len(Bar.made) >= 2 and all(bar.n == bar.total for bar in Bar.made if bar.drawn) and any(bar.drawn for bar in Bar.made)


def test_an_explanation_unfolds_by_signature():
    model = trainc.compile(torch.nn.Linear(4, 4))
    assert trainc.explain(model)._repr_html_().startswith("<p>Linear: nothing is compiled yet")
    model(torch.randn(2, 4)).sum().backward()
    shown = trainc.explain(model)._repr_html_()
    head = "<p><b>Linear</b>: compiled for 1 signature</p><details open><summary>0 f32[2, 4], training</summary><pre>"
    assert shown.startswith(head)
    assert "Linear_backward" in shown
    records.of(model).append(records.Compilation("Linear", signature="a <second>", route="eager", reason="so"))
    explanation = trainc.explain(model)
    shown = explanation._repr_html_()
    assert shown.count("<details>") == 2 and "<summary>a &lt;second&gt;</summary><pre>  runs in PyTorch: so</pre>" in shown
    words = re.sub(r"<[^>]*>", "", re.sub(r"</(summary|pre|p)>", " ", shown)).split()
    assert words == html.escape(str(explanation)).split()  # nothing is lost
