"""What the user sees when something is wrong: his own errors as they are, ours once and with a way out."""

import copy
import signal
import warnings

import pytest
import torch
from conftest import assert_same, gradients
from modules import ValueBranches
from torch import nn
from torch.nn import functional as F

import trainc
from trainc.base import config, messages, records
from trainc.base.errors import InternalError
from trainc.torch.run import interpreter, runner


class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        if x.shape[0] == 3:
            raise KeyError("the user's own")
        return self.layer(x)


def test_an_error_in_forward_is_the_users(engine, recwarn):
    model = trainc.compile(Raises())
    for _ in range(2):
        with pytest.raises(KeyError, match="the user's own"):
            model(torch.randn(3, 4))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.randn(2, 5))
    assert not [w for w in recwarn if issubclass(w.category, messages.TraincWarning)]
    model(torch.randn(2, 4)).sum().backward()
    assert records.of(model)[0].route == "compiled"


def test_a_data_dependent_branch(engine):
    plain = ValueBranches()
    ours = trainc.compile(copy.deepcopy(plain))
    with pytest.warns(messages.TraincWarning, match="Branches goes through torch.compile's tracer"):
        ours(torch.randn(3, 4))
    for sign in (1, -1):
        x = sign * torch.randn(3, 4)
        assert_same(ours(x), plain(x))
        ours(x).sum().backward(), plain(x).sum().backward()
    assert_same(gradients(ours), gradients(plain))


class Unsupported(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.linalg.matrix_exp(self.layer(x))


def test_an_operation_that_is_not_compiled(engine, strict):
    plain = Unsupported()
    ours = trainc.compile(copy.deepcopy(plain))
    x = torch.randn(4, 4)
    for model in (plain, ours):
        model(x).sum().backward()
    assert_same(gradients(ours), gradients(plain))
    assert any("matrix_exp" in name for name, _ in records.of(ours)[0].externs())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float16])
def test_a_dtype_that_is_not_compiled(engine, dtype, recwarn):
    plain = nn.Linear(4, 4).to(dtype)
    ours = trainc.compile(copy.deepcopy(plain))
    x = torch.randn(3, 4).to(dtype)
    for model in (plain, ours):
        model(x).abs().float().sum().backward()
    assert_same(gradients(ours), gradients(plain), 1e-2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("model",), "got a str"),
        ((nn.Linear,), r"the class Linear: call it first"),
        ((nn.Linear(1, 1), "adam"), "second argument, got a str"),
        ((nn.Linear(1, 1), torch.optim.AdamW), "got the class AdamW: give it the optimizer"),
        ((lambda x: x,), "got a function: trainc.train_step takes the body of a loop"),
        ((nn.Linear(1, 1), None, {"tune": "slow"}), "tune='slow' is not known"),
        ((nn.Linear(1, 1), None, {"memory": "much"}), "is no size"),
        ((nn.Linear(1, 1), None, {"fuse_step": 3}), "fuse_step=3 is neither"),
    ],
)
def test_wrong_arguments(arguments, words):
    *given, keywords = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    with pytest.raises(trainc.UserError, match=words) as caught:
        trainc.compile(*given, **keywords)
    assert isinstance(caught.value, ValueError)


def test_an_unwritable_cache_directory(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRAINC_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(config, "cache", True)
    with pytest.warns(messages.TraincWarning, match="the cache .*: .*; nothing is cached.*Name a directory"):
        model = trainc.compile(nn.Linear(2, 2))
    trainc.compile(nn.Linear(2, 2))
    model(torch.randn(1, 2)).sum().backward()


class Failing(interpreter.Interpreter):
    name = "failing"

    def inference(self, *_):
        raise InternalError("after sink_casts: %17 is f32[8,64], not f32[64,8] (model.py:57)")

    def joint(self, *_):
        raise InternalError("after sink_casts: %17 is f32[8,64], not f32[64,8] (model.py:57)")


def test_an_internal_error_falls_back_with_one_warning(monkeypatch):
    monkeypatch.setitem(runner.RUNNERS, "failing", Failing)
    monkeypatch.setattr(config, "engine", "failing")
    plain = nn.Linear(4, 4)
    ours = trainc.compile(copy.deepcopy(plain))
    x = torch.randn(3, 4)
    with pytest.warns(messages.TraincWarning) as caught:
        ours(x).square().sum().backward()
        ours(x)
    caught = [w for w in caught if w.category is messages.TraincWarning]
    assert len(caught) == 1
    assert "Linear runs in PyTorch; internal error: after sink_casts" in str(caught[0].message)
    assert "model.py:57" in str(caught[0].message)
    plain(x).square().sum().backward()
    assert_same(gradients(ours), gradients(plain))
    monkeypatch.setattr(config, "fallback", False)
    with pytest.raises(InternalError):
        ours(torch.randn(5, 4))


class Interrupted(interpreter.Interpreter):
    name = "interrupted"

    def joint(self, *_):
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def interruptible():
    """Python's own handler, also where the tests run in a background job, which ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_compiling_leaves_all_usable(monkeypatch):
    monkeypatch.setitem(runner.RUNNERS, "interrupted", Interrupted)
    monkeypatch.setattr(config, "engine", "interrupted")
    plain = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    ours = copy.deepcopy(plain)
    ours, optimizer = trainc.compile(ours, torch.optim.SGD(ours.parameters(), lr=0.1))
    before = {key: value.clone() for key, value in ours.state_dict().items()}
    with pytest.raises(KeyboardInterrupt):
        ours(torch.randn(3, 4))
    assert_same(ours.state_dict(), before, 0)
    assert all(type(p) is nn.Parameter for p in ours.parameters())
    monkeypatch.setattr(config, "engine", "interpreter")
    x = torch.randn(3, 4)
    torch.manual_seed(3), plain(x).sum().backward()
    torch.manual_seed(3), ours(x).sum().backward()
    assert_same(gradients(ours), gradients(plain))
    optimizer.step()


@pytest.mark.skipif(not hasattr(torch.ops.higher_order, "print"), reason="this PyTorch has no such operation")
def test_an_operation_with_effects_is_named_and_left_to_pytorch():
    class Inverse(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(3) * 2)

        def forward(self, x):
            torch.ops.higher_order.print("x")
            return torch.linalg.inv(self.weight * x)

    plain = Inverse()
    ours = trainc.compile(copy.deepcopy(plain))
    with pytest.warns(messages.TraincWarning, match=r"test_errors.py:\d+: print, which has effects"):
        ours(torch.tensor(1.5)).sum().backward()
    plain(torch.tensor(1.5)).sum().backward()
    assert_same(gradients(ours), gradients(plain))
    with pytest.raises(torch.linalg.LinAlgError):
        ours(torch.tensor(0.0))


class Prints(nn.Module):
    def forward(self, x):
        x.tolist()
        return x * 2


@pytest.mark.parametrize("what", ["not captured", "compiled again"])
def test_what_is_said_is_said_of_the_users_own_line(core, what):
    model = trainc.compile(Prints() if what == "not captured" else nn.Linear(4, 4))
    with pytest.warns(Warning, match="trainc") as caught:
        for rows in (3, 5):
            model(torch.ones(rows, 4))
    assert all(w.filename == __file__ for w in caught if str(w.message).startswith("trainc"))


# What eager refuses for the dtypes of two operands (the first f32, the second f64), and does not look at while it is traced
MIXED = {
    "linear": lambda x, y: F.linear(x, y),
    "matmul": lambda x, y: x @ y,
    "bmm": lambda x, y: x[None] @ y[None],
    "mv": lambda x, y: x @ y[0],
    "layer norm": lambda x, y: F.layer_norm(x, (4,), y[0]),
    "batch norm": lambda x, y: F.batch_norm(x, None, None, y[0], y[1], True),
    "binary cross-entropy": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "index add": lambda x, y: x.index_add(0, torch.tensor([1]), y[:1]),
    "index put": lambda x, y: x.index_put((torch.tensor([1]),), y[0]),
    "cross": lambda x, y: torch.linalg.cross(x[:, :3], y[:, :3]),
    "cdist": lambda x, y: torch.cdist(x, y),
    "heaviside": lambda x, y: torch.heaviside(x, y),
}


class Mixes(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x, y):
        return self.function(self.layer(x), y)


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("door", ["compile", "backend", "step"])
def test_dtypes_that_eager_refuses(core, name, door):
    plain, given = Mixes(MIXED[name]), (torch.rand(4, 4), torch.rand(4, 4, dtype=torch.float64))
    with pytest.raises(RuntimeError) as eager:
        plain(*given)
    if door == "step":
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)

        @trainc.train_step
        def step(x, y):
            optimizer.zero_grad()
            plain(x, y).sum().backward()
            optimizer.step()

        with pytest.raises(RuntimeError) as found:
            step(*given)
        if name != "heaviside":  # a trace says first that it has no derivative
            assert str(found.value).splitlines()[0] == str(eager.value).splitlines()[0]
        return
    ours = trainc.compile(plain) if door == "compile" else torch.compile(plain, backend="trainc")
    with pytest.raises(RuntimeError) as found, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours(*given)
    if door == "compile":  # Dynamo's own tracer says it in its own words
        assert str(found.value).splitlines()[0] == str(eager.value).splitlines()[0]


class Norm(nn.Module):
    """A norm of bf16 whose weights are f32."""

    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, x):
        return F.layer_norm(self.layer(x).bfloat16(), (4,), self.weight).float()


def test_a_step_with_dtypes_that_eager_takes_is_compiled(core):
    plain = Norm()
    ours = copy.deepcopy(plain)
    x = torch.rand(3, 4)
    losses = {}
    for model in (plain, ours):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        step = trainc.train_step(step) if model is ours else step
        losses[model] = [step(x).item() for _ in range(3)]
    assert losses[ours] == pytest.approx(losses[plain], rel=1e-2)


IN_PLACE = [
    "y.mul_(0.5)", "y.add_(x)", "y.div_(2)", "y.exp_()", "y.copy_(x).sub_(1.5)", "(y > 1).mul_(2)", "y[0].lerp_(y[1], 0.5)",
    "y[:2].mul_(x[:2])",
]  # fmt: skip


@pytest.mark.parametrize("written", IN_PLACE)
def test_results_that_do_not_fit_where_they_are_written(core, written):
    plain, given = Mixes(eval(f"lambda x, y: ({written}, x * y)[1]")), (torch.rand(4, 4), torch.arange(16).reshape(4, 4))
    with pytest.raises(RuntimeError) as eager:
        plain(*given)
    with pytest.raises(RuntimeError) as found:
        trainc.compile(copy.deepcopy(plain))(*given)
    assert str(found.value) == str(eager.value)


def test_results_that_fit_where_they_are_written(core, strict):
    def fits(x, y):
        y = y.clone()
        y.mul_(3).add_(True).bitwise_or_(y > 2)
        y[0].copy_(x[0])
        (z := x.double()).mul_(x)
        y.masked_fill_(y > 5, 7).clamp_(1, 9).floor_divide_(2)
        return x * y, z

    plain, given = Mixes(fits), (torch.rand(4, 4), torch.arange(16).reshape(4, 4))
    ours = trainc.compile(copy.deepcopy(plain))
    assert_same(ours(*given), plain(*given))
    assert [record.route for record in records.of(ours)] == ["compiled"]


def test_dtypes_that_eager_takes_are_compiled(core, strict):
    def takes(x, y):
        half = F.layer_norm(x.bfloat16(), (4,), torch.ones(4))
        return x + y, torch.cat([x, y]), F.mse_loss(x, y), torch.where(x > 0, x, y), half

    plain, given = Mixes(takes), (torch.rand(4, 4), torch.rand(4, 4, dtype=torch.float64))
    ours = trainc.compile(copy.deepcopy(plain))
    assert_same(ours(*given), plain(*given))
    assert [record.route for record in records.of(ours)] == ["compiled"]
