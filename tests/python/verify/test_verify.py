"""verify=: the first steps beside PyTorch. Where all agree nothing is said and nothing is changed; where they part, the operation
and the line are named, a file shows it again, and training goes on from eager's numbers."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import random
import sys
import warnings

import forked
import pytest
import torch
from torch import nn

import trainc
from trainc import _core, cli
from trainc.base import records
from trainc.torch.optimizers.kernels import CoreKernel
from trainc.torch.run.executable import CoreExecutable
from trainc.torch.verify import bounds, report, update
from trainc.torch.verify.bounds import distance

pytestmark = pytest.mark.skipif(trainc.config.engine_name() != "core", reason="compares the compiler with PyTorch")


@pytest.fixture(autouse=True)
def reports(tmp_path, monkeypatch):
    """Where reports go; every fallback but verify='s own is an error unless a test says otherwise."""
    monkeypatch.setattr(trainc.config, "reports_dir", str(tmp_path))
    return tmp_path


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(12, 24), nn.Dropout(0.3), nn.Linear(24, 5)

    def forward(self, x):
        x = self.first(x)
        x = torch.tanh(x)  # THE LINE
        return self.last(self.drop(x))


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Linear(6 * 36, 5)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.conv(x.view(-1, 3, 8, 8)))).flatten(1))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(17, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 17)

    def forward(self, x):
        return self.head(self.layer(self.embed(x)))


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 3), nn.Linear(12, 4)

    def forward(self, x):
        x = torch.nn.functional.gelu(self.body(x))
        return {"a": self.a(x), "rest": [self.b(x), x]}


def flat(x):
    return [x] if isinstance(x, torch.Tensor) else [t for each in (x.values() if isinstance(x, dict) else x) for t in flat(each)]


def numbers(*shape):
    return lambda: torch.randn(*shape)


CASES = {
    "mlp": (MLP, numbers(7, 12), torch.optim.AdamW),
    "batch norm": (Normalised, numbers(4, 192), torch.optim.SGD),
    "transformer": (Transformer, lambda: torch.randint(17, (3, 6)), torch.optim.Adam),
    "two outputs": (TwoOutputs, numbers(7, 12), torch.optim.RMSprop),
}


def trained(kind, batch, optimizer, verify, *, steps=4, rows=1, autocast=False, evaluate=False, unused=False):
    """Everything that a training leaves: losses, parameters, buffers, optimizer state, the generator; and the two objects."""
    torch.manual_seed(3)
    model = kind()
    optimizer = optimizer(model.parameters(), lr=1e-2)
    model, optimizer = trainc.compile(model, optimizer, verify=verify)
    left = []
    for _ in range(steps):
        for _ in range(rows):
            with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
                results = flat(model(batch()))
            loss = sum(t.float().square().mean() for t in results[: 1 if unused else None])
            loss.backward()
            left.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        if evaluate:
            model.eval()
            with torch.no_grad():
                left += flat(model(batch()))
            model.train()
    left += [t.detach() for t in (*model.parameters(), *model.buffers())]
    left += [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    return [*left, torch.get_rng_state()], model, optimizer


def differences(a, b):
    assert len(a) == len(b)
    return [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if not torch.equal(x, y)]


@contextlib.contextmanager
def silence():
    """Nothing is said."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", trainc.VerifyWarning)
        yield


def verified(model):
    return next(r.verified for r in reversed(records.of(model)) if r.verified is not None)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.last = nn.LSTM(12, 8, 2, dropout=0.2, batch_first=True), nn.Linear(8, 5)

    def forward(self, x):
        return self.last(self.cells(x.view(-1, 3, 12))[0])


class Tied(nn.Module):
    """Tied weights, a buffer, a mask."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(17, 12), nn.Linear(12, 17, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(6, 6).tril())

    def forward(self, x):
        x = self.embed(x)
        return self.head((x @ x.transpose(1, 2)).masked_fill(self.mask == 0, float("-inf")).softmax(-1) @ x)


CASES |= {
    "recurrent": (Recurrent, numbers(6, 36), torch.optim.NAdam),
    "tied": (Tied, lambda: torch.randint(17, (3, 6)), torch.optim.Adagrad),
}

WAYS = [
    *[(name, {}) for name in CASES], ("mlp", {"autocast": True}), ("transformer", {"autocast": True}), ("mlp", {"rows": 3}),
    ("batch norm", {"rows": 2}), ("batch norm", {"evaluate": True}), ("two outputs", {"unused": True}),
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name, way", WAYS, ids=lambda x: x if isinstance(x, str) else "-".join(x) or "plain")
def test_agreement_says_nothing_and_changes_no_bit(name, way, reports):
    with silence():
        expected, *_ = trained(*CASES[name], False, **way)
        left, model, optimizer = trained(*CASES[name], True, **way)
    assert not differences(left, expected)
    found, step = verified(model), verified(optimizer)
    assert found.calls == found.programs == 3 * way.get("rows", 1)  # the graph, and the program itself
    assert found.ratios.keys() == {"outputs", "gradients"} and step.ratios.keys() == {"updates"}
    assert step.steps == 3
    assert f"verified: {found.calls} calls agree with PyTorch" in str(trainc.explain(model))
    assert "verified: 3 steps agree with PyTorch" in str(trainc.explain(optimizer))
    assert not list(reports.iterdir())


def test_the_trace_alone_is_compared_with_pytorch_too(monkeypatch):
    monkeypatch.setattr(trainc.config, "engine", "interpreter")
    with silence():
        _, model, _ = trained(*CASES["batch norm"], True)
    assert verified(model).programs == 3


def test_other_sizes_are_looked_at_too():
    with silence():
        sizes = iter([4, 7, 9] * 2)
        model = trainc.compile(MLP(), verify=5)
        for _ in range(6):
            model(torch.randn(next(sizes), 12)).sum().backward()
    assert [r.verified.programs for r in records.of(model)] == [2, 2, 1]


class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(12, 5), 1.0

    def forward(self, x, scale):
        return self.layer(x) * self.weight + scale


def test_numbers_that_move_are_looked_at_too():
    with silence():
        model = trainc.compile(Annealed(), verify=6)
        for i in range(6):
            model.weight = 0.5**i
            model(torch.randn(3, 12), 0.1 * i).sum().backward()
    assert sum(r.verified.programs for r in records.of(model) if r.verified) == 6


class Parts(nn.Module):
    """Its results are parts of its argument: AOTAutograd's own wrappers run."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 5)

    def forward(self, x):
        return self.layer(x), x[:2]


def test_what_is_not_run_again_is_said():
    with silence():
        model = trainc.compile(Parts(), verify=2)
        for _ in range(3):
            model(torch.randn(3, 12))[0].sum().backward()
    assert verified(model).calls == 2 and verified(model).programs == 0
    assert "its trace, not the program: forward gives parts of its arguments" in str(trainc.explain(model))


def test_fused_steps_run_apart_while_they_are_looked_at():
    def left(verify):
        torch.manual_seed(3)
        model = MLP()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model, optimizer = trainc.compile(model, optimizer, fuse_step=True, verify=verify)
        for _ in range(4):
            model(torch.randn(7, 12)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return list(model.parameters()), records.of(model)[0]

    with silence():
        expected, _ = left(False)
        mine, record = left(True)
    assert not differences(mine, expected)
    assert record.verified.calls == 3 and "gradients" in record.verified.ratios
    assert record.fused is not None  # the fourth


def test_a_second_backward_is_looked_at_too():
    model, plain = MLP(), MLP()
    plain.load_state_dict(model.state_dict())
    model = trainc.compile(model.eval(), verify=1)
    x = torch.randn(7, 12)
    with silence():
        for each in (plain.eval(), model):
            loss = each(x).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
    assert not verified(model).failed
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_where_looking_fails_training_goes_on(monkeypatch):
    from trainc.torch.verify import program

    def fails(*_, **__):
        raise MemoryError("no room")

    expected, *_ = trained(*CASES["mlp"], False)
    monkeypatch.setattr(program, "run", fails)
    with pytest.warns(UserWarning, match="cannot compare a step with PyTorch: MemoryError: no room"), silence():
        left, model, _ = trained(*CASES["mlp"], True)
    assert not differences(left, expected)
    assert "not verified: MemoryError: no room" in str(trainc.explain(model))


def test_without_a_float64_run_nothing_is_alarmed(monkeypatch):
    from trainc.torch.verify import program

    real = program.run

    def run(*args, wide=False, **kwargs):
        if wide:
            raise RuntimeError("no such kernel in float64")
        return real(*args, **kwargs)

    monkeypatch.setattr(program, "run", run)
    with silence():
        _, model, _ = trained(*CASES["transformer"], True)
    assert verified(model).calls == 3


def test_as_many_steps_as_were_asked_for():
    _, model, optimizer = trained(*CASES["mlp"], 2)
    assert verified(model).calls == verified(optimizer).steps == 2


def test_without_an_optimizer_calls_are_counted():
    model = trainc.compile(MLP(), verify=2)
    for _ in range(4):
        model(torch.randn(7, 12)).sum().backward()
    assert verified(model).calls == 2


@pytest.mark.parametrize("given", ["yes", -1, 1.5])
def test_another_word_is_refused(given):
    with pytest.raises(trainc.UserError, match="verify="):
        trainc.compile(MLP(), verify=given)


# ---- side effects happen once -----------------------------------------------------------------------------------------


class Counting(nn.Module):
    """Its forward is not captured: it changes Python's state."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 4), []

    def forward(self, x):
        self.seen.append(len(self.seen))
        return self.layer(x)


@pytest.mark.filterwarnings("ignore::trainc.base.messages.TraincWarning")
def test_what_forward_does_beside_its_numbers_happens_once():
    model = trainc.compile(Counting(), verify=True)
    for _ in range(3):
        model(torch.randn(2, 4)).sum().backward()
    assert model.seen == [0, 1, 2]


def test_hooks_run_once():
    calls = []
    model = MLP()
    model.last.weight.register_hook(lambda g: calls.append("gradient"))
    model.first.weight.register_post_accumulate_grad_hook(lambda p: calls.append("accumulated"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = trainc.compile(model, optimizer, verify=True)
    optimizer.register_step_post_hook(lambda *_: calls.append("step"))
    x = torch.randn(3, 12, requires_grad=True)
    x.register_hook(lambda g: calls.append("argument"))
    with silence():
        model(x).sum().backward()
        optimizer.step()
    assert sorted(calls) == ["accumulated", "argument", "gradient", "step"]
    assert verified(model).programs == 1


def test_a_module_within_that_is_compiled_too_runs_in_pytorch(monkeypatch):
    """What the program is compared with is PyTorch's, all of it."""
    inner = trainc.compile(MLP())
    model = trainc.compile(nn.Sequential(inner, nn.Linear(5, 2)), verify=2)
    with silence():
        for _ in range(2):
            model(torch.randn(7, 12)).sum().backward()
    assert verified(model).programs == 2 and not records.of(inner)


# ---- a difference is found ------------------------------------------------------------------------------------------


def broken_operation(monkeypatch, target="aten.tanh.default", other="aten.sigmoid.default"):
    """The compiler takes one operation for another."""
    for name in ("compile", "JointGraph"):
        real = getattr(_core, name)
        wrong = lambda text, *args, real=real, **kwargs: real(text.replace(f'"{target}"', f'"{other}"'), *args, **kwargs)  # noqa: E731
        monkeypatch.setattr(_core, name, wrong)


def the_line(name: str = "LINE") -> str:
    with open(__file__) as file:
        number = next(i for i, line in enumerate(file, 1) if f"# THE {name}" in line)
    return f"test_verify.py:{number}"


def eager(kind, batch, optimizer, steps=4):
    torch.manual_seed(3)
    model = kind()
    optimizer = optimizer(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = sum(t.float().square().mean() for t in flat(model(batch())))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_a_wrong_forward_is_named_and_training_goes_on(monkeypatch, reports):
    broken_operation(monkeypatch)
    with pytest.warns(trainc.VerifyWarning) as said:
        left, model, _ = trained(*CASES["mlp"], True)
    (warning,) = [w for w in said if w.category is trainc.VerifyWarning]
    text = str(warning.message)
    assert f"aten.tanh.default at {the_line()} is the first operation that differs" in text
    assert warning.filename == __file__  # the user's own call
    assert [t.item() for t in left[:4]] == pytest.approx(eager(*CASES["mlp"]), rel=1e-5)
    (file,) = reports.iterdir()
    assert str(file) in text and file.stat().st_size < 20_000  # the operation alone
    told = str(trainc.explain(model))
    assert "verified: it differs from PyTorch" in told and "not compiled: its graph runs in PyTorch" in told
    assert told.count("aten.tanh.default at") == 1

    again = report.run(str(file))
    assert again.differs and f"aten.tanh.default at {the_line()}" in again.text and "still differs" in again.text
    monkeypatch.undo()
    assert not report.run(str(file)).differs


def test_a_wrong_gradient_is_named_and_training_goes_on(monkeypatch, reports):
    broken_operation(monkeypatch, "aten.tanh_backward.default", "aten.sigmoid_backward.default")
    with pytest.warns(trainc.VerifyWarning, match=r"the gradient of `first\.\w+` is .* aten.tanh_backward.default at") as said:
        left, *_ = trained(*CASES["mlp"], True)
    assert the_line() in str(said[0].message)
    assert [t.item() for t in left[:4]] == pytest.approx(eager(*CASES["mlp"]), rel=1e-5)
    assert report.run(str(*reports.iterdir())).differs


def test_a_wrong_backward_plan_is_shown_by_the_whole_step(monkeypatch, reports):
    """No operation alone is wrong: the backward's plan is."""
    real = CoreExecutable.__call__

    def call(self, inputs, saved=None):
        results = real(self, inputs, saved)
        if saved is not None and "backward" in self.report()["name"]:
            results[0] = results[0] * 1.001
        return results

    monkeypatch.setattr(CoreExecutable, "__call__", call)
    with pytest.warns(trainc.VerifyWarning, match="the gradient of `first.weight`.* no operation differs by itself"):
        left, *_ = trained(*CASES["mlp"], True)
    assert [t.item() for t in left[:4]] == pytest.approx(eager(*CASES["mlp"]), rel=1e-5)
    (file,) = reports.iterdir()
    assert torch.load(file, weights_only=True)["kind"] == "joint"
    assert report.run(str(file)).differs
    monkeypatch.undo()
    assert not report.run(str(file)).differs


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 5)

    def forward(self, x):
        return self.layer(x + torch.randn_like(x))


def test_a_small_difference_beside_random_numbers_is_found(monkeypatch):
    """The float64 run has the numbers that eager drew: another draw would be the larger difference."""
    real = CoreExecutable.__call__

    def call(self, inputs, saved=None):
        results = real(self, inputs, saved)
        results[0] = results[0] * 1.0001
        return results

    monkeypatch.setattr(CoreExecutable, "__call__", call)
    model = trainc.compile(Noisy(), verify=True)
    with pytest.warns(trainc.VerifyWarning, match="its result is 1.0e-04 of its size"):
        model(torch.randn(7, 12))


def test_a_step_that_agrees_when_it_is_compiled_again(monkeypatch):
    """A fault that comes and goes is told as such."""
    real, count = CoreExecutable.__call__, []

    def call(self, inputs, saved=None):
        results = real(self, inputs, saved)
        count.append(1)
        if len(count) == 1:
            results[0] = results[0] * 1.01
        return results

    monkeypatch.setattr(CoreExecutable, "__call__", call)
    model = trainc.compile(MLP(), verify=True)
    with pytest.warns(trainc.VerifyWarning, match="gives it; compiled again, the step agrees"):
        model(torch.randn(7, 12))


def test_a_plan_that_draws_otherwise_is_found(monkeypatch):
    """One number too many: later masks would be others."""
    real = CoreExecutable.__call__

    def call(self, inputs, saved=None):
        results = real(self, inputs, saved)
        if "forward" in self.report()["name"]:
            torch.rand(1)
        return results

    expected = eager(*CASES["mlp"])
    monkeypatch.setattr(CoreExecutable, "__call__", call)
    with pytest.warns(trainc.VerifyWarning, match="the generator of random numbers is left in another state"):
        left, *_ = trained(*CASES["mlp"], True)
    assert [t.item() for t in left[:4]] == pytest.approx(expected, rel=1e-5)


def test_a_wrong_update_is_named_and_training_goes_on(monkeypatch, reports):
    real = CoreKernel.run

    def run(self, tensors, scalars):
        done = real(self, tensors, scalars)
        tensors[-1][0].mul_(1.0001)
        return done

    monkeypatch.setattr(CoreKernel, "run", run)
    with pytest.warns(trainc.VerifyWarning, match=r"AdamW: verify: after optimizer.step\(\) `last.bias` is"):
        left, _, optimizer = trained(*CASES["mlp"], True)
    told = str(trainc.explain(optimizer))
    assert "verified: it differs from PyTorch" in told and "after optimizer.step() `last.bias` is" in told
    assert [t.item() for t in left[:4]] == pytest.approx(eager(*CASES["mlp"]), rel=1e-5)
    (file,) = reports.iterdir()
    again = report.run(str(file))
    assert again.differs and "the parameter" in again.text
    monkeypatch.undo()
    assert not report.run(str(file)).differs


FACTOR = 1.0


class ReadsGlobal(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        x = self.norm(self.layer(x))
        x = x + FACTOR  # THE OTHER LINE
        return nn.functional.dropout(x, 0.5)


def test_a_trace_that_is_not_the_program_any_more_is_found(monkeypatch):
    """As if nothing watched the global: the plan is right for its graph, and wrong."""
    from trainc.torch.joint import family

    monkeypatch.setattr(family.Family, "holds", lambda self: True)
    model = ReadsGlobal()
    plain = copy.deepcopy(model)
    model = trainc.compile(model, verify=3)
    x, state = torch.randn(3, 4), torch.get_rng_state()
    with silence():
        model(x)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    with pytest.warns(trainc.VerifyWarning, match=f"not what was traced.* aten.add.Tensor at {the_line('OTHER LINE')} gave"):
        model(x).square().sum().backward()
    assert "runs in PyTorch: ReadsGlobal: verify: its result is another" in str(trainc.explain(model))
    after = torch.get_rng_state()
    model(x)

    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 1.0)  # eager's two calls, from the same state
    torch.set_rng_state(state)
    plain(x)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    plain(x).square().sum().backward()
    assert torch.equal(torch.get_rng_state(), after)
    plain(x)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer)
    for name, p in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).grad, p.grad)


class Gate(torch.autograd.Function):
    scale = 1.0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * Gate.scale


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return Gate.apply(self.layer(x))


def test_a_gradient_that_was_traced_otherwise_is_found(monkeypatch):
    from trainc.torch.doors import traces

    monkeypatch.setattr(traces, "_check_backward", lambda *_: None)
    model = trainc.compile(Gated(), verify=3)
    out = model(torch.randn(3, 4))
    monkeypatch.setattr(Gate, "scale", 5.0)
    with pytest.warns(trainc.VerifyWarning, match=r"the gradient of `layer\.\w+` is another.* at test_verify.py:\d+ gave"):
        out.sum().backward()
    assert torch.equal(model.layer.bias.grad, torch.full((4,), 15.0))


def test_without_fallback_it_is_an_error(monkeypatch):
    broken_operation(monkeypatch)
    monkeypatch.setattr(trainc.config, "fallback", False)
    with pytest.raises(trainc.VerifyError, match="aten.tanh.default") as raised:
        trained(*CASES["mlp"], True)
    assert "goes on" not in str(raised.value)


def test_a_difference_is_told_whatever_becomes_of_the_search(monkeypatch):
    from trainc.torch.verify import told

    def fails(*_):
        raise RuntimeError("no")

    broken_operation(monkeypatch)
    monkeypatch.setattr(told, "locate", fails)
    monkeypatch.setattr(report, "write", fails)
    with pytest.warns(trainc.VerifyWarning, match="its result is .* from a float64 run") as said:
        left, *_ = trained(*CASES["mlp"], True)
    assert "bug-report" not in str(said[0].message)
    assert [t.item() for t in left[:4]] == pytest.approx(eager(*CASES["mlp"]), rel=1e-5)


def test_statistics_are_eagers_where_a_plan_is_wrong(monkeypatch):
    """The call is made again in PyTorch: its buffers are written once."""
    broken_operation(monkeypatch, "aten.relu.default", "aten.tanh.default")
    model = Normalised()
    plain = copy.deepcopy(model)
    model = trainc.compile(model, verify=True)
    x = torch.randn(4, 192)
    with pytest.warns(trainc.VerifyWarning):
        model(x).sum().backward()
    plain(x).sum().backward()
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer)
    for name, p in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).grad, p.grad)


# ---- train_step ---------------------------------------------------------------------------------------------------------


def stepped(kind, batch, optimizer, verify, steps=4):
    torch.manual_seed(3)
    model = kind()
    optimizer = optimizer(model.parameters(), lr=1e-2)

    def step(x):
        loss = sum(t.float().square().mean() for t in flat(model(x)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = trainc.train_step(step, verify=verify)
    left = [step(batch()) for _ in range(steps)]
    left += [t.detach() for t in (*model.parameters(), *model.buffers())]
    left += [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    return [*left, torch.get_rng_state()], step


@pytest.mark.parametrize("name", CASES)
def test_a_train_step_agrees_and_changes_no_bit(name):
    with silence():
        expected, _ = stepped(*CASES[name], False)
        left, step = stepped(*CASES[name], True)
    assert not differences(left, expected)
    found = verified(step)
    assert found.steps == 3 and found.ratios.keys() == {"results", "updates"}
    assert "verified: 3 steps agree with PyTorch" in str(trainc.explain(step))


@pytest.mark.parametrize(
    "target, other", [("aten.tanh", "aten.sigmoid"), ("aten.tanh_backward", "aten.sigmoid_backward")]
)
def test_a_wrong_train_step_is_named_and_goes_on(target, other, monkeypatch, reports):
    broken_operation(monkeypatch, f"{target}.default", f"{other}.default")
    with pytest.warns(trainc.VerifyWarning, match=f"{target}.default at {the_line()} is the first") as said:
        left, step = stepped(*CASES["mlp"], True)
    assert len([w for w in said if w.category is trainc.VerifyWarning]) == 1
    assert [t.item() for t in left[:4]] == pytest.approx(eager(*CASES["mlp"]), rel=1e-5)
    assert report.run(str(*reports.iterdir())).differs
    assert "verified: it differs from PyTorch" in str(trainc.explain(step))


# ---- a report ---------------------------------------------------------------------------------------------------------


def command(file) -> tuple[int, str]:
    """`trainc bug-report` in another process, without what was broken here."""
    package = os.path.dirname(os.path.dirname(trainc.__file__))
    program = (
        "import sys, importlib.machinery; sys.meta_path.insert(0, importlib.machinery.PathFinder); "
        f"sys.path.insert(0, {package!r}); from trainc.cli import main; main(['bug-report', sys.argv[1]])"
    )
    done = forked.run(["-c", program, file])
    return done.returncode, done.stdout + done.stderr


def test_a_report_runs_alone(monkeypatch, reports):
    broken_operation(monkeypatch)
    with pytest.warns(trainc.VerifyWarning):
        trained(*CASES["mlp"], True)
    (file,) = reports.iterdir()
    code, text = command(file)
    assert code == 0 and "agrees: its error is at most" in text and f"aten.tanh.default at {the_line()}" in text

    content = torch.load(file, weights_only=True)
    assert content["about"]["CPU level"] and content["about"]["options"]["cpu"]
    content["about"]["trainc"] = "0.0.1"
    torch.save(content, file)
    assert "written with trainc 0.0.1; here it is" in report.run(str(file)).text


class Runs:
    """What runs when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("content", [b"", b"hello", pickle.dumps(Runs(), 2)], ids=["empty", "text", "pickle"])
def test_what_is_no_report_is_refused(content, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        cli.main(["bug-report", "file"])
    assert ended.value.code == 2 and "is no report" in capsys.readouterr().err
    torch.save({"format": "trainc bug report 0", "kind": Runs()}, tmp_path / "file")
    with pytest.raises(SystemExit):
        cli.main(["bug-report", "file"])
    assert not (tmp_path / "ran").exists()


def test_a_file_that_is_not_there(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["bug-report", "missing.pt"])
    assert ended.value.code == 2 and "No such file" in capsys.readouterr().err


def test_the_command_tells_by_its_status_whether_it_differs(monkeypatch, reports, capsys):
    broken_operation(monkeypatch)
    with pytest.warns(trainc.VerifyWarning):
        trained(*CASES["mlp"], True)
    with pytest.raises(SystemExit) as ended:
        cli.main(["bug-report", str(*reports.iterdir())])
    assert ended.value.code == 1 and "still differs" in capsys.readouterr().out


def test_a_report_is_whole_or_not_there(monkeypatch, reports):
    case = update.Update("x", "SGD", {"lr": 0.1}, torch.ones(3), torch.ones(3), {})

    def fails(content, file):
        file.write(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", fails)
        patched.setattr(report.tempfile, "gettempdir", lambda: str(reports))
        assert report.write(case, "x", None) is None
    assert not list(reports.iterdir())
    path = report.write(case, "x", None)
    assert [str(f) for f in reports.iterdir()] == [path] and not report.run(path).differs


# ---- bounds -------------------------------------------------------------------------------------------------------------


def test_a_wrong_element_among_many_is_found():
    truth = torch.randn(100_000, dtype=torch.float64)
    ours = truth.float()
    assert not distance(ours.clone(), truth.float() * (1 + 1e-7), truth).parted
    ours[7] += 1e-3
    assert distance(ours, truth.float(), truth).parted


def test_eager_may_be_exact_by_luck():
    truth = torch.tensor([3.0], dtype=torch.float64)
    assert not distance(torch.tensor([3.0000005]), torch.tensor([3.0]), truth).parted
    assert distance(torch.tensor([3.0001]), torch.tensor([3.0]), truth).parted


def test_eagers_own_spread_is_allowed():
    """A difference of two large numbers: eager's own result is as far off for inputs that differ in the last bit."""
    truth, eager_, ours = torch.zeros(4, dtype=torch.float64), torch.zeros(4), torch.full((4,), 1e-4)
    assert distance(ours, eager_, truth).parted
    assert not distance(ours, eager_, truth, [torch.full((4,), -2e-4)]).parted


def test_nan_and_infinities_are_eagers():
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert distance(torch.tensor([1.0, float("nan")]), truth.float(), truth).parted
    wild = torch.tensor([1.0, float("inf")])
    assert not distance(wild.clone(), wild, wild.double()).parted
    assert distance(torch.tensor([1.0, -float("inf")]), wild, wild.double()).parted
    assert distance(torch.tensor([1.0, 5.0]), wild, wild.double()).parted


def test_integers_are_the_same():
    a = torch.arange(10)
    assert not distance(a.clone(), a, a).parted
    assert distance(a.flip(0), a, a).parted
    assert not distance(a.flip(0), a, a, [a.roll(1)]).parted  # eager chooses otherwise, too


def test_without_a_float64_run_there_is_a_tolerance():
    x = torch.randn(1000)
    assert not distance(x * (1 + 3e-7), x, None, terms=1000).parted
    assert distance(x * (1 + 1e-4), x, None, terms=1000).parted


# ---- no false alarm -----------------------------------------------------------------------------------------------------


class Random(nn.Module):
    """Some operations, one after the other, chosen by chance."""

    def __init__(self, chance: random.Random):
        super().__init__()
        self.width = width = chance.choice([3, 8, 17])
        self.layers, self.steps = nn.ModuleList(), []
        for _ in range(chance.randint(3, 7)):
            self.steps.append(kind := chance.choice(list(STEPS)))
            self.layers.append(LAYERS.get(kind, nn.Identity)(*[width] * (1 + (kind == "linear"))))

    def forward(self, x):
        for kind, layer in zip(self.steps, self.layers, strict=True):
            x = STEPS[kind](layer(x))
        return x, x.sum(-1)


LAYERS = {"linear": nn.Linear, "norm": nn.LayerNorm, "batch": nn.BatchNorm1d}
STEPS = {
    "linear": lambda x: x, "norm": lambda x: x, "batch": lambda x: x, "relu": torch.relu, "tanh": torch.tanh,
    "gelu": nn.functional.gelu, "softmax": lambda x: torch.softmax(x, -1), "dropout": lambda x: torch.dropout(x, 0.4, True),
    "cumsum": lambda x: torch.cumsum(x, 0), "max": lambda x: x - x.max(0, keepdim=True).values,
    "sort": lambda x: x.sort(-1).values, "cancel": lambda x: (x + 100.0) - x.mean() - 100.0, "exp": lambda x: torch.exp(x / 3),
    "noise": lambda x: x + torch.randn_like(x), "roll": lambda x: torch.roll(x, 1, 0) * x, "var": lambda x: x / (x.var(0) + 0.1),
    "log": lambda x: torch.log1p(x.abs()), "matmul": lambda x: x @ x.T @ x / len(x), "half": lambda x: x.bfloat16().float(),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(5))
def test_no_false_alarm_over_random_modules(part):
    """50 modules, two steps each, some under autocast."""
    compared = 0
    for seed in range(10 * part, 10 * part + 10):
        chance = random.Random(seed)
        torch.manual_seed(seed)
        model = Random(chance)
        rows, kind = chance.choice([4, 9, 33]), chance.choice([torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
        learned = bool(list(model.parameters()))
        optimizer = kind(model.parameters(), lr=0.01) if learned else None
        compiled = trainc.compile(model, optimizer, verify=2)
        model = compiled[0] if learned else compiled
        with silence():
            for _ in range(2):
                x = torch.randn(rows, model.width, requires_grad=True)
                with torch.autocast("cpu", torch.bfloat16) if seed % 5 == 4 else contextlib.nullcontext():
                    a, b = model(x)
                (a.float().square().sum() + b.float().sum()).backward()
                if learned:
                    optimizer.step()
                    optimizer.zero_grad()
        compared += verified(model).programs
    assert compared == 20


def test_limits_are_what_the_documentation_says():
    assert (bounds.MOST, bounds.MOST_OF_ONE) == (8.0, 32.0)
