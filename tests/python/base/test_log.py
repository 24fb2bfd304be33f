"""`TRAINC_LOG=info`: a line on stderr for what goes on; without it, none."""

from __future__ import annotations

import re

import pytest
import torch

import trainc
from trainc.base import config, messages


def train_a_step() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    model, optimizer = trainc.compile(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()


def test_what_goes_on_is_told(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(config, "log", "info")
    monkeypatch.setattr(config, "cache", True)
    monkeypatch.setattr(config, "cache_dir", str(tmp_path))
    for how in ("compiled", "found in the cache"):
        train_a_step()
        said = capsys.readouterr()
        seconds = r"in \d+\.\d\d s"
        assert re.search(rf"^trainc: Sequential: \d+ kernels? {how} {seconds}$", said.err, re.MULTILINE), said.err
        assert re.search(rf"^trainc: Sequential, backward: \d+ kernels? {how} {seconds}$", said.err, re.MULTILINE)
        assert re.search(rf"^trainc: Sequential: captured for .*f32\[2, 4\], training {seconds}$", said.err, re.MULTILINE)
        assert re.search(rf"^trainc: SGD step: compiled or found in the cache {seconds}$", said.err, re.MULTILINE)
        assert said.out == "" and len(said.err.splitlines()) == 4


def test_without_it_nothing_is_told(monkeypatch, capsys):
    monkeypatch.setattr(config, "log", None)
    monkeypatch.setattr(config, "progress", False)
    train_a_step()
    assert capsys.readouterr() == ("", "")


def test_another_level_is_said_once(monkeypatch, capsys):
    monkeypatch.setattr(config, "log", "chatty")
    monkeypatch.setattr(messages, "_said", set())
    with pytest.warns(messages.TraincWarning, match="TRAINC_LOG='chatty' is no such level") as caught:
        messages.info("something")
        messages.info("something else")
    assert len(caught) == 1 and capsys.readouterr().err == ""
