"""Logits beside a loss that nobody reads are not made; whoever reads them, at whatever time, sees eager's."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_same
from torch import nn

import trainc
from trainc.base import config, records
from trainc.torch.run.deferred import DeferredTensor

BATCH, LENGTH, WORDS, WIDTH = 4, 29, 211, 24


class Words(nn.Module):
    """Gives a loss and logits, as Hugging Face's models do."""

    def __init__(self, tied: bool = True, bias: bool = False, scale: float | None = None, **gives: bool):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, WORDS, bias=bias)
        if tied:
            self.head.weight = self.embedding.weight
        self.scale, self.gives = scale, gives

    def forward(self, words, labels):
        hidden = self.inner(self.embedding(words))
        logits = self.head(hidden)
        if self.scale is not None:  # as Gemma caps them
            logits = torch.tanh(logits / self.scale) * self.scale
        if self.gives.get("shifted"):
            labels = F.pad(labels, (0, 1), value=-100)[:, 1:]
        loss = F.cross_entropy(logits.float().view(-1, WORDS), labels.reshape(-1))
        others = [hidden] if self.gives.get("hidden") else [logits[:, -1]] if self.gives.get("last") else []
        return {"loss": loss, "logits": logits, "others": others}


class Run:
    """A model in training, compiled or not."""

    def __init__(self, ours: bool, bf16: bool = False, fuse: bool = False, **model):
        self.model = Words(**model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.bf16, self.seen, self.held = bf16, [], None
        if ours:
            trainc.compile(self.model, self.optimizer, **({"fuse_step": True} if fuse else {}))
        self.generator = torch.Generator().manual_seed(1)
        torch.manual_seed(2)
        self.draws = torch.get_rng_state()

    def step(self, use: str, length: int = LENGTH, share: float = 0.3) -> None:
        """One step; `use`: what becomes of the logits; `share`: of the rows, those that have a label."""
        torch.set_rng_state(self.draws)
        words, labels = torch.randint(1, WORDS, (2, BATCH, length), generator=self.generator)
        labels = torch.where(torch.rand(BATCH, length, generator=self.generator) < share, labels, -100)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            result = self.model(words, labels)
        loss, logits = result["loss"], result["logits"]
        self.logits = logits
        match use:
            case "read":
                self.seen.append(logits.argmax(-1).float().mean() + logits.detach().float().sum())
            case "read by numpy":
                self.seen.append(torch.tensor(logits.detach().float().numpy().sum()))
            case "gradient":
                loss = loss + logits.float().square().mean()
            case "gradient alone":
                loss = logits.float().square().mean()
        loss.backward()
        if self.held is not None:
            self.seen.append(self.held.detach().float().sum())
            self.held = None
        self.seen += [loss.detach(), *[p.grad.float().norm() for p in self.model.parameters()]]
        self.optimizer.step()
        self.optimizer.zero_grad()
        match use:
            case "read late":
                self.seen.append(logits.detach().float().sum())
            case "read after .data":
                self.model.head.weight.data.mul_(0.5)
                self.seen.append(logits.detach().float().sum())
            case "written":
                with torch.no_grad():
                    self.seen.append(logits.mul_(0.5).float().sum())
            case "held":
                self.held = logits
        self.draws = torch.get_rng_state()


USES = (
    "left", "read", "read by numpy", "gradient", "gradient alone", "read late", "read after .data", "written", "held",
)  # fmt: skip


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch, strict):
    for name, value in {"cache": False, "skip_hidden_flops": 1, "loss_chunk_rows": 32}.items():
        monkeypatch.setattr(config, name, value)


def left_out(run: Run) -> list[bool]:
    return [bool(compilation.unread) for compilation in records.of(run.model)]


def assert_sees_as_eager(ours: Run, eager: Run) -> None:
    tolerance = {"rtol": 0.05, "atol": 0.5} if ours.bf16 else {"rtol": 2e-4, "atol": 2e-3}
    for seen, expected in zip(ours.seen, eager.seen, strict=True):
        torch.testing.assert_close(seen, expected, **tolerance)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("use", USES)
def test_whoever_reads_them_sees_eagers(use):
    chosen = random.Random(use)
    model = {"tied": chosen.random() < 0.5, "bias": chosen.random() < 0.5, "shifted": chosen.random() < 0.5}
    model["scale"] = chosen.choice([None, 3.0])
    bf16, fuse = chosen.random() < 0.3, chosen.random() < 0.3
    runs = Run(True, bf16, fuse, **model), Run(False, bf16, **model)
    uses = ["left", use, "left", *chosen.choices(USES, k=4)]
    for step, each in enumerate(uses):
        for run in runs:
            run.step(each)
        if step == 0:
            assert left_out(runs[0]) == [True]
    assert_sees_as_eager(*runs)
    assert left_out(runs[0]) == [set(uses) == {"left"}]


def test_who_does_not_read_them_pays_for_no_row_without_a_label():
    run = Run(True)
    for _ in range(3):
        run.step("left")
    assert type(run.logits) is DeferredTensor and run.logits.requires_grad and run.logits.shape == (BATCH, LENGTH, WORDS)
    explanation = trainc.explain(run.model)
    assert f"not computed unless it is read: result 1, f32[{BATCH}, {LENGTH}, {WORDS}]" in str(explanation)
    assert any("guard" in step for report in explanation.reports[0] for step in report["steps"])


def test_a_text_without_hidden_rows_is_left_as_it_is():
    runs = Run(True), Run(False)
    for share in (1.0, 0.3, 1.0):
        for run in runs:
            run.step("left", share=share)
    assert left_out(runs[0]) == [False]
    assert_sees_as_eager(*runs)


def test_sizes_that_change_and_a_reader_in_the_middle():
    runs = Run(True), Run(False)
    for use, length in (("left", 29), ("left", 40), ("left", 33), ("read late", 40), ("left", 29), ("left", 50), ("left", 40)):
        for run in runs:
            run.step(use, length)
    assert_sees_as_eager(*runs)
    # The trace for the first length was not read; of the other no size leaves them out any more.
    assert left_out(runs[0]) == [True, False, True, False]


@pytest.mark.parametrize("gives", ["hidden", "last"])
def test_what_shares_memory_with_them_or_makes_them_is_not_the_callers(gives):
    runs = Run(True, **{gives: True}), Run(False, **{gives: True})
    for use in ("left", "read late", "left"):
        for run in runs:
            run.step(use)
    assert_sees_as_eager(*runs)


def test_saved_tensors_that_are_packed():
    runs = Run(True), Run(False)
    for use in ("left", "gradient", "left"):
        for run in runs:
            with torch.autograd.graph.save_on_cpu():
                run.step(use)
    assert_sees_as_eager(*runs)


def test_a_gradient_after_what_it_needs_was_changed_is_an_error():
    run = Run(True)
    run.step("left")
    words, labels = torch.randint(1, WORDS, (2, BATCH, LENGTH))
    result = run.model(words, labels)
    result["loss"].backward(retain_graph=True)
    run.optimizer.step()
    with pytest.raises(RuntimeError, match="changed in place since the call|modified by an inplace operation"):
        result["logits"].sum().backward()


def test_their_bits_do_not_depend_on_when_they_are_read():
    early, late = Run(True), Run(True)
    words, labels = torch.randint(1, WORDS, (2, BATCH, LENGTH))
    torch.manual_seed(3)
    first = early.model(words, labels)["logits"]
    value = first.detach().clone()
    torch.manual_seed(3)
    result = late.model(words, labels)
    result["loss"].backward()
    late.optimizer.step()
    assert_same(result["logits"].detach(), value)
