"""Handles, gradients and autograd's own rules: what works with eager works, what raises raises."""

import contextlib
import copy
import weakref

import pytest
import torch
from conftest import assert_same, gradients
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import trainc
from trainc.base import messages, records
from trainc.torch.device import HOST
from trainc.torch.graph.captured import captured
from trainc.torch.joint import autograd
from trainc.torch.run.core import Core


def pair(*layers):
    plain = nn.Sequential(*layers) if layers else nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
    return plain, trainc.compile(copy.deepcopy(plain))


def same_gradients(plain, ours):
    assert_same(gradients(ours), gradients(plain))


def test_two_forwards_before_a_backward(engine, strict):
    plain, ours = pair()
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    for model in (plain, ours):
        first, second = model(x).sum(), model(y).square().sum()
        second.backward()
        first.backward()
    same_gradients(plain, ours)


def test_retain_graph_and_no_backward(engine, strict):
    plain, ours = pair()
    x = torch.randn(5, 4)
    for model in (plain, ours):
        for _ in range(2):
            model(x)  # a backward that never comes
            loss = model(x).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
    same_gradients(plain, ours)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_gradients_are_fresh_and_accumulate(engine, strict):
    _, ours = pair(nn.Linear(256, 256))  # large enough for the pool
    x = torch.randn(2, 256)
    ours(x).sum().backward()
    kept = ours[0].weight.grad
    before = kept.clone()
    ours[0].weight.grad = None
    ours(x).square().sum().backward()
    assert torch.equal(kept, before)  # a gradient that the user kept is never written again
    one = ours[0].weight.grad.clone()
    ours(x).square().sum().backward()
    assert_same(ours[0].weight.grad, 2 * one)
    ours.zero_grad()
    address = None
    for _ in range(3):  # and its memory is used again once nobody holds it
        kept = None
        ours(x).sum().backward()
        assert_same(ours[0].weight.grad, before)
        address, last = ours[0].weight.grad.data_ptr(), address
        ours.zero_grad()
    assert last == address or engine == "interpreter"


def test_weights_changed_between_forward_and_backward_raise(engine, strict):
    plain, ours = pair()
    for model in (plain, ours):
        loss = model(torch.randn(5, 4)).square().sum()
        with torch.no_grad():
            model[2].weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_data_writes_are_seen(engine, strict):
    plain, ours = pair()
    x = torch.randn(5, 4)
    for model in (plain, ours):
        model(x).sum().backward()
        model[0].weight.data.clamp_(-0.1, 0.1)
        model[2].weight.data = model[2].weight.data * 2
    assert_same(ours(x), plain(x))


def test_tangents_of_unused_outputs_are_not_made(engine, strict):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.a(x).sum(), self.b(x)

    plain = Two()
    ours = trainc.compile(copy.deepcopy(plain))
    x = torch.randn(3, 4)
    ours(x)[0].backward()
    plain(x)[0].backward()
    assert list(records.of(ours)[0].backward) == [(True, False)]
    assert_same(ours.a.weight.grad, plain.a.weight.grad)
    plain.zero_grad(), ours.zero_grad()
    for model in (plain, ours):
        loss, other = model(x)
        (loss + other.square().sum()).backward()
    same_gradients(plain, ours)
    assert len(records.of(ours)[0].backward) == 2


def test_gradients_of_inputs_hooks_on_tensors_and_expanded_tangents(engine, strict):
    plain, ours = pair()
    seen = []
    for model in (plain, ours):
        x = torch.linspace(0, 1, 20).reshape(5, 4).requires_grad_()
        h = x * 2
        h.register_hook(lambda grad: seen.append(grad.clone()))
        out = model(h)
        out.register_hook(lambda grad: grad * 3)
        out.sum().backward()
        seen.append(x.grad)
    assert_same(seen[2], seen[0])
    assert_same(seen[3], seen[1])
    same_gradients(plain, ours)


def test_frozen_and_tied_parameters(engine, strict):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head, self.mid = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False), nn.Linear(4, 4)
            self.head.weight = self.embed.weight
            self.mid.bias.requires_grad_(False)

        def forward(self, x):
            return self.head(self.mid(self.embed(x)))

    plain = Tied()
    ours = trainc.compile(copy.deepcopy(plain))
    x = torch.randint(0, 9, (3,))
    for model in (plain, ours):
        model(x).square().sum().backward()
    same_gradients(plain, ours)
    assert ours.mid.bias.grad is None
    for model in (plain, ours):  # unfrozen later: another signature, no error
        model.mid.bias.requires_grad_(True)
        model.zero_grad()
        model(x).square().sum().backward()
    same_gradients(plain, ours)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(engine, strict, reentrant, monkeypatch):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
            self.drop = nn.Dropout(0.5)

        def block(self, x):
            return self.drop(torch.tanh(self.one(x)))

        def forward(self, x):
            return self.two(checkpoint(self.block, x, use_reentrant=reentrant))

    plain = Checkpointed()
    ours = trainc.compile(copy.deepcopy(plain))
    marked = []
    from trainc.torch.graph.wire import RECOMPUTE
    from trainc.torch.joint import compiler as joint

    partition = joint.Compiler.partition

    def spy(self, gm, *args, **kwargs):
        marked.extend(str(node.target) for node in gm.graph.nodes if node.meta.get(RECOMPUTE))
        return partition(self, gm, *args, **kwargs)

    monkeypatch.setattr(joint.Compiler, "partition", spy)
    x = torch.randn(3, 4)
    for model in (plain, ours):
        torch.manual_seed(3)
        model(x.clone().requires_grad_()).square().sum().backward()
    same_gradients(plain, ours)
    assert "aten.tanh.default" in marked and marked.count("aten.addmm.default") == 1  # the block's, not the one after it


PACKED = {
    "fewer bits": (lambda t: t.bfloat16(), lambda t: t.float()),
    "twice": (lambda t: t * 2, lambda t: t),
    "on disk": (lambda t: t.tolist(), torch.tensor),
}


@pytest.mark.parametrize("door", ["compile", "backend"])
@pytest.mark.parametrize("packed", PACKED)
def test_what_the_program_packs_is_what_pytorch_saves(packed, door):
    plain = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    ours = copy.deepcopy(plain)
    compiled = trainc.compile(ours) if door == "compile" else torch.compile(ours, backend="trainc")
    x = torch.randn(3, 4)
    for hooked in (False, True, False):
        for model, call in ((plain, plain), (ours, compiled)):
            model.zero_grad()
            with torch.autograd.graph.saved_tensors_hooks(*PACKED[packed]) if hooked else contextlib.nullcontext():
                loss = call(x).square().sum()
            loss.backward()
        same_gradients(plain, ours)


def test_pytorchs_own_hooks_leave_a_call_compiled(strict):
    plain, ours = pair()
    x = torch.randn(3, 4, requires_grad=True)
    for model in (plain, ours):
        with torch.autograd.graph.save_on_cpu():
            loss = model(x).square().sum()
        loss.backward()
        checkpoint(model, x, use_reentrant=False).sum().backward()
    same_gradients(plain, ours)
    assert [r.route for r in records.of(ours)] == ["compiled"]


def test_a_step_refuses_hooks_around_it():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @trainc.train_step
    def step(x):
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    with (
        torch.autograd.graph.saved_tensors_hooks(*PACKED["twice"]),
        pytest.raises(trainc.UserError, match="saved_tensors_hooks"),
    ):
        step(torch.randn(3, 4))
    with forward_ad.dual_level(), pytest.raises(trainc.UserError, match="dual_level"):
        step(torch.randn(3, 4))


WRITES = {
    "leaf": lambda t: t.mul_(2), "view": lambda t: t[0].mul_(2), "detached": lambda t: t.detach().mul_(2),
    "data": lambda t: t.data.mul_(2), "without gradients": torch.no_grad()(lambda t: t.mul_(2)),
}  # fmt: skip


@pytest.mark.parametrize("what", ["weight", "argument"])
@pytest.mark.parametrize("how", WRITES)
def test_only_eager_decides_which_leaf_may_be_written(how, what):
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((3,), 0.5))

        def forward(self, x):
            WRITES[how](self.weight if what == "weight" else x)
            return x * self.weight

    def trained(model):
        found = []
        for _ in range(2):
            x = torch.ones(2, 3, requires_grad=True)
            try:
                model(x).sum().backward()
            except RuntimeError as error:
                found.append(str(error))
            found += [x.detach(), x.grad, model.weight.detach().clone(), gradients(model)]
        return found

    ours = trainc.compile(Writes())
    found, expected = trained(ours), trained(Writes())
    for got, wanted in zip(found, expected, strict=True):
        assert got == wanted if isinstance(wanted, str) else assert_same(got, wanted) is None
    assert [r.route for r in records.of(ours)] == ([] if how in ("leaf", "view") else ["compiled"])


@pytest.mark.parametrize("door", ["compile", "backend"])
@pytest.mark.parametrize("learns", [False, True])
def test_forward_mode_derivatives_go_through(learns, door):
    plain = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).requires_grad_(learns)
    ours = copy.deepcopy(plain)
    ours = trainc.compile(ours) if door == "compile" else torch.compile(ours, backend="trainc")
    x, tangent = torch.randn(2, 3, 4)
    for model in (ours, plain, ours):  # the first compiles, and the last finds what it has compiled
        model(x)
        with forward_ad.dual_level():
            found = forward_ad.unpack_dual(model(forward_ad.make_dual(x, tangent))).tangent
        assert_same(found.detach(), torch.func.jvp(plain, (x,), (tangent,))[1].detach())


def test_autocast_regions(engine, strict):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x):
            h = self.one(x)
            with torch.autocast("cpu", enabled=False):
                return self.two(h.float())

    plain = Mixed()
    ours = trainc.compile(copy.deepcopy(plain))
    x = torch.randn(8, 16)
    for enabled in (True, False):
        plain.zero_grad(), ours.zero_grad()
        outputs = []
        for model in (plain, ours):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                out = model(x)
            out.square().sum().backward()
            outputs.append(out)
        assert outputs[0].dtype == outputs[1].dtype
        assert_same(outputs[1], outputs[0], 1e-2 if enabled else 1e-5)
        assert_same(gradients(ours), gradients(plain), 1e-2 if enabled else 1e-5)
    assert len(records.of(ours)) == 2


@pytest.mark.sampled(4)
@pytest.mark.parametrize("door", ["compile", "backend"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(("batch_first", "bidirectional"), [(True, False), (False, True)])
@torch._dynamo.config.patch(allow_rnn=True)  # or Dynamo leaves these modules to eager
def test_dropout_between_recurrent_layers_has_eagers_masks(engine, strict, door, kind, batch_first, bidirectional):
    plain = kind(4, 6, num_layers=3, dropout=0.5, batch_first=batch_first, bidirectional=bidirectional)
    ours = copy.deepcopy(plain)
    call = torch.compile(ours, backend="trainc") if door == "backend" else trainc.compile(ours)
    x = torch.randn(2, 5, 4)
    outputs = []
    for forward in (plain, call):
        torch.manual_seed(3)
        for _ in range(2):  # the second call draws on
            out, _ = forward(x)
            out.square().sum().backward()
            outputs.append(out.detach())
    assert_same(outputs[2], outputs[0])
    assert_same(outputs[3], outputs[1])
    assert not torch.equal(outputs[0], outputs[1])
    assert_same(gradients(ours), gradients(plain))
    assert torch._C._get_mkldnn_enabled()


def test_a_plan_takes_its_inputs_in_any_layout(strict):
    given, y = torch.randn(3, 4), torch.randn(3, 4)
    traced = make_fx(lambda x, y: (x + 2 * y,), tracing_mode="fake")(given, y)
    plan = Core().inference(captured("inference", traced, "sum", HOST))
    for x in (given, given.t().contiguous().t(), given[:, :1].expand(3, 4), given):
        assert_same(plan([x, y])[0], x + 2 * y)
    with pytest.raises(RuntimeError, match="compiled for torch.float32"):
        plan([given.double(), y])


# ---- the node around both halves (trainc/torch/joint/autograd.py) ---------------------------------------------------


class Statistics(nn.Module):
    """Writes to a buffer, and returns what no gradient reaches."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3)

    def forward(self, x):
        y = self.norm(self.linear(x))
        return y, y.argmax(1)


class Alias(nn.Module):
    """Returns a view of what it was given."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x), x[:, 1:]


@pytest.mark.parametrize(("model", "ours"), [(Statistics, True), (Alias, False)])
def test_a_plain_trace_has_a_node_of_ours(engine, strict, monkeypatch, model, ours):
    taken = []
    monkeypatch.setattr(autograd, "is_plain", lambda *about, ask=autograd.is_plain: taken.append(ask(*about)) or taken[-1])
    plain = model()
    compiled = trainc.compile(copy.deepcopy(plain))
    for x in torch.randn(3, 5, 4):
        expected, actual = plain(x), compiled(x)
        assert_same(list(actual), list(expected))
        for outputs in (expected, actual):
            outputs[0].exp().sum().backward()
    assert taken == [ours]
    same_gradients(plain, compiled)
    assert_same(dict(compiled.named_buffers()), dict(plain.named_buffers()))
    assert [t.requires_grad for t in actual] == [t.requires_grad for t in expected]
    assert (actual[1]._base is x) == (expected[1]._base is x)


def test_a_buffer_that_forward_writes_has_a_new_version(engine, strict):
    class Counts(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            y = super().forward(x)
            self.seen.add_(y.detach().sum(0))
            return y

    _, ours = pair(Counts())
    x = torch.randn(5, 4)
    ours(x).sum().backward()
    before = ours[0].seen._version
    ours(x)
    assert ours[0].seen._version > before


def test_an_input_with_a_history_and_no_gradient(engine, strict):
    """Its history is not kept alive, nor walked."""
    embedding = nn.Embedding(7, 4)
    steps = torch.ones(5, requires_grad=True)

    class Rounded(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x, scale):
            return self.linear(x) * scale.detach()[:, None]

    ours, scale = trainc.compile(Rounded()), 2 * steps
    for _ in range(2):  # the second time, scale's history is freed if it was walked
        ours(embedding(torch.arange(5)), scale).sum().backward()
    assert steps.grad is None and embedding.weight.grad is not None


def test_whoever_keeps_the_loss_does_not_keep_its_inputs(engine, strict):
    _, ours = pair()
    x = torch.randn(5, 4, requires_grad=True) * 2
    loss, alive = ours(x).square().sum(), weakref.ref(x)
    loss.backward()
    del x
    assert alive() is None and loss.requires_grad


def test_a_backward_of_a_batch_of_gradients_is_refused(engine, strict):
    _, ours = pair()
    loss = ours(torch.randn(5, 4)).square().sum()
    with pytest.raises(trainc.UserError, match="gradients in a batch"):  # PyTorch does the call again, where it may
        torch.autograd.grad(loss, list(ours.parameters()), torch.ones(2), is_grads_batched=True)


def test_outputs_that_are_views_can_be_written(engine, strict):
    class Flat(nn.Linear):
        def forward(self, x):
            return super().forward(x).reshape(-1)

    plain = Flat(4, 3)
    ours = trainc.compile(copy.deepcopy(plain))
    x = torch.randn(5, 4)
    for model in (plain, ours):
        model(x).mul_(2).square().sum().backward()
    same_gradients(plain, ours)


class Copies(nn.Module):
    """Copies of what it is given and of what it holds, which are its users' to write; buffers that change places."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        for i, name in enumerate(("now", "before", "left", "right")):
            self.register_buffer(name, torch.full((3,), float(i)))

    def forward(self, x):
        was = self.now.clone()
        self.before.copy_(self.now)
        self.now.add_(1)
        left = self.left.clone()
        self.left.copy_(self.right)
        self.right.copy_(left)
        return self.linear(x), x.clone(), was, self.linear.bias.clone()


@pytest.mark.parametrize("grad", [True, False])
def test_a_copy_of_an_input_is_a_copy(engine, strict, grad):
    plain = Copies()
    ours = trainc.compile(copy.deepcopy(plain))
    for _ in range(4):
        x = torch.randn(5, 4)
        found = []
        for model in (plain, ours):
            given = x.clone()
            with torch.set_grad_enabled(grad):
                y, copied, was, bias = model(given)
                copied.add_(5)
                was.mul_(3)
                bias.mul_(2)
                if grad:
                    (y.square().sum() + bias.sum()).backward()
            found.append([given, y.detach(), copied, was, bias.detach(), *model.buffers(), *model.parameters()])
        for got, wanted in zip(*reversed(found), strict=True):
            assert_same(got, wanted)
    same_gradients(plain, ours)


def test_the_backward_reads_a_buffer_as_it_was(engine, strict):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.register_buffer("count", torch.ones(3))

        def forward(self, x):
            self.count.add_(1)
            return (self.linear(x) / self.count).square()

    plain = Counting()
    ours = trainc.compile(copy.deepcopy(plain))
    for x in torch.randn(3, 5, 4):
        for model in (plain, ours):
            model(x).sum().backward()
    same_gradients(plain, ours)
    assert_same(ours.count, plain.count)


class RootOfZero(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return (self.weight * x).sqrt().sum() * 0.0


def test_anomaly_detection_names_pytorchs_operation():
    model = trainc.compile(RootOfZero())
    model(torch.ones(3)).backward()  # NaN, without a word, as in eager
    with torch.autograd.detect_anomaly(check_nan=True), pytest.warns(messages.TraincWarning, match="detects anomalies"):
        loss = model(torch.ones(3))
        with pytest.raises(RuntimeError, match="MulBackward0|SqrtBackward0"):
            loss.backward()


def test_anomaly_detection_wants_a_loop_of_its_own():
    model = RootOfZero()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        return loss

    compiled = trainc.train_step(step)
    with torch.autograd.detect_anomaly(), pytest.raises(trainc.UserError, match="call the function itself"):
        compiled(torch.ones(3))
    compiled(torch.ones(3))
