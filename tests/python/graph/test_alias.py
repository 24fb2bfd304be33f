"""Memory that several tensors share: views that operations run by PyTorch give of the plan's memory, declared or not, and the
views of models (windows, shifts, strides) that are compiled. What they hold must last as long as they do."""

from __future__ import annotations

import copy
import math
import os
import random
import sys
import textwrap

import forked
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from plans import compiled_text
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import trainc
from trainc import _core
from trainc.base import config
from trainc.torch.graph import wire

# ---- operations that PyTorch runs, and that give views --------------------------------------------------------------
LIB = torch.library.Library("trainc_alias", "FRAGMENT")
FROM_NUMPY = "numpy_rows"


def define(schema: str, fn) -> None:
    name = schema.split("(")[0]
    LIB.define(schema)
    LIB.impl(name, fn, "CPU" if name == FROM_NUMPY else "CompositeExplicitAutograd")


define("same(Tensor(a) x) -> Tensor(a)", lambda x: x.view(x.shape))
define("rows(Tensor(a) x, int i, int n) -> Tensor(a)", lambda x, i, n: x[i : i + n])
define("halves(Tensor(a -> *) x) -> Tensor(a)[]", lambda x: [x[: len(x) // 2], x[len(x) // 2 :]])
define("one_of(Tensor(a) x, Tensor(b) y) -> (Tensor(a), Tensor(b))", lambda x, y: (y[:1].view(1, -1), x.view(x.shape)))
# The same without a word in the schema.
define("hidden_same(Tensor x) -> Tensor", lambda x: x.view(x.shape))
define("hidden_itself(Tensor x) -> Tensor", lambda x: x)
define("hidden_rows(Tensor x, int i, int n) -> Tensor", lambda x, i, n: x[i : i + n])
define("hidden_columns(Tensor x) -> Tensor", lambda x: x.t())
# Memory that is shared beneath PyTorch: another storage, which begins within the first one.
define(f"{FROM_NUMPY}(Tensor x, int i) -> Tensor", lambda x, i: torch.from_numpy(x.numpy()[i:]))
LIB.impl(FROM_NUMPY, lambda x, i: x.new_empty(len(x) - i, x.shape[1]), "Meta")
OPS = torch.ops.trainc_alias


class Program:
    """A random program over tensors of `WIDTH` columns: the same when called again."""

    WIDTH = 6

    def __init__(self, seed: int):
        self.seed = seed

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        self.rng = random.Random(self.seed)
        values = list(inputs)
        for _ in range(self.rng.randint(6, 16)):
            values += self.step(values)
        # views that are old by now, sums over them, and what was made last
        chosen = self.rng.sample(values[2:], min(4, len(values) - 2))
        return [values[-1] * 1.5, sum(v.sum() for v in chosen), *[torch.sin(v) for v in chosen]]

    def step(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        rng = self.rng
        x = rng.choice(values[-5:])
        n = len(x)
        kind = rng.choice(["map", "map", "map", "binary", "binary", "rows", "view", "view", "view", "several"])
        if kind == "map":
            return [rng.choice([torch.sin, torch.tanh, lambda v: v * 0.5 + 1, lambda v: v - v.mean(-1, True)])(x)]
        if kind == "binary":
            y = rng.choice([v for v in values if v.shape == x.shape])
            return [rng.choice([torch.add, torch.mul, torch.sub])(x, y)]
        if kind == "rows":
            return [x + x.sum(0, keepdim=True) * 0.1]
        i = rng.randrange(n)
        if kind == "several":
            y = rng.choice(values)
            return rng.choice([lambda: OPS.halves(x) if n > 1 else [x + 1], lambda: list(OPS.one_of(x, y))])()
        views = [
            OPS.same, OPS.hidden_same, OPS.hidden_itself,
            lambda v: OPS.rows(v, i, n - i), lambda v: OPS.hidden_rows(v, i, n - i),
            lambda v: OPS.numpy_rows(v, i), lambda v: OPS.hidden_columns(v).sum(-1) + v,
            lambda v: v.view(torch.int32).view(torch.float32),
        ]  # fmt: skip
        return [rng.choice(views)(x)]


PROGRAMS = int(os.environ.get("TRAINC_FUZZ", "24"))
FIRST = int(os.environ.get("TRAINC_SEED", "0"))


def compiled(fn, *inputs: torch.Tensor) -> list[torch.Tensor]:
    gm = make_fx(lambda *x: list(fn(*x)), tracing_mode="fake")(*inputs)
    return compiled_text(wire.graph_json(gm.graph, "alias"), "alias")([x.clone() for x in inputs])


def assert_close(got, want, what: str = "") -> None:
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-4, msg=lambda m, i=i: f"{what} result {i}: {m}")


@pytest.mark.parametrize("seed", range(FIRST, FIRST + PROGRAMS))
def test_programs_of_views_that_pytorch_gives(seed: int) -> None:
    torch.manual_seed(seed)
    inputs = [torch.randn(5, Program.WIDTH), torch.randn(5, Program.WIDTH)]
    assert_close(compiled(Program(seed), *inputs), Program(seed)(*inputs), f"program {seed},")


@pytest.mark.parametrize("view", ["same", "hidden_same", "hidden_itself", "as_bits"])
def test_a_views_memory_is_not_used_again(view: str) -> None:
    """The plainest such program: the view is read after everything else, when the arena has been full of other values."""

    def fn(x):
        h = torch.tanh(x) + 1
        v = h.view(torch.int32) if view == "as_bits" else getattr(OPS, view)(h)
        for _ in range(4):  # each of these may write over the one before
            h = torch.sin(h + h.mean(0, keepdim=True))
        return [h, v.view(torch.float32) * h]

    x = torch.randn(16, 8)
    assert_close(compiled(fn, x), fn(x))


def test_results_do_not_lie_in_the_plans_memory() -> None:
    """A view that is itself a result, also by two names, and of an argument."""

    def fn(x):
        h = torch.exp(x)
        return [OPS.same(h), OPS.hidden_itself(h), OPS.same(x), OPS.hidden_itself(x), h]

    x = torch.randn(4, 6)
    gm = make_fx(fn, tracing_mode="fake")(x)
    executable = compiled_text(wire.graph_json(gm.graph, "alias"), "alias")
    given = x.clone()
    first = executable([given])
    want = [t.clone() for t in first]
    executable([torch.randn(4, 6)])
    assert_close(first, fn(x))
    assert all(torch.equal(a, b) for a, b in zip(first, want, strict=True))
    pointers = [t.untyped_storage().data_ptr() for t in [*first, given]]
    assert len(set(pointers)) == len(pointers)


define("hidden_double(Tensor x) -> Tensor", lambda x: x.mul_(2))


VIEWS = {
    "transposed": lambda y: y.t(),
    "flat": lambda y: y.flatten(),
    "a new axis": lambda y: y.unsqueeze(0),
    "halves turned": lambda y: y.view(3, 2, 6).permute(2, 0, 1),
}


@pytest.mark.parametrize("view", VIEWS)
def test_what_a_call_reads_and_a_result_views(view: str, strictly) -> None:
    """The call was given the result's layout: silently transposed, where the sizes are equal."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 6))

        def forward(self, x):
            y = torch.exp(x @ self.w)
            return torch.cumprod(y, 0), VIEWS[view](y)

    torch.manual_seed(0)
    model, x = Model(), torch.randn(6, 6)
    want, got = model(x), trainc.compile(copy.deepcopy(model))(x)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_write_that_the_schema_hides_is_an_error() -> None:
    """The plan cannot know which value the others are to see, so that no numbers are given at all."""
    x = torch.randn(3, 4)
    with pytest.raises(trainc.UserError, match=r"hidden_double.*writes over an argument"):
        compiled(lambda x: [OPS.hidden_double(torch.sin(x)) + 1], x)


def test_a_write_that_the_schema_declares_is_not_in_a_plan() -> None:
    gm = make_fx(lambda x: [x.sin()], tracing_mode="fake")(torch.randn(3))
    node = next(n for n in gm.graph.nodes if n.op == "call_function")
    node.target = torch.ops.aten.rrelu_with_noise.default
    node.args = (node.args[0], node.args[0])
    with pytest.raises(trainc.InternalError, match="writes over its argument"):
        compiled_text(wire.graph_json(gm.graph, "writes"), "writes")


# ---- compiled views: the same elements as eager's, whatever the sizes ------------------------------------------------
aten = torch.ops.aten


def random_strided(rng: random.Random, numel: int) -> tuple[list[int], list[int], int]:
    """Sizes, strides and offset that stay within `numel` elements."""
    while True:
        rank = rng.randint(0, 4)
        size = [rng.choice([0, 1, 2, 3, 5]) for _ in range(rank)]
        stride = [rng.choice([0, 1, 2, 3, 4, 7, 15, 20]) for _ in range(rank)]
        reach = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if 0 <= reach < numel:
            return size, stride, rng.randrange(numel - reach)


def written_once(size: list[int], stride: list[int]) -> bool:
    places = torch.arange(1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True) if n > 0))
    places = places.as_strided(size, stride) if 0 not in size else places[:0]
    return places.unique().numel() == places.numel()


def random_view(rng: random.Random):
    """A view, what is written through one, or a gradient of one, of random sizes: (function, shapes of its arguments)."""
    shape = [rng.choice([0, 1, 2, 3, 5, 8]) for _ in range(rng.randint(2, 4))]
    rank, numel = len(shape), math.prod(shape)
    a, b = rng.sample(range(-rank, rank), 2)
    while a % rank == b % rank:
        a, b = rng.sample(range(-rank, rank), 2)
    offset, axis = rng.randint(-4, 4), rng.randrange(-rank, rank)
    order, embedded = rng.sample(range(rank), rank), rng.choice([(-2, -1), (0, -1), (1, 0)])
    empty = torch.empty(shape)
    diagonal = list(empty.diagonal(offset, a, b).shape) if shape[a] > -offset and shape[b] > offset else None
    size, step = rng.randint(0, shape[axis]), rng.randint(1, 4)
    windows = list(empty.unfold(axis, size, step).shape)
    kernel, dilation, padding, stride = ([rng.randint(1, 3), rng.randint(1, 3)] for _ in range(4))
    padding = [n - 1 for n in padding]
    image = [rng.randint(1, 3), rng.randint(1, 2), rng.randint(7, 9), rng.randint(7, 9)]
    columns = list(F.unfold(torch.empty(image), kernel, dilation, padding, stride).shape)
    choices = [
        (lambda x: aten.unfold(x, axis, size, step), [shape]),
        (lambda g: aten.unfold_backward(g, shape, axis, size, step), [windows]),
        (lambda x: aten.diag_embed(x, offset, *embedded), [shape[1:] if rank > 2 else shape]),
        (lambda x: aten.im2col(x, kernel, dilation, padding, stride), [image]),
        (lambda g: aten.col2im(g, image[2:], kernel, dilation, padding, stride), [columns]),
        (lambda x: aten.roll(x, [offset, step], [a, b]), [shape]),
    ]
    if diagonal:
        choices += [
            (lambda x: aten.diagonal(x, offset, a, b), [shape]),
            (lambda g: aten.diagonal_backward(g, shape, offset, a, b), [diagonal]),
            (lambda x, y: aten.diagonal_scatter(x, y, offset, a, b), [shape, diagonal]),
        ]
    if numel:
        of = random_strided(rng, numel)
        choices += 4 * [(lambda x: aten.as_strided(aten.clone(aten.permute(x, order)), *of), [shape])]
        if written_once(*of[:2]):
            choices += 4 * [(lambda x, y: aten.as_strided_scatter(aten.clone(aten.permute(x, order)), y, *of), [shape, of[0]])]
    return rng.choice(choices)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + PROGRAMS))
def test_random_compiled_views(seed: int) -> None:
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    made = [random_view(rng) for _ in range(8)]
    shapes = [shape for _, of in made for shape in of]
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]

    def fn(*given):
        given = iter(given)
        return [function(*[next(given) for _ in of]) for function, of in made]

    gm = make_fx(fn, tracing_mode="fake")(*inputs)
    text = wire.graph_json(gm.graph, "views")
    assert " extern " not in _core.import_text(text)
    assert_close(compiled_text(text, "views")(inputs), fn(*inputs), f"views {seed},")


# ---- models --------------------------------------------------------------------------------------------------------


@pytest.fixture
def strictly(monkeypatch):
    monkeypatch.setattr(config, "fallback", False)


def gradients(model: nn.Module, *batch) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model.zero_grad()
    loss = model(*batch)
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def assert_gradients(model: nn.Module, *batch, limit: float = 1e-4) -> None:
    eager = copy.deepcopy(model)
    want_loss, want = gradients(eager, *batch)
    trainc.compile(model)
    for _ in range(2):  # the second call finds what the first one left in the arena
        loss, got = gradients(model, *batch)
        torch.testing.assert_close(loss, want_loss, rtol=1e-4, atol=1e-5)
        assert len(got) == len(want)
        for g, w, (name, _) in zip(got, want, model.named_parameters(), strict=False):
            assert (g - w).norm() <= limit * (w.norm() + 1e-3 * math.sqrt(w.numel())), name


class RandomModel(nn.Module):
    """Views of intermediate values, compiled ones and others, between layers; each is read again at the end."""

    def __init__(self, seed: int):
        super().__init__()
        self.seed = seed
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rng = random.Random(self.seed)
        kept = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            for _ in range(rng.randint(1, 3)):
                view = self.view(x, rng)
                kept.append(view)
                if rng.random() < 0.6:
                    x = x * (1 + 0.1 * view.mean())
                if view.shape == x.shape:
                    x = x + 0.1 * view
            x = x + rng.choice([torch.sin, torch.cos])(x)
        return x.square().mean() + sum((v * torch.linspace(0.1, 1, v.numel()).view(v.shape)).sum() for v in kept) * 0.01

    def view(self, x: torch.Tensor, rng: random.Random) -> torch.Tensor:
        b, t, c = x.shape
        i = rng.randrange(-3, 4)
        choices = [
            lambda: torch.as_strided(x, (b, 2, c), (t * c, c, 1)),
            lambda: x.as_strided((t * c - 5, 6), (1, 1)),
            lambda: torch.as_strided(x, (c, t), (1, c)),
            lambda: x.diagonal(i, 1, 2),
            lambda: torch.diag_embed(x[0], i),
            lambda: torch.diagonal_scatter(x, x.diagonal(i, 1, 2) * 3, i, 1, 2),
            lambda: x.unfold(1, 3, 2),
            lambda: x.unfold(2, 2, 3),
            lambda: x.roll((i, 1), (1, 2)),
            lambda: F.unfold(x[:, None], (2, 3), padding=1),
            lambda: F.fold(x.transpose(1, 2), (3, 4), (2, 2)),
            lambda: x.select_scatter(x[:, 0] * 2, 1, t - 1),
            lambda: x.slice_scatter(x[:, ::2] * 2, 1, 0, t, 2),
            lambda: torch.as_strided_scatter(x, x[0] + 1, (t, c), (c, 1), 0),
            lambda: x.tril(i) + x.triu(i),
            lambda: x.cumsum(1).expand(2, b, t, c),
            lambda: torch.sort(x, -1)[0].view(-1)[: b * c].view(b, c),
            lambda: x.detach().view(torch.int32).view(torch.float32) * x,
        ]  # fmt: skip
        return rng.choice(choices)()


MODELS = int(os.environ.get("TRAINC_FUZZ", "6"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + MODELS))
def test_gradients_through_views(seed: int, strictly) -> None:
    assert_gradients(RandomModel(seed), torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(seed)))


class Window(nn.Module):
    """Attention within windows, shifted, with a bias by relative position: a block of a Swin transformer."""

    def __init__(self, width: int, heads: int, size: int, window: int, shift: int):
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.1)
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = (at[:, :, None] - at[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("index", apart[..., 0] * (2 * window - 1) + apart[..., 1])
        region = torch.zeros(1, size, size, 1)
        slices = (slice(0, -window), slice(-window, -shift), slice(-shift, None)) if shift else (slice(None),)
        for i, rows in enumerate(slices):
            for j, columns in enumerate(slices):
                region[:, rows, columns] = i * len(slices) + j
        region = self.partition(region).squeeze(-1)
        mask = region[:, None, :] != region[:, :, None]
        self.register_buffer("mask", torch.zeros(mask.shape).masked_fill(mask, -100.0))

    def partition(self, x: torch.Tensor) -> torch.Tensor:
        b, h, w, c = x.shape
        n = self.window
        return x.view(b, h // n, n, w // n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, n * n, c)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, h, w, c = x.shape
        n = self.window
        y = torch.roll(self.norm1(x), (-self.shift, -self.shift), (1, 2)) if self.shift else self.norm1(x)
        y = self.partition(y)
        q, k, v = self.qkv(y).view(-1, n * n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)
        scores = scores + self.table[self.index.view(-1)].view(n * n, n * n, -1).permute(2, 0, 1)[None]
        scores = (scores.view(b, -1, self.heads, n * n, n * n) + self.mask[None, :, None]).view(-1, self.heads, n * n, n * n)
        y = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, n * n, c))
        y = y.view(b, h // n, w // n, n, n, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        x = x + (torch.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y)
        return x + self.mlp(self.norm2(x))


class Swin(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 2, 2)
        self.blocks = nn.ModuleList([Window(16, 2, 8, 4, 0), Window(16, 2, 8, 4, 2)])
        self.merge = nn.Linear(64, 32, bias=False)
        self.deep = Window(32, 4, 4, 4, 0)
        self.head = nn.Linear(32, 5)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).permute(0, 2, 3, 1)
        for block in self.blocks:
            x = block(x)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        x = self.deep(self.merge(x))
        x = F.adaptive_avg_pool1d(x.flatten(1, 2).transpose(1, 2), 1)
        return F.cross_entropy(self.head(torch.flatten(x, 1)), label)


class ConvNeXt(nn.Module):
    """Depthwise convolutions, norms over channels, and a global pool, whose result PyTorch lays out by `as_strided`."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 2, 2)
        self.depthwise = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1, groups=16) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.mlps = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(2))
        self.scale = nn.Parameter(torch.full((2, 16), 0.5))
        self.head = nn.Linear(16, 5)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = self.stem(image)
        for depthwise, norm, mlp, scale in zip(self.depthwise, self.norms, self.mlps, self.scale, strict=True):
            y = norm(depthwise(x).permute(0, 2, 3, 1))
            x = x + (mlp(y) * scale).permute(0, 3, 1, 2)
        x = F.adaptive_avg_pool2d(x.contiguous(memory_format=torch.channels_last), 1)
        return F.cross_entropy(self.head(torch.flatten(x, 1)), label)


def image_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(4, 3, 16, 16, generator=generator), torch.randint(0, 5, (4,), generator=generator)


@pytest.mark.parametrize("kind", [Swin, ConvNeXt])
def test_gradients_of_models_of_views(kind, strictly) -> None:
    torch.manual_seed(0)
    assert_gradients(kind(), *image_batch())


def losses_of(model: nn.Module, through_trainc: bool) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if through_trainc:
        model, optimizer = trainc.compile(model, optimizer)
    batch, losses = image_batch(), []
    for _ in range(20):
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", [Swin, ConvNeXt])
def test_models_of_views_learn_as_eager_does(kind, strictly) -> None:
    torch.manual_seed(0)
    model = kind()
    want, got = losses_of(copy.deepcopy(model), False), losses_of(model, True)
    assert want[-1] < 0.6 * want[0]
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


# ---- poisoned memory ------------------------------------------------------------------------------------------------


def test_poisoned_memory_changes_nothing() -> None:
    """TRAINC_DEBUG=poison: no kernel reads what nobody wrote, or what was freed (src/runtime/poison.h)."""
    program = textwrap.dedent("""
        import torch, test_alias, trainc
        trainc.config.fallback = False
        torch.manual_seed(0)
        for kind in (test_alias.Swin, test_alias.ConvNeXt):
            test_alias.assert_gradients(kind(), *test_alias.image_batch())
        for seed in range(4):
            test_alias.test_programs_of_views_that_pytorch_gives(seed)
    """)
    environment = {**os.environ, "TRAINC_DEBUG": "poison", "TRAINC_CACHE": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    run = forked.run(["-c", program], env=environment)
    assert run.returncode == 0, run.stderr[-3000:]
