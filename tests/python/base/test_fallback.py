"""Whatever trainc cannot compile, PyTorch runs, with one warning and to the same result: also where that shows when a forward is
over already, in the backward, in the optimizer's step with it, in an output that is read later."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from conftest import DOORS, assert_same, gradients
from modules import Asserted, Attention
from torch import nn

import trainc
from trainc.base import config, messages, plans, records
from trainc.base.errors import InternalError, NotCompiled
from trainc.torch.doors import backend, call
from trainc.torch.doors.signatures import Signatures
from trainc.torch.doors.traces import Traces
from trainc.torch.doors.variants import Variants
from trainc.torch.optimizers import kernels, plan_updates
from trainc.torch.run import executable
from trainc.torch.run.deferred import DeferredTensor


class Net(nn.Module):
    """Dropout, running statistics, and an output that is large enough to be deferred."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 64, bias=False), nn.BatchNorm1d(64), nn.Linear(64, 4)

    def forward(self, x, y):
        h = F.dropout(F.relu(self.norm(self.up(x))), 0.3)
        return F.cross_entropy(self.down(h), y), h * 2


BROKEN = InternalError("groups depend on each other in a circle")


def broken(monkeypatch, *parts):
    """These parts of a joint graph cannot be compiled by the core."""

    def fail(*_):
        raise BROKEN

    for part in parts:
        monkeypatch.setattr(plans.JointPlans, part, fail)


def said(caught):
    return [str(w.message) for w in caught if issubclass(w.category, messages.TraincWarning)]


def batches(count=3, rows=16):
    return [(torch.randn(rows, 8), torch.randint(0, 4, (rows,))) for _ in range(count)]


def train(model, call, optimizer, given, backward=lambda loss, h: loss.backward()):
    torch.manual_seed(5)
    losses = []
    for x, y in given:
        optimizer.zero_grad()
        loss, h = call(x, y)
        backward(loss, h)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), torch.rand(3)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "backward",
    [
        lambda loss, h: loss.backward(),
        lambda loss, h: (loss + h.square().mean()).backward(),
        lambda loss, h: (loss.backward(retain_graph=True), h.sum().backward()),
        lambda loss, h: (h.detach().sum().item(), loss.backward()),
    ],
    ids=["loss", "both", "retained", "read before"],
)
def test_a_backward_that_is_not_compiled(core, monkeypatch, door, backward):
    broken(monkeypatch, "backward")
    plain = Net()
    ours, given = copy.deepcopy(plain), batches()
    wanted = train(plain, plain, torch.optim.SGD(plain.parameters(), 0.1), given, backward)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = train(ours, DOORS[door](ours), torch.optim.SGD(ours.parameters(), 0.1), given, backward)
    assert len(said(caught)) == 1 and "runs in PyTorch; internal error: groups depend" in said(caught)[0]
    assert_same(got[0], wanted[0])
    assert torch.equal(got[1], wanted[1])  # the generator, too, is where eager leaves it
    assert_same(dict(ours.state_dict()), dict(plain.state_dict()), 1e-4)
    monkeypatch.setattr(config, "fallback", False)
    with pytest.raises(InternalError, match="groups depend"):
        backward(*DOORS[door](copy.deepcopy(plain))(*batches(1, rows=5)[0]))


def test_forwards_that_wait_for_a_backward_that_is_not_compiled(core, monkeypatch):
    broken(monkeypatch, "backward")
    plain = Net()
    ours, given = trainc.compile(copy.deepcopy(plain)), batches()
    for model in (plain, ours):
        torch.manual_seed(3)
        losses = [model(x, y)[0] for x, y in given]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for loss in (losses[1], losses[2], losses[0]):
                loss.backward()
        assert len(said(caught)) == (model is ours)
    assert_same(gradients(ours), gradients(plain))
    assert [record.engine for record in records.of(ours)] == ["interpreter"]


def test_what_was_written_since_is_not_computed_with(core, monkeypatch):
    broken(monkeypatch, "backward")
    model = trainc.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)))
    out = model(torch.randn(3, 4))
    with torch.no_grad():
        model[2].bias.add_(1)  # which the backward does not read: eager lets that pass
    with pytest.raises(InternalError, match="groups depend"):
        out.sum().backward()


def test_other_sizes_after_a_backward_that_is_not_compiled(core, monkeypatch):
    plain = Net()
    ours, given = copy.deepcopy(plain), [b for rows in (16, 24, 8, 16, 24, 12) for b in batches(1, rows)]
    wanted = train(plain, plain, torch.optim.SGD(plain.parameters(), 0.1), given)
    compiled, calls = plans.JointPlans.backward, []

    def backward(joint, *args):
        calls.append(joint)
        if len(calls) > 1:  # the second sizes'
            raise BROKEN
        return compiled(joint, *args)

    monkeypatch.setattr(plans.JointPlans, "backward", backward)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = train(ours, trainc.compile(ours), torch.optim.SGD(ours.parameters(), 0.1), given)
    assert len(said(caught)) == 1
    assert_same(got[0], wanted[0])
    assert_same(dict(ours.state_dict()), dict(plain.state_dict()), 1e-4)


@pytest.mark.parametrize("parts", [("deferred",), ("deferred", "backward")])
@pytest.mark.parametrize("when", ["before the backward", "in the next forward"])
def test_an_output_that_is_read_later_and_not_compiled(core, monkeypatch, parts, when):
    broken(monkeypatch, *parts)
    plain = Attention()
    ours, given = trainc.compile(copy.deepcopy(plain)), [torch.randn(2, 256, 64) for _ in range(3)]
    held = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x in given:
            for model in (plain, ours):
                model.zero_grad()
            (loss, key, _), (wanted_loss, wanted_key, _) = ours(x), plain(x)
            if not held:
                assert type(key) is DeferredTensor
            if when == "before the backward":
                assert_same(key + 0, wanted_key)
                loss.backward(), wanted_loss.backward()
                assert_same(gradients(ours), gradients(plain), 1e-4)
            held.append((key, wanted_key))
        for key, wanted_key in held:
            assert_same(key + 0, wanted_key)
    assert len(said(caught)) == 1


@pytest.mark.parametrize("parts", [("backward_step",), ("backward_step", "backward")])
def test_a_fused_step_that_is_not_compiled(core, monkeypatch, parts):
    broken(monkeypatch, *parts)
    plain = Net()
    ours, given = copy.deepcopy(plain), batches()
    wanted = train(plain, plain, torch.optim.AdamW(plain.parameters(), 0.1), given)
    ours, optimizer = trainc.compile(ours, torch.optim.AdamW(ours.parameters(), 0.1), fuse_step=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = train(ours, ours, optimizer, given)
    assert {text.split("; ")[0] for text in said(caught)} <= {
        "trainc: the backward together with the optimizer's step runs in PyTorch", "trainc: Net runs in PyTorch",
    } and len(said(caught)) == len(parts)  # fmt: skip
    assert_same(got[0], wanted[0])
    assert_same(dict(ours.state_dict()), dict(plain.state_dict()), 2e-3)


def test_an_error_while_a_fused_step_runs_is_not_run_again(core, monkeypatch):
    """Parameters may have been updated when it comes."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model, optimizer = trainc.compile(model, torch.optim.SGD(model.parameters(), 0.1), fuse_step=True)
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model(torch.randn(3, 4)).sum().backward()

    def fail(*_):
        raise MemoryError("while it runs")

    monkeypatch.setattr(executable.CoreExecutable, "__call__", fail)
    with pytest.raises(MemoryError, match="while it runs"):
        optimizer.step()


MOMENTUM = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}  # whose first step is another than those after it


def stepping(door):
    """A model, its optimizer, and a step of theirs through this door ("train_step", "fuse_step"; None: PyTorch's)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), **MOMENTUM)

    def step(x):
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    if door == "fuse_step":
        trainc.compile(model, optimizer, fuse_step=True)
    return model, optimizer, trainc.train_step(step) if door == "train_step" else step


def assert_goes_on_as_eager(model, optimizer, step, before=lambda optimizer: None):
    wanted, theirs, eager = stepping(None)
    before(theirs)
    for x in (torch.ones(3, 4), torch.full((3, 4), 0.5)):
        eager(x), step(x)
    assert_same(model.state_dict(), wanted.state_dict(), 1e-5)
    assert_same(optimizer.state_dict()["state"], theirs.state_dict()["state"], 1e-5)


@pytest.mark.parametrize(
    ("door", "part"), [("train_step", (executable.CoreExecutable, "__call__")), ("fuse_step", (plan_updates.PlanMemory, "check"))]
)
def test_a_first_step_that_fails_is_done_once_more(core, monkeypatch, door, part):
    """It leaves no state behind, by which the next were not a first one."""
    model, optimizer, step = stepping(door)

    def fail(*_):
        raise MemoryError("before it runs")

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(*part, fail)
        patch.setattr(config, "fallback", False)
        step(torch.ones(3, 4))
    assert not any(optimizer.state.values())
    optimizer.zero_grad()
    assert_goes_on_as_eager(model, optimizer, step)


@pytest.mark.parametrize("fault", ["check", None], ids=["of ours", "a state of another type"])
def test_a_first_step_that_cannot_be_fused_is_pytorchs_first_step(core, monkeypatch, fault):
    def in_double(optimizer):
        first = optimizer.param_groups[0]["params"][0]
        optimizer.state[first]["momentum_buffer"] = torch.zeros_like(first, dtype=torch.float64)

    def fail(*_):
        raise BROKEN

    model, optimizer, step = stepping("fuse_step")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if fault is None:
            in_double(optimizer)
            assert_goes_on_as_eager(model, optimizer, step, in_double)
        else:
            monkeypatch.setattr(plan_updates.PlanMemory, fault, fail)
            assert_goes_on_as_eager(model, optimizer, step)
    assert {text.split("; ")[0] for text in said(caught)} == (
        {"trainc: the backward together with the optimizer's step runs in PyTorch"} if fault else set()
    )


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        y = self.norm(self.layer(x))
        return y.sum() if y.mean() > 5 else y.square().sum()


class Placed(Branches):
    def forward(self, x):
        return self.norm(self.layer(x)) * x.data_ptr()


class Chosen(Branches):
    """As many rows as are above zero."""

    def forward(self, x):
        y = self.norm(self.layer(x))
        return self.layer(y[y[:, 0] > 0]).square().sum()


class Listed(Branches):
    """Its values as Python's numbers."""

    def forward(self, x):
        y = self.norm(self.layer(x))
        longest, *_ = (y[:, 0].detach() > 0).sum(0, keepdim=True).tolist()
        return self.layer(y[: longest + 1]).square().sum()


class Told(Branches):
    """A message that is written whether anybody reads it or not."""

    def forward(self, x):
        y = self.norm(self.layer(x))
        check(x.dim() == 2, f"{(y > 0).sum()} are above zero")
        return self.layer(y).square().sum()


def test_an_assert_on_a_tensor_raises_pythons_error(core):
    model = trainc.compile(Asserted())
    with pytest.warns(messages.TraincWarning, match="reads the value"):
        model(torch.randn(6, 4)).sum().backward()
    assert [record.route for record in records.of(model)] == ["split"]
    with pytest.raises(AssertionError, match="not finite"):
        model(torch.full((6, 4), float("nan")))


def check(condition, message):
    if not condition:
        raise ValueError(message)


@pytest.mark.parametrize("kind", [Branches, Chosen, Listed, Told])
def test_code_that_depends_on_values_is_compiled_around(core, monkeypatch, kind):
    monkeypatch.setattr(config, "fallback", False)
    plain = kind()
    ours, given = trainc.compile(copy.deepcopy(plain)), [torch.randn(6, 4) for _ in range(3)]
    backend.compilations.clear()
    with pytest.warns(messages.TraincWarning, match="reads the value|aten.nonzero.default gives|asks a tensor for"):
        ours(given[0]).backward()
    plain(given[0]).backward()
    for x in given:
        ours(x).backward(), plain(x).backward()
    assert_same(gradients(ours), gradients(plain), 1e-3)  # of what a normalisation leaves of a sum of squares: nearly nothing
    assert_same(dict(ours.state_dict()), dict(plain.state_dict()))
    assert [record.route for record in records.of(ours)] == ["split"]
    assert backend.compilations and all(record.engine == "core" for record in backend.compilations)
    assert "compiled in parts" in str(trainc.explain(ours))
    torch._dynamo.reset()
    broken(monkeypatch, "__init__")
    with pytest.raises(Exception, match="groups depend"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainc.compile(copy.deepcopy(plain))(given[0])


def test_without_a_fallback_nothing_has_changed(core, strict, monkeypatch):
    model = trainc.compile(Placed())
    with pytest.raises(NotCompiled, match="data_ptr"):
        model(torch.randn(3, 4))
    assert model.norm.num_batches_tracked == 0
    broken(monkeypatch, "__init__")
    plain = Net()
    ours = trainc.compile(plain)
    with pytest.raises(InternalError):
        ours(*batches(1)[0])
    assert plain.norm.num_batches_tracked == 0


def test_a_warning_that_is_an_error_comes_once(core):
    model = trainc.compile(Branches())
    with warnings.catch_warnings():
        warnings.simplefilter("error", messages.TraincWarning)
        with pytest.raises(messages.TraincWarning, match="goes through torch.compile's tracer"):
            model(torch.randn(3, 4))
        counted = int(model.norm.num_batches_tracked)
        for _ in range(2):
            model(torch.randn(3, 4)).backward()
    assert int(model.norm.num_batches_tracked) == counted + 2


# ---- before anything runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part", [(Signatures, "look_up"), (Variants, "find"), (Signatures, "tell"), (call, "describe_call")],
    ids=lambda part: part[1],
)  # fmt: skip
def test_a_fault_in_a_call_that_has_not_run(core, monkeypatch, part):
    """Whatever looks at a call before it runs may fail: over an object of the program's, say."""

    def fail(*_):
        raise BROKEN

    monkeypatch.setattr(*part, fail)
    plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    ours, x = trainc.compile(copy.deepcopy(plain)), torch.randn(3, 4)
    with monkeypatch.context() as patch, pytest.raises(InternalError, match="groups depend"):
        patch.setattr(config, "fallback", False)
        ours(x)
    assert_same(ours.state_dict(), plain.state_dict(), 0)
    ours = trainc.compile(copy.deepcopy(plain))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert_same(ours(x), plain(x), 0)
    assert said(caught) == ["trainc: Sequential runs in PyTorch; internal error: groups depend on each other in a circle"]
    assert_same(ours.state_dict(), plain.state_dict(), 0)
    assert "groups depend" in str(trainc.explain(ours))


@pytest.mark.parametrize("door", ["compile", "train_step"])
def test_a_trace_whose_guards_fail_serves_nothing(core, strict, monkeypatch, door):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    compiled = trainc.train_step(step) if door == "train_step" else trainc.compile(model)

    def fail(*_):
        raise BROKEN

    compiled(torch.randn(3, 4))
    with monkeypatch.context() as patch, pytest.raises(InternalError, match="groups depend"):
        patch.setattr(Traces, "guard", fail)
        compiled(torch.randn(5, 4))  # a trace that would serve all sizes
    compiled(torch.randn(6, 4))
    assert [record.trace for record in records.of(compiled)] == ["static", "symbolic"]


# ---- what AOTAutograd cannot trace -------------------------------------------------------------------------------------


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layer = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.embed(x)).square().sum()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("sizes", [(3, 3), (3, 5, 7, 4)])
def test_sparse_gradients(engine, door, sizes):
    plain = Sparse()
    ours = copy.deepcopy(plain)
    call = DOORS[door](ours)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in sizes:
            x = torch.randint(0, 9, (n,))
            for model, run in ((plain, plain), (ours, call)):
                model.zero_grad()
                run(x).backward()
            assert ours.embed.weight.grad.is_sparse
            assert_same(ours.embed.weight.grad.to_dense(), plain.embed.weight.grad.to_dense())
            assert_same(ours.layer.weight.grad, plain.layer.weight.grad)
    assert 1 <= len(said(caught)) <= 2
    records.of(ours) and trainc.explain(ours)


def test_sparse_gradients_without_a_fallback(engine, strict):
    with pytest.raises(NotCompiled, match=r"test_fallback\.py:\d+.*layout torch.sparse_coo"):
        trainc.compile(Sparse())(torch.tensor([1, 2])).backward()


# ---- memory that was freed ---------------------------------------------------------------------------------------------


def freed(tensor):
    tensor.untyped_storage().resize_(0)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("what", ["weight", "input", "buffer", "before the backward", "tangent"])
def test_freed_memory_is_pytorchs_error(core, door, what):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    call, x, tangent = DOORS[door](model), torch.randn(3, 4, requires_grad=True), torch.ones(3, 4)
    for _ in range(2):
        call(x).sum().backward()
    out = call(x)
    freed({"weight": model[0].weight, "input": x, "buffer": model[1].running_mean, "tangent": tangent}.get(what, model[0].weight))
    with pytest.raises(RuntimeError, match="storage") as caught:
        out.backward(tangent) if what in ("before the backward", "tangent") else call(x)
    assert not isinstance(caught.value, InternalError)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, lambda p, **k: torch.optim.SGD(p, momentum=0.9, **k)])
@pytest.mark.parametrize("what", ["parameter", "gradient", "state"])
def test_an_optimizer_with_freed_memory_moves_nothing(core, optimizer, what):
    model = nn.Linear(4, 4)
    model, optimizer = trainc.compile(model, optimizer(model.parameters(), lr=0.1))
    for _ in range(2):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    bias, state = model.bias.detach().clone(), optimizer.state[model.weight]
    counted = [float(each["step"]) for each in optimizer.state.values() if "step" in each]
    freed({"parameter": model.weight, "gradient": model.weight.grad}.get(what, next(t for t in state.values() if t.dim())))
    with pytest.raises(RuntimeError, match="storage"):
        optimizer.step()
    assert torch.equal(model.bias, bias)
    assert counted == [float(each["step"]) for each in optimizer.state.values() if "step" in each]


def test_an_optimizer_that_is_compiled_in_part_moves_nothing(core, strict, monkeypatch):
    """The second group's kernel is none of the first's."""
    model = nn.Linear(4, 4)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "amsgrad": True}]
    model, optimizer = trainc.compile(model, torch.optim.AdamW(groups, lr=0.1))
    model(torch.randn(3, 4)).sum().backward()
    compiled, before = kernels.CoreKernel.__init__, copy.deepcopy(model.state_dict())

    def fail_later(kernel, v, *args):
        if v.has("amsgrad"):
            raise BROKEN
        compiled(kernel, v, *args)

    monkeypatch.setattr(kernels.CoreKernel, "__init__", fail_later)
    with pytest.raises(InternalError, match="groups depend"):
        optimizer.step()
    assert_same(model.state_dict(), before, 0)
    assert not any(optimizer.state.values())
