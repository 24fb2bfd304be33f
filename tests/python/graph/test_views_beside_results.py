"""Results that are views of arguments or parameters, beside results that are made of other views of them: what a backward keeps
of a small one is not what the caller is given of it."""

import pytest
import torch
from conftest import assert_same, gradients
from torch import nn

import trainc

VIEWS = {
    "transposed": lambda x: x.t(),
    "flat": lambda x: x.reshape(-1),
    "one more axis": lambda x: x[None],
    "an inner axis": lambda x: x.unsqueeze(1),
    "a part": lambda x: x[:, :2],
    "rows": lambda x: x[1:],
    "detached": lambda x: x.detach().t(),
    "itself": lambda x: x,
    "a copy": lambda x: x.clone(),
}
MADE = {
    "relu": lambda x: x.reshape(-1).relu(),
    "exp": lambda x: x.reshape(-1).exp(),
    "tanh": lambda x: x.unsqueeze(0).tanh(),
    "square": lambda x: x.t().reshape(-1).pow(3),
    "abs": lambda x: x[None].abs(),
}


class Both(nn.Module):
    def __init__(self, view, made, size, parameter):
        super().__init__()
        self.view, self.made = VIEWS[view], MADE[made]
        self.w = nn.Parameter(torch.randn(size, size)) if parameter else None

    def forward(self, x):
        seen = x if self.w is None else self.w
        return self.view(seen), self.made(seen) * 2, (x * 2).sum()


@pytest.mark.parametrize("parameter", [False, True])
@pytest.mark.parametrize("size", [3, 129])  # up to 64 KiB a backward keeps a copy
@pytest.mark.parametrize("made", MADE)
def test_gradients_are_those_of_what_is_read(core, made, size, parameter):
    for view in VIEWS:
        found = []
        for wrap in (lambda m: m, trainc.compile):
            torch.manual_seed(0)
            model = wrap(Both(view, made, size, parameter))
            x = torch.randn(size, size, requires_grad=True)
            results = model(x)
            weights = torch.arange(results[1].numel()).reshape(results[1].shape).remainder(7) + 1.0
            (results[1] * weights).sum().backward()
            found.append([*results, x.grad, *gradients(model).values()])
        assert_same(found[1], found[0])


@pytest.mark.parametrize("leaf", [True, False])
def test_views_of_expanded_arguments_of_many_sizes(core, leaf):
    """PyTorch makes them again by their strides where sizes are symbols, and gives each element the mean of those beside it."""

    class Expands(nn.Module):
        def forward(self, x):
            return x.expand(2, *x.shape)

    compiled = trainc.compile(Expands())
    for rows in (3, 4, 5):
        found = []
        for model in (Expands(), compiled):
            row = torch.ones(1, 2, requires_grad=True)
            x = row.expand(rows, 2)
            x = x.detach().requires_grad_() if leaf else x
            result = model(x)
            found += torch.autograd.grad(result, x, torch.arange(float(result.numel())).reshape(result.shape))
        assert torch.equal(*found)
