"""Rows of hidden states that padding fills are not computed, and nothing is another number for that."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trainc

BATCH, LENGTH, WORDS, HEADS, WIDTH, CLASSES = 6, 21, 61, 3, 24, 4
PAD = 1
DOORS = ["compile", "step"]
HIDES = torch.finfo(torch.float32).min


def of_numbers(q, k, v, shown, drop):
    bias = torch.where(shown[:, None, None, :], 0.0, torch.finfo(q.dtype).min).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(-1, 1, shown.shape[1], -1), dropout_p=drop)


def by_hand(q, k, v, shown, drop):
    bias = (1.0 - shown[:, None, None, :].to(q.dtype)) * HIDES
    weights = F.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + bias, dim=-1)
    return F.dropout(weights, drop) @ v


def filled(q, k, v, shown, drop):
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~shown[:, None, None, :], HIDES)
    return F.dropout(F.softmax(scores, dim=-1), drop) @ v


def square(q, k, v, shown, drop):
    """As Hugging Face's models have it: a bool for each query and key."""
    mask = shown[:, None, None, :].expand(-1, 1, q.shape[2], -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=drop)


SPELLINGS = {f.__name__: f for f in (square, of_numbers, by_hand, filled)}


class Layer(nn.Module):
    def __init__(self, attention, drop: float):
        super().__init__()
        self.inner, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 40), nn.Linear(40, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention, self.drop = attention, drop

    def forward(self, x, shown):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.inner(x).chunk(3, -1))
        attended = self.attention(q, k, v, shown, self.drop).transpose(1, 2).flatten(2)
        x = self.norms[0](x + F.dropout(self.out(attended), self.drop))
        return self.norms[1](x + F.dropout(self.down(F.gelu(self.up(x))), self.drop))


class Encoder(nn.Module):
    """Embedding -> layers -> the first token's classes -> loss."""

    def __init__(self, spelling: str = "square", drop: float = 0.1, pool=lambda x, shown: x[:, 0]):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(Layer(SPELLINGS[spelling], drop) for _ in range(2))
        self.head, self.pool = nn.Linear(WIDTH, CLASSES), pool

    def forward(self, words, shown, labels):
        x = self.embedding(words) + self.places.weight[: words.shape[1]]
        for layer in self.layers:
            x = layer(x, shown)
        return F.cross_entropy(self.head(self.pool(x, shown)), labels)


def right(generator, lengths):
    return torch.arange(LENGTH) < lengths


def left(generator, lengths):
    return torch.arange(LENGTH) >= LENGTH - lengths


def scattered(generator, lengths):
    return torch.rand(BATCH, LENGTH, generator=generator) < 0.4


def whole(generator, lengths):
    return torch.ones(BATCH, LENGTH, dtype=torch.bool)


def an_empty_sample(generator, lengths):
    shown = right(generator, lengths)
    shown[2] = False
    return shown


MASKS = [right, left, scattered, whole, an_empty_sample]


def batch(mask, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(2, WORDS, (BATCH, LENGTH), generator=generator)
    shown = mask(generator, torch.randint(1, LENGTH + 1, (BATCH, 1), generator=generator))
    return torch.where(shown, words, PAD), shown, torch.randint(0, CLASSES, (BATCH,), generator=generator)


class Run:
    """A model through a door (None: PyTorch); gives the loss and the gradients of a batch. Its optimizer leaves the parameters
    as they are, and its buffers are the gradients."""

    def __init__(self, door: str | None, bf16: bool = False, wide: bool = False, **kwargs):
        model = self.model = Encoder(**kwargs)
        if wide:
            model.double()
        optimizer = self.optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=1e-30)

        def step(words, shown, labels):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(words, shown, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        self.step = trainc.train_step(step) if door == "step" else step
        self.explained = self.step if door == "step" else model
        if door == "compile":
            trainc.compile(model)

    def __call__(self, mask, seed: int = 0) -> tuple[float, dict[str, torch.Tensor]]:
        state = self.optimizer.state
        for buffers in state.values():
            buffers["momentum_buffer"].zero_()
        torch.manual_seed(seed)
        loss = self.step(*batch(mask, seed)).item()
        return loss, {name: state[p]["momentum_buffer"].clone() for name, p in self.model.named_parameters()}

    def passing(self) -> int:
        """Kernels that pass over rows, of the half, forward or backward, that has fewer."""
        explanation = trainc.explain(self.explained)
        notes = [note for reports in explanation.reports for report in reports for note in report.get("notes", [])]
        counts = [int(m[1]) for note in notes if (m := re.match(r"(\d+) kernels pass over rows of padding", note))]
        return min(counts) if len(counts) > 1 else 0


@pytest.fixture(autouse=True)
def small_rows(monkeypatch):
    monkeypatch.setattr(trainc.config, "fallback", False)
    monkeypatch.setattr(trainc.config, "cache", False)
    monkeypatch.setattr(trainc.config, "skip_padding", True)
    monkeypatch.setattr(trainc.config, "skip_hidden_flops", 1)


def sums_over_rows(name: str) -> bool:
    """Whether a parameter's gradient is a product's sum over rows: in another order where rows are passed over."""
    return name.endswith("weight") and not any(part in name for part in ("norms", "embedding", "places", "head"))


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("door", "spelling"), zip(DOORS * 2, SPELLINGS, strict=True))
def test_on_and_off_agree_whatever_the_mask(door, spelling, monkeypatch):
    on = Run(door, spelling=spelling)
    monkeypatch.setattr(trainc.config, "skip_hidden", False)
    off = Run(door, spelling=spelling)
    threads = torch.get_num_threads()
    for seed, mask in enumerate(MASKS):
        loss_of_all, of_all = off(mask, seed)
        monkeypatch.setattr(trainc.config, "skip_hidden", True)
        try:
            torch.set_num_threads(1)
            loss, gradients = on(mask, seed)
            torch.set_num_threads(2)
            loss_of_two, of_two = on(mask, seed)
        finally:
            torch.set_num_threads(threads)
        monkeypatch.setattr(trainc.config, "skip_hidden", False)
        assert same(loss, loss_of_all) and same(loss, loss_of_two), mask.__name__
        for name, gradient in of_all.items():
            assert torch.equal(gradients[name], of_two[name]) or gradient.isnan().any(), (mask.__name__, name)
            if sums_over_rows(name):
                torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6, equal_nan=True, msg=name)
            else:
                assert torch.equal(gradients[name].nan_to_num(7), gradient.nan_to_num(7)), (mask.__name__, name)
    assert off.passing() == 0
    assert on.passing() >= 12
    assert len(trainc.explain(on.explained).compilations) <= 2  # a model, or a step; and an optimizer's


@pytest.mark.parametrize("bf16", [False, True])
def test_gradients_are_as_near_to_the_truth_as_of_all_rows(bf16, monkeypatch):
    ours, eager, wide = Run("step", bf16, drop=0.0), Run(None, bf16, drop=0.0), Run(None, wide=True, drop=0.0)
    monkeypatch.setattr(trainc.config, "skip_hidden", False)
    whole_batch = Run("step", bf16, drop=0.0)
    ratios = []
    for seed, mask in enumerate(MASKS[:4]):
        of_all = whole_batch(mask, seed)[1]
        monkeypatch.setattr(trainc.config, "skip_hidden", True)
        (value, gradients), (_, truth) = ours(mask, seed), wide(mask, seed)
        monkeypatch.setattr(trainc.config, "skip_hidden", False)
        assert abs(value - eager(mask, seed)[0]) <= (2e-2 if bf16 else 2e-6) * abs(value)
        for name, exact in truth.items():
            error, of_others = ((g.double() - exact).norm().item() for g in (gradients[name], of_all[name]))
            if of_others > 0 and error > 0:
                ratios.append(error / of_others)
    assert math.exp(sum(map(math.log, ratios)) / len(ratios)) <= 1.02
    assert max(ratios) <= 2
    assert ours.passing() >= 12


@pytest.mark.parametrize("door", DOORS)
def test_numbers_of_padding_do_not_matter(door):
    zero, none = Run(door), Run(door)
    with torch.no_grad():
        zero.model.embedding.weight[PAD] = 0.0
        none.model.embedding.weight[PAD] = float("nan")
    for seed, mask in enumerate([right, right]):
        (loss, gradients), (same_loss, others) = zero(mask, seed), none(mask, seed)
        assert loss == same_loss
        for name, gradient in gradients.items():
            assert torch.equal(gradient, others[name]), name


# Each row has a part in these.
WHOLE = {
    "mean": lambda x, shown: x.mean(1),
    "last": lambda x, shown: x[:, -1],
    "most": lambda x, shown: x.amax(1),
    "across": lambda x, shown: x.flip(1)[:, 0],
}


@pytest.mark.parametrize("pool", WHOLE)
def test_rows_that_are_read_are_computed(pool, monkeypatch):
    ours, eager = Run("compile", pool=WHOLE[pool]), Run(None, pool=WHOLE[pool])
    for seed, mask in enumerate(MASKS[:3]):
        (value, gradients), (expected, plain) = ours(mask, seed), eager(mask, seed)
        assert abs(value - expected) <= 2e-6 * abs(expected)
        for name, gradient in plain.items():
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-6, msg=name)


class TimeFirst(nn.Module):
    """PyTorch's own attention computes rows in the order of time, batch, whatever the order of what it is given."""

    def __init__(self, batch_first: bool, residual: bool):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.inner, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.layers = nn.ModuleList(nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first) for _ in range(2))
        self.batch_first, self.residual = batch_first, residual

    def forward(self, words, shown, labels):
        x = self.inner(self.embedding(words))
        x = x if self.batch_first else x.transpose(0, 1)
        for layer in self.layers:
            y = layer(x, x, x, key_padding_mask=~shown, need_weights=False)[0]
            x = x + y if self.residual else y
        return F.cross_entropy(self.head(x[:, 0] if self.batch_first else x[0]), labels)


@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "time first"])
def test_rows_that_are_computed_in_another_order_than_the_mask_has_them(batch_first, residual):
    """A product that is written in the mask's order is computed in its own, and that is what rows are passed over by."""
    ours, eager = TimeFirst(batch_first, residual), TimeFirst(batch_first, residual)
    trainc.compile(ours)
    for mask in (right, left, scattered):
        for model in (ours, eager):
            model.zero_grad()
            model(*batch(mask)).backward()
        for (name, p), (_, q) in zip(ours.named_parameters(), eager.named_parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-7, msg=lambda m, name=name: f"{name}: {m}")


def two_masks(q, k, v, shown, drop):
    """Neighbours of a graph beside the padding: some tokens see none but hidden ones, each as little as the shown ones."""
    near = torch.arange(LENGTH)[:, None] // 4 == torch.arange(LENGTH) // 4
    apart = torch.where(near.roll(8, 0), 0.0, HIDES)
    scores = q @ k.mT / math.sqrt(q.shape[-1]) + (1.0 - shown[:, None, None, :].to(q.dtype)) * HIDES + apart
    return F.softmax(scores, dim=-1) @ v


def both_in_one(q, k, v, shown, drop):
    """And the other layer has the first of them alone."""
    near = torch.arange(LENGTH)[:, None] // 4 == torch.arange(LENGTH) // 4
    padding = (1.0 - shown[:, None, None, :].to(q.dtype)) * HIDES
    scores = q @ k.mT / math.sqrt(q.shape[-1]) + (padding + torch.where(near.roll(8, 0), 0.0, HIDES))
    return F.softmax(scores, dim=-1) @ v


def filled_after(q, k, v, shown, drop):
    """A selection of what another mask was added to; the other layer's scores are selected alone."""
    near = torch.arange(LENGTH)[:, None] // 4 == torch.arange(LENGTH) // 4
    scores = q @ k.mT / math.sqrt(q.shape[-1]) + torch.where(near.roll(8, 0), 0.0, HIDES)
    return F.softmax(scores.masked_fill(~shown[:, None, None, :], HIDES), dim=-1) @ v


@pytest.mark.parametrize("kinds", [(two_masks, two_masks), (both_in_one, by_hand), (filled, filled_after)])
def test_a_second_mask_may_hide_all_that_padding_does_not(kinds):
    ours, eager = Run("step", drop=0.0), Run(None, drop=0.0)
    for run in (ours, eager):
        for layer, attention in zip(run.model.layers, kinds, strict=True):
            layer.attention = attention
    for seed in range(3):
        (value, gradients), (expected, plain) = ours(right, seed), eager(right, seed)
        assert abs(value - expected) <= 2e-6 * abs(expected)
        for name, gradient in plain.items():
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-6, msg=name)


# What is a number where its operand is, and none where that became 0: of keys and values, which attention reads in hidden
# rows too.
ABOVE_ZERO = {
    "sqrt": (3, lambda t: t * (t.detach() - 1).sqrt()),
    "log1p": (4, lambda t: t * (t.detach() - 2).log1p()),
    "scaled": (101, lambda t: ((t - 100) * -2).exp()),
    "expm1": (101, lambda t: (100 - t).expm1()),
}


@pytest.mark.parametrize("kind", ABOVE_ZERO)
def test_no_row_of_zeros_where_these_are_no_numbers(kind):
    far, function = ABOVE_ZERO[kind]
    ours, eager = (Run(door, drop=0.0, spelling="by_hand") for door in ("step", None))
    for run in (ours, eager):
        layer = run.model.layers[0]
        layer.attention = lambda q, k, v, shown, drop: by_hand(q, function(k), function(v), shown, drop)
        with torch.no_grad():
            layer.inner.weight[WIDTH:] *= 0.1
            layer.inner.bias[WIDTH:] = far
    (value, gradients), (expected, plain) = ours(right), eager(right)
    assert abs(value - expected) <= 2e-6 * abs(expected)
    for name, gradient in plain.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-6, msg=name)


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Each thread has memory of its own in a plan, and the budget is a tight one.
def test_what_a_budget_computes_again_is_what_the_maximum_was_taken_of(monkeypatch, one_thread):
    """Were rows of queries filled with zeros before the scores' maximum, and computed again as their bias, exp would overflow."""
    found = {}
    for skipped in (True, False):
        monkeypatch.setattr(trainc.config, "skip_padding", skipped)
        model = Encoder("by_hand", drop=0.0)
        with torch.no_grad():
            for layer in model.layers:
                layer.inner.bias[: 2 * WIDTH] *= 3000
        trainc.compile(model, memory="320KB")
        for seed in range(2):
            model(*batch(right, seed)).backward()
        found[skipped] = {name: p.grad for name, p in model.named_parameters()}
    for name, gradient in found[False].items():
        torch.testing.assert_close(found[True][name], gradient, rtol=1e-3, atol=1e-6, msg=name)


def test_lengths_of_a_batch_share_a_trace():
    run, eager = Run("compile", drop=0.0), Run(None, drop=0.0)
    for seed in range(4):
        value, expected = run(right, seed)[0], eager(right, seed)[0]
        assert abs(value - expected) <= 2e-6 * abs(expected)
    assert len(trainc.explain(run.explained).compilations) == 1
