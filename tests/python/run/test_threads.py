"""Several callers of one plan: threads, signal handlers, operations that call the model that they are in, forked children. What
could hang runs in a process of its own, with a limit."""

import concurrent.futures
import copy
import functools
import sys
import textwrap
import threading
import time

import forked
import pytest
import torch
from torch import nn

import trainc
from trainc.torch.capture import turns
from trainc.torch.run import pool

TIMEOUT = 120

PRELUDE = """
import os, signal, sys, threading, time
import torch, trainc
trainc.config.fallback = False
hook = None

@torch.library.custom_op("threads_test::call_back", mutates_args=())
def call_back(x: torch.Tensor) -> torch.Tensor:
    global hook
    if hook is not None:
        run, hook = hook, None
        run()
    return x * 2

@call_back.register_fake
def _(x):
    return torch.empty_like(x)

call_back.register_autograd(lambda ctx, g: g * 2)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 300), torch.nn.Linear(300, 3)
    def forward(self, x):
        return self.last(torch.ops.threads_test.call_back(self.first(x).tanh()))

torch.manual_seed(0)
model = Model()
xs = [torch.randn(50, 8) for _ in range(3)]
model(xs[0])  # PyTorch's first call may have a rough half (pytorch/pytorch#188792, docs/numerics.md)
wanted = [model(x).detach() for x in xs]
model = trainc.compile(model)
assert all(record.route == "compiled" for record in model._compiled_call_impl.compilations)
for x in xs:
    model(x)
with torch.no_grad():  # as in an operation
    model(xs[0]), model(xs[0])
found = []
def inner():
    found.append(model(xs[1]))
"""

CHECK = """
outer = model(xs[0])
for name, got, want in (("outer", outer, wanted[0]), ("inner", found[0], wanted[1])):
    assert torch.allclose(got, want, atol=1e-5), (name, got - want)  # where it is wrong tells what went wrong
outer.sum().backward()
print("done")
"""


def run_alone(script: str) -> None:
    run = forked.run(["-c", textwrap.dedent(script)], timeout=TIMEOUT)
    assert run.returncode == 0 and "done" in run.stdout, run.stdout + run.stderr


def test_an_operation_may_call_the_model_that_it_is_in():
    run_alone(PRELUDE + "hook = inner\n" + CHECK)


def test_a_signal_handler_may_call_the_model_that_it_interrupts():
    handler = "signal.signal(signal.SIGUSR1, lambda *_: inner())\nhook = lambda: signal.raise_signal(signal.SIGUSR1)\n"
    run_alone(PRELUDE + handler + CHECK)


def test_a_child_that_an_operation_forks_may_call_the_model():
    run_alone(
        PRELUDE
        + textwrap.dedent("""
        def fork():
            child = os.fork()
            if child == 0:
                inner()
                os._exit(0 if torch.allclose(found[0], wanted[1], atol=1e-5) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            inner()
        hook = fork
        """)
        + CHECK
    )


def test_a_daemon_thread_is_in_our_code_while_the_interpreter_ends():
    """CPython ends such a thread where it wants the interpreter's lock again. Of a whole step, PyTorch's own operations abort the
    process there, too; so the thread is in code of ours alone."""
    for _ in range(4):
        run_alone("""
            import threading, time
            import torch, trainc
            from trainc import _core

            state = torch.Generator().get_state().numpy().tobytes()
            def draw():
                while True:
                    _core.bernoulli(state, 1_000_000, 0.5)
            threading.Thread(target=draw, daemon=True).start()
            time.sleep(0.3)
            print("done", flush=True)
        """)


def test_children_forked_while_other_threads_run_the_model():
    run_alone(
        PRELUDE
        + textwrap.dedent("""
        stop = threading.Event()
        def steps():
            while not stop.is_set():
                model(xs[2])
        threads = [threading.Thread(target=steps) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                found.clear()
                inner()
                os._exit(0 if torch.allclose(found[0], wanted[1], atol=1e-5) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stop.set()
        for thread in threads:
            thread.join()
        inner()
        """)
        + CHECK
    )


def in_threads(*bodies) -> None:
    """Runs these at once; raises the first of their errors."""
    errors, start = [], threading.Barrier(len(bodies))

    def run(body):
        try:
            start.wait(TIMEOUT)
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "hangs"
    if errors:
        raise errors[0]


class Wide(nn.Module):
    """Results and an arena that come from pools (pool.SMALL), and outputs that are deferred."""

    def __init__(self, p: float = 0.0):
        super().__init__()
        self.first, self.last, self.drop = torch.nn.Linear(64, 256), torch.nn.Linear(256, 256), torch.nn.Dropout(p)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        y = self.last(self.drop(h))
        return y.square().mean(), y, h


def gradients(model, x):
    loss, y, h = model(x)
    grads = torch.autograd.grad(loss, list(model.parameters()))
    return [loss.detach(), y.detach() + 0, h.detach() + 0, *grads]


def test_threads_of_one_model_get_the_results_of_one_after_the_other():
    torch.manual_seed(0)
    model = trainc.compile(Wide())
    batches = [torch.randn(128, 64) for _ in range(4)]
    gradients(model, batches[0])
    wanted = [gradients(model, x) for x in batches]
    found: dict[tuple[int, int], list] = {}

    def body(i):
        def run():
            for round_ in range(15):
                found[i, round_] = gradients(model, batches[i])

        return run

    in_threads(*map(body, range(4)))
    for (i, _), got in found.items():
        assert all(map(torch.equal, got, wanted[i]))


def test_threads_share_one_generator():
    """Each draw of the generator goes to one call: its state afterwards is that of as many calls one after the other, and no two
    calls have a mask in common."""
    torch.manual_seed(0)
    models, x, rounds = [trainc.compile(Wide(0.5)) for _ in range(2)], torch.ones(128, 64), 100
    models[1].load_state_dict(models[0].state_dict())
    with torch.no_grad():
        for model in models:
            model(x), model(x)
        torch.manual_seed(5)
        for _ in range(rounds):
            for model in models:
                model(x)
    wanted, results = torch.get_rng_state(), []

    def steps(model):
        @torch.no_grad()
        def run():
            for _ in range(rounds):
                results.append(model(x)[1].numpy().tobytes())

        return run

    torch.manual_seed(5)
    in_threads(*map(steps, models))
    assert torch.equal(_counted(wanted), _counted(torch.get_rng_state()))
    assert len(set(results)) == 2 * rounds


def _counted(state):
    """Where the generator stands: words of its twister that are used, and the words."""
    return torch.cat([state[8:12], state[16:5016]])


def test_an_operation_that_draws_gets_its_place_among_the_draws():
    """A user's operation that calls torch.rand without saying so: masks before it, masks after it, and its own numbers."""

    @torch.library.custom_op("threads_test::noise", mutates_args=())
    def noise(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(x.shape)

    noise.register_fake(torch.empty_like)

    class Model(torch.nn.Module):
        def forward(self, x):
            x = torch.nn.functional.dropout(x, 0.5)
            x = torch.ops.threads_test.noise(x)
            return torch.nn.functional.dropout(x, 0.25)

    model, x = Model(), torch.ones(100, 7)
    torch.manual_seed(3)
    wanted = [model(x) for _ in range(3)]
    state = torch.get_rng_state()
    model = trainc.compile(model)
    torch.manual_seed(3)
    with torch.enable_grad():
        got = [model(x) for _ in range(3)]
    assert [record.route for record in model._compiled_call_impl.compilations] == ["compiled"]
    assert all(map(torch.equal, got, wanted)) and torch.equal(state, torch.get_rng_state())


@pytest.fixture
def hasty():
    """Threads take turns after each step of Python."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_pool_gives_a_block_to_one_of_its_callers(hasty):
    blocks, errors = pool.Pool(), []

    def caller(name):
        def run():
            for i in range(600):
                size = 64 * (1 + i % 3)
                mine = [blocks.tensor(size, (torch.uint8, (size,), (1,))) for _ in range(1 + i % 2)]
                for t in mine:
                    t.fill_(name)
                if not all(bool((t == name).all()) for t in mine):
                    errors.append(name)

        return run

    in_threads(*map(caller, range(4)))
    assert not errors and len(blocks._blocks) <= 4 * (pool.KEPT + 2)  # a caller may keep some, and find the others' just gone


def test_blocks_of_a_pool_are_used_again():
    blocks = pool.Pool()
    first = blocks.tensor(64, (torch.uint8, (64,), (1,)))
    second = blocks.tensor(64, (torch.uint8, (64,), (1,)))
    places = {first.data_ptr(), second.data_ptr()}
    assert len(places) == 2
    view = first[3:]
    del first, second
    third = blocks.tensor(32, (torch.float32, (8,), (1,)))
    assert third.data_ptr() in places and third.data_ptr() != view.data_ptr() - 3
    larger = blocks.tensor(100, (torch.uint8, (100,), (1,)))
    assert larger.data_ptr() not in places
    place = larger.data_ptr()
    del larger
    assert blocks.tensor(90, (torch.uint8, (90,), (1,))).data_ptr() == place


def test_a_block_of_which_the_program_keeps_the_storage_alone_is_not_free():
    blocks, kind = pool.Pool(), (torch.uint8, (64,), (1,))
    kept = blocks.tensor(64, kind).untyped_storage()
    assert blocks.tensor(64, kind).data_ptr() != kept.data_ptr()
    place = kept.data_ptr()
    del kept
    assert place in {t.data_ptr() for t in [blocks.tensor(64, kind) for _ in range(2)]}


def test_a_profiler_that_looks_at_variables_makes_no_block_free():
    blocks, kind = pool.Pool(), (torch.uint8, (64,), (1,))
    sys.setprofile(lambda frame, event, arg: frame.f_locals)
    try:
        held = [blocks.tensor(64, kind) for _ in range(2)]
    finally:
        sys.setprofile(None)
    more = [blocks.tensor(64, kind) for _ in range(2)]
    assert len({t.data_ptr() for t in (*held, *more)}) == 4


def test_a_block_that_the_program_gave_back_smaller_is_not_used_again():
    blocks, size = pool.Pool(), 1 << 20  # the allocator gives the same place
    kind = (torch.uint8, (size,), (1,))
    for smaller in (4096, size // 2, size - 64):
        storage = blocks.tensor(size, kind).untyped_storage()
        storage.resize_(0)
        storage.resize_(smaller)
        del storage
        assert blocks.tensor(size, kind).untyped_storage().nbytes() >= size


@pytest.mark.parametrize("change", ["share_memory_", "resize_"])
def test_a_block_whose_memory_is_another_one_is_not_used_again(change):
    """Another process may read what is shared with it, when nobody here holds it any more."""
    blocks, kind = pool.Pool(), (torch.uint8, (64,), (1,))
    first = blocks.tensor(64, kind)
    getattr(first.untyped_storage(), change)(*([0] if change == "resize_" else []))
    place = first.data_ptr()
    del first
    again = blocks.tensor(64, kind)
    assert again.data_ptr() not in (0, place) and len(again) == 64 and not again.is_shared()
    assert len(blocks._blocks) == 1


def test_a_block_gives_tensors_of_the_mode_that_asks():
    blocks, kind = pool.Pool(), (torch.float32, (8,), (1,))
    for inference in (True, False, True, False):
        with torch.inference_mode(inference):
            made = blocks.tensor(64, kind)
        assert made.is_inference() == inference and not made.requires_grad
        made.untyped_storage().fill_(1)
        place = made.data_ptr()
        del made
    assert blocks.tensor(64, kind).data_ptr() == place and len(blocks._blocks) == 1


def test_threads_read_deferred_outputs_of_their_calls(hasty):
    torch.manual_seed(0)
    model = trainc.compile(Wide())
    batches = [torch.randn(128, 64) for _ in range(3)]
    wanted = [gradients(model, x) for x in batches]
    found: dict[tuple[int, int], list] = {}

    def body(i):
        def run():
            for round_ in range(15):
                loss, y, h = model(batches[i])
                if round_ % 2:
                    grads = torch.autograd.grad(loss, list(model.parameters()))
                    found[i, round_] = [loss.detach(), y.detach() + 0, h.detach() + 0, *grads]
                else:
                    outputs = [y.detach() + 0, h.detach() + 0]
                    found[i, round_] = [loss.detach(), *outputs, *torch.autograd.grad(loss, list(model.parameters()))]

        return run

    in_threads(*map(body, range(3)))
    for (i, _), got in found.items():
        assert all(map(torch.equal, got, wanted[i]))


class Slow(nn.Module):
    """While it is traced it lets another thread go on, and waits a while for it."""

    def __init__(self, meet):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)
        self.meet = [meet]

    def forward(self, x):
        y = self.first(x)
        if torch.compiler.is_compiling():
            self.meet[0]()
        return self.last(y.tanh()).square().mean()


class Meeting:
    """Called by the trace, in the middle of forward: the other thread starts then, and has a while before it goes on.

    A lock tells it, because an event that the trace sets would be state that the step changes.
    """

    def __init__(self):
        self.before = threading.Lock()
        self.before.acquire()

    def __call__(self):
        self.before.release()
        time.sleep(0.4)

    def wait(self):
        return self.before.acquire(timeout=TIMEOUT)


def both_while_tracing(trace, other, meet):
    """The results of `other`, run in a thread that was there before, while `trace()` traces."""
    results = []

    def run():
        assert meet.wait()
        results.append(other())

    in_threads(trace, run)
    return results[0]


CALLS = {
    "the compiled model": lambda model, x: model(x).detach(),
    "a module of it": lambda model, x: model.first(x).detach(),
    "a backward of its own": lambda model, x: torch.autograd.grad(model.last(x).sum(), model.last.weight)[0],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", ["compile", "train_step"])
@pytest.mark.parametrize("what", CALLS)
def test_a_call_while_another_thread_traces_sees_the_models_own_tensors(what, door):
    torch.manual_seed(0)
    meet, x = Meeting(), torch.randn(3, 6)
    model = Slow(meet)
    plain = copy.deepcopy(Slow(None))
    plain.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # a step leaves the weights as they are
    if door == "compile":
        trace = functools.partial(trainc.compile(model), x)
    else:

        def body(x):
            optimizer.zero_grad()
            loss = model(x)
            loss.backward()
            optimizer.step()
            return loss

        trace = functools.partial(trainc.train_step(body), x)
    got = both_while_tracing(trace, lambda: CALLS[what](model, x), meet)
    assert type(got) is torch.Tensor
    torch.testing.assert_close(got, CALLS[what](plain, x))


def test_other_threads_train_and_print_while_a_step_is_traced(capsys):
    """What the trace of a step puts in the place of backward(), step() and print() is not for them."""
    torch.manual_seed(0)
    meet = Meeting()
    model, other = Slow(meet), nn.Linear(4, 1)
    optimizer, others = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other))

    @trainc.train_step
    def step(x):
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        return loss

    def train():
        before = other.weight.detach().clone()
        loss = other(torch.ones(2, 4)).sum()
        loss.backward()
        torch.autograd.backward(other(torch.ones(2, 4)).sum())
        others.step()
        print("trained")
        return (before - other.weight).detach()

    moved = both_while_tracing(lambda: step(torch.randn(3, 6)), train, meet)
    torch.testing.assert_close(moved, torch.full((1, 4), 0.4))
    assert "trained" in capsys.readouterr().out


@pytest.mark.parametrize("seconds", [0.6, None])
def test_who_calls_a_model_that_is_traced_waits_unless_the_trace_waits_for_him(seconds):
    """A trace that starts a thread of its own waits for that, on a busy machine for some tenths of a second."""
    model, begun, over = nn.Linear(2, 2), threading.Event(), threading.Event()

    def trace():
        with turns.alone(model):
            begun.set()
            over.wait(TIMEOUT) if seconds is None else threading.Event().wait(seconds)
            over.set()

    def call():
        begun.wait(TIMEOUT)
        turns.wait_for(model)
        assert over.is_set() == (seconds is not None)
        over.set()

    in_threads(trace, call)


@pytest.mark.filterwarnings("ignore")
def test_a_forward_that_waits_for_threads_does_not_hang():
    """Threads that it starts, and threads of a pool that were there before."""
    workers = concurrent.futures.ThreadPoolExecutor(1)
    workers.submit(int).result()

    class Model(nn.Module):
        def __init__(self, way):
            super().__init__()
            self.layer, self.way = nn.Linear(4, 4), way

        def forward(self, x):
            if self.way == "pool":
                return workers.submit(self.layer, x).result(TIMEOUT)
            results = []
            thread = threading.Thread(target=lambda: results.append(self.layer(x)))
            thread.start()
            thread.join(TIMEOUT)
            return results[0]

    for way in ("starts", "pool"):
        plain, x = Model(way), torch.randn(3, 4)
        ours = trainc.compile(plain)
        found = []
        in_threads(lambda: found.append(ours(x)))  # noqa: B023
        torch.testing.assert_close(found[0], plain.layer(x))


def test_threads_that_trace_at_once():
    """Models of their own, the same model, and torch.compile's door."""
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    plain = [nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 1)) for _ in range(4)]
    wanted = [m(x).detach() for m in plain]
    torch._dynamo.reset()
    run = [trainc.compile(plain[0]), trainc.compile(plain[1]), *(torch.compile(m, backend="trainc") for m in plain[2:])]
    found = {}

    def body(i, number):
        return lambda: found.update({(i, number): run[i](x).detach()})

    in_threads(*(body(i, number) for i in range(4) for number in range(2)))
    for (i, _), got in found.items():
        torch.testing.assert_close(got, wanted[i])
    create_node = torch.fx.experimental.proxy_tensor.PythonKeyTracer.create_node
    assert create_node.__module__.startswith("torch.") and not torch.compiler.is_compiling()
    assert torch.nn.Module._call_impl.__module__.startswith("torch.")
