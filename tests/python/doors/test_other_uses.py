"""What programs do with a model beside training it: each tool of PyTorch's takes a compiled model as it takes the model."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import prune

import trainc


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(self.a(x)).relu()


X = torch.arange(12.0).reshape(3, 4) / 7


def in_forward_mode(model):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(X, X))).tangent


def pruned(model):
    prune.l1_unstructured(model.a, "weight", amount=0.5)
    return model(X)


def weight_normed(model):
    nn.utils.parametrizations.weight_norm(model.a)
    model(X).sum().backward()
    return model.a.parametrizations.weight.original0.grad


def stored(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)(X)


def averaged(model):
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    return average(X)


def ensembled(model):
    stacked = {name: torch.stack([p.detach(), p.detach() * 2]) for name, p in model.named_parameters()}
    return torch.func.vmap(lambda p: torch.func.functional_call(model, p, (X,)))(stacked)


USES = {
    "script": lambda model: torch.jit.freeze(torch.jit.script(model.eval()))(X),
    "trace": lambda model: torch.jit.trace(model, X)(X),
    "export": lambda model: torch.export.export(model, (X,)).module()(X),
    "fx": lambda model: torch.fx.symbolic_trace(model)(X),
    "torch.compile": lambda model: torch.compile(model, backend="aot_eager")(X),
    "pickle": lambda model: pickle.loads(pickle.dumps(model))(X),
    "copy": lambda model: copy.copy(model)(X) + copy.deepcopy(model)(X),
    "save": stored,
    "forward mode": in_forward_mode,
    "jvp": lambda model: torch.func.jvp(model, (X,), (X,))[1],
    "jacobian": lambda model: torch.func.jacrev(model)(X),
    "ensemble": ensembled,
    "prune": pruned,
    "weight_norm": weight_normed,
    "average": averaged,
    "part of another": lambda model: nn.Sequential(model, nn.Identity())(X),
    "DataParallel": lambda model: nn.DataParallel(model)(X),
}


@pytest.mark.parametrize("called", [False, True], ids=["fresh", "called before"])
@pytest.mark.parametrize("use", USES)
def test_a_compiled_model_is_taken_as_the_model(use, called):
    torch.manual_seed(0)
    plain = Net()
    ours = trainc.compile(copy.deepcopy(plain))
    if called:
        ours(X).sum().backward()
        ours.zero_grad()
    torch.testing.assert_close(USES[use](ours), USES[use](plain), rtol=1e-5, atol=1e-6)


def test_a_step_refuses_forward_mode():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @trainc.train_step
    def step(x):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with forward_ad.dual_level(), pytest.raises(trainc.UserError, match="dual_level"):
        step(X)
