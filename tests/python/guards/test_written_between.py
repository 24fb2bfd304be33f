"""What is written between a forward, its backward and the step, and methods that a program puts on its optimizer."""

import itertools

import pytest
import torch
from torch import nn

import trainc
from trainc.base import messages, records


def linear(inputs=2, outputs=1):
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=False)


def descend(model, **kwargs):
    return torch.optim.SGD(model.parameters(), lr=0.1, **kwargs)


class ClampsAParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 2), linear()

    def forward(self, x):
        with torch.no_grad():
            self.last.weight.clamp_(-0.1, 0.1)
        return self.last(self.first(x))


class ClampsData(ClampsAParameter):
    def forward(self, x):
        self.last.weight.data.clamp_(-0.1, 0.1)
        return self.last(self.first(x))


class ClampsABuffer(nn.Module):
    """With outputs that are parts of each other, so that PyTorch's own wrappers stay around the compiled call."""

    def __init__(self):
        super().__init__()
        self.linear = linear(2, 2)
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x):
        self.scale.clamp_(0, 0.5)
        y = self.linear(x) * self.scale
        return y, y[1:]


class GivesItsParameterData(ClampsAParameter):
    """A max-norm constraint."""

    def forward(self, x):
        self.last.weight.data = torch.renorm(self.last.weight.data, 2, 0, 0.1)
        return self.last(self.first(x))


class GivesItsActivationData(ClampsAParameter):
    def forward(self, x):
        y = self.first(x)
        setattr(y, "data", y.data * 2)  # noqa: B010
        return self.last(y)


@pytest.mark.parametrize("kind", [ClampsAParameter, ClampsData, ClampsABuffer, GivesItsParameterData, GivesItsActivationData])
def test_what_forward_writes_over(kind, engine):
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = kind()
        if compiled:
            trainc.compile(model)
        results = []
        for _ in range(3):
            model.zero_grad()
            y = model(torch.ones(3, 2))
            y = y[0] + y[1].sum() if isinstance(y, tuple) else y
            y.square().sum().backward()
            results += [y.detach(), *[p.grad.clone() for p in model.parameters()]]
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(p.grad * 0.1)
        found.append(results)
    torch.testing.assert_close(found[1], found[0])


def test_a_gradient_that_was_consumed_is_not_looked_at_by_a_new_trace(core, strict):
    found = []
    for fused in (False, True):
        model = linear()
        optimizer = descend(model)
        if fused:
            model, optimizer = trainc.compile(model, optimizer, fuse_step=True)
        for rows in (1, 1, 2, 3, 1):
            model.train(rows != 2)
            loss = model(torch.ones(rows, 2)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.append(model.weight.detach())
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("written", ["input", "parameter", "array"])
def test_a_write_that_raises_no_version_is_seen_by_a_fused_step(core, written):
    array = torch.ones(4, 2).numpy()
    x = torch.from_numpy(array)
    model = nn.Sequential(nn.Linear(2, 2), linear())
    model, optimizer = trainc.compile(model, descend(model), fuse_step=True)
    model(x).sum().backward()
    if written == "input":
        x.data.zero_()
    elif written == "parameter":
        model[1].weight.data.mul_(0.9)
    else:
        array[:] = 3
    with pytest.raises(trainc.UserError, match="changed between backward"):
        optimizer.step()


@pytest.mark.parametrize("method", ["step", "zero_grad"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_method_that_the_program_replaced_is_called(method, fused):
    model = linear()
    optimizer, calls = descend(model), []
    plain = getattr(optimizer, method)
    setattr(optimizer, method, lambda *args: (calls.append(method), plain(*args))[1])
    with pytest.warns(messages.TraincWarning, match=f"`{method}` was replaced"):
        model, optimizer = trainc.compile(model, optimizer, fuse_step=fused)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert calls == [method] * 2


def test_a_scheduler_and_a_second_compile_are_no_replacements():
    model = linear()
    optimizer = descend(model)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(2):
        trainc.compile(model, optimizer)
        assert not [c for c in records.of(optimizer) if c.route == "eager"]


@pytest.mark.parametrize("door", ["fused", "step"])
def test_optimizer_state_of_other_strides_is_updated(core, door):
    found = []
    for compiled in (False, True):
        model = linear(2, 2)
        optimizer = descend(model, momentum=0.9)
        if compiled and door == "fused":
            model, optimizer = trainc.compile(model, optimizer, fuse_step=True)

        def body(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

        step = trainc.train_step(body) if compiled and door == "step" else body
        step(torch.ones(1, 2))
        state = optimizer.state_dict()
        state["state"][0]["momentum_buffer"] = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()
        optimizer.load_state_dict(state)
        for _ in range(2):
            step(torch.ones(1, 2))
        found.append([model.weight.detach(), optimizer.state_dict()["state"][0]["momentum_buffer"]])
    torch.testing.assert_close(found[1], found[0])


class MakesValuesOfX(nn.Module):
    """`keeps`: eager's backward reads x itself; else what was made of it."""

    def __init__(self, keeps):
        super().__init__()
        self.linear, self.keeps = linear(2, 2), keeps

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = self.linear(x)
        y = y.float() + (x + 1).exp() * self.linear.weight.sum()
        return y + (x * self.linear.weight[0]).sum() if self.keeps else y


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("door", ["compile", "backend"])
def test_an_argument_that_is_written_before_the_backward(door, keeps, monkeypatch):
    """A plan makes values of the forward again, of its arguments: those that eager does not keep may have changed."""
    monkeypatch.setattr(trainc.config, "fallback", False)
    plain, model = MakesValuesOfX(keeps), MakesValuesOfX(keeps)
    compiled = trainc.compile(model) if door == "compile" else torch.compile(model, backend="trainc")
    for step in range(2):
        x, y = torch.full((3, 2), 0.3 + step), torch.full((3, 2), 0.3 + step)
        losses = plain(x).sum(), compiled(y).sum()
        x.add_(1), y.add_(1)
        for loss in losses:
            if keeps:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    loss.backward()
            else:
                loss.backward()
        if not keeps:
            torch.testing.assert_close(model.linear.weight.grad, plain.linear.weight.grad)


@pytest.mark.parametrize(
    "door", [trainc.compile, lambda model: torch.compile(model, backend="trainc")], ids=["compile", "backend"]
)
def test_a_tensor_without_memory_is_not_read(door):
    """As FSDP leaves parameters between steps: forward may ask for its shape, and for nothing else."""

    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.others = linear(), [[torch.ones(3)]]
            self.others[0][0].untyped_storage().resize_(0)

        def forward(self, x):
            return self.layer(x) * self.others[0][0].shape[0]

    plain, ours, x = Looks(), door(Looks()), torch.randn(4, 2)
    for _ in range(2):
        assert torch.equal(ours(x), plain(x))


class Reads(nn.Module):
    """Layers whose backwards read weights in all ways: as views, themselves, of what a plan makes again."""

    def __init__(self, norm):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.norm = nn.LayerNorm(6) if norm == "layer" else nn.BatchNorm1d(6)
        self.convolution, self.own = nn.Conv1d(1, 3, 3, padding=1), nn.Parameter(torch.randn(6))
        self.register_buffer("scale", torch.full((6,), 0.7))

    def forward(self, x):
        h = self.norm(nn.functional.gelu(self.first(x))) + self.scale
        h = torch.tanh(self.second(h) * self.scale) * self.own
        h = self.convolution(h.unsqueeze(1)).relu().mean(1)
        return self.last(torch.tanh(h * 1.5))


def _moved(tensor):
    tensor.data = tensor.data * 2


def _written(tensor):
    tensor.data.mul_(2)


NAMES = [
    "first.weight", "first.bias", "second.weight", "second.bias", "norm.weight", "norm.bias", "convolution.weight", "own",
    "scale",
]  # fmt: skip


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("door", ["compile", "backend"])
@pytest.mark.parametrize("change", [_moved, _written], ids=["other memory", "written"])
def test_weights_between_a_forward_and_its_backward(core, norm, door, change):
    """What autograd keeps is a view of a linear layer's weight, the weight of a norm itself, and what was made of a bias."""
    for training, name in itertools.product((True, False), NAMES):
        found = []
        for compiled in (False, True):
            torch.manual_seed(0)
            model = Reads(norm).double().train(training)
            call = model
            if compiled:
                call = trainc.compile(model) if door == "compile" else torch.compile(model, backend="trainc")
            gradients = []
            for _ in range(2):
                model.zero_grad()
                loss = call(torch.linspace(-1, 1, 20, dtype=torch.float64).view(5, 4)).square().sum()
                change({**dict(model.named_parameters()), "scale": model.scale}[name])
                loss.backward()
                gradients.append([p.grad.clone() for p in model.parameters()])
            found.append(gradients)
        torch.testing.assert_close(found[1], found[0], msg=lambda m, name=name, training=training: f"{name}, {training}: {m}")


def test_a_weight_that_eager_keeps_in_two_ways_may_not_move(core):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.linear = linear(4, 4), linear(4, 4)

        def forward(self, x):
            return self.linear(self.first(x)).tanh().sum() + (self.linear.weight * self.linear.weight).sum()

    model = Twice()
    trainc.compile(model)
    for moves in (False, True):
        loss = model(torch.ones(2, 4))
        if moves:
            model.linear.weight.data = model.linear.weight.data * 2
            with pytest.raises(trainc.UserError, match="was given other memory"):
                loss.backward()
        else:
            loss.backward()


def test_a_fused_step_updates_a_weight_where_it_is(core):
    """It has other memory since the forward: autograd reads the old, the optimizer writes the new."""
    found = []
    for fused in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = descend(model)
        if fused:
            model, optimizer = trainc.compile(model, optimizer, fuse_step=True)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).square().sum()
            model[2].weight.data = model[2].weight.data * 3
            loss.backward()
            optimizer.step()
        found.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("door", ["compile", "backend"])
def test_statistics_move_unseen(core, door, grad):
    """Eager's kernel moves them without a version; the backward of a forward in eval mode has the new ones."""
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
        x, call = torch.randn(5, 3, dtype=torch.float64), model
        if compiled:
            call = trainc.compile(model) if door == "compile" else torch.compile(model, backend="trainc")
        results = []
        for first, second in ((False, True), (True, True), (True, False)):
            model.zero_grad()
            model.train(first)
            loss = call(x).square().sum()
            model.train(second)
            with torch.set_grad_enabled(grad):
                other = call(x + 1).square().sum()
            (loss + other).backward()
            results += [*[p.grad.clone() for p in model.parameters()], *[b.clone() for b in model.buffers()]]
            results.append([b._version for b in (model[1].running_mean, model[1].running_var)])
        found.append(results)
    torch.testing.assert_close(found[1], found[0])
