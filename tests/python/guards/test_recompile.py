"""What compiles again and what does not, and what the user is told of it."""

import warnings

import pytest
import torch
from torch import nn

import trainc
from trainc.base import messages, records


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(4, 4), nn.Dropout(0.1)

    def forward(self, x, scale=1.0, rows=None):
        h = self.drop(self.layer(x)) * scale
        return h if rows is None else h[rows]


def ids(*values):
    return torch.tensor(values)


CHANGES = {
    "a dimension": (lambda m: m(torch.ones(6, 4)), "dimension 0 of `x` changed from 3 to 6"),
    "rank": (lambda m: m(torch.ones(2, 3, 4)), "`x` changed from 2 to 3 dimensions"),
    "a number": (lambda m: m(torch.ones(3, 4), scale=2.0), "`scale` is given for the first time"),
    "strides": (lambda m: m(torch.ones(4, 3).t()), r"the strides of `x` changed from \(4, 1\) to \(1, 3\)"),
    "a gradient": (lambda m: m(torch.ones(3, 4, requires_grad=True)), "`x` requires a gradient now"),
    "two": (
        lambda m: m(torch.ones(5, 4), rows=ids(1)),
        "dimension 0 of `x` changed from 3 to 5; `rows` is given for the first time",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_new_plan_is_told_with_its_reason(engine, strict, change):
    call, words = CHANGES[change]
    model = trainc.compile(Net())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.ones(3, 4))
        model(torch.ones(3, 4))
    with pytest.warns(messages.RecompileWarning, match=f"Net is compiled again: {words}$"):
        call(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(model)
    first, second = records.of(model)
    assert first.recompiled == "" and second.recompiled
    assert f"compiled again: {second.recompiled}" in str(trainc.explain(model))


def test_the_nearest_signature_is_compared(engine, strict):
    model = trainc.compile(Net())
    with pytest.warns(messages.RecompileWarning) as told:
        for rows in (3, 6, 9):
            model(torch.ones(rows, 4), scale=2.0)
            model(torch.ones(rows, 4), scale=3.0)
    assert [str(w.message).partition("again: ")[2] for w in told] == [
        "`scale` changed from 2.0 to 3.0",
        "dimension 0 of `x` changed from 3 to 6",
        "`scale` changed from 2.0 to 3.0",
        # 9 rows are other sizes of what was traced with symbols for 6: nothing to wait for, and nothing to warn of
    ]
    assert records.of(model)[-2].recompiled == "dimension 0 of `x` changed from 6 to 9"
    assert [r.trace for r in records.of(model)] == ["static", "static", "symbolic", "symbolic", "sizes", "sizes"]


def test_another_mode_is_recorded_only(engine, strict):
    model = trainc.compile(Net())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            model.train()(torch.ones(3, 4))
            model.eval()(torch.ones(3, 4))
        with torch.no_grad():
            for _ in range(3):
                model(torch.ones(3, 4))
    assert [r.recompiled for r in records.of(model)] == ["", "the model is in evaluation now", "gradients are off"]


def test_what_a_training_run_changes_compiles_nothing(engine, strict):
    """200 steps: warm-up and decay of the learning rate, moving betas and weight decay, evaluation every 20 steps."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    trainc.compile(model, optimizer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 10, 1 / (step + 1) ** 0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error", messages.RecompileWarning)
        for step in range(200):
            model.train()
            model(torch.randn(3, 4)).square().sum().backward()
            for group in optimizer.param_groups:
                group["betas"], group["weight_decay"] = (0.9 - step / 1000, 0.99 + step / 100_000), 0.1 / (step + 1)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            if step % 20 == 19:
                model.eval()
                with torch.no_grad():
                    model(torch.randn(3, 4))
    assert len(records.of(model)) == 2 and len(records.of(optimizer)) == 1
    assert len(records.of(model)[0].backward) == 1
