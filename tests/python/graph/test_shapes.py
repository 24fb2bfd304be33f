"""New sizes: the second shape is traced with symbols for what changed, and further ones are not traced at all."""

import copy
import sys
import types
import warnings

import models
import pytest
import torch
from conftest import assert_same, gradients
from modules import Branches, Constant
from torch import nn

import trainc
from trainc.base import messages, records
from trainc.torch.doors import backend
from trainc.torch.graph import sizes


def calls(model, batches, loss):
    """What each batch gives: its loss and gradients."""
    found = []
    for batch in batches:
        torch.manual_seed(3)
        value = loss(model(**batch))
        value.backward()
        found.append((value.detach().clone(), gradients(model)))
        model.zero_grad()
    return found


def tokens(batch, length):
    ids = torch.randint(4, 500, (batch, length), generator=torch.Generator().manual_seed(batch * 1000 + length))
    return {"input_ids": ids, "labels": ids.clone()}


SHAPES = [(4, 32), (4, 24), (3, 40), (2, 9), (4, 32), (2, 2)]
FEW = [(2, 13), (3, 11), (2, 30)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_lengths_and_a_smaller_batch_are_two_traces(engine, strict, name):
    case = models.build(name)
    plain, ours = case.model, trainc.compile(copy.deepcopy(case.model))
    batches = [tokens(*shape) for shape in SHAPES]
    wanted = calls(plain, batches, case.loss)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", messages.RecompileWarning)
        got = calls(ours, batches, case.loss)
    for mine, theirs in zip(got, wanted, strict=True):
        assert_same(mine[0], theirs[0])
        assert_same(mine[1], theirs[1], 1e-4)
    assert [r.trace for r in records.of(ours)] == ["static", "symbolic", "sizes", "sizes", "sizes"]
    assert all(r.engine == engine and r.route == "compiled" for r in records.of(ours))
    told = [str(w.message) for w in said if issubclass(w.category, messages.RecompileWarning)]
    assert len(told) == 1 and "dimension 1 of `input_ids` changed from 32 to 24" in told[0]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_sizes_give_the_bits_of_a_trace_of_their_own(engine, strict, name):
    case = models.build(name)
    ours = trainc.compile(copy.deepcopy(case.model))
    calls(ours, [tokens(4, 32)], case.loss)
    for shape in FEW:
        alone = trainc.compile(copy.deepcopy(case.model))
        (wanted,), (got,) = calls(alone, [tokens(*shape)], case.loss), calls(ours, [tokens(*shape)], case.loss)
        assert_same(got, {}, 0) if not wanted[1] else None
        assert torch.equal(got[0], wanted[0])
        assert all(torch.equal(got[1][key], wanted[1][key]) for key in wanted[1] if wanted[1][key] is not None)
    assert [r.trace for r in records.of(ours)] == ["static", "symbolic", "sizes", "sizes"]


class Windows(nn.Module):
    """Convolution, pooling, batch norm, a mean and a reshape: sizes of every kind."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head, self.drop = nn.Linear(8, 5), nn.Dropout(0.3)

    def forward(self, x):
        h = nn.functional.max_pool2d(self.norm(self.conv(x)).relu(), 2)
        h = h.flatten(2).transpose(1, 2) * (1 / (h.shape[0] + 1))
        return self.head(self.drop(h)).mean(1)


def test_batches_of_images(engine, strict):
    torch.manual_seed(0)
    plain = Windows()
    ours = trainc.compile(copy.deepcopy(plain))
    for batch in [{"x": torch.randn(n, 3, 8, 8)} for n in (6, 4, 5, 2, 1, 7)]:
        results = []
        for model in (plain, ours):
            torch.manual_seed(1)
            out = model(**batch)
            out.square().sum().backward()
            results.append((out.detach(), gradients(model)))
            model.zero_grad()
        assert_same(results[1][0], results[0][0])
        assert_same(results[1][1], results[0][1], 1e-4)
        assert_same(dict(ours.named_buffers()), dict(plain.named_buffers()))
    assert [r.trace for r in records.of(ours)] == ["static", "symbolic", "sizes", "sizes", "static", "sizes"]  # 1 is no symbol


def test_a_batch_of_nothing(engine, strict):
    plain = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU())
    ours = trainc.compile(copy.deepcopy(plain))
    for rows in (3, 5, 0, 1, 7, 0):
        results = []
        for model in (plain, ours):
            out = model(torch.ones(rows, 4))
            out.sum().backward()
            results.append((out.detach(), gradients(model)))
            model.zero_grad()
        assert_same(results[1][0], results[0][0])
        assert_same(results[1][1], results[0][1])
    assert [r.trace for r in records.of(ours)] == ["static", "symbolic", "static", "static", "sizes"]


def test_a_branch_on_a_size_is_a_guard(engine, strict):
    plain = Branches()
    ours = trainc.compile(copy.deepcopy(plain))
    for rows in (3, 5, 7, 12, 30, 9, 11, 4):
        x = torch.randn(rows, 4)
        assert_same(ours(x), plain(x))
    assert [r.trace for r in records.of(ours)] == ["static", "symbolic", "sizes", "symbolic", "sizes", "sizes", "sizes", "sizes"]


class SizeInResult(Branches):
    def forward(self, x):
        return {"rows": x.shape[0], "out": self.layer(x)}


@pytest.mark.parametrize("cls, why", [(Constant, "for a constant"), (SizeInResult, "the result holds a size as a number")])
def test_a_model_that_takes_sizes_for_constants_is_traced_for_each_and_says_so(engine, strict, cls, why):
    plain = cls()
    ours = trainc.compile(copy.deepcopy(plain))
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", messages.RecompileWarning)
            got, wanted = ours(x), plain(x)
        if isinstance(wanted, dict):
            assert got["rows"] == rows
            got, wanted = got["out"], wanted["out"]
        assert_same(got, wanted)
        if rows > 3:
            assert "every shape is traced on its own" in str(said[0].message) and why in str(said[0].message)
    assert [r.trace for r in records.of(ours)] == ["static"] * 3


def test_two_sizes_that_are_equal_by_chance_are_two_symbols(engine, strict):
    plain = nn.Sequential(nn.Linear(4, 4), nn.Softmax(1))
    ours = trainc.compile(copy.deepcopy(plain))
    for shape in ((2, 3, 4), (6, 6, 4), (6, 5, 4), (2, 6, 4)):
        x = torch.randn(shape)
        assert_same(ours(x), plain(x))
    assert [r.trace for r in records.of(ours)] == ["static", "symbolic", "sizes", "sizes"]


class Together(Branches):
    def forward(self, x, y):
        return self.layer(x) + y


def test_a_guard_that_is_violated_leads_to_eagers_error(engine):
    ours = trainc.compile(Together())
    for rows in (3, 5, 7):
        ours(torch.ones(rows, 4), torch.ones(rows, 4))
    with pytest.raises(RuntimeError, match="must match the size"):
        ours(torch.ones(8, 4), torch.ones(9, 4))
    assert_same(ours(torch.ones(8, 4), torch.ones(1, 4)), ours._call_impl(torch.ones(8, 4), torch.ones(1, 4)))


def test_strides_belong_to_the_trace(engine, strict):
    plain = Branches()
    ours = trainc.compile(copy.deepcopy(plain))
    inputs = [torch.randn(rows, 4) for rows in (3, 5, 7)] + [torch.randn(4, rows).t() for rows in (6, 8, 9)]
    for x in inputs:
        assert_same(ours(x), plain(x))


@pytest.mark.sampled(2)
def test_two_forwards_of_different_sizes_before_a_backward(engine, strict):
    case = models.build("gpt2")
    plain, ours = case.model, trainc.compile(copy.deepcopy(case.model))
    results = []
    for model in (plain, ours):
        for shape in SHAPES[:3]:
            model(**tokens(*shape)).loss.backward()
        model.zero_grad()
        torch.manual_seed(5)
        losses = [model(**tokens(*shape)).loss for shape in SHAPES[:5]]
        sum(losses[1:]).backward(retain_graph=True)
        losses[0].backward()
        results.append(gradients(model))
    assert_same(results[1], results[0], 1e-4)


def test_the_table_of_answers_says_what_torch_says():
    """`answered_once` against torch's own arithmetic: the same graph, the same guards."""
    batch = torch.randn(6, 3, 8, 10)

    def forward(x):
        h = nn.functional.pad(x, (1, 2)).relu().flatten(2).transpose(1, 2).softmax(-1).contiguous()
        return (h @ h.mT).sum(0) * (1 / h.shape[0]) + h.shape[1] // 3

    def graph():
        symbols = sizes.Symbols([], [batch], [{0, 2, 3}])
        found = torch.fx.experimental.proxy_tensor.make_fx(forward)(*symbols.inputs)
        guards = {str(guard.expr) for guard in symbols._env.guards}
        values = [n.meta.get("val") for n in found.graph.nodes]
        return [(str(v.shape), str(v.stride())) for v in values if isinstance(v, torch.Tensor)], guards

    wanted = graph()
    with sizes.answered_once():
        got = graph()
    assert got == wanted


class Settling(Branches):
    def __init__(self):
        super().__init__()
        self.kind = None

    def forward(self, x):
        if self.kind is None:
            self.kind = "rows"
        return self.layer(x)


class Lazy(Settling):
    """What the first call computes is not what later ones do."""

    def forward(self, x):
        first, self.kind = self.kind is None, "rows"
        return self.layer(x) * (3 if first else 2)


@pytest.mark.parametrize("cls, in_the_first", [(Settling, True), (Lazy, False)])
def test_defaults_that_the_first_call_sets_are_traced_in_it(engine, strict, cls, in_the_first):
    plain = cls()
    ours = trainc.compile(copy.deepcopy(plain))
    x = torch.randn(3, 4)
    assert_same(ours(x), plain(x))
    assert ours.kind == "rows"
    (record,) = records.of(ours)
    assert (record.forward is not None) and record.recompiled == ""
    traced = trainc.torch.joint.compiler.compile_flat
    trainc.torch.joint.compiler.compile_flat = None  # nothing is left to do
    try:
        for _ in range(2):
            out = ours(x)
            assert_same(out, plain(x))
            out.sum().backward()
            plain(x).sum().backward()
            assert_same(gradients(ours), gradients(plain))
            ours.zero_grad(), plain.zero_grad()
    finally:
        trainc.torch.joint.compiler.compile_flat = traced
    assert len(records.of(ours)) == 1


class Failing(Settling):
    """Fails where it is traced again with what the first trace set."""

    error: BaseException

    def forward(self, x):
        if self.kind is not None:
            raise self.error
        return super().forward(x)


@pytest.mark.parametrize("error", [trainc.UserError("too much"), KeyboardInterrupt()], ids=["UserError", "Ctrl-C"])
def test_defaults_are_not_set_where_their_trace_fails(engine, strict, error):
    Failing.error = error
    ours = trainc.compile(Failing())
    with pytest.raises(type(error)):
        ours(torch.randn(3, 4))
    assert ours.kind is None


def test_kernels_are_shared_between_lengths(core, strict):
    """Of 12 lengths and a smaller batch, the first two are compiled; for others hardly a kernel is (docs/compiler.md)."""
    case = models.build("gpt2")
    ours = trainc.compile(case.model)
    lengths = [52, 60, 55, 61, 50, 63, 57, 53, 62, 51, 59, 54]
    calls(ours, [tokens(4, length) for length in lengths] + [tokens(3, 64)], case.loss)
    compiled = [sum(report["compile"]["compiled_kernels"] for report in r.reports()) for r in records.of(ours)]
    of = [sum(report["compile"]["distinct_kernels"] for report in r.reports()) for r in records.of(ours)]
    assert compiled[:2] == of[:2]
    assert sum(compiled[2:]) < 0.1 * sum(of[2:]), compiled


@pytest.mark.sampled(2)
def test_lengths_through_torch_compile_are_two_traces(engine, strict):
    """Dynamo gives symbols at the second shape: from there on one trace of ours serves all sizes of its graph."""
    case = models.build("gpt2")
    plain, ours = case.model, copy.deepcopy(case.model)
    before = len(backend.compilations)
    compiled = torch.compile(ours, backend="trainc")
    results = []
    for model, call in ((plain, plain), (ours, compiled)):
        found = []
        for shape in SHAPES:
            torch.manual_seed(3)
            loss = call(**tokens(*shape)).loss
            loss.backward()
            found.append((loss.detach().clone(), gradients(model)))
            model.zero_grad()
        results.append(found)
    for theirs, mine in zip(*results, strict=True):
        assert_same(mine[0], theirs[0])
        assert_same(mine[1], theirs[1], 1e-4)
    told = [record.trace for record in backend.compilations[before:]]
    # Dynamo makes two graphs of the model, and gives each three times: static, with a symbolic length, and with a symbolic batch
    assert told.count("symbolic") <= 4 and told.count("static") == 2 and told.count("sizes") >= 4, told
    assert all(record.engine == engine for record in backend.compilations[before:])


class Scaled(Branches):
    def forward(self, x, y):
        h = self.layer(x) * (x.shape[0] // 2 + y.shape[1])
        return torch.cat([h, h.flip(0)[: x.shape[0] - 1]]).reshape(-1, 2).mean() + y.sum()


def test_numbers_among_dynamos_inputs(engine, strict):
    plain = Scaled()
    ours = copy.deepcopy(plain)
    before = len(backend.compilations)
    compiled = torch.compile(ours, backend="trainc")
    for rows, columns in [(3, 4), (5, 7), (6, 9), (9, 5), (8, 8), (7, 3)]:
        x, y = torch.randn(rows, 4), torch.randn(2, columns)
        out, wanted = compiled(x, y), plain(x, y)
        assert_same(out, wanted)
        out.backward(), wanted.backward()
        assert_same(gradients(ours), gradients(plain))
    assert "sizes" in [record.trace for record in backend.compilations[before:]]


def test_side_effects_at_further_sizes(strict):
    """A trace with symbols that was thrown away, for the program does more than it shows, serves no further sizes."""
    module = types.ModuleType("side_effects_at_further_sizes")
    sys.modules[module.__name__] = module
    exec(
        "import torch\nclass K: calls = 0\nclass Net(torch.nn.Linear):\n  def forward(self, x):\n    K.calls += 1\n"
        "    return super().forward(x)\n",
        module.__dict__,
    )
    net = module.Net(4, 4)
    trainc.compile(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, rows in enumerate((2, 3, 4, 5, 6, 5)):
            net(torch.randn(rows, 4))
            assert module.K.calls == i + 1
