"""Attributes that code reads by a variable's name: of what it was given, they are watched; of a module that it names, which it
could read anything of, they are not, and the model is left to torch.compile's tracer."""

from __future__ import annotations

import copy
import types

import pytest
import torch
from torch import nn

import trainc
from trainc.torch.guards.code import about

settings = types.ModuleType("settings")
settings.scale = 2.0


class Wrapped(nn.Module):
    """As TRL's fused head finds the part of a model that it calls."""

    def __init__(self):
        super().__init__()
        self.body, self.part, self.factor = nn.Linear(4, 4), "body", 1.0
        self.handle = None

    def forward(self, x):
        if x is None:
            raise ValueError(settings.scale)
        return getattr(self, self.part)(x) * self.factor


class OfAModule(Wrapped):
    def forward(self, x):
        return getattr(self, self.part)(x) * getattr(settings, "sca" + self.part[:0] + "le")


class Renamed(Wrapped):
    def forward(self, x):
        factor, self = getattr(settings, self.part, 2.0), settings
        return x * factor + getattr(self, "scale" + "")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind, captured", [(Wrapped, True), (OfAModule, False)])
def test_of_what_it_was_given(kind, captured):
    torch.manual_seed(0)
    eager = kind()
    compiled, x = trainc.compile(copy.deepcopy(eager)), torch.randn(2, 4)
    for factor in (1.0, 3.0, 1.0):
        compiled.factor = eager.factor = settings.scale = factor
        for _ in range(2):
            torch.testing.assert_close(compiled(x), eager(x))
    routes = {compilation.route for compilation in trainc.explain(compiled).compilations}
    assert routes == {"compiled"} if captured else "compiled" not in routes


def test_a_hooks_handle_among_the_attributes():
    """Hugging Face's models keep it; code that computes names may read it."""
    torch.manual_seed(0)
    eager = Wrapped()
    compiled, x = trainc.compile(copy.deepcopy(eager)), torch.randn(2, 4)
    for model in (eager, compiled):
        model.handle = model.body.register_forward_hook(lambda module, args, result: 2 * result)
    torch.testing.assert_close(compiled(x), eager(x))
    for model in (eager, compiled):
        model.handle.remove()
    torch.testing.assert_close(compiled(x), eager(x))
    assert {compilation.route for compilation in trainc.explain(compiled).compilations} == {"compiled"}


def test_which_parameters_are_what_was_given():
    def of(function):
        facts = about(function.__code__)
        return facts.any_attribute, facts.of_a_global

    def inner(x, name):
        return [(lambda x: getattr(x, name))(each) for each in x]

    def imported(x, name):
        import json as x

        return getattr(x, name)

    assert of(Wrapped.forward) == (True, False)
    assert of(OfAModule.forward) == of(Renamed.forward) == of(inner) == of(imported) == (True, True)
    assert of(test_of_what_it_was_given)[1] is False
