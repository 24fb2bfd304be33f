"""What other threads do while a model is traced, whose modules hold other tensors meanwhile."""

import threading
import time

import pytest
import torch
from torch import nn

import trainc
from trainc.torch.capture import turns


def deep(layers=40):
    return nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()) for _ in range(layers)])


def step_of(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


@pytest.fixture
def tracing():
    """Traces a model in another thread, and gives the model while it does."""
    model, errors = deep(), []
    trainc.compile(model)

    def run():
        try:
            model(torch.ones(4, 8)).sum().backward()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not turns._traces and thread.is_alive():
        time.sleep(0.001)
    assert turns._traces, "the trace is over"
    yield model
    thread.join()
    assert not errors


@pytest.mark.parametrize("door", ["compile", "step"])
def test_a_compiled_call_goes_on(core, door, strict):
    """`is_compiling()` holds in all threads meanwhile, and anomalies are detected."""
    model = nn.Linear(4, 1)
    call = trainc.train_step(step_of(model)) if door == "step" else trainc.compile(model)
    x = torch.ones(2, 4)
    call(x)
    other, calls, started = deep(), 0, threading.Event()
    trainc.compile(other)

    def trace():
        started.set()
        other(torch.ones(4, 8)).sum().backward()

    thread = threading.Thread(target=trace)
    thread.start()
    while thread.is_alive():
        call(x)
        calls += bool(turns._traces)
    thread.join()
    assert calls


def test_a_thread_that_is_started_later_waits(core, tracing):
    found = []
    thread = threading.Thread(target=lambda: found.append(tracing(torch.ones(4, 8)).sum().item()))
    thread.start()
    thread.join()
    assert len(found) == 1
    assert all(type(b) is torch.Tensor for b in tracing.buffers())


@pytest.mark.parametrize("door", ["compile", "step"])
def test_random_numbers_of_others_are_not_put_back(core, door):
    model = deep(5)
    call = trainc.train_step(step_of(model)) if door == "step" else trainc.compile(model)
    drawn, over = [], threading.Event()

    def draw():
        while not over.is_set():
            drawn.append(torch.rand(1, dtype=torch.float64).item())

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for rows in (4, 5, 6):
            call(torch.ones(rows, 8))
    finally:
        over.set()
        thread.join()
    assert len(set(drawn)) == len(drawn) > 100


class Sets(nn.Linear):
    def forward(self, x):
        torch.set_rng_state(STATE)
        return super().forward(x)


STATE = torch.Generator().manual_seed(5).get_state()


def test_a_forward_that_sets_the_generator_is_seen_beside_other_threads(core):
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        model = Sets(2, 2)
        trainc.compile(model)
        for _ in range(3):
            torch.manual_seed(1)
            model(torch.ones(1, 2))
            assert torch.equal(torch.get_rng_state(), STATE)
    finally:
        over.set()
        thread.join()


def test_a_parameter_that_is_frozen_before_a_fused_backward(core):
    found = []
    for fused in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if fused:
            model, optimizer = trainc.compile(model, optimizer, fuse_step=True)
        loss = model(torch.ones(2, 4)).sum()
        model[0].requires_grad_(False)
        loss.backward()
        optimizer.step()
        found.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(found[1], found[0])
