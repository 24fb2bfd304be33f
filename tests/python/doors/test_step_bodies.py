"""Bodies of training steps made at random of what programs do with gradients: backward, step, zero_grad in every order,
gradients that are set, read, changed, dropped or left. A compiled step gives PyTorch's numbers, or a UserError that leaves
everything as it was."""

import random

import pytest
import torch
from torch import nn

import trainc

CALLS = 4
LOSSES = ["a.backward(retain_graph=True)", "b.backward(retain_graph=True)", "(a + b).backward(retain_graph=True)",
          "c.backward(retain_graph=True)"]  # fmt: skip
STEPS = ["one.step()", "two.step()"]
CLEARS = [
    "one.zero_grad()",
    "two.zero_grad()",
    "one.zero_grad()",
    "two.zero_grad()",
    "one.zero_grad(set_to_none=False)",
    "two.zero_grad(set_to_none=False)",
    "first.zero_grad()",
    "second.zero_grad()",
    "first.weight.grad = None",
    "second.weight.grad = None",
    "second.bias.grad = None",
    "del second.weight.grad",
]
CHANGES = [
    "first.weight.grad = 0.1 * first.weight.detach()",
    "second.bias.grad = x.detach().mean(0)[:3].clone()",
    "seen.append(nn.utils.clip_grad_norm_(first.parameters(), 0.05))",
    "seen.append(nn.utils.clip_grad_norm_(second.parameters(), 0.05))",
    "first.weight.grad.mul_(0.5) if first.weight.grad is not None else None",
    "seen.append(second.weight.grad.sum()) if second.weight.grad is not None else None",
    "seen.append(x.sum() * (first.bias.grad is None))",
    "second.weight.grad, kept = None, second.weight.grad",
    "second.weight.grad = kept",
    "second.weight.requires_grad_(not second.weight.requires_grad)",
]
# What a loop does between two steps of a body.
BETWEEN = [
    "pass", "pass", "pass", "pass", "one.zero_grad(), two.zero_grad()", "first_loss(x).backward()", "second_loss(x).backward()",
    "second.zero_grad()", "results.append(other(x))", "results.append(other(x))",
]  # fmt: skip


def body(choose: random.Random) -> list[str]:
    """Losses and updates, once each, cleared before or after, and a few statements more; then some of it moved or left out."""
    lines = choose.sample(LOSSES, choose.choice([1, 1, 1, 2, 2, 3])) + choose.sample(STEPS, choose.choice([1, 2, 2]))
    clears = choose.sample(CLEARS[:4], choose.choice([1, 2, 2, 3])) + choose.sample(CLEARS, choose.choice([0, 0, 1, 2]))
    lines = clears + lines if choose.random() < 0.5 else lines + clears
    for _ in range(choose.choice([0, 1, 1, 2, 3])):
        lines.insert(choose.randrange(len(lines) + 1), choose.choice(CHANGES))
    for _ in range(choose.choice([0, 0, 1, 1, 2])):
        lines.insert(choose.randrange(len(lines)), lines.pop(choose.randrange(len(lines))))
    if choose.random() < 0.2:
        lines.pop(choose.randrange(len(lines)))
    return lines


def program(seed: int) -> str:
    """A training loop's source: `make(wrap)` gives what its steps return, and the parameters that they leave."""
    choose = random.Random(seed)
    kind = choose.choice(["SGD(", "Adam(", "SGD(momentum=0.9, "])
    shared = "*first.parameters(), " if choose.random() < 0.2 else ""
    bodies = [
        line
        for name, indent in (("body", " " * 8), ("another", " " * 8))
        for line in (
            f"    def {name}(x):",
            *(indent + each for each in (
                "kept, seen = None, [x.sum()]", "a, b = first_loss(x), second_loss(x)", "c = second(first(x)).square().mean()",
                *body(choose), "return [each.detach() for each in seen]",
            )),
        )
    ]  # fmt: skip
    return "\n".join([
        "def make(wrap):",
        "    torch.manual_seed(0)",
        "    first, second = nn.Linear(4, 4), nn.Linear(4, 3)",
        f"    one = torch.optim.{kind}params=[*first.parameters()], lr=0.1)",
        f"    two = torch.optim.{kind}params=[{shared}*second.parameters()], lr=0.1)",
        "    def first_loss(x): return first(x).square().mean()",
        "    def second_loss(x): return second(x).tanh().square().mean()",
        *bodies,
        "    results = []",
        "    try:",
        "        step, other = wrap(body), wrap(another)",
        f"        for call in range({CALLS}):",
        "            x = torch.randn(5, 4)",
        "            results.append(step(x))",
        *(f"            if call == {call}: {choose.choice(BETWEEN)}" for call in range(CALLS)),
        "    except trainc.UserError as error:",
        "        results.append(str(error))",
        "    return results, [p.detach().clone() for m in (first, second) for p in m.parameters()]",
    ])  # fmt: skip


def run(source: str, wrap):
    names = {"torch": torch, "nn": nn, "trainc": trainc}
    exec(compile(source, "body.py", "exec"), names)
    return names["make"](wrap)


def counted(most: int):
    """Wraps bodies as they are, which run `most` times in all."""
    left = iter(range(most))

    def wrap(body):
        def step(x):
            if next(left, None) is None:
                raise trainc.UserError("enough")
            return body(x)

        return step

    return wrap


def outcome(source: str) -> str:
    """"same", "refused: ..." or in what the two differ."""
    try:
        results, left = run(source, trainc.train_step)
    except RuntimeError as error:
        try:
            run(source, lambda body: body)
        except RuntimeError as same:
            return "same" if type(same) is type(error) else f"raises {error!r} where PyTorch raises {same!r}"
        return f"raises {error!r} where PyTorch does not"
    refused = results and isinstance(results[-1], str)
    calls = len(results) - bool(refused)
    try:
        expected, expected_left = run(source, counted(calls) if refused else lambda body: body)
    except Exception as error:
        return f"PyTorch raises {type(error).__name__}: {error}"
    for call, (got, wanted) in enumerate(zip(results[:calls], expected, strict=False)):
        if len(got) != len(wanted) or not all(torch.allclose(a, b, 1e-4, 1e-5) for a, b in zip(got, wanted, strict=True)):
            return f"call {call}: {got} for {wanted}"
    for i, (got, wanted) in enumerate(zip(left, expected_left, strict=True)):
        if not torch.allclose(got, wanted, 1e-4, 1e-5):
            return f"parameter {i} after {calls} calls{' and an error' if refused else ''}: {got} for {wanted}"
    return f"refused: {results[-1]}" if refused else "same"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("first", range(0, 200, 10))
def test_bodies_at_random(core, first):
    for seed in range(first, first + 10):
        source = program(seed)
        found = outcome(source)
        assert found == "same" or found.startswith("refused"), f"{found}\n{source}"


def test_that_many_compile(core):
    found = [outcome(program(seed)) for seed in range(1000, 1012)]
    assert sum(each == "same" for each in found) >= 2, found
