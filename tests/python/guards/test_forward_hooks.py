"""Forward hooks of a model's parts run within its forward: they are compiled with it, and watched as any function that it calls.
Those of the model itself, and those of the backward, are left to torch.compile's tracer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import trainc

scale = [2.0]
seen: list[int] = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.body(self.table(x)).sum()


def wants_gradient(module, args, result):
    """What Hugging Face's enable_input_require_grads registers, for gradient checkpointing and adapters."""
    result.requires_grad_(True)


class Pair:
    """A compiled model and its eager twin."""

    def __init__(self):
        torch.manual_seed(0)
        self.eager = Net()
        self.eager.table.requires_grad_(False)
        self.compiled = trainc.compile(copy.deepcopy(self.eager))

    def hook(self, place: str, hook, pre: bool = False) -> list:
        parts = [model.get_submodule(place) for model in (self.eager, self.compiled)]
        return [part.register_forward_pre_hook(hook) if pre else part.register_forward_hook(hook) for part in parts]

    def same(self) -> None:
        x = torch.arange(6)
        for model in (self.eager, self.compiled):
            model.zero_grad()
            model(x).backward()
        for found, wanted in zip(self.compiled.body.parameters(), self.eager.body.parameters(), strict=True):
            torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-5, atol=1e-6)

    def routes(self) -> set[str]:
        return {compilation.route for compilation in trainc.explain(self.compiled).compilations}


def test_hooks_of_parts_are_compiled_and_watched():
    pair = Pair()
    pair.hook("table", wants_gradient)
    pair.hook("body.0", lambda module, args: (args[0] + 1,), pre=True)
    removable = pair.hook("body.1", lambda module, args, result: result * scale[0])
    pair.same()
    scale[0] = 3.0  # what a hook reads
    pair.same()
    for handle in removable:
        handle.remove()
    pair.same()
    pair.hook("body.1", lambda module, args, result: -result)
    pair.same()
    assert pair.routes() == {"compiled"}


@pytest.mark.filterwarnings("ignore")
def test_what_a_hook_does_beside_its_result_is_done_at_each_call():
    class Counter:
        calls = 0

        def __call__(self, module, args, result):
            self.calls += 1
            return result * self.calls

    pair, counters = Pair(), [Counter(), Counter()]
    for model, counter in zip((pair.eager, pair.compiled), counters, strict=True):
        model.body[2].register_forward_hook(counter)
    pair.hook("body.1", lambda module, args, result: seen.append(1))
    for _ in range(4):
        pair.same()
    assert len(seen) == 8 and [counter.calls for counter in counters] == [4, 4]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["own", "backward"])
def test_others_are_left_to_the_tracer(kind):
    pair, calls = Pair(), []
    for model in (pair.eager, pair.compiled):
        if kind == "own":
            model.register_forward_hook(lambda *_: calls.append(1))
        else:
            model.body[0].register_full_backward_hook(lambda *_: calls.append(1))
    for _ in range(2):
        pair.same()
    assert len(calls) == 4 and "compiled" not in pair.routes()
