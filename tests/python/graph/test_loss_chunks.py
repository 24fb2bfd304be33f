"""Linear -> cross-entropy in chunks of rows: gradients as near to the truth as eager's, the same for all threads, less memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import trainc

BATCH, LENGTH, WORDS, WIDTH = 7, 19, 503, 24
DOORS = ["compile", "step"]
LOSSES = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "ignored": {"ignore_index": 7},
    "smoothed": {"label_smoothing": 0.1},
    "weighted": {"weight": torch.linspace(0.5, 1.5, WORDS)},
}


class Words(nn.Module):
    """Embedding -> layers -> logits, by the embedding's own weight or another -> cross-entropy. The loss, or (loss, logits)."""

    def __init__(self, tied: bool = True, bias: bool = False, give_logits: bool = False, **kwargs):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.inner = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])
        self.head = nn.Linear(WIDTH, WORDS, bias=bias)
        if tied:
            self.head.weight = self.embedding.weight
        self.give_logits, self.loss = give_logits, nn.CrossEntropyLoss(**kwargs)

    def forward(self, words, labels):
        logits = self.head(self.inner(self.embedding(words)))
        loss = self.loss(logits.view(-1, WORDS), labels.view(-1))
        return (loss, logits) if self.give_logits else loss


def batch(seed: int = 0, ignored: int = -100) -> tuple[torch.Tensor, torch.Tensor]:
    words, labels = torch.randint(0, WORDS, (2, BATCH, LENGTH), generator=torch.Generator().manual_seed(seed))
    labels[:, 5] = ignored
    return words, labels


class Run:
    """A model through a door (None: PyTorch); gives the loss and the gradients of a batch. Its optimizer leaves the parameters
    as they are, and its buffers are the gradients: a step shows no others."""

    def __init__(self, door: str | None, bf16: bool = False, factor: float = 1, memory=None, wide: bool = False, **kwargs):
        model = self.model = Words(**kwargs)
        if wide:
            model.double()
        optimizer = self.optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=1e-30)

        def step(words, labels):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                result = model(words, labels)
            loss = result[0] if isinstance(result, tuple) else result
            (loss * factor).backward()
            optimizer.step()
            optimizer.zero_grad()
            return result

        self.step = trainc.train_step(step, memory=memory) if door == "step" else step
        self.explained = self.step if door == "step" else model
        if door == "compile":
            trainc.compile(model, memory=memory)

    def __call__(self, seed: int = 0) -> tuple[float, dict[str, torch.Tensor]]:
        loss = self.step(*batch(seed, self.model.loss.ignore_index)).item()
        state = self.optimizer.state
        return loss, {name: state[p]["momentum_buffer"].clone() for name, p in self.model.named_parameters()}

    def memory(self):
        return trainc.explain(self.explained, batch=batch()).memory


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(trainc.config, "fallback", False)
    monkeypatch.setattr(trainc.config, "cache", False)
    monkeypatch.setattr(trainc.config, "loss_chunk_rows", 32)  # four chunks of 27 rows, one of 25
    monkeypatch.setattr(trainc.config, "loss_chunk_bytes", 1 << 10)


def errors(run: Run, wide: Run, eager: Run, batches: int = 8) -> list[float]:
    """The error of `run` over that of `eager`, parameter by parameter."""
    squares: dict[str, list[float]] = {}
    for seed in range(batches):
        ours, truth, plain = run(seed)[1], wide(seed)[1], eager(seed)[1]
        for name, exact in truth.items():
            sums = squares.setdefault(name, [0.0, 0.0])
            sums[0] += (ours[name].double() - exact).square().sum().item()
            sums[1] += (plain[name].double() - exact).square().sum().item()
    return [math.sqrt(a / b) for a, b in squares.values()]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("door", DOORS)
def test_gradients_are_as_near_to_the_truth_as_eagers(door, loss, tied):
    kwargs = {"tied": tied, "bias": not tied, **LOSSES[loss]}
    ratios = errors(Run(door, **kwargs), Run(None, wide=True, **kwargs), Run(None, **kwargs))
    assert math.exp(sum(map(math.log, ratios)) / len(ratios)) <= 1.1
    assert max(ratios) <= 4


@pytest.mark.parametrize("door", DOORS)
def test_bf16_autocast_stays_within_eagers_own_error(door):
    assert max(errors(Run(door, bf16=True), Run(None, wide=True), Run(None, bf16=True))) <= 1.2


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("door", DOORS)
def test_the_logits_are_never_whole(door, bias, monkeypatch):
    chunked = Run(door, tied=False, bias=bias).memory()
    monkeypatch.setattr(trainc.config, "loss_chunk_bytes", None)
    whole = Run(door, tied=False, bias=bias).memory()
    logits, gradient = 4 * BATCH * LENGTH * WORDS, 4 * WORDS * WIDTH
    # Five chunks; through trainc.compile the gradient of the weight waits for the backward.
    assert chunked.total <= whole.total - 0.75 * logits + (gradient if door == "compile" else 0)


@pytest.mark.parametrize("door", DOORS)
def test_threads_and_budgets_change_no_bit(door):
    one, other = Run(door), Run(door)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        loss, gradients = one()
        torch.set_num_threads(2)
        same, others = other()
    finally:
        torch.set_num_threads(threads)
    small = Run(door, memory=int(0.96 * one.memory().total))
    assert small.memory().again_flops > 0
    for name, gradient in gradients.items():
        assert torch.equal(gradient, others[name]), name
        assert torch.equal(gradient, small()[1][name]), name
    assert loss == same == small()[0]


@pytest.mark.parametrize("door", DOORS)
def test_a_factor_of_the_loss_is_one_of_the_gradients(door):
    gradients = Run(door)()[1]
    for name, gradient in Run(door, factor=0.25)()[1].items():
        torch.testing.assert_close(gradient, gradients[name] / 4, rtol=1e-6, atol=0, msg=name)


def test_backward_twice_and_never():
    model, (words, labels) = trainc.compile(Words()), batch()
    model(words, labels)  # never
    loss = model(words, labels)
    loss.backward(retain_graph=True)
    once = model.inner[0].weight.grad.clone()
    loss.backward(torch.tensor(3.0))
    torch.testing.assert_close(model.inner[0].weight.grad, 4 * once)


@pytest.mark.parametrize("door", DOORS)
def test_logits_that_are_a_result_are_what_they_were(door):
    expected_loss, expected = Run(None, give_logits=True).step(*batch())
    loss, logits = Run(door, give_logits=True).step(*batch())
    torch.testing.assert_close(loss, expected_loss)
    torch.testing.assert_close(logits + 0, expected)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("label", [WORDS, -1])
def test_a_label_outside_the_vocabulary_is_an_error(door, label):
    run = Run(door)
    words, labels = batch()
    labels[-1, -1] = label
    with pytest.raises(IndexError, match="out of"):
        run.step(words, labels)


def test_infinities_reach_the_gradients_as_in_eager():
    eager, ours = Run(None), Run("compile")
    for run in (eager, ours):
        with torch.no_grad():
            run.model.inner[0].bias[3] = math.inf  # tanh gives 1
            run.model.embedding.weight[11] = math.nan
    (loss, gradients), (our_loss, our_gradients) = eager(), ours()
    assert math.isnan(loss) and math.isnan(our_loss)
    for name, gradient in gradients.items():
        assert torch.equal(gradient.isnan(), our_gradients[name].isnan()), name
