"""Rows of a loss whose label is to be ignored are not computed, and nothing is another number for that."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trainc

BATCH, LENGTH, WORDS, WIDTH = 6, 23, 211, 24
DOORS = ["compile", "step"]
# Of the three products: five chunks of 28 rows, the last of 26, and parts of 16, 8 and 4.
HEAD = 3 * 2 * (BATCH * LENGTH + 16 + 8 + 4) * WIDTH * WORDS
SHARES = [1.0, 0.15, 0.4, 0.0]  # of the rows that have a label


def by_hand(logits, labels):
    """A mask that is multiplied in."""
    mask = (labels != -100).to(logits.dtype)
    losses = F.cross_entropy(logits, labels.clamp(min=0), reduction="none")
    return (losses * mask).sum() / mask.sum().clamp(min=1)


def weighted(logits, labels):
    return F.cross_entropy(logits, labels, weight=torch.linspace(0.5, 1.5, WORDS, dtype=logits.dtype))


LOSSES = {
    "mean": F.cross_entropy,
    "sum": lambda logits, labels: F.cross_entropy(logits, labels, reduction="sum") / 100,
    "none": lambda logits, labels: F.cross_entropy(logits, labels, reduction="none").mean(),
    "smoothed": lambda logits, labels: F.cross_entropy(logits, labels, label_smoothing=0.1),
    "weighted": weighted,
    "nll": lambda logits, labels: F.nll_loss(F.log_softmax(logits, -1), labels),
    "by_hand": by_hand,
    # 0 is a word that nobody is to say
    "of_a_word": lambda logits, labels: F.cross_entropy(logits, labels.clamp(min=0), ignore_index=0),
}
# Nothing is hidden here, whatever the labels: each row has a loss, or a gradient.
WHOLE = {
    "probabilities": lambda logits, labels: F.cross_entropy(logits, F.one_hot(labels.clamp(min=0), WORDS).to(logits.dtype)),
    "z_loss": lambda logits, labels: F.cross_entropy(logits, labels) + 1e-3 * logits.logsumexp(-1).square().mean(),
}


class Words(nn.Module):
    """Embedding -> layers -> logits -> loss: in the model, or in the loop."""

    def __init__(self, loss, in_loop: bool, tied: bool = True, bias: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.head = nn.Linear(WIDTH, WORDS, bias=bias)
        if tied:
            self.head.weight = self.embedding.weight
        self.loss, self.in_loop = loss, in_loop

    def forward(self, words, labels):
        logits = self.head(self.inner(self.embedding(words)))
        return logits if self.in_loop else self.loss(logits.view(-1, WORDS), labels.view(-1))


def batch(share: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    words, labels = torch.randint(1, WORDS, (2, BATCH, LENGTH), generator=generator)
    return words, torch.where(torch.rand(BATCH, LENGTH, generator=generator) < share, labels, -100)


class Run:
    """A model through a door (None: PyTorch); gives the loss and the gradients of a batch. Its optimizer leaves the parameters
    as they are, and its buffers are the gradients."""

    def __init__(self, door: str | None, loss: str = "mean", bf16: bool = False, wide: bool = False, **kwargs):
        function = {**LOSSES, **WHOLE}[loss]
        # A loop's loss is compiled where the loop is.
        model = self.model = Words(function, in_loop=door == "step", **kwargs)
        if wide:
            model.double()
        optimizer = self.optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=1e-30)

        def step(words, labels):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                result = model(words, labels)
                if model.in_loop:
                    result = function(result.view(-1, WORDS), labels.view(-1))
            result.backward()
            optimizer.step()
            optimizer.zero_grad()
            return result

        self.step = trainc.train_step(step) if door == "step" else step
        self.explained = self.step if door == "step" else model
        if door == "compile":
            trainc.compile(model)

    def __call__(self, share: float, seed: int = 0) -> tuple[float, dict[str, torch.Tensor]]:
        loss = self.step(*batch(share, seed)).item()
        state = self.optimizer.state
        return loss, {name: state[p]["momentum_buffer"].clone() for name, p in self.model.named_parameters()}

    def guarded(self) -> int:
        """Operations of kernels that may be passed over."""
        explanation = trainc.explain(self.explained)
        steps = [step for reports in explanation.reports for report in reports for step in report["steps"]]
        return sum(step["flops"] for step in steps if "guard" in step)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(trainc.config, "fallback", False)
    monkeypatch.setattr(trainc.config, "cache", False)
    monkeypatch.setattr(trainc.config, "skip_hidden_flops", 1)
    monkeypatch.setattr(trainc.config, "loss_chunk_rows", 32)


def equal(a: float, b: float, tolerance: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or abs(a - b) <= tolerance * abs(b)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("door", DOORS)
def test_losses_and_gradients_are_eagers_whatever_the_labels(door, loss):
    kwargs = {"loss": loss, "tied": loss in ("mean", "nll"), "bias": loss in ("sum", "weighted")}
    ours, eager, wide = Run(door, **kwargs), Run(None, **kwargs), Run(None, wide=True, **kwargs)
    ratios = []
    for seed, share in enumerate([*SHARES, 0.02, 0.97]):
        (value, gradients), (expected, plain), (_, truth) = ours(share, seed), eager(share, seed), wide(share, seed)
        assert equal(value, expected, 2e-6), (share, value, expected)
        for name, exact in truth.items():
            assert torch.equal(gradients[name].isnan(), plain[name].isnan()), (share, name)
            error, eagers = ((g.double() - exact).norm().item() for g in (gradients[name], plain[name]))
            if eagers > 0:
                ratios.append(error / eagers)
            else:
                assert error == 0 or math.isnan(error), (share, name)
    ratios = [r for r in ratios if r > 0]
    assert math.exp(sum(map(math.log, ratios)) / len(ratios)) <= 1.1
    assert max(ratios) <= 4
    assert ours.guarded() == HEAD
    assert len(trainc.explain(ours.explained).compilations) <= 2  # a model, or a step; and an optimizer's


@pytest.mark.parametrize("loss", WHOLE)
@pytest.mark.parametrize("door", DOORS)
def test_where_a_hidden_row_counts_all_are_computed(door, loss):
    ours, eager = Run(door, loss), Run(None, loss)
    for share in SHARES[:3]:
        (value, gradients), (expected, plain) = ours(share), eager(share)
        assert equal(value, expected, 2e-6)
        for name, gradient in plain.items():
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6, msg=name)
    assert ours.guarded() == 0


@pytest.mark.parametrize("door", DOORS)
def test_bf16_autocast_stays_within_eagers_own_error(door):
    ours, eager, wide = Run(door, bf16=True), Run(None, bf16=True), Run(None, wide=True)
    squares: dict[str, list[float]] = {}
    for seed in range(6):
        for share in SHARES[:3]:
            got, plain, truth = ours(share, seed)[1], eager(share, seed)[1], wide(share, seed)[1]
            for name, exact in truth.items():
                sums = squares.setdefault(name, [0.0, 0.0])
                sums[0] += (got[name].double() - exact).square().sum().item()
                sums[1] += (plain[name].double() - exact).square().sum().item()
    assert max(math.sqrt(a / b) for a, b in squares.values()) <= 1.2
    assert ours.guarded() == HEAD


@pytest.mark.sampled(4)
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("door", DOORS)
def test_on_and_off_agree_and_threads_change_no_bit(door, share, monkeypatch):
    on, two = Run(door), Run(door)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        loss, gradients = on(share)
        torch.set_num_threads(2)
        same, others = two(share)
    finally:
        torch.set_num_threads(threads)
    assert equal(loss, same, 0)
    for name, gradient in gradients.items():
        assert torch.equal(gradient, others[name]), name
    monkeypatch.setattr(trainc.config, "skip_hidden", False)
    off = Run(door)
    loss_of_all, of_all = off(share)
    assert off.guarded() == 0
    assert on.guarded() == HEAD
    assert equal(loss, loss_of_all, 1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, of_all[name], rtol=1e-4, atol=1e-6, msg=name)


# What is not computed lies in memory as it was: that it is never seen shows where that memory is NaN.
@pytest.mark.parametrize("door", DOORS)
def test_poisoned_memory_changes_no_bit(door, monkeypatch):
    plain = Run(door)
    expected = [plain(share) for share in SHARES[:3]]
    monkeypatch.setenv("TRAINC_DEBUG", "poison")
    poisoned = Run(door)
    for share, (loss, gradients) in zip(SHARES, expected, strict=False):
        same, others = poisoned(share)
        assert loss == same
        for name, gradient in gradients.items():
            assert torch.equal(gradient, others[name]), (share, name)


# Plans of other sizes share kernels: none of these knows where a part begins, or how many rows there are.
@pytest.mark.parametrize("door", DOORS)
def test_other_sizes(door):
    ours, eager = Run(door), Run(None)
    for seed, length in enumerate([LENGTH, 17, 31, 40, 2]):
        words, labels = (tensor.repeat(1, 2)[:, :length].contiguous() for tensor in batch(0.3, seed))
        loss, expected = ours.step(words, labels).item(), eager.step(words, labels).item()
        assert equal(loss, expected, 2e-6), length
        for ours_p, eager_p in zip(ours.model.parameters(), eager.model.parameters(), strict=True):
            got, plain = (run.optimizer.state[p]["momentum_buffer"] for run, p in ((ours, ours_p), (eager, eager_p)))
            torch.testing.assert_close(got, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("label", [WORDS, -1])
def test_a_label_outside_the_vocabulary_is_an_error(label):
    run = Run("step")
    words, labels = batch(0.2)
    labels[2, 3] = label
    with pytest.raises(IndexError, match="out of"):
        run.step(words, labels)


def test_a_backward_twice():
    model = trainc.compile(Words(F.cross_entropy, in_loop=False))
    loss = model(*batch(0.3))
    loss.backward(retain_graph=True)
    once = model.inner[0].weight.grad.clone()
    loss.backward(torch.tensor(3.0))
    torch.testing.assert_close(model.inner[0].weight.grad, 4 * once)


# The one difference from eager (docs/numerics.md): 0 times what is not finite.
def test_a_hidden_row_that_is_not_finite_stays_out_of_the_gradients():
    words, labels = batch(0.5)
    words[labels == -100] = 7
    words[labels != -100] = 9
    results = []
    for door in (None, "compile"):
        run = Run(door, tied=False)
        with torch.no_grad():
            run.model.embedding.weight[7] = math.nan
        loss = run.step(words, labels)
        weight = run.optimizer.state[run.model.head.weight]["momentum_buffer"]
        results.append((loss.isfinite().item(), weight.isfinite().all().item()))
    # A part that runs may have a few hidden rows: whether these are NaN is no promise.
    assert results[0] == (True, False)
    assert results[1][0]


def test_explain_says_so():
    run = Run("step")
    run(0.4)
    assert "run where the step's data asks for them" in str(trainc.explain(run.explained))
