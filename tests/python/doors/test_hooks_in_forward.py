"""Hooks and `retain_grad()` that forward itself puts on tensors which the caller has: they stay there, in eager, and are told of
all that comes to these tensors. A plan has none of it, so such a program runs in PyTorch."""

import warnings

import pytest
import torch
from conftest import assert_same
from torch import nn

import trainc


class Hooking(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 4))
        self.way = way

    def forward(self, x):
        return WAYS[self.way](self.w, x)


def hooked(tensor):
    tensor.register_hook(lambda gradient: gradient * 10)
    return tensor


def retaining(tensor):
    tensor.retain_grad()
    return tensor


def _view_beside(w, x):
    h = w * x
    return h, hooked(h[:2])


def _retained_beside(w, x):
    h = retaining(x * w)
    return h * 2, h


WAYS = {
    "argument": lambda w, x: hooked(x) * 2,
    "argument itself": lambda w, x: hooked(x),
    "view of an argument": lambda w, x: hooked(x[:2]),
    "parameter": lambda w, x: hooked(w) * x,
    "view of a parameter": lambda w, x: hooked(w[:2]),
    "view of a result": _view_beside,
    "retained parameter": lambda w, x: retaining(w) * x,
    "retained argument": lambda w, x: retaining(x) * w,
    "retained result": _retained_beside,
}
COMPILED = {
    "intermediate": lambda w, x: hooked(w * x).square(),
    "result": lambda w, x: hooked(w * x),
    "view within": lambda w, x: hooked((w * x)[:2]).square(),
}


def trained(model, call, leaf):
    seen = []
    for _ in range(3):
        model.w.grad = None
        given = torch.linspace(1, 2, 4).requires_grad_()
        x = given if leaf else given * 1
        results = call(x)
        results = results if isinstance(results, tuple) else (results,)
        (sum(result.square().sum() for result in results) + x.sum()).backward()
        kept = [t.grad for t in (x, *results) if t.retains_grad]
        seen += [given.grad, None if model.w.grad is None else model.w.grad.clone(), *kept]
    return seen


@pytest.mark.parametrize("leaf", [True, False], ids=["leaf", "no leaf"])
@pytest.mark.parametrize("way", WAYS)
def test_what_the_caller_has_keeps_its_hooks(core, way, leaf):
    plain, model = Hooking(way), Hooking(way)
    wanted = trained(plain, plain, leaf)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", trainc.TraincWarning)
        got = trained(model, trainc.compile(model), leaf)
    for a, b in zip(got, wanted, strict=True):
        assert_same(a, b)


@pytest.mark.parametrize("way", COMPILED)
def test_hooks_on_what_the_program_makes_are_compiled(core, strict, way, monkeypatch):
    monkeypatch.setitem(WAYS, way, COMPILED[way])
    plain, model = Hooking(way), Hooking(way)
    for a, b in zip(trained(model, trainc.compile(model), True), trained(plain, plain, True), strict=True):
        assert_same(a, b)
