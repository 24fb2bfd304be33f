"""torch.set_flush_denormal: whether denormal numbers count as zero decides what constants are folded to, and so the plan."""

import itertools
import json
import os

import forked
import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import trainc
from trainc.base import config, records
from trainc.base.options import CompileOptions
from trainc.torch.device import HOST
from trainc.torch.graph import wire


@pytest.fixture(autouse=True)
def core(strict, monkeypatch):
    monkeypatch.setattr(config, "engine", "core")  # the interpreter folds nothing
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot count denormals as zero")
    yield
    torch.set_flush_denormal(False)


class Net(nn.Module):
    """Its scale, 0.01, comes of a denormal: it is 0 where denormals are."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        tiny = torch.full((3,), 1e-20) * torch.full((3,), 1e-20)
        return self.weight * x * (tiny * 1e38)


def by_compile():
    model = trainc.compile(Net())
    return lambda x: model(x)


def by_compile_without_gradients():
    model = trainc.compile(Net())

    def call(x):
        with torch.no_grad():
            return [model(x) for _ in range(2)][1]  # compiled at the second call

    return call


def by_backend():
    return torch.compile(Net(), backend="trainc")


def by_backend_with_sizes():
    return torch.compile(Net(), backend="trainc", dynamic=True)


def by_step():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    @trainc.train_step
    def step(x):
        optimizer.zero_grad()
        y = model(x)
        y.sum().backward()
        optimizer.step()
        return y

    return step


DOORS = (by_compile, by_compile_without_gradients, by_backend, by_backend_with_sizes, by_step)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("door", DOORS)
def test_a_call_gives_what_eager_gives_now(door, first):
    call, eager, x = door(), Net(), torch.ones(2, 3)
    for flushing in (first, not first, first):
        torch.set_flush_denormal(flushing)
        assert call(x).tolist() == eager(x).tolist() == [[0.0 if flushing else pytest.approx(0.01, rel=1e-4)] * 3] * 2


@pytest.mark.parametrize("first", [True, False])
def test_gradients_and_several_sizes(first):
    torch.set_flush_denormal(first)
    model, eager = trainc.compile(Net()), Net()
    for flushing, rows in itertools.product((first, not first), (2, 3, 5)):
        torch.set_flush_denormal(flushing)
        for each in (model, eager):
            each.weight.grad = None
            each(torch.ones(rows, 3)).sum().backward()
        assert model.weight.grad.tolist() == eager.weight.grad.tolist()


def test_an_optimizers_kernel_is_made_for_each():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    trainc.compile(model, optimizer)
    for count, flushing in ((1, True), (1, True), (2, False), (2, True), (2, False)):
        torch.set_flush_denormal(flushing)
        model.weight.grad = torch.ones(3)
        optimizer.step()
        assert sum(len(record.executables()) for record in records.of(optimizer)) == count


def test_what_folds_constants_does_not_look_at_the_thread():
    """The options alone say it: a backward may be compiled later, on another thread."""
    tiny = make_fx(lambda: [torch.full((3,), 1e-20) * torch.full((3,), 1e-20)])()
    graph, options, texts = wire.graph_json(tiny.graph, "plan"), json.loads(CompileOptions.of(HOST).for_compiler()), {}
    for flushing in (True, False):
        torch.set_flush_denormal(flushing)
        for told in (True, False):
            plan = trainc._core.compile(graph, "plan", json.dumps(options | {"flushes_denormals": told}))
            texts[flushing, told] = plan.save()
            assert trainc._core.flushes_denormals() == flushing
    assert texts[True, True] == texts[False, True] != texts[True, False] == texts[False, False]


ANOTHER = """
import json, sys
sys.path.insert(0, {here!r})
import torch
import test_arithmetic
from trainc.base import records
torch.set_flush_denormal({flushing})
model, eager = test_arithmetic.trainc.compile(test_arithmetic.Net()), test_arithmetic.Net()
x = torch.ones(2, 3)
found = [model(x).tolist(), eager(x).tolist()]
print(json.dumps([*found, [plan.from_cache for record in records.of(model) for plan in record.executables()]]))
"""


def test_a_stored_plan_is_one_of_this_arithmetic(tmp_path):
    """Compiled and stored by one process, asked for by others."""
    told = []
    for flushing in (True, False, True):
        environment = {**os.environ, "TRAINC_ENGINE": "core", "TRAINC_CACHE": "1", "TRAINC_CACHE_DIR": str(tmp_path / "plans")}
        script = ANOTHER.format(here=os.path.dirname(__file__), flushing=flushing)
        done = forked.run(["-c", script], env=environment)
        assert done.returncode == 0, done.stderr
        ours, eagers, stored = json.loads(done.stdout)
        assert ours == eagers
        told.append(stored)
    assert told == [[False], [False], [True]]
