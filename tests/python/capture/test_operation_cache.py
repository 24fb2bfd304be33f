"""A trace that takes the short way for operations that repeat gives the graph that a full trace gives, node for node."""

from __future__ import annotations

import contextlib

import models
import pytest
import torch
from torch import nn

import trainc
from trainc.base import config
from trainc.torch.capture import operation_cache
from trainc.torch.doors import step
from trainc.torch.joint import compiler as joint

F = nn.functional


def described(value):
    """What must be equal of anything in a graph."""
    if isinstance(value, torch.fx.Node):
        return "node", value.name
    if isinstance(value, torch.Tensor):
        kind = type(value).__name__, value.dtype, value.device, value.layout, value.requires_grad, value.is_conj(), value.is_neg()
        return *kind, tuple(value.shape), value.stride(), value.storage_offset()
    if isinstance(value, (list, tuple)):
        return [described(item) for item in value]
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    return type(value).__name__, repr(value)


def rows(graph: torch.fx.Graph) -> list[tuple]:
    """Each node: what it does, to what, what it gives, whose line it is, and which operation of the forward it belongs to."""
    numbers = [node.meta["seq_nr"] for node in graph.nodes if node.meta.get("seq_nr", -1) >= 0]
    first = min(numbers, default=0)
    found = []
    for node in graph.nodes:
        number = node.meta.get("seq_nr", -1)
        meta = {key: described(node.meta.get(key)) for key in ("val", "tensor_meta", "original_aten", "trainc_recompute")}
        row = node.op, node.name, str(node.target), described(node.args), described(node.kwargs), node.stack_trace
        found.append((*row, number if number < 0 else number - first, meta))
    return found


class Enough(BaseException):
    """The graph is there: nothing needs to be compiled or run."""


@pytest.fixture
def traced(monkeypatch):
    """Calls `run` without and with the short way; the graphs that were traced, as rows."""
    graphs = []

    def keep_joint(self, gm, *args, **kwargs):
        graphs.append(rows(gm.graph))
        raise Enough

    def keep_step(traced, *args, **kwargs):  # after the trace, which would put `graphs` back as the step's own doing
        graphs.append(rows(traced.graph.graph))
        raise Enough

    monkeypatch.setattr(joint.Compiler, "partition", keep_joint)
    monkeypatch.setattr(step, "CompiledStep", keep_step)

    def both(run):
        for in_full in (True, True, False):  # PyTorch's own cache of fake results forgets storage offsets: warm it first
            monkeypatch.setattr(config, "trace_in_full", in_full)
            with pytest.raises(Enough):
                run()
        return tuple(graphs[1:])

    return both


def assert_same_graphs(full, quick):
    for expected, found in zip(full, quick, strict=True):
        assert found == expected


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "bf16"), [*((name, False) for name in models.NAMES), ("gpt2", True), ("roberta", True), ("llama", True)]
)
def test_models_have_the_graph_of_a_full_trace(name, bf16, traced):
    def run():
        case = models.build(name)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            case.step_loss(0, trainc.compile(case.model))

    assert_same_graphs(*traced(run))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["gpt2", "roberta", "llama"])
def test_steps_have_the_graph_of_a_full_trace(name, traced):
    def run():
        case = models.build(name)
        case.model.config.problem_type = "single_label_classification"  # RoBERTa's first forward would set it
        optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-3)

        @trainc.train_step
        def train(batch):
            loss = case.loss(case.model(**batch))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(case.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        train(case.batches[0])

    assert_same_graphs(*traced(run))


class Block(nn.Module):
    """What makes tracing difficult: writes in place through views, numbers as tensors, results of other types, empty tensors."""

    def __init__(self, width: int = 12):
        super().__init__()
        self.linear, self.norm = nn.Linear(width, 2 * width), nn.BatchNorm1d(width)
        self.scale, self.drop = 0.5, nn.Dropout(0.2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        a, b = self.linear(x).chunk(2, dim=-1)
        rows = torch.empty(0, x.shape[1])
        x = torch.cat([rows, self.norm(x)]) * torch.tensor(self.scale)
        y = x.clone()
        y.view(-1)[::2].add_(1.0)  # seen through `y`
        y.t_().mul_(2).t_()
        y[:, 1:3] = 0.0
        largest, at = torch.topk(a, 3)
        mask = torch.zeros_like(b, dtype=torch.bool).scatter_(1, at, True)
        values, order = b.sort(dim=-1)
        c = torch.where(mask, values, b) + order.to(b.dtype).sum() + largest.sum(-1, keepdim=True)
        self.seen.add_(1)
        with torch.no_grad():
            limit = c.detach().abs().amax()
        return self.drop(torch.einsum("ij,kj->ik", y, c)) @ y / limit.clamp(min=1.0) + torch.complex(a, b).conj().abs()


class Blocks(nn.Module):
    def __init__(self, *blocks: nn.Module):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.sum()


def trace_of(*blocks):
    def run():
        torch.manual_seed(0)
        model = Blocks(*[block() for block in blocks])
        trainc.compile(model)(torch.randn(8, 12))

    return run


def test_a_hand_made_model_has_the_graph_of_a_full_trace(traced):
    full, quick = traced(trace_of(Block, Block, Block))
    assert_same_graphs(full, quick)


class Scaled(nn.Module):
    def __init__(self, factor, first=None):
        super().__init__()
        self.factor, self.linear = factor, first or nn.Linear(12, 12)

    def forward(self, x):
        return F.dropout(F.layer_norm(self.linear(x) * self.factor, (12,)), 0.1, self.training)


def nodes_of(graph, target):
    return [row for row in graph if row[2] == target]


@pytest.mark.parametrize("factors", [(0.5, 0.25), (1, True), (0.0, -0.0), (1, 1.0)], ids=str)
def test_a_block_with_another_attribute_keeps_its_own_number(factors, traced):
    full, quick = traced(trace_of(*[lambda factor=factor: Scaled(factor) for factor in factors]))
    assert_same_graphs(full, quick)
    own = [row[3][1] for row in nodes_of(quick, "aten.mul.Tensor")[:2]]
    assert own == [described(factor) for factor in factors]


@pytest.mark.parametrize("factors", [(2, 2.0), (True, 1, 1.0)], ids=str)
def test_a_numbers_type_decides_of_the_result(factors, traced):
    class Whole(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, x):
            return x + (x.long() * self.factor)

    full, quick = traced(trace_of(*[lambda factor=factor: Whole(factor) for factor in factors], lambda: Scaled(1.0)))
    assert_same_graphs(full, quick)


def test_a_counter_in_python_is_seen_at_each_block(traced):
    class Counting(nn.Module):
        calls = 0

        def forward(self, x):
            Counting.calls += 1
            return x * Counting.calls

    def run():
        Counting.calls = 0
        model = Blocks(nn.Linear(12, 12), Counting(), Counting(), Counting())
        trainc.compile(model)(torch.randn(8, 12))

    _, quick = traced(run)
    numbers = [row[3][1][1] for row in nodes_of(quick, "aten.mul.Tensor")[:3]]
    assert len(set(numbers)) == 3


def test_a_shared_weight_is_read_and_its_gradients_are_added(traced):
    def run():
        torch.manual_seed(0)
        first = nn.Linear(12, 12)
        trainc.compile(Blocks(Scaled(2.0, first), Scaled(2.0), Scaled(2.0, first)))(torch.randn(8, 12))

    assert_same_graphs(*traced(run))


@pytest.mark.parametrize("other", [nn.Linear(12, 12, bias=False), nn.Linear(12, 12).double().float().requires_grad_(False)])
def test_a_block_of_other_weights_is_traced_as_it_is(other, traced):
    assert_same_graphs(*traced(trace_of(lambda: Scaled(2.0), lambda: Scaled(2.0, other), lambda: Scaled(2.0))))


def test_checkpointed_blocks_stay_marked(traced):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Scaled(2.0)

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False)

    full, quick = traced(trace_of(lambda: Scaled(2.0), Checkpointed, lambda: Scaled(2.0), Checkpointed))
    assert_same_graphs(full, quick)
    marked = [row[7]["trainc_recompute"] == ("bool", "True") for row in nodes_of(quick, "aten.native_dropout.default")]
    assert marked == [False, True, False, True]


def test_most_operations_of_equal_blocks_are_known(monkeypatch):
    monkeypatch.setattr(config, "engine", "interpreter")
    found = []
    init = operation_cache.OperationCache.__init__
    monkeypatch.setattr(operation_cache.OperationCache, "__init__", lambda self: (init(self), found.append(self))[0])
    trace_of(*[lambda: Scaled(2.0)] * 10)()
    assert found[0].known > 5 * found[0].seen


def test_the_second_trace_of_a_first_call_knows_what_the_first_has_met(monkeypatch):
    class SetsADefault(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.kind = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3)]), None

        def forward(self, x):
            self.kind = "regression"
            return self.blocks(x).pow(2).mean()

    def losses(in_full):
        torch.manual_seed(0)
        model = SetsADefault()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        monkeypatch.setattr(config, "trace_in_full", in_full)
        compiled, found = trainc.compile(model), []
        for _ in range(3):
            loss = compiled(torch.linspace(-1, 1, 32).reshape(4, 8))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    watched, recognised = [], operation_cache.recognised

    @contextlib.contextmanager
    def watch(cache):
        before = cache.known, cache.seen
        with recognised(cache):
            yield
        watched.append((cache, cache.known - before[0], cache.seen - before[1]))

    monkeypatch.setattr(operation_cache, "recognised", watch)
    quick = losses(False)
    (first, known, seen), (second, known_again, seen_again) = watched
    assert first is second and seen > 0
    assert (known_again, seen_again) == (known + seen, 0)
    assert quick == losses(True)


@pytest.mark.sampled(2)
def test_losses_are_those_of_a_full_trace(engine, monkeypatch):
    def losses(in_full):
        monkeypatch.setattr(config, "trace_in_full", in_full)
        case = models.build("gpt2")
        model, optimizer = trainc.compile(case.model, torch.optim.AdamW(case.model.parameters(), lr=1e-3))
        return models.train(case, model, optimizer, 4)

    assert losses(False) == losses(True)


def test_the_collector_is_as_it_was():
    import gc

    for on in (True, False):
        (gc.enable if on else gc.disable)()
        try:
            with operation_cache.quick():
                assert not gc.isenabled()
            assert gc.isenabled() == on
        finally:
            gc.enable()
