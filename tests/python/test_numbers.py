"""Numbers that change (an annealed weight): from its third value on a float that the program reads is an input of what is
compiled. No further trace and no further compilation, and eager's numbers."""

from __future__ import annotations

import contextlib
import copy
import math
import random
import sys
import textwrap
import types
import warnings

import pytest
import torch
from conftest import assert_same
from torch import nn

import trainc
from trainc import config, messages, records

HEAD = """
import collections, copy, dataclasses, functools, json, math, numbers, statistics, types
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
"""
VALUES = [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, -0.3, 0.7, 0.9, 1.5, -0.0, 2.0, 1e-3, 4.0, 0.25, 0.5, 1 / 3, 1e4, -1.0, 1.0]
_count = 0


def module_of(source: str) -> types.ModuleType:
    """A program in a module of its own, as a user's would be."""
    global _count
    _count += 1
    module = types.ModuleType(f"numbers_program_{_count}")
    sys.modules[module.__name__] = module
    exec(compile(HEAD + textwrap.dedent(source), f"/tmp/{module.__name__}.py", "exec"), module.__dict__)
    return module


SOURCES = {  # where the number is -> (the program, how it is set: statements over the module `m`, `net` and `value`)
    "attribute": ("class Net(nn.Linear):\n  beta = 0.0\n  def __init__(self, *a):\n    super().__init__(*a)\n    self.beta = 0.0\n  def forward(self, x):\n    h = super().forward(x)\n    return h.tanh() * self.beta + h.square() * (1 - self.beta / 3)", "net.beta = value"),
    "global": ("BETA = 0.0\nclass Net(nn.Linear):\n  def forward(self, x):\n    h = super().forward(x)\n    return h.tanh() * BETA + h.square() * (1 - BETA / 3)", "m.BETA = value"),
    "configuration": ("CFG = {'loss': {'beta': 0.0}}\nclass Net(nn.Linear):\n  def forward(self, x):\n    h, b = super().forward(x), CFG['loss']['beta']\n    return h.tanh() * b + h.square() * (1 - b / 3)", "m.CFG['loss']['beta'] = value"),
    "object": ("class C: pass\nclass Net(nn.Linear):\n  def __init__(self, *a):\n    super().__init__(*a)\n    self.c = C()\n    self.c.beta = 0.0\n  def forward(self, x):\n    h, b = super().forward(x), self.c.beta\n    return h.tanh() * b + h.square() * (1 - b / 3)", "net.c.beta = value"),
    "list": ("class Net(nn.Linear):\n  def __init__(self, *a):\n    super().__init__(*a)\n    self.weights = [0.0, 2.0]\n  def forward(self, x):\n    h, b = super().forward(x), self.weights[0]\n    return h.tanh() * b + h.square() * (1 - b / 3)", "net.weights[0] = value"),
    "closure": ("def make():\n  beta = 0.0\n  def put(v):\n    nonlocal beta\n    beta = v\n  def scale(): return beta\n  return put, scale\nPUT, SCALE = make()\nclass Net(nn.Linear):\n  def forward(self, x):\n    h, b = super().forward(x), SCALE()\n    return h.tanh() * b + h.square() * (1 - b / 3)", "m.PUT(value)"),
    "slot": ("class C:\n  __slots__ = ('beta',)\nCFG = C()\nCFG.beta = 0.0\nclass Net(nn.Linear):\n  def forward(self, x):\n    h, b = super().forward(x), CFG.beta\n    return h.tanh() * b + h.square() * (1 - b / 3)", "m.CFG.beta = value"),
    "argument": ("class Net(nn.Linear):\n  def forward(self, x, beta):\n    h = super().forward(x)\n    return h.tanh() * beta + h.square() * (1 - beta / 3)", None),
    "argument in a dictionary": ("class Net(nn.Linear):\n  def forward(self, x, beta):\n    h, b = super().forward(x), beta['a'][0]\n    return h.tanh() * b + h.square() * (1 - b / 3)", None),
}  # fmt: skip  # ruff: noqa: E501


class Case:
    """A program and a copy of it, for eager."""

    def __init__(self, source, change, **built):
        self.sides = []
        for _ in range(2):
            m = module_of(source)
            torch.manual_seed(3)
            self.sides.append((m, m.Net(4, 4)))
        self.change = change

    def call(self, side, run, value, x):
        m, net = self.sides[side]
        if self.change is not None:
            exec(self.change, {"m": m, "net": net, "value": value, "math": math})
            return run(x)
        return run(x, beta={"a": [value]} if "beta['a']" in open_source(m) else value)


def open_source(m):
    return m.Net.forward.__code__.co_consts.__repr__().replace("'a'", "beta['a']")


def calls_of(run, traced=("static", "static", "symbolic")):
    found = records.of(run)
    assert [record.route for record in found] == ["compiled"] * len(found), [record.reason for record in found]
    assert tuple(record.trace for record in found) == traced
    return found


@pytest.mark.parametrize("source", SOURCES)
def test_model(engine, strict, source):
    case = Case(*SOURCES[source])
    net, other = case.sides[0][1], case.sides[1][1]
    trainc.compile(net)
    for i, value in enumerate(VALUES):
        x = torch.randn(3, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        got, wanted = case.call(0, net, value, x), case.call(1, other, value, y)
        assert_same(got.detach(), wanted.detach())
        got.square().sum().backward()
        wanted.square().sum().backward()
        assert_same(x.grad, y.grad)
        assert_same(net.weight.grad, other.weight.grad)
        net.zero_grad(), other.zero_grad()
        assert len(records.of(net)) == min(i + 1, 3)
    calls_of(net)


@pytest.mark.parametrize("source", SOURCES)
def test_step(engine, strict, source):
    case = Case(*SOURCES[source])
    loops = []
    for m, net in case.sides:
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)

        def step(x, net=net, optimizer=optimizer, **more):
            loss = net(x, **more).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        loops.append(step)
    run = trainc.train_step(loops[0])
    for i, value in enumerate(VALUES):
        x = torch.randn(3, 4)
        assert_same(case.call(0, run, value, x), case.call(1, loops[1], value, x).detach())
        assert_same(dict(case.sides[0][1].state_dict()), dict(case.sides[1][1].state_dict()), 1e-4)
        assert len(records.of(run)) == min(i + 1, 3)
    calls_of(run)
