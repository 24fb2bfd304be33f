"""Operations that draw for the elements of an operand do so in the order in which these lie in memory."""

from __future__ import annotations

import pytest
import torch
from conftest import DOORS
from torch import nn

import trainc

DRAWS = {
    "randn_like": torch.randn_like,
    "rand_like": torch.rand_like,
    "randint_like": lambda x: torch.randint_like(x, 10),
    "bernoulli": lambda x: torch.bernoulli(x.detach().sigmoid()),
    "poisson": lambda x: torch.poisson(x.detach().abs() * 3),
    "normal": lambda x: torch.normal(x.detach(), 0.5),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "normal_": lambda x: torch.zeros_like(x).normal_(),
    "dropout": lambda x: nn.functional.dropout(x, 0.4),
    "rand": lambda x: torch.rand(x.shape),
    "multinomial": lambda x: torch.multinomial(x.detach().flatten(0, -2).softmax(-1), 2, replacement=True).sum(),
}
LAYOUTS = {
    "transposed": lambda x: x.transpose(1, 2),
    "permuted": lambda x: x.permute(2, 0, 1),
    "expanded": lambda x: x[:, :1].expand(-1, 5, -1),
    "expanded, transposed": lambda x: x.transpose(1, 2)[:, :, :1].expand(-1, -1, 4),
    "with gaps": lambda x: x[:, ::2, 1:],
    "overlapping": lambda x: x.unfold(1, 3, 1),
    "one column": lambda x: x[:, :, :1].transpose(0, 1),
    "nothing": lambda x: x[:, :0].transpose(0, 2),
}


class Noisy(nn.Module):
    def __init__(self, layout, draws=DRAWS):
        super().__init__()
        self.layout, self.line, self.draws = layout, nn.Linear(8, 8), tuple(draws.values())

    def forward(self, x):
        h, given = self.layout(self.line(x)), self.layout(x)  # what is computed, and a view of an argument
        return [drawn for draw in self.draws for drawn in (h + 0.1 * draw(h), given * draw(given))]


def run(module, x):
    torch.manual_seed(5)
    results = module(x)
    sum(result.square().sum() for result in results).backward()
    return [*results, *(p.grad for p in module.parameters()), torch.rand(3)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_eagers_numbers(door: str, layout: str) -> None:
    for given in (torch.randn(3, 5, 8), torch.randn(5, 3, 8).transpose(0, 1), torch.randn(3, 8, 5).transpose(1, 2)):
        modules = [Noisy(LAYOUTS[layout]) for _ in range(2)]
        modules[1].load_state_dict(modules[0].state_dict())
        wanted, got = run(modules[0], given), run(DOORS[door](modules[1]), given)
        for i, (a, b) in enumerate(zip(wanted, got, strict=True)):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4, msg=lambda text, i=i: f"result {i} of {[*DRAWS]}: {text}")


@pytest.mark.parametrize("layout", ["transposed", "expanded"])
def test_they_are_compiled(strict, layout: str) -> None:
    run(trainc.compile(Noisy(LAYOUTS[layout])), torch.randn(3, 5, 8))
