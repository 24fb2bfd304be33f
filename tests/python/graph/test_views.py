"""Results that are views: of one another, of arguments, made with and without gradients. They are eager's, or refused."""

from __future__ import annotations

import pytest
import torch
from conftest import DOORS, Calls
from view_programs import Doubled, difference, random_program

import trainc


def no_grad(of):
    with torch.no_grad():
        return of()


# Of y, which has a gradient: results beside it whose gradients do not all go to it.
BESIDE = {
    "made without": lambda y: no_grad(lambda: y.t()),
    "with, of one without": lambda y: no_grad(lambda: y.t())[0],
    "of a part without": lambda y: no_grad(lambda: y[1:]).unbind(0)[1],
    "without, of one with": lambda y: no_grad(lambda: y.t()[0])[1:],
    "detached, and wants one": lambda y: y.detach().requires_grad_()[0],
    "a function's": lambda y: Doubled.apply(y)[0],
    "strides of windows": lambda y: y.unfold(1, 3, 3).as_strided((2, 3), (6, 1), 0),
    "beside the view": lambda y: y[:, :2].as_strided((4, 2), (6, 1), 2),
    "beside copies": lambda y: y[0].expand(3, 6).as_strided((4, 3), (6, 2), 0),
    "beside every second": lambda y: y[::2, ::2].as_strided((3, 2), (2, 1), 1),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.filterwarnings("ignore")
def test_gradients_of_views_beside_what_they_are_views_of(name: str, given: bool, door: str) -> None:
    found = []
    for way in (DOORS[door], lambda module: module):
        leaf = torch.linspace(-1, 1, 24).reshape(4, 6).requires_grad_()

        def run(x):
            y = x if given else x * 2
            return y, BESIDE[name](y)

        y, view = way(Calls(run))(leaf * 1)
        assert view.requires_grad and view.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
        (view * torch.arange(1.0, 1 + view.numel()).reshape(view.shape)).sum().backward()
        found.append((leaf.grad, view.detach()))
    assert (found[0][0] is None) == (found[1][0] is None)
    assert found[0][0] is None or torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


# What autograd does not see of an argument that has a history
HIDDEN = {
    "detached": lambda x: x.detach().mul_(3),
    "without gradients": lambda x: no_grad(lambda: x.mul_(3)),
    "both": lambda x: no_grad(lambda: x.detach()[0].mul_(3)),
    "a part": lambda x: no_grad(lambda: x[1:].add_(1)),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_writes_leave_an_arguments_gradient(name: str, door: str) -> None:
    for program in (lambda x: (HIDDEN[name](x), x)[1], lambda x: (HIDDEN[name](x), x * 2)[1], lambda x: (HIDDEN[name](x), 1)[1]):
        found = []
        for way in (DOORS[door], lambda module: module):
            leaf = torch.linspace(-1, 1, 24).reshape(4, 6).requires_grad_()
            given = leaf * 1
            result = way(Calls(program))(given)
            (given.square() + result).sum().backward()
            found.append((leaf.grad, given.detach()))
        assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("door", DOORS)
def test_random_programs_of_views_and_writes(door: str, monkeypatch) -> None:
    """More of them: view_programs.py."""
    monkeypatch.setattr(trainc.config, "fallback", False)
    compared = 0
    for seed in range(40):
        program = random_program(seed)
        if program is not None:
            what = difference(program, DOORS[door])
            assert what in (None, "refused"), f"seed {seed}: {what}\n{program.text()}"
            compared += what is None
    assert compared > 15
