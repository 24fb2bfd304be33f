"""Ctrl-C while a plan writes parameters: it comes when the update is whole and counted."""

import copy
import signal
import threading

import pytest
import torch
from torch import nn

import trainc
from trainc.base import interrupts
from trainc.torch.run import executable


@pytest.fixture
def handlers():
    """The signals of the tests, as they were before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_waits(handlers):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen = []
    with pytest.raises(KeyboardInterrupt):
        with interrupts.held():
            with interrupts.held():
                signal.raise_signal(signal.SIGINT)
                seen.append("inside")
            seen.append("after the inner one")
    assert seen == ["inside", "after the inner one"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_every_handler_is_called_and_put_back(handlers):
    called = []

    def fails(number, _frame):
        called.append(number)
        raise RuntimeError(f"signal {number}")

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, fails)
    with pytest.raises(RuntimeError, match="signal"):
        with interrupts.held():
            signal.raise_signal(signal.SIGUSR2)
            signal.raise_signal(signal.SIGUSR1)
    assert sorted(called) == sorted([signal.SIGUSR1, signal.SIGUSR2])
    assert signal.getsignal(signal.SIGUSR1) is fails and signal.getsignal(signal.SIGUSR2) is fails


def test_what_no_python_code_handles_is_left(handlers):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with interrupts.held():
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


def test_other_threads_have_no_handlers():
    failed = []

    def run():
        try:
            with interrupts.held():
                pass
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failed


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.down(torch.tanh(self.norm(self.up(x)))).square().mean()


def loop(model, optimizer):
    def step(x):
        loss = model(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@pytest.mark.parametrize("door", ["train_step", "fuse_step", "compile"])
def test_no_half_steps(core, monkeypatch, handlers, door):
    """A Ctrl-C beside each plan that runs: what is left is a whole number of eager's steps."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    plain = Net()
    ours = copy.deepcopy(plain)
    optimizers = [torch.optim.Adam(model.parameters(), 0.01) for model in (plain, ours)]
    call = loop(ours, optimizers[1])
    if door == "train_step":
        call = trainc.train_step(call)
    else:
        trainc.compile(ours, optimizers[1], fuse_step=door == "fuse_step")
    eager, batches = loop(plain, optimizers[0]), [torch.randn(5, 8) for _ in range(4)]
    call(batches[0]), eager(batches[0])
    run, interrupted = executable.CoreExecutable.__call__, []

    def interrupt(self, *args):
        result = run(self, *args)
        interrupted.append(self)
        signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(executable.CoreExecutable, "__call__", interrupt)
    try:
        call(batches[1])
    except KeyboardInterrupt:
        optimizers[1].zero_grad()
    monkeypatch.undo()
    assert interrupted
    counts = {int(state["step"]) for state in optimizers[1].state_dict()["state"].values()}
    assert len(counts) == 1, counts
    if counts == {2}:
        eager(batches[1])
    torch.testing.assert_close(list(ours.parameters()), list(plain.parameters()), rtol=1e-4, atol=1e-5)
    if door == "train_step":  # one plan: with it, running statistics, too
        assert counts == {2}
        torch.testing.assert_close(dict(ours.state_dict()), dict(plain.state_dict()), rtol=1e-4, atol=1e-5)
        call(batches[2]), eager(batches[2])
        torch.testing.assert_close(list(ours.parameters()), list(plain.parameters()), rtol=1e-4, atol=1e-5)
