"""Random operations whose results nobody uses: the generator moves on as in eager, so that all later draws are eager's."""

import copy
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from conftest import DOORS
from torch import Tensor, nn

import trainc

SIZES = [(0,), (1,), (2, 0, 3), (7,), (16,), (3, 5), (1, 1, 1, 1), (2, 3, 5, 1), (31, 17), (2, 8, 4, 4)]


def _images(x: Tensor) -> Tensor:
    return x.reshape(1, -1, 1, 1)


# Each takes a tensor and gives floats made of what it drew (and of the tensor, or not).
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout, p=0": lambda x: F.dropout(x, 0.0),
    "dropout, p=1": lambda x: F.dropout(x, 1.0),
    "dropout of a transpose": lambda x: F.dropout(x.reshape(1, -1, 1).transpose(0, 1), 0.5),
    "dropout2d": lambda x: F.dropout2d(_images(x), 0.4),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.2, training=True),
    "rand": lambda x: torch.rand(x.shape),
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(x.shape),
    "randn_like": torch.randn_like,
    "randint": lambda x: torch.randint(0, 9, x.shape).float(),
    "randperm": lambda x: torch.randperm(x.numel()).float(),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.3)),
    "bernoulli of a number": lambda x: torch.empty_like(x).bernoulli_(0.7),
    "bernoulli, p=1": lambda x: torch.empty_like(x).bernoulli_(1.0),
    "multinomial": lambda x: torch.multinomial(torch.ones(x.numel() + 2), 2).float(),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "uniform_": lambda x: torch.empty_like(x).uniform_(),
    "normal_": lambda x: torch.zeros_like(x).normal_(1.0, 2.0),
    "exponential_": lambda x: torch.ones_like(x).exponential_(),
    "gumbel": lambda x: F.gumbel_softmax(x.reshape(1, -1)),
}  # fmt: skip
USES = ["used", "unused", "shape", "detached", "multiplied by zero rows"]


class Program(nn.Module):
    """Draws of random kinds, some of them used, one after the other. The results are as the last of them leave them."""

    def __init__(self, steps: list[tuple[str, tuple[int, ...], str]]):
        super().__init__()
        self.steps = tuple(steps)
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight
        for kind, shape, use in self.steps:
            size = torch.Size(shape).numel()
            given = y.sum() + torch.linspace(-1, 1, size).reshape(shape)
            drawn = DRAWS[kind](given)
            if use == "used":
                y = y + drawn.sum() * 0.125
            elif use == "shape":
                y = y + drawn.dim()
            elif use == "detached":
                y = y + drawn.detach().sum() * 0.25
            elif use == "multiplied by zero rows":
                y = y + drawn.reshape(-1)[:0].sum()
        return F.dropout(y, 0.5)


def state() -> Tensor:
    return torch.get_rng_state()


def _programs(count: int) -> list[list[tuple[str, tuple[int, ...], str]]]:
    rng = random.Random(7)
    # Each kind once alone, unused; then mixtures.
    alone = [[(kind, rng.choice(SIZES[3:]), "unused")] for kind in DRAWS]
    mixed = [
        [(rng.choice(list(DRAWS)), rng.choice(SIZES), rng.choice(USES)) for _ in range(rng.randint(2, 5))]
        for _ in range(count)
    ]
    return alone + mixed


def _refused_by_eager(program: nn.Module, x: Tensor) -> bool:
    try:
        program(x)
    except (RuntimeError, ValueError):
        return True
    return False


def _run(model: Callable[[Tensor], Tensor], seed: int, *, gradient: bool) -> list[Tensor]:
    found = []
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(seed)
    for _ in range(2):
        with torch.set_grad_enabled(gradient):
            y = model(x)
        found += [y.detach(), state()]
        if gradient:
            y.sum().backward()
            found.append(state())
    return found


def _same(got: list[Tensor], wanted: list[Tensor]) -> None:
    for g, w in zip(got, wanted, strict=True):
        if w.dtype is torch.uint8:
            assert torch.equal(g, w), "the generator's state"
        else:
            assert torch.equal(g == 0, w == 0), "masks"
            torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("door", ["compile", "backend"])
def test_random_programs(strict, door: str) -> None:
    """Masks bit for bit, and the state of the generator after forward and after backward."""
    x = torch.ones(3, 4)
    for number, steps in enumerate(_programs(24 if door == "compile" else 8)):
        model = Program(steps)
        if _refused_by_eager(model, x):
            continue
        other = copy.deepcopy(model)
        gradient = number % 3 != 2
        compiled = trainc.compile(other) if door == "compile" else torch.compile(other, backend="trainc")
        try:
            _same(_run(compiled, number, gradient=gradient), _run(model, number, gradient=gradient))
        except BaseException as error:
            error.add_note(f"program {steps}, gradient {gradient}")
            raise
        torch._dynamo.reset()


class DrawsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        torch.rand(5)
        torch.bernoulli(gradient.abs().clamp(0, 1))
        return F.dropout(gradient, 0.5)


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, x: Tensor) -> Tensor:
        F.dropout(x)
        return F.dropout(DrawsInBackward.apply(x * self.weight), 0.5)


@pytest.mark.parametrize("door", DOORS)
def test_a_backward_draws_when_it_runs(engine, strict, door) -> None:
    """Two forwards, and then their backwards: each in its turn."""
    found = []
    model = Both()
    for make in (lambda m: m, DOORS[door]):
        own = make(copy.deepcopy(model))
        torch.manual_seed(4)
        x = torch.ones(6, 4)
        outputs = [own(x), own(x)]
        states = [state()]
        for y in outputs:
            own.weight.grad = None
            y.sum().backward()
            states += [own.weight.grad.clone(), state()]
        found.append([*[y.detach() for y in outputs], *states])
    _same(found[1], found[0])


def test_a_step_draws_what_it_does_not_use(strict) -> None:
    """In train_step the draws of forward, backward and of what comes after lie in one plan, in the program's order."""
    found = []
    model = Both()
    for compiled in (False, True):
        own = copy.deepcopy(model)
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1)

        def step(x: Tensor, own: nn.Module = own, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            y = own(x)
            optimizer.zero_grad()
            loss = y.sum()
            loss.backward()
            torch.rand(3)
            noise = torch.rand(4)
            optimizer.step()
            return loss.detach() + noise.sum()

        run = trainc.train_step(step) if compiled else step
        torch.manual_seed(5)
        results = []
        for _ in range(3):
            results += [run(torch.ones(6, 4)).clone(), state()]
        found.append([*results, own.weight.detach().clone()])
    _same(found[1], found[0])
