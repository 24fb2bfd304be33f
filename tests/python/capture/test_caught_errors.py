"""Errors of values (an index out of range, a matrix without an inverse) that the program itself catches: they must come where
eager has them, or the program goes on otherwise."""

import contextlib
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trainc

A_KIND = (KeyError, IndexError)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.unknown = nn.Embedding(5, 3), nn.Parameter(torch.ones(3))

    def other(self, t):
        return self.unknown.expand(len(t), 3)


class Catches(Words):
    def forward(self, t):
        try:
            h = self.table(t)
        except IndexError:
            h = self.other(t)
        return h.sum()


class CatchesByItsBase(Words):
    def forward(self, t):
        kind = LookupError
        try:
            h = self.table(
                t,
            )
        except kind as error:
            h = self.other(t) * len(error.args)
        return h.sum()


class CatchesByAGlobal(Words):
    def forward(self, t):
        try:
            return self.table(t).sum()
        except A_KIND:
            return self.other(t).sum()


class CatchesAll(Words):
    def forward(self, t):
        try:
            return self.table(t).sum()
        except:  # noqa: E722
            return self.other(t).sum()


class CatchesInACaller(Words):
    def look_up(self, t):
        return torch.stack([(lambda: self.table(each))() for each in t])

    def forward(self, t):
        with torch.autocast("cpu", enabled=False):
            try:
                h = self.look_up(t)
            except Exception:
                h = self.other(t)
        return h.sum()


class Suppresses(Words):
    def forward(self, t):
        h = self.other(t)
        with contextlib.suppress(IndexError):
            h = self.table(t)
        return h.sum()


class Returns(Words):
    def forward(self, t):
        h = self.other(t)
        try:
            h = self.table(t)
        finally:
            return h.sum()  # noqa: B012


class RaisesAnother(Words):
    def forward(self, t):
        try:
            return self.table(t).sum()
        except IndexError as error:
            raise KeyError("no such word") from error


class Divides(Words):
    def forward(self, t):
        try:
            return (self.unknown * (12 // (t - 9)).sum()).sum()
        except RuntimeError:
            return self.unknown.sum()


class Inverts(Words):
    def forward(self, t):
        try:
            return (torch.linalg.inv(torch.eye(len(t)) * (t - 9)) * self.unknown[0]).sum()
        except torch.linalg.LinAlgError:
            return self.unknown.sum()


class Loss(Words):
    def forward(self, t):
        try:
            return F.cross_entropy(self.unknown.expand(len(t), 3) * 2, t - 1, reduction="sum")
        except IndexError:
            return self.unknown.sum()


without_source = {"Words": Words}
exec(  # as a program that is typed has it
    "class Typed(Words):\n    def forward(self, t):\n        try:\n            return self.table(t).sum()\n"
    "        except IndexError:\n            return self.other(t).sum()\n",
    without_source,
)
CATCHING = [
    Catches, CatchesByItsBase, CatchesByAGlobal, CatchesAll, CatchesInACaller, Suppresses, Returns, RaisesAnother, Divides,
    Inverts, Loss, without_source["Typed"],
]  # fmt: skip


def losses(kind, door):
    """Of four steps, the third with a word that the table does not have; where it raises a LookupError, the error's type. And
    the model."""
    torch.manual_seed(0)
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    if door == "compile":
        trainc.compile(model)

    def step(t):
        loss = model(t)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = trainc.train_step(step) if door == "train_step" else step
    found = []
    for t in ([1, 2], [1, 3], [1, 9], [3, 2]):
        try:
            found.append(step(torch.tensor(t)).item())
        except LookupError as error:
            found.append(type(error))
    return found, model


@pytest.mark.parametrize("kind", CATCHING, ids=lambda kind: kind.__name__)
def test_the_program_goes_on_where_eager_does(kind):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found, model = losses(kind, "compile")
    assert found == losses(kind, "eager")[0]
    assert all(record.route == "eager" for record in trainc.base.records.of(model))
    assert any("the program catches the" in str(each.message) for each in said), said


@pytest.mark.parametrize("kind", CATCHING, ids=lambda kind: kind.__name__)
def test_a_step_refuses_it(kind):
    with pytest.raises(trainc.UserError, match="the program catches the .* catch it around the step"):
        losses(kind, "train_step")


class Elsewhere(Words):
    """Every way to a `try` that does not catch it."""

    def before(self):
        try:
            return torch.zeros(2).new_ones(3).sum()
        except RuntimeError:
            return 0

    def forward(self, t):
        ones = self.before()
        try:
            with torch.autocast("cpu", enabled=False), contextlib.suppress(KeyError):
                h = self.table(t) * ones
        except (TypeError, torch.OutOfMemoryError):
            h = self.other(t)
        except IndexError as error:
            raise IndexError("no such word") from error
        except Exception:
            h = self.other(t)
        else:
            h = h + self.table(t)
        finally:
            ones = ones * 2
        try:
            half = t // 2
        except RuntimeError:
            half = t
        try:

            def later():
                return self.table(half)

        except IndexError:
            later = None
        return (h * ones + later()).sum()


def test_a_try_that_does_not_catch_it_is_compiled():
    expected, _ = losses(Elsewhere, "eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, model = losses(Elsewhere, "compile")
        steps, _ = losses(Elsewhere, "train_step")
    assert [each.pop(2) for each in (expected, found, steps)] == [IndexError] * 3
    assert found == pytest.approx(expected, rel=1e-5) and steps == pytest.approx(expected, rel=1e-5)
    (record,) = trainc.base.records.of(model)
    assert record.route == "compiled"
