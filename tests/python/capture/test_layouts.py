"""What eager refuses for where operands lie in memory (capture/layouts.py): the compiled model raises the same; and takes what
eager takes."""

import pytest
import torch
from conftest import DOORS, Calls
from torch.nn import functional as F

import trainc


def index():
    return torch.empty((), dtype=torch.int64)


REFUSED = {
    "a result over an operand": lambda x: torch.kthvalue(x[0], 2, out=(x[0], index())),
    "a result over half an operand": lambda x: torch.add(x[0, 1:], 1, out=x[0, :-1]),
    "a copy into what it is made of": lambda x: x[0, 1:].copy_(x[0, :-1]),
    "an assignment to what it is made of": lambda x: x.__setitem__((0, slice(1, None)), x[0, :-1]) or x,
    "a sum in place with a neighbour": lambda x: x[0, 1:].add_(x[0, :-1]),
    "gaps": lambda x: torch.native_group_norm(x[:, ::2], None, None, 3, 2, 1, 1, 1e-5),
    "another order": lambda x: torch.native_group_norm(x.t().unsqueeze(2), None, None, 4, 3, 1, 1, 1e-5),
}
TAKEN = {
    "a result over the operand itself": lambda x: torch.add(x, 1, out=x),
    "a result in memory beside an operand": lambda x: torch.add(x[0], 1, out=x[1]),
    "a copy into memory beside it": lambda x: x[0].copy_(x[1]), "a copy onto itself": lambda x: x.copy_(x),
    "a sum in place with itself": lambda x: x[0].add_(x[0]), "a copy of a copy": lambda x: x[0, 1:].copy_(x[0, :-1].clone()),
    "a column and a row": lambda x: x[:, 0].add_(x[0, 1]),
    "a result of its own": lambda x: torch.kthvalue(x[0], 2, out=(torch.empty(()), index())),
    "a norm that makes it dense": lambda x: F.group_norm(x[:, ::2], 1),
    "channels last": lambda x: F.group_norm(x[:, :2, None, None].to(memory_format=torch.channels_last), 1),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses(name, door, strict):
    with pytest.raises(RuntimeError) as theirs:
        REFUSED[name](torch.rand(3, 4))
    torch._dynamo.reset()
    call = DOORS[door](Calls(REFUSED[name]))
    for _ in range(2):
        with pytest.raises(Exception) as ours:  # Dynamo has errors of its own around a program's
            call(torch.rand(3, 4))
        assert str(theirs.value).splitlines()[0] in str(ours.value)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", TAKEN)
def test_what_eager_takes(name, door, strict):
    torch._dynamo.reset()
    call = DOORS[door](Calls(TAKEN[name]))
    for _ in range(2):
        x = torch.rand(3, 4)
        y = x.clone()
        wanted, got = TAKEN[name](x), call(y)
        torch.testing.assert_close(got, wanted)
        assert torch.equal(x, y)


def test_an_expanded_operand_that_autocast_narrows():
    """Its bf16 is kept for the backward, of which the trace says that its elements share memory."""
    torch.manual_seed(0)
    nets = [torch.nn.Conv2d(3, 2, 3) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    trainc.compile(nets[0])
    grey = torch.rand(2, 1, 5, 5).expand(2, 3, 5, 5)
    for net in nets:
        with torch.autocast("cpu", torch.bfloat16):
            result = net(grey)
        result.float().square().sum().backward()
    for ours, eagers in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, eagers.grad, rtol=2e-2, atol=2e-2)
