"""Operations for which PyTorch's dispatcher has a kernel in Python that only a trace takes: each is one of eager's results, or is
replaced (capture/traced_kernels.py)."""

import functools
import importlib

import pytest
import torch
from conftest import Calls
from torch import nn
from torch.nn import functional as F

import trainc
from trainc.base import records
from trainc.torch import compat
from trainc.torch.capture import traced_kernels

# Looked at, and compared with eager by the conformance suite, with NaN, infinities and ties among their inputs.
LOOKED_AT = {
    "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_lanczos2d_aa", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "broadcast_tensors", "cudnn_batch_norm", "dropout", "empty", "gru",
    "hardshrink", "istft", "lstm", "matmul", "miopen_batch_norm", "multi_margin_loss", "multilabel_margin_loss_forward",
    "native_batch_norm",
    "one_hot", "pad_sequence", "rnn_relu", "rnn_tanh", "softshrink", "stft", "tensor_split", "unsafe_chunk",
    "upsample_bicubic2d",
    "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "upsample_trilinear3d",
}  # fmt: skip
WRITTEN_OUT = {compat.DispatchKey.Autograd, compat.DispatchKey.CompositeImplicitAutograd}


def test_all_of_pytorchs_kernels_for_traces_were_looked_at():
    importlib.import_module("torch._inductor.decomposition")  # which adds some
    found = set()
    names = {schema.name.removeprefix("aten::") for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")}
    for name in sorted(names):  # dir(torch.ops.aten) has those alone that somebody has asked for
        packet = getattr(torch.ops.aten, name, None)
        if isinstance(packet, compat.OpOverloadPacket):
            found |= {name for each in packet.overloads() if WRITTEN_OUT & getattr(packet, each).py_kernels.keys()}
    assert found - LOOKED_AT == set()


def margin_losses():
    """Random cases, as (loss, numbers, *other arguments): labels that end early, of one and of several classes; margins that are
    just kept; NaN."""
    draw = torch.Generator().manual_seed(5)
    for reduction in ("mean", "sum", "none"):
        x = torch.randint(-2, 3, (6, 5), generator=draw).float() / 2
        labels = torch.stack([torch.randperm(5, generator=draw) for _ in range(6)])
        for row, end in enumerate(torch.randint(0, 6, (6,), generator=draw).tolist()):
            labels[row, end : end + 1] = -1
        yield functools.partial(F.multilabel_margin_loss, reduction=reduction), x, labels
        classes, weight = torch.randint(0, 5, (6,), generator=draw), torch.rand(5, generator=draw)
        for p in (1, 2):
            with_nan = x.clone()
            with_nan[2, 1] = float("nan")
            loss = functools.partial(lambda p, r, x, c, w: F.multi_margin_loss(x, c, p, 0.5, w, reduction=r), p, reduction)
            yield loss, with_nan, classes, weight


@pytest.mark.parametrize("place", range(9))
def test_margin_losses_are_eagers(place, strict):
    loss, x, *others = list(margin_losses())[place]

    class Model(nn.Module):
        def forward(self, x, *others):
            return loss(x, *others) * 1.5

    found = []
    for model in (Model(), trainc.compile(Model())):
        given = x.clone().requires_grad_()
        result = model(given, *others)
        result.sum().backward()
        found += [result.detach(), given.grad]
    assert [r.route for r in records.of(model)] == ["compiled"]
    torch.testing.assert_close(found[2:], found[:2], equal_nan=True)


def test_kernels_are_pytorchs_again_after_a_trace():
    before = {operator: dict(operator.py_kernels) for operator in traced_kernels._KERNELS}
    with traced_kernels.as_eager():
        assert torch.ops.aten.multi_margin_loss.default.py_kernels != before[torch.ops.aten.multi_margin_loss.default]
    assert before == {operator: dict(operator.py_kernels) for operator in traced_kernels._KERNELS}


SIZES_TELL = {
    "cov": lambda x: torch.cov(x), "cov/no correction": lambda x: torch.cov(x.bfloat16(), correction=0),
    "cov/one row": lambda x: torch.cov(x[0]), "corrcoef": lambda x: torch.corrcoef(x),
    "combinations": lambda x: torch.combinations(x[0], 3), "combinations/again": lambda x: torch.combinations(x[0], 2, True),
    "combinations/none": lambda x: torch.combinations(x[0], 9),
    "polygamma_": lambda x: (x.abs() + 1).polygamma_(1),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES_TELL)
def test_what_sizes_tell_is_no_look_at_values(name, core, strict):
    """Nor is `polygamma_`, whose operands stand in another order than those of `polygamma`, refused."""
    plain = Calls(SIZES_TELL[name])
    ours = trainc.compile(plain)
    found = []
    for run in (ours, SIZES_TELL[name]):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(3), requires_grad=True)
        result = run(x)
        (result.float() * torch.linspace(-1, 1, result.numel()).reshape(result.shape)).sum().backward()
        found.append((result.detach(), x.grad))
    torch.testing.assert_close(found[0], found[1], rtol=2e-5, atol=2e-6)
    assert [record.route for record in records.of(plain)] == ["compiled"]


LAID = {
    "plain": lambda a: a, "transposed": lambda a: a.T, "made": lambda a: (a * 1).T,
    "columns": lambda a: torch.cat([a, a], 1)[:, :4],
    "batch": lambda a: torch.stack([a, 2 * a + 1], 2).permute(2, 0, 1), "expanded": lambda a: a.T.expand(2, 4, 4),
}  # fmt: skip
DETERMINANTS = {
    "det": torch.det, "slogdet": lambda a: torch.slogdet(a)[1],
    "logdet": lambda a: torch.logdet(a * a.det().sign()[..., None, None]),
    "solve": lambda a: torch.linalg.solve(a, a[..., :2] + 1), "inv": torch.linalg.inv,
}  # fmt: skip


@pytest.mark.parametrize("laid", LAID)
@pytest.mark.parametrize("name", DETERMINANTS)
def test_gradients_of_determinants_do_not_depend_on_strides(name, laid, core, strict):
    """What is factored, the matrix or its transpose, PyTorch tells by the strides; a plan's are others than the trace's."""
    found = []
    for compiled in (True, False):
        a = torch.randn(4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64, requires_grad=True)
        run = Calls(lambda x: DETERMINANTS[name](LAID[laid](x)))
        (trainc.compile(run) if compiled else run)(a).square().sum().backward()
        found.append(a.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("size", [(2, 3, 5, 1), (2, 3, 1, 4), (2, 3, 2, 1, 3)], ids=str)
def test_grids_with_one_place_are_traced(size, core):
    layer, sides = nn.Linear(3, (len(size) - 2) * (len(size) - 1)), len(size) - 2
    x = torch.randn(size, generator=torch.Generator().manual_seed(3))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        theta = layer(x.flatten(2).mean(2)).view(-1, sides, sides + 1)
        loss = F.grid_sample(x, F.affine_grid(theta, list(size), align_corners=False), align_corners=False).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    before = [p.detach().clone() for p in layer.parameters()]
    found = []
    for run in (trainc.train_step(step), step):
        with torch.no_grad():
            for p, old in zip(layer.parameters(), before, strict=True):
                p.copy_(old)
        loss = run(x)
        found.append((loss.detach(), [p.detach().clone() for p in layer.parameters()]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
def test_polygamma_is_not_written_over_integers(dtype, core, strict):
    model = trainc.compile(Calls(lambda x: x.polygamma_(1)))
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        model(torch.ones(3, dtype=dtype))


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_sums_of_bags_of_bfloat16_are_eagers(weighted, core, strict):
    """Their fast way gives an empty tensor in a place where PyTorch says that there is one number an index."""

    def bags(weight, indices, offsets, factors):
        return F.embedding_bag(indices, weight, offsets, mode="sum", per_sample_weights=factors if weighted else None)

    draw = torch.Generator().manual_seed(2)
    plain, found = Calls(bags), []
    for run in (trainc.compile(plain), bags):
        draw.manual_seed(2)
        weight, factors = [torch.randn(size, generator=draw).bfloat16().requires_grad_() for size in ((10, 5), (5,))]
        result = run(weight, torch.tensor([1, 2, 7, 2, 9]), torch.tensor([0, 3]), factors)
        result.float().square().sum().backward()
        found.append((result.detach(), weight.grad, factors.grad))
    assert all(a is b or torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert [record.route for record in records.of(plain)] == ["compiled"]


@pytest.mark.parametrize("convolve", [F.conv1d, F.conv2d, F.conv3d])
def test_convolutions_of_integers_are_pytorchs(convolve, core, strict):
    rank = int(convolve.__name__[4])
    plain = Calls(lambda x, w: convolve(x, w, padding=1))
    x, w = torch.arange(2 * 5**rank).view(1, 2, *[5] * rank), torch.arange(4 * 3**rank).view(2, 2, *[3] * rank)
    assert torch.equal(trainc.compile(plain)(x, w), plain(x, w))
    assert [name for name, _ in records.of(plain)[0].externs()] == ["aten.convolution.default"]


def test_a_covariance_of_too_few_warns_as_eager(core):
    """Of weighted ones, too, PyTorch asks the values."""
    weighted = trainc.compile(Calls(lambda x, w: torch.cov(x, fweights=w)))
    x, w = torch.randn(3, 4), torch.tensor([1, 2, 3, 4])
    torch.testing.assert_close(weighted(x, w), torch.cov(x, fweights=w))
    ours = trainc.compile(Calls(lambda x: torch.cov(x)))
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert ours(torch.randn(3, 1)).isnan().all()


def test_what_fake_tensors_remember_is_apart():
    """Results by our rules are not PyTorch's to know, nor the other way round; what goes, goes from both."""
    theirs = compat.FakeTensorMode.cache

    def layout():
        with compat.FakeTensorMode() as mode:
            x = mode.from_tensor(torch.rand(3, 4, 5).transpose(1, 2))
            return torch.ops.aten.log_sigmoid_forward(x)[0].stride()

    before = layout()
    with compat.enable_python_dispatcher(), traced_kernels.as_eager():
        ours = compat.FakeTensorMode.cache
        assert ours is not theirs
        assert layout() == torch.nn.functional.logsigmoid(torch.rand(3, 4, 5).transpose(1, 2)).stride() != before
        key, own = next(iter(theirs)), next(iter(ours))
        kept = theirs[key]
        for each in (key, own):
            compat.fake_tensor.evict_fake_tensor_cache_key(each)
        assert key not in theirs and not dict.__contains__(ours, own)
        theirs[key] = kept
    assert compat.FakeTensorMode.cache is theirs and layout() == before


def test_what_fake_tensors_remember_is_of_the_users_settings():
    """Eager's convolution of a volume, channels last, lies otherwise without oneDNN."""
    x, weight = torch.rand(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d), torch.rand(6, 3, 3, 3, 3)

    def layouts():
        with compat.FakeTensorMode() as mode, compat.enable_python_dispatcher(), traced_kernels.as_eager():
            fake = torch.conv3d(mode.from_tensor(x), mode.from_tensor(weight)).stride()
        return torch.conv3d(x, weight).stride(), fake

    found = []
    for enabled in (True, False, True):
        with torch.backends.mkldnn.flags(enabled=enabled):
            wanted, got = layouts()
        assert got == wanted
        found.append(wanted)
    assert found[0] == found[2] != found[1]
