"""Parameters that are swapped between calls: `torch.utils.swap_tensors`, and what modules do by it where
`torch.__future__.set_swap_module_params_on_conversion` is set."""

import pytest
import torch
from torch import nn

import trainc

DOORS = ["compile", "with its optimizer", "fused", "train_step", "backend"]


@pytest.fixture
def swapping():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def load(model):
    torch.manual_seed(1)
    model.load_state_dict(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(model[0].weight.dtype).state_dict())


def convert(model):
    model.to(torch.float64 if model[0].weight.dtype is torch.float32 else torch.float32)


def exchange(model):
    torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.linspace(-1, 1, 12).view(4, 3).to(model[0].weight.dtype)))


def lay(model):
    torch.utils.swap_tensors(model[0].weight, nn.Parameter(model[0].weight.detach().t().clone().t()))


def freeze(model):
    torch.utils.swap_tensors(model[0].bias, nn.Parameter(torch.ones(4, dtype=model[0].bias.dtype), requires_grad=False))


def exchange_two(model):
    torch.utils.swap_tensors(model[0].bias, model[3].bias)


def losses(door, change, kind, symbolic):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    if change is exchange_two:
        model.append(nn.Linear(1, 4))
    optimizer = kind(model.parameters(), 0.01)
    call = model
    if door in ("compile", "backend"):
        call = trainc.compile(model) if door == "compile" else torch.compile(model, backend="trainc")
    elif door in ("with its optimizer", "fused"):
        trainc.compile(model, optimizer, fuse_step=door == "fused")

    def step(x):
        loss = (call(x) - 3).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = trainc.train_step(step) if door == "train_step" else step
    found = []
    for turn in range(9):
        if turn % 3 == 0 and turn:
            change(model)
        rows = 2 + turn % 3 * symbolic
        found.append(step(torch.ones(rows, 3, dtype=model[0].weight.dtype)).item())
    return found


CHANGES = {  # with the optimizer; AdamW's states keep their type, and eager refuses those of another than the parameter's
    load: torch.optim.AdamW, convert: torch.optim.SGD, exchange: torch.optim.AdamW, lay: torch.optim.SGD,
    freeze: torch.optim.AdamW, exchange_two: torch.optim.SGD,
}  # fmt: skip
WAYS = [*[(door, False) for door in DOORS], ("compile", True), ("train_step", True)]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize(("door", "symbolic"), WAYS, ids=[door + " of sizes" * sizes for door, sizes in WAYS])
def test_swapped_parameters_are_trained_on(door, symbolic, change, swapping):
    kind = CHANGES[change]
    assert losses(door, change, kind, symbolic) == pytest.approx(losses("eager", change, kind, symbolic), rel=1e-5)
