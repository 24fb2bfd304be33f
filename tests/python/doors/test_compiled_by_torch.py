"""Programs that have torch.compile in them already: trainc traces what it was given, as if torch.compile were not there."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import trainc


def a_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def _submodule(model):
    model[0] = torch.compile(model[0], backend="eager")
    return model


def _in_place(model):
    model.compile(backend="eager")
    return model


def _submodule_in_place(model):
    model[0].compile(backend="eager")
    return model


# What is called, of a model.
WAYS = {
    "model": lambda model: torch.compile(model, backend="eager"),
    "by trainc": lambda model: torch.compile(model, backend="trainc"),
    "submodule": _submodule,
    "in place": _in_place,
    "submodule in place": _submodule_in_place,
    "function": lambda model: torch.compile(lambda x: model(x), backend="eager"),
}
BATCHES = [(torch.randn(4, 6), torch.tensor([0, 2, 1, 1])) for _ in range(3)]


def losses_of(step):
    return [step(*batch).item() for batch in BATCHES]


def a_step(model, called):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(x, labels):
        optimizer.zero_grad()
        loss = F.cross_entropy(called(x), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("called_before", [False, True], ids=["fresh", "called before"])
@pytest.mark.parametrize("way", WAYS)
def test_a_step_sees_what_torch_compile_was_given(core, strict, way, called_before):
    plain, model = a_model(), a_model()
    called = WAYS[way](model)
    if called_before:
        called(BATCHES[0][0])
    step = trainc.train_step(a_step(model, called))
    assert losses_of(step) == pytest.approx(losses_of(a_step(plain, plain)), rel=1e-5)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "function"])
def test_a_model_with_torch_compile_in_it_is_compiled(core, strict, way):
    plain, model = a_model(), a_model()
    compiled = trainc.compile(WAYS[way](model))
    assert losses_of(a_step(model, compiled)) == pytest.approx(losses_of(a_step(plain, plain)), rel=1e-5)


def test_torch_compile_works_again_after_a_trace(core, strict):
    calls = []

    def counts(graph, examples):
        calls.append(graph)
        return graph.forward

    model = a_model()
    compiled_by_torch = torch.compile(a_model(), backend=counts)
    trainc.compile(model)(BATCHES[0][0])
    compiled_by_torch(BATCHES[0][0])
    assert len(calls) == 1
