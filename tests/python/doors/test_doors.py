"""trainc.compile and torch.compile(backend="trainc"): the user's own objects, training to eager's result."""

import copy
import gc
import io
import pickle
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_same, gradients
from torch import nn

import trainc
from trainc.base import records


class Net(nn.Module):
    """Tied weights, dropout, batch norm (buffers that forward writes), keyword arguments, a dictionary as the result."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.up = nn.Linear(8, 16, bias=False)  # a bias before the norm has gradient zero: Adam makes steps of its rounding
        self.norm = nn.BatchNorm1d(16)
        self.down = nn.Linear(16, 8)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x, target=None):
        h = self.drop(F.gelu(self.norm(self.up(self.embed(x).mean(1)))))
        logits = self.head(self.down(h))
        return {"loss": None if target is None else F.cross_entropy(logits, target), "logits": logits}


def batch():
    return torch.randint(0, 20, (6, 4)), torch.randint(0, 20, (6,))


def train(model, optimizer, x, y, steps=4):
    torch.manual_seed(7)
    losses = []
    for _ in range(steps):
        loss = model(x, target=y)["loss"]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def test_trains_to_eagers_result_through_both_doors(engine, strict):
    x, y = batch()
    plain = Net()
    ours, theirs = copy.deepcopy(plain), copy.deepcopy(plain)
    make = lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2)  # noqa: E731
    wanted = train(plain, make(plain), x, y)
    optimizer = make(ours)
    returned = trainc.compile(ours, optimizer)
    assert returned[0] is ours and returned[1] is optimizer and type(ours) is Net
    assert_same(train(ours, optimizer, x, y), wanted)
    assert_same(ours.state_dict(), plain.state_dict(), 1e-4)
    dynamo = torch.compile(theirs, backend="trainc" if "trainc" in torch._dynamo.list_backends() else _backend())
    assert_same(train(dynamo, make(theirs), x, y), wanted)


def _backend():
    from trainc.torch.doors.backend import backend

    return backend


def test_one_compilation_a_signature(engine, strict):
    model = trainc.compile(Net())
    x, y = batch()
    for _ in range(3):
        model(x, target=y)
    assert len(records.of(model)) == 1
    model(x[:3], target=y[:3])
    assert len(records.of(model)) == 2
    assert "x" in records.of(model)[0].signature or "i64[6, 4]" in records.of(model)[0].signature


def test_who_copies_a_dict_has_a_module_of_its_own(engine):
    """nn.DataParallel's replicas, and copies of modules that write their own state."""
    model = trainc.compile(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    replica = model._replicate_for_data_parallel()
    replica._modules = {"0": torch.nn.Linear(2, 3)}
    x = torch.ones(1, 2)
    assert torch.equal(replica(x), replica._modules["0"](x))
    model(x)
    assert torch.equal(replica(x), replica._modules["0"](x))
    del model
    gc.collect()
    assert torch.equal(replica(x), replica._modules["0"](x))


class WritesItsState(Net):
    def __getstate__(self):
        return self.__dict__.copy()


@pytest.mark.parametrize("kind", [Net, WritesItsState])
def test_copies_and_pickles_see_the_plain_module(engine, kind):
    model = trainc.compile(kind())
    x, y = batch()
    model(x, target=y)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied._compiled_call_impl is None
        assert copied.head.weight is copied.embed.weight
    plain = Net()
    plain.load_state_dict(model.state_dict())
    model.load_state_dict(plain.state_dict())
    file = io.BytesIO()
    torch.save(model.state_dict(), file)


def test_symbolic_shapes_under_dynamo(engine, strict):
    plain = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    ours = torch.compile(copy.deepcopy(plain), backend=_backend())
    for rows in (3, 5, 7, 5):
        x = torch.randn(rows, 4)
        plain.zero_grad(), ours.zero_grad()
        plain(x).square().sum().backward()
        ours(x).square().sum().backward()
        assert_same([*gradients(ours).values()][0], [*gradients(plain).values()][0])


def test_numbers_under_dynamo(core, strict):
    """Once it has changed, a number is an input of Dynamo's. AOTAutograd puts operations on it into the graph when that is
    traced, and does not say which are the forward's: of those that read a tensor with a gradient, the backward's read it late."""

    def plain(x, scale):
        h = x * (1 + scale)
        return h.sin() * scale, h * scale  # whose backwards compute with it, too

    ours = torch.compile(plain, backend="trainc")
    for turn in range(5):
        values, found = torch.randn(4, 3), []
        for call in (ours, plain):
            x = values.clone().requires_grad_()
            one, other = call(x, 0.7**turn)
            (one * other).sum().backward()
            found.append(x.grad)
        assert_same(*found)


def test_huggingface_outputs(engine, strict):
    import transformers

    settings = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=16)
    plain = transformers.GPT2LMHeadModel(settings)
    ours = trainc.compile(copy.deepcopy(plain))
    x = torch.randint(0, 50, (2, 8))
    results = []
    for model in (plain, ours):
        torch.manual_seed(5)
        out = model(input_ids=x, labels=x)
        out.loss.backward()
        results.append(out)
    assert type(results[1]) is type(results[0])
    assert_same(results[1].logits, results[0].logits)
    cache, wanted = results[1].past_key_values, results[0].past_key_values
    assert type(cache) is type(wanted)
    assert_same(cache.layers[1].keys, wanted.layers[1].keys)
    assert_same(gradients(ours), gradients(plain))
    assert list(records.of(ours)[0].backward) and not all(next(iter(records.of(ours)[0].backward)))  # no zeros for the logits


def test_accelerates_list_learns_of_trainc(monkeypatch):
    from enum import Enum

    from trainc.base.accelerate import register

    module = types.ModuleType("accelerate.utils.dataclasses")

    class DynamoBackend(str, Enum):
        NO = "NO"

    module.DynamoBackend = DynamoBackend
    monkeypatch.setitem(sys.modules, "accelerate.utils.dataclasses", module)
    register()
    register()
    assert DynamoBackend("TRAINC") is DynamoBackend["TRAINC"]
    assert [b.value for b in DynamoBackend] == ["NO", "TRAINC"]


class Refuses(nn.Module):
    """Raises within forward, where Dynamo leaves a frame to Python, and what that calls is looked at anew."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        if x.shape[0] == 3:
            raise LookupError("mine")
        return y.square().sum()


@pytest.mark.parametrize("backend", ["trainc", "eager"])
def test_a_compiled_model_in_a_function_of_torch_compile(core, backend):
    plain = Refuses()
    ours = trainc.compile(copy.deepcopy(plain))
    optimizer = torch.optim.SGD(ours.parameters(), 0.0)

    def body(x):
        loss = ours(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = trainc.train_step(body)
    for call in (torch.compile(ours, backend=backend), torch.compile(lambda x: ours(x) * 1, backend=backend),
                 torch.compile(lambda x: step(x) * 1, backend=backend)):  # fmt: skip
        for n in (3, 2, 3, 5):
            x = torch.randn(n, 4)
            if n == 3:
                with pytest.raises(LookupError, match="mine"):
                    call(x)
            else:
                assert_same(call(x).detach(), plain(x).detach())


def test_zeros_without_memory_are_pytorchs():
    model, zeros = trainc.compile(nn.Linear(4, 2)), torch._efficientzerotensor(3, 4)
    model(torch.ones(3, 4))
    torch.testing.assert_close(model(zeros), model(torch.zeros(3, 4)))


@pytest.mark.parametrize("gradients", [False, True])
def test_a_graph_that_ends_early_hands_its_sizes_out(gradients, monkeypatch):
    monkeypatch.setattr(trainc.config, "fallback", False)
    layer = torch.nn.Linear(4, 3)

    def forward(x):
        y, rows = layer(x), x.shape[0]
        torch._dynamo.graph_break()
        return y * rows

    torch.compiler.reset()
    called = torch.compile(forward, backend="trainc", dynamic=True)
    with torch.set_grad_enabled(gradients):
        for rows in (5, 6, 7):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(called(x), layer(x) * rows)
