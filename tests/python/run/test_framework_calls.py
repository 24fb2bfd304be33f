"""tune="max": PyTorch's operators in the place of contractions: what they compute, when they are taken, what is kept of it."""

from __future__ import annotations

import math
import os
import random

import forked
import pytest
import torch
from torch import nn
from torch.nn import functional

import trainc
from trainc.base import cache, cache_files, records
from trainc.torch.doors import backend
from trainc.torch.run import framework_calls, tuning

FIELDS = {"ours": 2.0, "framework": 1.0, "reproducible": True, "our_error": 1e-7, "framework_error": 1e-7}


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    monkeypatch.setattr(trainc.config, "fallback", False)
    monkeypatch.setattr(trainc.config, "cache", True)
    monkeypatch.setattr(trainc.config, "cache_dir", str(tmp_path / "cache"))
    monkeypatch.delenv("TRAINC_DUMP", raising=False)
    monkeypatch.setattr("trainc.base.tuning.race", lambda variants, measure: (0, {}))
    torch._dynamo.reset()
    backend.compilations.clear()


@pytest.fixture
def faster(monkeypatch):
    """A measurement by which PyTorch wins, whatever its error."""
    monkeypatch.setattr(trainc.config, "framework_error", math.inf)
    monkeypatch.setattr(tuning, "seconds_of", lambda ours, framework: (2.0, 1.0))


def calls(model: nn.Module) -> list[str]:
    reports = [report for record in records.of(model) for report in record.reports()]
    return sorted(step["name"] for report in reports for step in report["steps"] if step["kind"] == "extern")


def results(model, inputs, bf16=False):
    """Output and all gradients of one call, the inputs' first."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        out = model(*inputs)
    torch.manual_seed(1)
    out.backward(torch.randn(out.shape).to(out.dtype))
    found = [out.detach(), *(x.grad for x in inputs), *(p.grad.clone() for p in model.parameters())]
    model.zero_grad()
    return found


def error(found, truth):
    return [
        ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item() for a, b in zip(found, truth, strict=True)
    ]


def compare(module, inputs, bf16=False):
    """The compiled module beside fp64, with eager's own error as the yardstick; gives the calls of its plans."""
    eager = results(module, inputs, bf16)
    truth = results(module.double(), [x.double() for x in inputs])
    module.float()
    found = results(trainc.compile(module, tune="max"), inputs, bf16)
    assert [f.shape for f in found] == [t.shape for t in truth]
    for mine, theirs in zip(error(found, truth), error(eager, truth), strict=True):
        assert mine <= 3 * theirs + 3e-7
    return calls(module)


class Convolution(nn.Module):
    """What lies before and after the convolution: an activation that is made anyway, a bias, an activation."""

    def __init__(self, axes, channels, out, kernel, **how):
        super().__init__()
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
        self.conv = kind(channels, out, kernel, **how)

    def forward(self, x):
        return functional.gelu(self.conv(torch.tanh(x)))


@pytest.mark.parametrize("seed", range(10))
def test_convolutions_of_odd_sizes(seed, faster):
    draw = random.Random(seed)
    axes = draw.choice([1, 2, 2, 3])
    kernel = [draw.choice([1, 2, 3, 5]) for _ in range(axes)]
    how = {
        "stride": [draw.choice([1, 1, 2, 3]) for _ in range(axes)],
        "padding": [draw.randint(0, k - 1) for k in kernel],
        "dilation": [draw.choice([1, 1, 2]) for _ in range(axes)],
        "bias": draw.random() < 0.5,
    }
    channels, out = draw.choice([1, 3, 7, 16]), draw.choice([1, 5, 8, 19])
    size = [draw.randint(2 * (k - 1) + 1, 13) for k in kernel]
    torch.manual_seed(seed)
    found = compare(Convolution(axes, channels, out, kernel, **how), [torch.randn(draw.randint(1, 4), channels, *size)])
    assert "framework.convolution" in found
    assert "framework.convolution_weight" in found or 1 in (channels, out, max(kernel))  # or a plain product


def test_channels_last_and_a_chain_of_convolutions(faster):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 20, 3, padding=1), nn.ReLU(), nn.Conv2d(20, 20, 1, stride=2), nn.Flatten(), nn.Linear(20 * 16, 6),
    )  # fmt: skip
    found = compare(model, [torch.randn(3, 3, 16, 16).to(memory_format=torch.channels_last)])
    assert found.count("framework.convolution_weight") == 2  # of 1 x 1 it is a product
    assert found.count("framework.product") == 4


class Products(nn.Module):
    def __init__(self, k, n):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(n, k)), nn.Parameter(torch.randn(n))

    def forward(self, x, y):
        h = functional.gelu(functional.linear(x, self.weight, self.bias))
        return torch.matmul(h, y) + torch.matmul(h, h.transpose(1, 2)).sum(-1, keepdim=True)


@pytest.mark.parametrize("seed", range(6))
def test_products_of_odd_sizes(seed, faster):
    draw = random.Random(seed)
    b, m, k, n, p = (draw.choice([1, 2, 5, 17, 33, 70]) for _ in range(5))
    torch.manual_seed(seed)
    y = torch.randn(b, p, n).transpose(1, 2) if seed % 2 else torch.randn(b, n, p)
    found = compare(Products(k, n), [torch.randn(b, m, k), y])
    assert "framework.product" in found


def test_under_autocast(faster):
    """bf16 where the sums are rounded at once; what is added before rounding keeps its kernel."""
    torch.manual_seed(0)
    found = compare(
        nn.Sequential(nn.Conv2d(5, 9, 3, bias=False), nn.ReLU(), nn.Conv2d(9, 4, 3)), [torch.randn(2, 5, 11, 12)], bf16=True
    )
    assert found.count("framework.convolution") == 3  # the second forward adds its bias before it rounds
    compare(nn.Linear(33, 17, bias=False), [torch.randn(19, 33)], bf16=True)


def test_in_a_region_without_autocast(faster):
    """The call comes while autocast is on, and would be cast."""

    class Plain(nn.Linear):
        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                return super().forward(x)

    torch.manual_seed(0)
    assert "framework.product" in compare(Plain(33, 17, bias=False), [torch.randn(19, 33)], bf16=True)


def test_a_step_calls_it_too(faster):
    def train(tune):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        step = trainc.train_step(step, tune=tune)
        return [step(torch.randn(4, 3, 8, 8)).item() for _ in range(4)], step

    wanted, _ = train("fast")
    found, step = train("max")
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)
    text = str(trainc.explain(step))
    assert "framework.convolution_weight" in text
    assert "0.50 of the time of trainc's kernel" in text
    assert 'measured to be faster than a kernel (tune="max")' in text
    assert "compiled: 0.0%" in text  # of the FLOPs: all are PyTorch's


def test_through_the_other_door(faster):
    torch.manual_seed(0)
    linear = nn.Linear(40, 30)
    compiled = torch.compile(linear, backend="trainc", options={"tune": "max"})
    x = torch.randn(20, 40)
    torch.testing.assert_close(compiled(x), linear(x))
    (report,) = backend.compilations[0].reports()
    assert [step["name"] for step in report["steps"] if step["kind"] == "extern"] == ["framework.product"]


# ---- when it is taken ---------------------------------------------------------------------------------------------------


def run(tune="max", **settings):
    torch.manual_seed(0)
    model = nn.Linear(30, 20)
    found = results(trainc.compile(model, tune=tune, **settings), [torch.randn(10, 30)])
    return found, calls(model)


def test_who_wins(monkeypatch):
    monkeypatch.setattr(trainc.config, "framework_error", math.inf)
    for seconds, taken in (((2.0, 1.0), 3), ((1.0, 0.96), 0), ((1.0, 2.0), 0)):
        monkeypatch.setattr(tuning, "seconds_of", lambda ours, framework, seconds=seconds: seconds)
        monkeypatch.setattr(trainc.config, "cache_dir", f"{trainc.config.cache_dir}x")
        assert len(run()[1]) == taken


def test_our_kernel_has_its_variants_in_the_last_race(monkeypatch):
    """Faster than the kernel as it comes, slower than its best variant: not taken."""
    monkeypatch.setattr(trainc.config, "framework_error", math.inf)
    asked = []

    def seconds(ours, framework):
        asked.append(ours.plan.name)
        return {"ours": 2.0, "tuned": 1.0}[ours.plan.name], 1.5

    monkeypatch.setattr(tuning, "seconds_of", seconds)
    assert run()[1] == []
    assert asked == ["ours", "tuned"] * 3


@pytest.mark.parametrize("what", ["less accurate", "wrong", "another result each time", "not a number"])
def test_what_is_worse_is_not_taken(what, monkeypatch):
    monkeypatch.setattr(tuning, "seconds_of", lambda ours, framework: (2.0, 1.0))
    product = framework_calls.product

    def worse(lhs, rhs, *, views):
        if lhs.dtype is torch.float64:  # the truth
            return product(lhs, rhs, views=views)
        if what == "less accurate":
            return product(lhs.bfloat16(), rhs.bfloat16(), views=views).float()
        result = product(lhs, rhs, views=views)
        if what == "wrong":
            return result.flip(-1).contiguous()
        return result * math.nan if what == "not a number" else result * (1 + 1e-7 * torch.randn(result.shape))

    monkeypatch.setitem(framework_calls.OPERATIONS, "framework.product", worse)
    if what == "another result each time":
        monkeypatch.setattr(trainc.config, "framework_error", math.inf)
    wanted, _ = run("fast")
    found, names = run()
    assert names == []
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_the_error_allowed_is_the_users():
    verdict = tuning.Verdict(2.0, 1.0, True, 1e-7, 4e-7)
    assert not verdict.chosen(trainc.config.framework_error)
    assert verdict.chosen(5.0)
    assert "4.00 of its error" in verdict.note("framework.convolution")


def test_another_error_allowed_needs_no_new_measurement(monkeypatch):
    asked = []
    monkeypatch.setattr(tuning, "verdict", lambda plans: asked.append(1) or tuning.Verdict(2.0, 1.0, True, 1e-7, 4e-7))
    assert run()[1] == [] and asked
    asked.clear()
    monkeypatch.setattr(trainc.config, "framework_error", 5.0)
    assert len(run()[1]) == 3 and not asked


@pytest.mark.parametrize("off", ["fast", "config", "memory"])
def test_where_nobody_asks(off, monkeypatch, faster):
    monkeypatch.setattr(tuning, "verdict", lambda plans: pytest.fail("measured"))
    if off == "config":
        monkeypatch.setattr(trainc.config, "framework_calls", False)
    assert run("fast" if off == "fast" else "max", **({"memory": "1GB"} if off == "memory" else {}))[1] == []


def test_it_leaves_random_numbers_and_onednn_alone(faster):
    torch.manual_seed(7)
    before, enabled = torch.get_rng_state(), torch._C._get_mkldnn_enabled()
    trainc.compile(nn.Conv2d(3, 4, 3), tune="max")(torch.ones(2, 3, 8, 8)).sum().backward()
    after = torch.get_rng_state()
    torch.manual_seed(7)
    nn.Conv2d(3, 4, 3)
    assert torch.equal(after, torch.get_rng_state())
    assert torch._C._get_mkldnn_enabled() == enabled
    assert not torch.equal(before, after)  # the layer's own


# ---- the answer is kept -------------------------------------------------------------------------------------------------


def stored():
    """The cache's answers about calls: path -> what it says."""
    found = {}
    for name in os.listdir(cache.path()):
        path = os.path.join(cache.path(), name)
        about = cache._unpacked(name.removesuffix(cache.ENTRY), cache_files.read(path))[0]
        if "framework" in about:
            found[path] = about
    return found


PROGRAM = """
import sys, torch, trainc
from trainc.base import records
from trainc.torch.run import tuning
trainc.config.fallback = False
trainc.config.framework_error = float("inf")
trainc.base.tuning.race = lambda variants, measure: (0, {})
tuning.seconds_of = lambda ours, framework: (2.0, 1.0) if sys.argv[1] == "first" else sys.exit("measured again")
torch.manual_seed(0)
model = torch.nn.Conv2d(3, 5, 3)
trainc.compile(model, tune="max")(torch.randn(2, 3, 9, 9)).square().sum().backward()
(record,) = records.of(model)
print(model.weight.grad.double().sum().item(), [s["name"] for r in record.reports() for s in r["steps"] if s["kind"] == "extern"])
"""


def test_another_process_takes_the_stored_answer(monkeypatch):
    def process(which):
        environment = {**os.environ, "TRAINC_CACHE": "1", "TRAINC_CACHE_DIR": trainc.config.cache_dir}
        return forked.run(["-c", PROGRAM, which], env=environment)

    first = process("first")
    assert first.returncode == 0, first.stderr
    assert "framework.convolution_weight" in first.stdout
    answers = stored()
    assert len(answers) == 2
    for name in os.listdir(cache.path()):  # the plans themselves are to be made again
        path = os.path.join(cache.path(), name)
        if path not in answers:
            os.unlink(path)
    second = process("second")
    assert second.returncode == 0, second.stderr
    assert second.stdout == first.stdout
    os.unlink(next(iter(answers)))
    for name in os.listdir(cache.path()):
        path = os.path.join(cache.path(), name)
        if path not in answers:
            os.unlink(path)
    assert "measured again" in process("second").stderr  # the test would see it


@pytest.mark.parametrize(
    "about",
    [
        {**FIELDS, "framework": "1"}, {**FIELDS, "ours": -1.0}, {**FIELDS, "reproducible": 1}, {**FIELDS, "our_error": None},
        {"ours": 1.0}, {**FIELDS, "framework_error": math.nan},
    ],
)  # fmt: skip
def test_an_answer_that_says_nothing_is_none(about):
    with pytest.raises((KeyError, ValueError)):
        tuning.Verdict.of(about)
    assert tuning.Verdict.of(FIELDS).chosen


@pytest.mark.filterwarnings("ignore:.*an entry of the cache is not used")
def test_a_damaged_answer_is_a_miss(monkeypatch, faster):
    asked = []
    measured = tuning.verdict
    monkeypatch.setattr(tuning, "verdict", lambda plans: asked.append(1) or measured(plans))
    run()
    answers = stored()
    assert len(asked) == len(answers) == 3
    for i, (path, about) in enumerate(answers.items()):
        name = os.path.basename(path).removesuffix(cache.ENTRY)
        with open(path, "rb") as file:
            content = bytearray(file.read())
        content[len(content) - 3] ^= 1
        if i == 0:  # sound as a file, and no answer
            content = cache_files.packed(cache._packed(name, {**about, "reproducible": "yes"}, b""))
        with open(path, "wb") as file:
            file.write(content)
    for name in os.listdir(cache.path()):
        if os.path.join(cache.path(), name) not in answers:
            os.unlink(os.path.join(cache.path(), name))
    torch._dynamo.reset()
    _, names = run()
    assert names == ["framework.product"] * 3
    assert len(asked) == 6
    assert len(stored()) == 3


def test_flops_of_a_call():
    views = [[["reshape", [1, 4, 6]]], []]
    assert framework_calls.flops("framework.product", [[24], [1, 5, 6]], [1, 4, 5], {"views": views}) == 2 * 4 * 5 * 6
    how = {"views": [[], []], "kernel": [3, 3]}
    wanted = 2 * (2 * 6 * 6 * 7) * 9 * 5
    assert framework_calls.flops("framework.convolution", [[2, 8, 8, 5], [7, 3, 3, 5]], [2, 6, 6, 7], how) == wanted
    assert framework_calls.flops("framework.convolution_weight", [[2, 8, 8, 5], [2, 6, 6, 7]], [7, 5, 3, 3], how) == wanted
