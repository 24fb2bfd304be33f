"""Numbers that change (an annealed weight): from its third value on a float that the program reads is an input of what is
compiled. No further trace and no further compilation, and eager's numbers."""

# ruff: noqa: E501
from __future__ import annotations

import contextlib
import copy
import itertools
import math
import random
import sys
import textwrap
import threading
import types
import warnings

import pytest
import torch
from conftest import assert_same
from torch import nn

import trainc
from trainc.base import messages, plans, records
from trainc.torch.numbers import Program

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
}  # fmt: skip


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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("source", SOURCES)
def test_step(engine, strict, source):
    case = Case(*SOURCES[source])
    loops = []
    for _, net in case.sides:
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


# What tells a number from what stands for it, or takes its value: eager's results, whichever way a call is run. `b` is the number,
# `x` [3, 4] f32, `i` [3] i64, `s` a tensor without dimensions. "+": has to be an input from the third value on.
PROGRAMS = {
    "+times": "x * b + b * x - b + (b - x) / 2 + x / (b + 9)",
    "+divided by": "b / (x.abs() + 1)",
    "+zero-dimensional": "x * (s * b) + (s + b)",
    "+compared with a tensor": "torch.where(x > b, x, -x) + (x <= b).float()",
    "+integers": "x + (i * b).sum() + (i / (b + 9)).sum()",
    "+bools": "x + ((x > 0) * b)",
    "+a double": "(x.double() * b).float() + (s.double() * b).float()",
    "+bf16": "(x.bfloat16() * b + b).float()",
    "+autocast": "autocast_linear(x) * b",
    "+branch": "x * b if b > 0.25 else x + b",
    "+branch on zero": "x * b if b else x + 7",
    "+min, max": "x * min(b, 0.5) + max(0.1, b)",
    "+arithmetic": "x * ((b + 1e16) - 1e16) + x * (b * 3 * 0.1) + x * (b ** 2) + x * (b % 0.3) + x * (b // 0.3) + x * abs(-b) + x * (2.0 - b)",
    "+root": "x * ((b + 40) ** 0.5)",
    "+isinstance": "x * b if isinstance(b, float) else x * 100",
    "+isinstance of a number": "x * b if isinstance(b, numbers.Real) else x * 100",
    "class": "x * b if b.__class__ is float else x * 100",
    "+late isinstance": "x * (b if b < 0.25 or not isinstance(b, float) else -b)",
    "+match": "matched(x, b)",
    "+in place": "x.clone().mul_(b).add_(b).sub_(2 * b)",
    "+twice": "(x * b).square().mean() * b + x",
    "+two ways": "x * b * b + x * b",
    "+none": "x * b if b is not None else x",
    "type": "x * b if type(b) is float else x * 100",
    "late type": "x * (b if b < 0.25 or type(b) is not float else -b)",
    "identity": "x * b if b is SELF else x * (b + 1)",
    "hash": "x * {0.2: 5.0}.get(b, 1.0)",
    "set": "x * (2 if b in {0.2, 0.3} else 1)",
    "tuple": "x * (2 if b in (0.2, 0.3) else 1)",
    "text": "x * len(f'{b}') + x * len(f'{b:.3f}') + len(str(b)) + len(repr(b)) + len('%s' % b) + len('%.2f' % b)",
    "json": "x * len(json.dumps({'b': b}))",
    "math": "x * math.exp(b) + math.floor(b) + math.sqrt(abs(b)) + math.copysign(1.0, b)",
    "round": "x * round(b, 1) + round(b) + int(b) + divmod(b, 0.3)[0]",
    "is_integer": "x * (2 if b.is_integer() else 3) + b.as_integer_ratio()[0] % 7 + len(b.hex())",
    "real": "x * b.real + b.imag + b.conjugate()",
    "numpy": "x * float(np.exp(b)) + x * np.float64(b) + float(np.array([b, 2.0]).sum()) + x * np.maximum(b, 0.2)",
    "numpy's number": "x * (np.float64(2.0) * b)",
    "complex": "x * ((b - 3) ** 0.5).real + x * abs(b + 1j)",
    "division by zero": "x * safe(b)",
    "tensor of it": "x * torch.tensor(b) + torch.tensor([b, 1.0]).sum() + torch.as_tensor(b)",
    "full": "x + torch.full((3, 4), b) + torch.full_like(x, b) + x.new_full((4,), b) + torch.zeros(4).fill_(b)",
    "power": "x.abs() ** b + b ** x.abs() if b > 0 else x",
    "alpha": "torch.add(x, x, alpha=b) + torch.lerp(x, x * 2, b) + torch.addcmul(x, x, x, value=b)",
    "clamp": "x.clamp(-1, abs(b)) + x.clamp_min(b) + torch.maximum(x, x.new_tensor(b))",
    "masked_fill": "x.masked_fill(x > 0, b) + torch.where(x > 0, b, 1.0) + torch.where(x > 0, x, b)",
    "dropout": "F.dropout(x, abs(b) if abs(b) < 1 else 0.5, False)",
    "layer norm": "F.layer_norm(x, (4,), eps=abs(b) + 1e-5)",
    "loss": "x + F.smooth_l1_loss(x, x * 2, beta=abs(b) + 0.1) + F.cross_entropy(x, i, label_smoothing=abs(b) if abs(b) < 1 else 0.1)",
    "leaky": "F.leaky_relu(x, b) + F.elu(x, abs(b) + 0.1) + F.threshold(x, b, b)",
    "size": "x[:, :max(1, int(abs(b) * 4) % 4)].repeat(1, 4)[:, :4]",
    "range": "sum([x for _ in range(int(abs(b) * 10) % 5)], x)",
    "sum": "x * sum([b, b, 0.1]) + math.fsum([b, 0.1])",
    "statistics": "x * statistics.mean([b, 1.0])",
    "copy": "x * copy.deepcopy({'b': b})['b'] + x * copy.copy(b)",
    "sorted": "x * sorted([b, 0.25, 0.15])[1]",
    "result": "x * b, b",
    "result of arithmetic": "x * b, {'b': [b * 2]}",
    "cached": "x * cached(b)",
    "attribute that is not there": "x * b if not hasattr(b, 'shape') and not hasattr(b, 'item') else x",
    "caught": "x * caught(b)",
    "dataclass": "x * D(b).b + x * dataclasses.replace(D(1.0), b=b).b",
    "float": "x * float(b)",
    "bool": "x * bool(b) + x * (not b)",
    "chained": "x * b if 0.1 < b < 0.25 else x * 2",
    "equal": "x * (5 if b == 0.2 else 6) + (1 if b != 0.3 else 0)",
    "singledispatch": "x * dispatched(b)",
    "linspace": "x + torch.linspace(0, b, 4) + torch.arange(0, 4) * b",
    "scaled attention": "F.scaled_dot_product_attention(x[None], x[None], x[None], scale=abs(b) + 0.1)[0]",
    "softmax": "(x / (abs(b) + 0.1)).softmax(-1) + F.gumbel_softmax(x * 0, tau=abs(b) + 0.1).sum() * 0",
    "normalize": "F.normalize(x, p=2.0, eps=abs(b) + 1e-3) + x.norm(p=abs(b) + 1)",
    "+type of others": "x * b if type(self) is Net and type([x]) is list and x is not s and id(self) != id(Net) else x * 100",
    "type among others": "x * b if type(x) is not None and type(b + 1) is float else x * 100",
    "type of several": "x * b if type(*(b,)) is float and id(self) != id(Net) else x * 100",
    "einsum": "torch.einsum('ij,ij->i', x, x * b)[:, None] + x",
    "list of it": "x * torch.stack([x * v for v in (b, b + 1)]).sum()",
}  # fmt: skip
FUNCTIONS = """
SELF = 0.2
def autocast_linear(x):
  with torch.autocast('cpu', torch.bfloat16):
    return F.linear(x, torch.eye(4)) .float()
def matched(x, b):
  match b:
    case float(): return x * b
    case _: return x * 100
def safe(b):
  try: return 1 / (b - 0.2)
  except ZeroDivisionError: return 7.0
def caught(b):
  try: return [1.0, 2.0][b]
  except TypeError: return b
@functools.cache
def cached(b): return b * 2
@dataclasses.dataclass(frozen=True)
class D:
  b: float
@functools.singledispatch
def dispatched(b): return 100.0
@dispatched.register
def _(b: float): return b
"""
WALK = [0.1, 0.15, 0.2, 0.3, 0.0, 2.0, 0.25, -0.5, 0.2]


def program(expression, source):
    place = {"attribute": "self.b", "argument": "b", "global": "B"}[source]
    more = ", b" if source == "argument" else ""
    body = f"    b = {place}\n" if source != "argument" else ""
    return FUNCTIONS + (
        "B = 0.0\nclass Net(nn.Linear):\n  def __init__(self, *a):\n    super().__init__(*a)\n    self.b = 0.0\n"
        f"  def forward(self, x, i, s{more}):\n{body}    x = super().forward(x)\n    return {expression}\n"
    )


def first_of(result):
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.sampled(6)
@pytest.mark.parametrize("source", ["attribute", "argument"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, source):
    sides = []
    for _ in range(2):
        m = module_of(program(PROGRAMS[name], source))
        torch.manual_seed(1)
        sides.append(m.Net(4, 4))
    net, other = sides
    trainc.compile(net)
    i, s = torch.tensor([1, 0, 3]), torch.tensor(1.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for value in WALK:
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(5))
            results = []
            for side in sides:
                side.b = value
                given = [value] if source == "argument" else []
                torch.manual_seed(0)
                result = side(x, i, s, *given)
                out = first_of(result)
                side.zero_grad()
                out.float().square().sum().backward()
                results.append((result, out.detach(), side.weight.grad))
            (result, out, grad), (wanted_result, wanted, wanted_grad) = results
            assert out.dtype is wanted.dtype
            assert_same(out, wanted)
            assert_same(grad, wanted_grad)
            if isinstance(result, tuple):
                assert result[1:] == wanted_result[1:] and type(result[1]) is type(wanted_result[1])
    found = records.of(net)
    if name[0] == "+":
        assert [r.route for r in found] == ["compiled"] * len(found), [r.reason for r in found]
        assert "symbolic" in [r.trace for r in found] and len(found) < len(WALK) - 2


class Weighted(nn.Linear):
    """A loss with two weights, one of which decides between branches."""

    def __init__(self):
        super().__init__(4, 4)
        self.beta, self.gamma = 0.0, 0.0

    def forward(self, x):
        h = super().forward(x)
        loss = h.square().mean() * self.beta
        if self.gamma > 0.5:
            loss = loss + h.abs().mean()
        return loss + h.tanh().mean() * self.gamma


def both():
    torch.manual_seed(0)
    net = Weighted()
    return net, copy.deepcopy(net)


def same_step(net, other, x, values):
    results = []
    for each in (net, other):
        for key, value in values.items():
            setattr(each, key, value)
        each.zero_grad()
        loss = each(x)
        loss.backward()
        results.append((loss.detach(), each.weight.grad))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


@contextlib.contextmanager
def counted_compilations(monkeypatch):
    """Counts the plans that are compiled."""
    count, stored = [0], plans._Plans._stored

    def counting(*args, **kwargs):
        count[0] += 1
        return stored(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(plans._Plans, "_stored", counting)
        yield count


def test_no_plan_is_compiled_for_further_values(core, strict, monkeypatch):
    net, other = both()
    trainc.compile(net)
    for i in range(4):
        same_step(net, other, torch.randn(3, 4), {"beta": i / 10})
    with counted_compilations(monkeypatch) as count, warnings.catch_warnings():
        warnings.simplefilter("error", messages.RecompileWarning)
        for i in range(4, 12):
            same_step(net, other, torch.randn(3, 4), {"beta": i / 10})
    assert count == [0] and len(calls_of(net)) == 3


def test_unusual_values(engine, strict):
    net, other = both()
    trainc.compile(net)
    for value in (0.1, 0.2, 0.3, -0.0, 0.0, math.inf, -math.inf, math.nan, 1e300, -1e300, 5e-324, 1e-45, 16777217.0):
        same_step(net, other, torch.randn(3, 4), {"beta": value})
    assert len(calls_of(net)) == 3


def test_two_numbers_and_their_branches(engine, strict):
    """Equal by chance, changed together and one after the other, on both sides of a branch."""
    net, other = both()
    trainc.compile(net)
    for i in range(20):
        same_step(net, other, torch.randn(3, 4), {"beta": (i % 7) / 7, "gamma": (i % 5) / 4})
    count = len(records.of(net))
    assert count <= 6 and [r.trace for r in records.of(net)].count("symbolic") == 2
    for i in range(20):
        same_step(net, other, torch.randn(3, 4), {"beta": i / 9, "gamma": i / 19})
    assert len(records.of(net)) == count


def test_one_number_then_another(engine, strict):
    net, other = both()
    trainc.compile(net)
    for i in range(5):
        same_step(net, other, torch.randn(3, 4), {"beta": i / 7})
    for i in range(1, 6):
        same_step(net, other, torch.randn(3, 4), {"gamma": i / 13})
    same_step(net, other, torch.randn(3, 4), {"beta": 0.9, "gamma": 0.4})
    count = len(records.of(net))
    assert count <= 6
    for i in range(10):
        same_step(net, other, torch.randn(3, 4), {"beta": i / 3, "gamma": i / 20 - 0.1})
    assert len(records.of(net)) == count


def test_numbers_and_sizes(engine, strict):
    net, other = both()
    trainc.compile(net)
    for i, rows in enumerate([3, 3, 3, 5, 4, 6, 2, 7, 1, 3, 8]):
        same_step(net, other, torch.randn(rows, 4), {"beta": i / 10})
    assert [r.trace for r in records.of(net)].count("symbolic") <= 3
    assert [r.trace for r in records.of(net)].count("static") <= 3  # 1 is no symbol


def test_a_number_of_another_kind(engine, strict):
    """True is no number, and 1 is none that changes."""
    net, other = both()
    trainc.compile(net)
    for value in (0.1, 0.2, 0.3, 1, 2, True, 0.5, 1.0, 3, 2**60, 0.7, False, 0.9):
        same_step(net, other, torch.randn(3, 4), {"beta": value})


def test_two_values_stay_constants(engine, strict):
    net, other = both()
    trainc.compile(net)
    for i in range(8):
        same_step(net, other, torch.randn(3, 4), {"beta": float(i % 2)})
    calls_of(net, ("static", "static"))


def test_without_gradients(engine, strict):
    net, other = both()
    trainc.compile(net)
    for i in range(4):
        same_step(net, other, torch.randn(3, 4), {"beta": i / 7})
    with torch.no_grad():
        for i in range(12):
            net.beta = other.beta = i / 5
            x = torch.randn(3, 4)
            assert_same(net(x), other(x))


def test_gradients_of_several_calls(engine, strict):
    """A backward takes the number of its own forward."""
    net, other = both()
    trainc.compile(net)
    for i in range(3):
        same_step(net, other, torch.randn(3, 4), {"beta": i / 7})
    net.zero_grad(), other.zero_grad()
    for each in (net, other):
        losses = []
        for i in range(5):
            each.beta = i / 3
            losses.append(each(torch.full((3, 4), i / 2)))
        each.beta = 100.0
        sum(losses[1:], losses[0]).backward()
    assert_same(net.weight.grad, other.weight.grad)


@pytest.mark.parametrize("settings", [{"fuse_step": True}, {"memory": "1GB"}, {"tune": "fast"}])
def test_settings(engine, settings):
    net, other = both()
    ours, theirs = (torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (net, other))
    trainc.compile(net, ours, **settings)
    for i in range(8):
        x = torch.randn(3, 4)
        for each, optimizer in ((net, ours), (other, theirs)):
            each.beta = i / 7
            each(x).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert_same(dict(net.state_dict()), dict(other.state_dict()), 1e-4)
    assert len(records.of(net)) == 3


def test_a_plan_on_disk_knows_no_value(core, tmp_path, monkeypatch):
    from trainc.base import cache

    monkeypatch.setenv("TRAINC_CACHE", str(tmp_path))
    keys = []
    key = cache.key
    monkeypatch.setattr(cache, "key", lambda *args: keys.append(key(*args)) or keys[-1])
    runs = []
    for start in (0.1, 0.5):
        net, other = both()
        trainc.compile(net)
        keys.clear()
        for i in range(3):
            same_step(net, other, torch.randn(3, 4), {"beta": start + i / 7})
        runs.append(keys[-2:])
    assert runs[0] == runs[1]


def test_a_number_in_loss_and_clipping_of_a_step(engine, strict):
    """The number is used before and after backward()."""
    loops = []
    for net in both():
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x, scale, net=net, optimizer=optimizer):
            optimizer.zero_grad()
            loss = net(x) * scale
            loss.backward()
            for p in net.parameters():
                p.grad.mul_(1 / (scale + 1)).add_(p.detach(), alpha=0.1)
            optimizer.step()
            return loss / (scale + 1)

        loops.append((net, step))
    run = trainc.train_step(loops[0][1])
    for i in range(10):
        x = torch.randn(3, 4)
        for net, _ in loops:
            net.beta = i / 4
        assert_same(run(x, i / 3), loops[1][1](x, i / 3).detach())
        assert_same(dict(loops[0][0].state_dict()), dict(loops[1][0].state_dict()), 1e-4)
    assert len(records.of(run)) == 3


def test_random_programs(strict):
    """Arithmetic of a number, mixed with tensors and comparisons."""
    draw = random.Random(7)

    def number(depth):
        kind = draw.choice(["b", "b", "c"]) if depth == 0 else draw.choice(["+", "-", "*", "/", "if", "min", "max", "neg", "b"])
        if kind == "b":
            return draw.choice(["b", "self.a"])
        if kind == "c":
            return draw.choice(["0.5", "2", "0.1", "3.0", "-1.25"])
        if kind == "neg":
            return f"(-{number(depth - 1)})"
        if kind == "if":
            return f"({number(depth - 1)} if {number(depth - 1)} {draw.choice(['<', '>='])} {number(0)} else {number(depth - 1)})"
        if kind in ("min", "max"):
            return f"{kind}({number(depth - 1)}, {number(depth - 1)})"
        if kind == "/":
            return f"({number(depth - 1)} / (1.5 + abs({number(depth - 1)})))"
        return f"({number(depth - 1)} {kind} {number(depth - 1)})"

    def tensor(depth):
        if depth == 0:
            return draw.choice(["x", "x.tanh()", "x.mean()", "i"])
        kind = draw.choice(["+", "-", "*", "r-", "where", "both", "/"])
        if kind == "both":
            return f"({tensor(depth - 1)} * {tensor(depth - 1)})"
        if kind == "where":
            return f"torch.where({tensor(depth - 1)} > {number(1)}, {tensor(depth - 1)} * {number(1)}, 0.5)"
        if kind == "/":
            return f"({tensor(depth - 1)} / (1.5 + abs({number(1)})))"
        return f"({number(2)} - {tensor(depth - 1)})" if kind == "r-" else f"({tensor(depth - 1)} {kind} {number(2)})"

    inputs, values = 0, [0.1, 0.7, 0.3, -0.4, 1.9, 0.0]
    for _ in range(12):
        source = (
            "class Net(nn.Linear):\n  def __init__(self, *a):\n    super().__init__(*a)\n    self.a = 0.25\n"
            f"  def forward(self, x, i, b):\n    x = super().forward(x)\n    return x + {tensor(3)}\n"
        )
        nets = []
        for _ in range(2):
            m = module_of(source)
            torch.manual_seed(0)
            nets.append(m.Net(3, 3))
        trainc.compile(nets[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", messages.RecompileWarning)
            for k, value in enumerate(values):
                x, grads = torch.randn(2, 3), []
                for net in nets:
                    net.a = 0.25 + k % 3
                    net.zero_grad()
                    out = net(x, torch.tensor([1, 2, 3]), value)
                    out.square().sum().backward()
                    grads.append((out.detach(), net.weight.grad))
                assert_same(grads[0][0], grads[1][0])
                assert_same(grads[0][1], grads[1][1], 1e-4)
        inputs += "symbolic" in [r.trace for r in records.of(nets[0])]
    assert inputs > 6


# What asks for more than arithmetic, under another name: programs that would compute with other numbers if a trace did not see it.
# Each is an expression over the number `b`, and the part of `FUNCTIONS` that it needs.
DISGUISED = {
    "type as a global": ("x * b, kind(b).__name__", "kind = type"),
    "type as a default": ("x * asked(b)", "def asked(b, t=type): return b * 2 if t(b) is not float and b < 9 else b"),
    "type of builtins": ("x * b, builtins.type(b).__name__", "import builtins"),
    "type in a list": ("x * b, KINDS[0](b).__name__", "KINDS = [type]"),
    "type in a closure": ("x * made(b)", "def make(t):\n  def made(b): return b if {float: 1}.get(t(b)) else -b\n  return made\nmade = make(type)"),
    "type on one side of a comparison": ("x * branch(b)", "kind = type\ndef branch(b):\n  if kind(b) == float:\n    return b * 2 if b > 0.22 else b\n  return b"),
    "type by map": ("x * by_map(b)", "def by_map(b):\n  if list(map(type, [b])) == [float]:\n    return b * 2 if b > 0.22 else b\n  return b"),
    "class by attribute": ("x * branch(b)", "import operator\nkind = operator.attrgetter('__class__')\ndef branch(b):\n  if kind(b) == float:\n    return b * 2 if b > 0.22 else b\n  return b"),
    "id as a global": ("x * (b if where(b) == where(SELF) else b + 1)", "where = id"),
    "identity by operator": ("x * (b if operator.is_(b, SELF) else b + 1)", "import operator"),
    "attribute that a float has not": ("x * branch(b)", "def branch(b):\n  if not hasattr(b, 'node'):\n    return b * 2 if b > 0.22 else b\n  return b"),
    "attribute that only a float has": ("x * branch(b)", "def branch(b):\n  if hasattr(b, 'fromhex'):\n    return b * 2 if b > 0.22 else b\n  return b"),
    "attribute by dir": ("x * b, len(dir(b))", ""),
    "SymFloat": ("x * branch(b)", "def branch(b):\n  if not isinstance(b, torch.SymFloat):\n    return b * 2 if b > 0.22 else b\n  return b"),
    "sum as a global": ("x * total([b, 1e16, -1e16])", "total = sum"),
    "weak reference": ("x * branch(b)", "import weakref\ndef branch(b):\n  try: weakref.ref(b)\n  except TypeError: return b * 2 if b > 0.22 else b\n  return b"),
    "what is kept": ("x * keep(b)", "class K: last = None\ndef keep(b):\n  K.last = b * 2\n  return b"),
    "result of another kind": ("(x * b, {'mode': 'many' if b > 9 else 'few', 'n': [1, 2]})", ""),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("source", ["attribute", "argument"])
@pytest.mark.parametrize("name", DISGUISED)
def test_disguised_questions(name, source):
    expression, more = DISGUISED[name]
    sides = []
    for _ in range(2):
        m = module_of(program(expression, source).replace("SELF = 0.2\n", f"SELF = 0.2\n{more}\n"))
        torch.manual_seed(1)
        sides.append((m, m.Net(4, 4)))
    trainc.compile(sides[0][1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for value in (*WALK, 0.21, 0.23):
            x, results = torch.randn(3, 4), []
            for m, side in sides:
                side.b = m.SELF = value
                result = side(x, torch.tensor([1, 0, 3]), torch.tensor(1.5), *([value] if source == "argument" else []))
                kept = getattr(getattr(m, "K", None), "last", None)
                results.append((first_of(result).detach(), result[1:] if isinstance(result, tuple) else (), kept, type(kept)))
            assert_same(results[0][0], results[1][0])
            assert results[0][1:] == results[1][1:]


@pytest.mark.parametrize("door", ["model", "step"])
def test_a_trace_that_is_refused_ends(strict, door):
    """Another branch takes what the first one did not: the number is refused while it is already an input of another trace."""
    m = module_of("B = 0.0\nclass Net(nn.Linear):\n  def forward(self, x):\n    h = super().forward(x)\n    if B < 0.4: return h * B\n    return h * math.exp(B) if B < 0.8 else h + B")
    net = m.Net(4, 4)
    other = copy.deepcopy(net)
    if door == "model":
        trainc.compile(net)
        run, eager = net, other
    else:
        bodies = []
        for each in (net, other):
            optimizer = torch.optim.SGD(each.parameters(), lr=0.1)

            def body(x, each=each, optimizer=optimizer):
                optimizer.zero_grad()
                loss = each(x).square().mean()
                loss.backward()
                optimizer.step()
                return loss

            bodies.append(body)
        run, eager = trainc.train_step(bodies[0]), bodies[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for m.B in (0.1, 0.2, 0.3, 0.7, 0.15, 0.75, 0.9, 0.35, 0.95, 0.5, 0.05):
            x = torch.randn(3, 4)
            assert_same(run(x).detach(), eager(x).detach(), 1e-4)
    assert {r.route for r in records.of(run)} == {"compiled"}


def test_paths_that_look_the_same(strict):
    m = module_of("CFG = {('a', 1): 0.1, ('b', 1): 0.5}\nclass Net(nn.Linear):\n  def forward(self, x):\n    return super().forward(x) * CFG['a', 1] + CFG['b', 1]")
    net = m.Net(4, 4)
    other = copy.deepcopy(net)
    trainc.compile(net)
    for key, value in itertools.product(list(m.CFG), (0.1, 0.2, 0.3, 0.7)):
        m.CFG[key] = value
        x = torch.randn(3, 4)
        assert_same(net(x), other(x))


def test_another_thread_during_a_trace(strict, monkeypatch):
    """It reads the global in whose place a number stands: it has a float's answers and a float's arithmetic, and leaves nothing in
    the trace."""
    m = module_of("B = 0.1\nclass Net(nn.Linear):\n  def forward(self, x):\n    return super().forward(x) * B")
    net = m.Net(4, 4)
    other = copy.deepcopy(net)
    kept, answers = [], []

    def asked_of(b):
        ones = torch.ones(2)
        found = [b > 0.25, b >= 0.3, b * 2, 1 - b, -b, b + 1, math.exp(b), float(b), str(b), bool(b), hash(b), f"{b:.2f}", int(b)]
        return found, list(map(type, found)), [(ones * b).tolist(), (b + ones).tolist(), torch.full((2,), b).tolist()]

    def look():
        kept.append(m.B)
        answers.append(asked_of(m.B))

    in_place = Program.in_place

    @contextlib.contextmanager
    def watched(self):
        with in_place(self):
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            yield

    monkeypatch.setattr(Program, "in_place", watched)
    trainc.compile(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for m.B in (0.1, 0.2, 0.3, 0.4, 0.2, 0.35):
            x = torch.randn(3, 4)
            assert_same(net(x), other(x))
    assert [r.trace for r in records.of(net)] == ["static", "static", "symbolic"]
    assert kept and all(type(each) is not float for each in kept)
    for answer in answers:
        assert answer == asked_of(0.3)
    assert asked_of(kept[0]) == asked_of(0.3)  # here, too, once the trace is over


def test_configurations_made_anew(strict):
    """Each is another place: none of them becomes an input, and no more are remembered than plans are made."""
    m = module_of("CFG = {'b': 0.1}\nclass Net(nn.Linear):\n  def forward(self, x):\n    return super().forward(x) * CFG['b']")
    net = m.Net(4, 4)
    other = copy.deepcopy(net)
    trainc.compile(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(trainc.config.max_signatures + 20):
            m.CFG = {"b": i / 7}
            x = torch.randn(3, 4)
            assert_same(net(x), other(x))
    assert len(net._compiled_call_impl._signatures.numbers.slots) <= trainc.config.max_signatures
