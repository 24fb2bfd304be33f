"""What a compiled call must notice, and what it must not capture: the signature, Python side effects, hooks."""

import collections
import copy
import gc
import random
import types
import warnings
import weakref

import numpy as np
import pytest
import torch
from conftest import assert_same, gradients
from torch import nn

import trainc
from trainc.base import messages, records
from trainc.torch.doors import variants
from trainc.torch.guards import places, state


class Layered(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.scale = 2.0
        self.table = torch.arange(4.0)  # neither a parameter nor a buffer

    def forward(self, x, flag=True):
        h = self.drop(self.one(x)) * self.scale + self.table
        return self.two(h) if flag else h


def pair(cls=Layered):
    plain = cls()
    return plain, trainc.compile(copy.deepcopy(plain))


def same_call(plain, ours, *args, **kwargs):
    results = []
    for model in (plain, ours):
        torch.manual_seed(11)
        results.append(model(*args, **kwargs))
    assert_same(results[1], results[0])


def test_changes_are_noticed(engine, strict):
    plain, ours = pair()
    x = torch.randn(3, 4)
    changes = [
        lambda m: None,
        lambda m: m.eval(),
        lambda m: m.train(),
        lambda m: setattr(m, "scale", 3.0),
        lambda m: setattr(m.drop, "p", 0.0),
        lambda m: setattr(m, "table", torch.ones(4)),
        lambda m: m.table.add_(1),
        lambda m: setattr(m, "two", nn.Linear(4, 4, bias=False)),
        lambda m: m.two.weight.data.fill_(0.5),
        lambda m: setattr(m.one, "weight", nn.Parameter(torch.ones(4, 4))),
        lambda m: m.requires_grad_(False),
        lambda m: m.requires_grad_(True),
        lambda m: m.double(),
    ]
    for change in changes:
        for model in (plain, ours):
            torch.manual_seed(1)
            change(model)
        x = x.to(plain.one.weight.dtype)
        same_call(plain, ours, x)
        same_call(plain, ours, x)
    same_call(plain, ours, x, flag=False)
    same_call(plain, ours, x.t().contiguous().t()[:2])
    assert all(record.route == "compiled" for record in records.of(ours))


class Configured(Layered):
    def __init__(self):
        super().__init__()
        self.config = types.SimpleNamespace(scale=2.0, options=[])
        self.widths, self.names, self.plan, self.nothing = [4, 4], {"a"}, {"a": 1}, {}
        self.order = collections.OrderedDict(a=1)
        self.register_buffer("bias", torch.zeros(4))
        self.register_buffer("missing", None)


CHANGES = {
    "training": lambda m: m.drop.eval(),
    "value": lambda m: setattr(m, "scale", 2.5),
    "type of a value": lambda m: setattr(m, "scale", 2),
    "new attribute": lambda m: setattr(m, "extra", 1),
    "removed attribute": lambda m: delattr(m, "scale"),
    "configuration": lambda m: setattr(m.config, "scale", 2.5),
    "list of a configuration": lambda m: m.config.options.append(1),
    "another configuration": lambda m: setattr(m, "config", copy.copy(m.config)),
    "list": lambda m: m.widths.__setitem__(0, 5),
    "set": lambda m: m.names.add("b"),
    "dictionary": lambda m: m.plan.update(a=2),
    "ordered dictionary": lambda m: m.order.update(a=2),
    "empty dictionary": lambda m: m.nothing.update(a=2),
    "module": lambda m: setattr(m, "two", nn.Linear(4, 4)),
    "new module": lambda m: setattr(m.one, "inner", nn.Linear(4, 4)),
    "removed module": lambda m: delattr(m, "drop"),
    "renamed module": lambda m: m._modules.update(three=m._modules.pop("two")),
    "parameter": lambda m: setattr(m.one, "weight", nn.Parameter(torch.ones(4, 4))),
    "removed parameter": lambda m: setattr(m.one, "bias", None),
    "tied": lambda m: setattr(m.one, "weight", m.two.weight),
    "buffer": lambda m: setattr(m, "bias", torch.ones(4)),
    "first buffer": lambda m: setattr(m, "missing", torch.ones(4)),
    "tensor attribute": lambda m: setattr(m, "table", torch.ones(4)),
    "strides": lambda m: setattr(m.one.weight, "data", m.one.weight.data.t()),
    "shape": lambda m: setattr(m.bias, "data", torch.zeros(1, 4)),
    "type": lambda m: m.bfloat16(),
    "requires_grad": lambda m: m.one.bias.requires_grad_(False),
    "hook": lambda m: m.two.register_forward_hook(lambda *_: None),
    "equal value of another type": lambda m: setattr(m.config, "scale", 2),
}


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, lambda items: collections.defaultdict(float, items)])
def test_every_kind_of_dictionary_is_read(engine, strict, kind):
    class Scaled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * self.scales["a"]

    plain = Scaled(4, 4)
    plain.scales = kind({"a": 2.0})
    ours = trainc.compile(copy.deepcopy(plain))
    for scale in (2.0, 3.0, 2.0):
        for model in (plain, ours):
            model.scales["a"] = scale
        same_call(plain, ours, torch.randn(3, 4))


@pytest.mark.parametrize("change", CHANGES)
def test_the_cheap_check_sees(change):
    model = Configured()
    model_state = state.ModuleState(model)
    unchanged = state.StateGuard(model_state, model_state.tensors())
    assert unchanged()
    CHANGES[change](model)
    assert not unchanged()


def test_identity_of_contents_is_what_python_says():
    """The compiled check against its plain spelling, on random dictionaries, lists and sets with one change each."""
    random.seed(3)
    values = [None, True, 1, 1.0, 1000, "a", (1,), [], {}]

    def container():
        items = [random.choice(values) for _ in range(random.randrange(4))]
        kind = random.choice([dict, dict, list, set])
        return {f"k{i}": item for i, item in enumerate(items)} if kind is dict else kind(i for i in items if i not in ([], {}))

    for _ in range(1000):
        containers = [container() for _ in range(random.randrange(24))]
        before = places.contents(containers)
        assert places.same_contents(containers, before)
        assert not places.same_contents(containers, [*before, None])
        if not containers:
            continue
        changed = random.choice(containers)
        if changed and random.random() < 0.5:
            if isinstance(changed, set):
                changed.pop()
            else:
                changed.pop(random.choice(list(changed)) if isinstance(changed, dict) else random.randrange(len(changed)))
        elif isinstance(changed, set):
            changed.add(random.randrange(5000, 5003))
        elif isinstance(changed, dict):
            changed[f"k{random.randrange(5)}"] = random.choice(values)
        else:
            changed[random.randrange(len(changed) + 1) :] = [random.choice(values)]
        now = places.contents(containers)
        same = len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
        assert places.same_contents(containers, before) == same
    assert not places.same_contents([(1,)], [1, (1,)])  # a container of another kind


def test_the_cheap_check_holds_through_training_and_evaluation(monkeypatch):
    model = trainc.compile(Configured())
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(3, 4)
    for step in range(6):
        for mode in (True, False):
            model.train(mode)
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        if step == 1:  # from the third time on, nothing is read
            monkeypatch.setattr(state.ModuleState, "values", lambda _: pytest.fail("reads the module"))
    assert len(records.of(model)) == 2


def test_the_cheap_check_keeps_no_tensors_of_the_past():
    model = trainc.compile(Configured())
    x = torch.randn(3, 4)
    for _ in range(3):
        model(x)
    old = weakref.ref(model.one.weight)
    model.one.weight = nn.Parameter(torch.ones(4, 4))
    for _ in range(2):
        model(x)
    gc.collect()
    assert old() is None


def test_a_model_that_nobody_holds_goes():
    model = trainc.compile(Configured())
    for _ in range(3):
        model(torch.randn(3, 4))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_going_back_compiles_nothing(engine, strict):
    _, ours = pair()
    x = torch.randn(3, 4)
    for _ in range(3):
        ours.train()
        ours(x)
        ours.eval()
        ours(x)
    assert len(records.of(ours)) == 2


def test_no_grad_compiles_what_repeats(engine, strict):
    plain, ours = pair()
    plain.eval(), ours.eval()
    with torch.no_grad():
        for rows in (1, 2, 3):
            same_call(plain, ours, torch.randn(rows, 4))
        assert not records.of(ours)
        x = torch.randn(3, 4)
        same_call(plain, ours, x)
    assert len(records.of(ours)) == 1
    with torch.inference_mode():
        for _ in range(3):
            assert_same(ours(x).clone(), plain(x).clone())


class Counting(Layered):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Caching(Layered):
    def forward(self, x):
        self.cache = super().forward(x)
        return self.cache


class Listing(Layered):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(tuple(x.shape))
        return super().forward(x)


class Reassigning(Layered):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count = self.count + 1
        return super().forward(x)


@pytest.mark.parametrize("cls", [Counting, Caching, Listing, Reassigning])
def test_python_side_effects_happen_once_a_call(engine, cls):
    plain, ours = pair(cls)
    x = torch.randn(3, 4)
    same_call(plain, ours, x)  # in PyTorch: the state may be one that only a first call sets
    assert not records.of(ours)
    with pytest.warns(messages.TraincWarning, match="goes through torch.compile's tracer: forward"):
        same_call(plain, ours, x)
    same_call(plain, ours, x)
    if cls is Counting:
        assert ours.calls == plain.calls == 3
    if cls is Caching:
        assert type(ours.cache) is torch.Tensor
        assert_same(ours.cache, plain.cache)
    if cls is Listing:
        assert ours.seen == plain.seen
    if cls is Reassigning:
        assert ours.count == plain.count == 3
    assert records.of(ours)[0].route == "dynamo" and "forward" in records.of(ours)[0].reason


class Settling(Layered):
    """As Hugging Face models decide on `config.problem_type`: the first forward sets what the others find."""

    def __init__(self):
        super().__init__()
        self.decided, self.offsets, self.decisions = None, None, []

    def forward(self, x):
        if self.decided is None:
            self.decided = "add"
            self.decisions.append(self.decided)
            self.offsets = torch.ones(4)
        return super().forward(x) + self.offsets


def test_state_that_only_the_first_call_sets_is_captured(engine, strict):
    plain, ours = pair(Settling)
    for rows in (3, 3, 5, 5):
        same_call(plain, ours, torch.randn(rows, 4))
    assert ours.decisions == plain.decisions == ["add"] and type(ours.offsets) is torch.Tensor
    assert [record.route for record in records.of(ours)] == ["compiled", "compiled"]


def test_values_that_never_repeat_are_not_kept_forever(engine, monkeypatch):
    monkeypatch.setattr(variants, "MAX_VARIANTS", 2)
    plain, ours = pair()
    with pytest.warns(messages.TraincWarning, match="another value at nearly every call"):
        for scale in (1.0, 2.0, 3.0, 4.0):
            plain.scale = ours.scale = scale
            same_call(plain, ours, torch.ones(3, 4))
    assert len(ours._compiled_call_impl._signatures.variants.seen) == 2


class Random(Layered):
    def forward(self, x):
        return super().forward(x) * random.random()


def test_pythons_generator_is_left_alone(engine):
    plain, ours = pair(Random)
    x = torch.randn(3, 4)
    results = []
    for model in (plain, ours):
        torch.manual_seed(2)
        random.seed(2)
        with pytest.warns(messages.TraincWarning, match="random") if model is ours else _nothing():
            results.append(model(x))
        results.append(random.random())
    assert_same(results[2], results[0])
    assert results[3] == results[1]


def test_a_generator_of_the_programs_own_is_named(core):
    class Drawn(nn.Linear):
        generator = torch.Generator().manual_seed(3)

        def forward(self, x):
            return super().forward(x) * torch.rand(4, generator=self.generator)

    with pytest.warns(messages.TraincWarning, match=r"test_guards.py:\d+ \(aten.rand.generator\) draws from a torch.Generator"):
        trainc.compile(Drawn(4, 4))(torch.randn(3, 4))


def _nothing():
    import contextlib

    return contextlib.nullcontext()


def test_hooks_fire_on_real_tensors(engine):
    plain, ours = pair()
    x = torch.randn(3, 4)
    ours(x)
    seen = []
    for model in (plain, ours):
        model.one.register_forward_hook(lambda module, args, result: seen.append(type(result)) or result * 2)
    same_call(plain, ours, x)
    with pytest.warns(messages.TraincWarning, match=r"forward changes `one.forward_hooks\[0\].seen`"):
        same_call(plain, ours, x)
    for model in (plain, ours):
        torch.manual_seed(1)
        model(x).sum().backward()
    assert_same(gradients(ours), gradients(plain))
    assert set(seen) == {torch.Tensor} and len(seen) == 6


def test_a_program_that_draws_and_hooks_itself_draws_as_eager_does(engine):

    class Drawn(nn.Linear):
        def forward(self, x):
            if not hasattr(self, "hooked"):
                self.hooked = self.inner.register_forward_hook(lambda module, args, result: None)
            return self.inner(super().forward(x)) * float(np.random.rand())

    def losses(model):
        np.random.seed(3)
        return [model(torch.ones(2, 4)).sum().item() for _ in range(4)]

    plain = Drawn(4, 4)
    plain.inner = nn.Linear(4, 4)
    ours = copy.deepcopy(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert losses(trainc.compile(ours)) == pytest.approx(losses(plain), rel=1e-5)
    assert "compiled" not in {record.route for record in records.of(ours)}


def test_many_signatures_run_in_pytorch(engine, monkeypatch):
    monkeypatch.setattr(trainc.config, "max_signatures", 2)
    plain, ours = pair()
    with pytest.warns(messages.TraincWarning, match="more than 2 different signatures"):
        for rows in range(1, 5):
            same_call(plain, ours, torch.randn(rows, 4))
    assert len(records.of(ours)) == 2


def test_the_same_tensor_twice_is_another_signature(engine, strict):
    class Two(nn.Module):
        def forward(self, x, y):
            return x * y + x

    plain, ours = pair(Two)
    a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    for args in ((a, a), (a, b), (b, b)):
        wanted = torch.autograd.grad(plain(*args).sum(), args)
        assert_same(list(torch.autograd.grad(ours(*args).sum(), args))[0], wanted[0])


def test_lstm_keeps_its_weights_in_a_list_too(engine, strict):
    plain = nn.LSTM(4, 3, batch_first=True)
    ours = trainc.compile(copy.deepcopy(plain))
    x = torch.randn(2, 5, 4)
    for model in (plain, ours):
        out, (h, c) = model(x)
        (out.sum() + c.square().sum()).backward()
    assert_same(gradients(ours), gradients(plain))


@pytest.mark.usefixtures("strict")
def test_a_default_device_is_no_transform():
    """torch.set_default_device puts a mode on torch's stack, under which models are compiled as without it."""
    model = trainc.compile(torch.nn.Linear(3, 2))
    torch.set_default_device("cpu")
    try:
        for _ in range(2):
            model(torch.ones(4, 3)).sum().backward()
        (made,) = trainc.explain(model).compilations
        assert made.route == "compiled"
        with torch.device("meta"):
            model(torch.ones(4, 3, device="cpu"))
    finally:
        torch.set_default_device(None)
    assert len(trainc.explain(model).compilations) == 2  # what forward makes may lie elsewhere


STREAM = iter(range(10**6))


def test_callbacks_of_the_garbage_collector_are_not_the_programs(strict):
    """JAX has one: it ran in the middle of a trace, which was refused for what it reads."""
    told = []

    def collected(phase, info):
        told.append(phase)
        next(STREAM, None)  # which ends a trace where the program does it: nobody sees into an iterator

    torch.manual_seed(0)
    plain, x = nn.Linear(4, 3), torch.randn(5, 4)
    model = copy.deepcopy(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @trainc.train_step
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    before = gc.get_threshold()
    gc.callbacks.append(collected)
    gc.set_threshold(5)
    try:
        loss = step(x)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collected)
    assert told
    assert_same(loss, plain(x).square().mean())
