"""What a program asks its tensors beside their values is answered as in eager, or the call runs in PyTorch."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import warnings

import pytest
import torch
from torch import nn

import trainc
from trainc.base import records

MODEL = """
class Model(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
        self.b = nn.Buffer(torch.ones(1))
        self.weight.tag = 7

    def forward(self, x, default=DEFAULT):
        h = super().forward(x)
        return h if ({question}) else h * 100
"""



@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_that_forward_gives_back_to_its_module_stays_one(strict, persistent):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.b = nn.Linear(3, 3), nn.Buffer(torch.full((3,), 2.0), persistent=persistent)

        def forward(self, x):
            self.b = self.b.to(x.dtype)  # which gives itself; a module asks a buffer whether it is persistent
            return self.last(x) * self.b * (1.0 if self.b.persistent else 3.0)

    model, x = Model(), torch.ones(2, 3)
    expected = model(x)
    torch.testing.assert_close(trainc.compile(model)(x), expected)
    assert ("b" in model.state_dict()) is persistent


def test_a_program_that_fails_where_it_is_compiled_is_traced_as_if_it_were_not(strict):
    class Model(nn.Linear):
        def forward(self, x, mask=None):
            if mask is None and not torch.compiler.is_compiling():
                mask = torch.ones(x.shape[:1])
            return super().forward(x) * mask.reshape(-1, 1)

    model, x = Model(3, 3), torch.ones(2, 3)
    expected = model(x)
    torch.testing.assert_close(trainc.compile(model)(x), expected)
    assert [record.route for record in records.of(model)] == ["compiled"]
    with pytest.raises(AttributeError, match="reshape"):  # eager's own error
        model(x, 3)


# A question -> whether the model is still compiled
QUESTIONS = {
    "type(x) is torch.Tensor": True,
    "type(h) == torch.Tensor": True,
    "type(self.weight) is nn.Parameter": True,
    "type(x) in (torch.Tensor,)": True,
    "{torch.Tensor: True}.get(type(h))": True,
    "all(t is torch.Tensor for t in map(type, [x, h]))": True,
    "type(x).__name__ == 'Tensor' and type(x).__module__ == 'torch'": True,
    "isinstance(type(h), type) and type(type(h)) is not None": True,
    "isinstance(type(nn.Linear), type) and issubclass(type(self), nn.Module)": True,
    "type('Made', (), {})().__class__.__name__ == 'Made'": True,
    "x.__class__ is torch.Tensor and self.weight.__class__ is nn.Parameter": True,
    "isinstance(self.weight, nn.Parameter)": True,
    "isinstance(self.b, nn.Buffer)": True,
    "not isinstance(x, (nn.Parameter, nn.Buffer))": True,
    "scaled(h) is h": True,  # functools.singledispatch
    "not hasattr(h, 'logits')": True,
    "default(x) is torch.Tensor": False,
    "x.is_leaf and not h.is_leaf": False,
    "getattr(self.weight, 'tag', 0) == 7": False,
    "hasattr(self.weight, 'tag')": False,
    "getattr(x, 'tag', 0) == 7": False,
    "not hasattr(x, 'logits') and not hasattr(self.weight, 'logits')": True,
    "getattr(x, 'a_tag'[2:], 0) == 7": False,
    "'tag' in vars(self.weight)": False,
    "'tag' in self.weight.__dict__": False,
    "id(self.weight) == IDENTITY": False,
    "hash(self.weight) == IDENTITY": False,
    "self.weight in TABLE": False,
    "self.weight is KEPT[0]": False,
    "any(t is self.weight for t in KEPT)": False,
    "self.weight.grad_fn is None and h.grad_fn is not None": False,
    "str(x)[:7] == 'tensor('": False,
    "f'{h}'[:7] == 'tensor(' and 'Parameter' in repr(self.weight)": False,
    "'%s' % (self.b,) == SHOWN": False,
    "len(dir(x)) > 0 and 'tag' in dir(x)": False,
    "x.__module__ == 'torch' and h.__doc__ is None": True,
    "not hasattr(x, 'elem') and not hasattr(self.weight, 'fake_mode')": True,
}

# What raises only because a trace has no values, as a program that catches it asks it
VALUES = (
    "x.sum().item() < 99", "bool(x.sum() < 99)", "x.tolist() is not None", "x.detach().numpy().shape == (2, 3)",
    "x.nonzero().shape[0] > 0", "torch.equal(x, x)", "next(iter(x.flatten())) < 99", "x.storage() is not None",
    "copy.deepcopy(x) is not None", "x.to_sparse() is not None", "pickle.dumps(x) is not None", "np.asarray(x).shape == (2, 3)",
)  # fmt: skip


def scaled_by_class():
    @functools.singledispatch
    def scaled(value):
        return value * 3

    @scaled.register
    def _(value: torch.Tensor):
        return value

    return scaled


def made(tmp_path, monkeypatch, question: str):
    """A model of a module of its own, and an input."""
    module = types.ModuleType("asking")
    module.__dict__.update(
        torch=torch, nn=nn, scaled=scaled_by_class(), TABLE={}, KEPT=[], IDENTITY=0, SHOWN="",
        DEFAULT=type if "default" in question else None,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "asking", module)
    file = tmp_path / "asking.py"
    file.write_text(MODEL.replace("{question}", question))
    exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
    torch.manual_seed(0)
    model, x = module.Model(), torch.randn(2, 3)
    x.tag = 7
    module.TABLE[model.weight], module.IDENTITY = 1, id(model.weight)
    module.KEPT.append(model.weight)
    module.SHOWN = str(model.b)
    return model, x


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_model_asks(tmp_path, monkeypatch, question):
    model, x = made(tmp_path, monkeypatch, question)
    wanted = model(x)
    assert wanted.abs().max() < 10, "the question is asked wrongly"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainc.compile(model)
        assert torch.allclose(model(x), wanted)
        assert torch.allclose(model(x), wanted)
    (record,) = trainc.explain(model).compilations
    assert (record.route == "compiled") == QUESTIONS[question], record.reason
    module = sys.modules["asking"]
    assert "type" not in vars(module) and "id" not in vars(module)  # what stood in for them is gone


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_step_asks(tmp_path, monkeypatch, question):
    model, x = made(tmp_path, monkeypatch, question)
    wanted = model(x).sum().item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step(x):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    if QUESTIONS[question]:
        assert trainc.train_step(step)(x).item() == pytest.approx(wanted, rel=1e-5)
    else:
        with pytest.raises(trainc.UserError):
            assert trainc.train_step(step)(x).item() == pytest.approx(wanted, rel=1e-5)
            raise trainc.UserError("right numbers are as good")


CATCHING = """
import copy, pickle
import numpy as np
import torch
from torch import nn
class Model(nn.Linear):
    def forward(self, x):
        h = super().forward(x)
        try:
            return h if ({question}) else h * 100
        except {error}:
            return h * 100
"""


@pytest.mark.parametrize("question", VALUES)
def test_what_a_trace_raises_and_the_program_catches(tmp_path, monkeypatch, question):
    for i, error in enumerate(("Exception", "RuntimeError", "(TypeError, ValueError, NotImplementedError)")):
        module = types.ModuleType(f"catching_{i}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        file = tmp_path / f"{module.__name__}.py"
        file.write_text(CATCHING.replace("{question}", question).replace("{error}", error))
        exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
        torch.manual_seed(0)
        model, x = module.Model(3, 3), torch.randn(2, 3)
        wanted = model(x)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

        def step(x, model=model, optimizer=optimizer):
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        with contextlib.suppress(trainc.UserError):
            assert trainc.train_step(step)(x).item() == pytest.approx(wanted.sum().item(), rel=1e-5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert torch.allclose(trainc.compile(model)(x), wanted)
        torch._dynamo.reset()


def test_attributes_that_come_later_are_another_signature(tmp_path, monkeypatch):
    model, x = made(tmp_path, monkeypatch, "getattr(x, 'later', 1) == getattr(self.weight, 'later', 1)")
    trainc.compile(model)
    small = model(x).abs().max()
    assert small < 10
    x.later = 2
    with pytest.warns(trainc.base.messages.TraincWarning):
        assert model(x).abs().max() > 10
    del x.later
    assert model(x).abs().max() == small
    model.weight.later = 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert model(x).abs().max() > 10


def test_an_argument_is_a_parameter_or_is_not(tmp_path, monkeypatch):
    model, x = made(tmp_path, monkeypatch, "type(x) is torch.Tensor")
    trainc.compile(model)
    x = x.detach().requires_grad_()
    assert model(x).abs().max() < 10
    assert model(nn.Parameter(x.detach())).abs().max() > 10


def test_tensors_have_their_own_methods_after_a_trace():
    from trainc.torch.compat import FakeTensor, FunctionalTensor

    model = nn.Linear(2, 2)
    trainc.compile(model)
    model(torch.ones(1, 2))
    for kind in (FakeTensor, FunctionalTensor):
        assert "__getattr__" not in vars(kind) and "__getattribute__" not in vars(kind)
