"""Results lie in a trace as eager's kernels lay them: strides, and the masks that are drawn in the order of memory."""

from __future__ import annotations

import zlib

import pytest
import torch
import torch.nn.functional as F
from conftest import DOORS
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

from trainc.torch import compat
from trainc.torch.capture import layouts_of_results, traced_kernels

FOUND = {
    "copysign", "div", "floor_divide", "heaviside", "logaddexp", "logical_and", "native_batch_norm", "_native_batch_norm_legit",
    "_batch_norm_with_update", "nn.functional.cross_entropy", "nn.functional.pad", "nn.functional.interpolate",
    "nn.functional.max_unpool2d", "nn.functional.batch_norm", "normal", "nn.functional.smooth_l1_loss", "nn.functional.dropout",
    "angle", "nn.functional.mse_loss", "nn.functional.huber_loss", "nn.functional.channel_shuffle", "nn.functional.logsigmoid",
}  # fmt: skip
# Written out in other operations, or their gradients are; linear algebra gives columns.
NOT_AS_EAGER = {
    "max", "min", "prod", "ormqr", "linalg.householder_product", "nn.functional.upsample_bilinear",
    "nn.functional.upsample_nearest", "nn.functional.interpolate",
}  # fmt: skip
LAYOUTS = {
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "permuted": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x,
}


def laid(tree, layout):
    def one(x):
        if not isinstance(x, torch.Tensor) or x.dim() < 2 or x.layout is not torch.strided:
            return x
        return LAYOUTS[layout](x.detach()).requires_grad_(x.requires_grad)

    return tree_map(one, tree)


def strides(op, args, kwargs) -> list[tuple]:
    """Of the results and gradients: the sizes and steps of dimensions that are longer than 1."""
    outs = [t for t in tree_leaves(op.op(*args, **kwargs)) if isinstance(t, torch.Tensor)]
    learning = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
    roots = [t for t in outs if t.requires_grad and t.dtype.is_floating_point]
    if roots and learning:
        ones = [torch.ones_like(t) for t in roots]
        outs += [g for g in torch.autograd.grad(roots, learning, ones, allow_unused=True) if g is not None]
    return [(tuple(t.shape), 0 in t.shape or [(s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n != 1]) for t in outs]


OPS = [
    op
    for op in op_db
    if torch.float32 in op.dtypes and op.name not in NOT_AS_EAGER and (op.name in FOUND or zlib.crc32(op.name.encode()) % 10 == 0)
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operations(layout: str) -> None:
    compared = 0
    for op in OPS:
        for sample in list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))[:4]:
            args, kwargs = laid(((sample.input, *sample.args), sample.kwargs), layout)
            try:
                wanted = strides(op, args, kwargs)
                with FakeTensorMode() as mode, enable_python_dispatcher(), traced_kernels.as_eager():
                    fakes = tree_map(lambda x: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x, (args, kwargs))  # noqa: B023
                    got = strides(op, *fakes)
            except Exception:  # eager refuses the layout, or a fake tensor has not what the sample asks for
                continue
            # which statistics BatchNorm gives where it is evaluated is another matter
            same = [(a, b) for (a, b) in zip(got, wanted, strict=True) if a[0] == b[0]]
            assert all(a == b for a, b in same), f"{op.name} {op.variant_test_name}"
            compared += 1
    assert compared > 200


def turned(x):
    return x.transpose(1, 2)


def turned_in_place(x):
    turned(x).cumsum_(1)
    return x


# Each is followed by dropout.
MASKED = {
    "BatchNorm of what is computed": lambda m, x: m.norm(turned(m.line(x))),
    "BatchNorm of an argument": lambda m, x: m.norm(turned(x)),
    "evaluated BatchNorm": lambda m, x: F.batch_norm(turned(m.line(x)), m.norm.running_mean, m.norm.running_var),
    "logsigmoid": lambda m, x: F.logsigmoid(turned(m.line(x))),
    "nearest": lambda m, x: F.interpolate(turned(m.line(x)), scale_factor=2),
    "linear": lambda m, x: F.interpolate(turned(m.line(x)), scale_factor=2, mode="linear"),
    "copysign": lambda m, x: torch.copysign(turned(m.line(x)), torch.tensor(-1.0)),
    "channel_shuffle": lambda m, x: F.channel_shuffle(m.line(x)[:, None].permute(0, 3, 1, 2), 2),
    "rounded quotient": lambda m, x: torch.div(turned(m.line(x)), torch.tensor(0.3), rounding_mode="floor") + x.sum(),
    "xlogy of what is broadcast": lambda m, x: torch.xlogy(turned(m.line(x)), x.mT.contiguous()[0] + 1),
    "cross entropy of probabilities": lambda m, x: F.binary_cross_entropy(
        turned(m.line(x)).sigmoid(), x.mT.contiguous(), reduction="none"
    ),
    "bf16 and an expanded operand": lambda m, x: x[:, :, 0].bfloat16()[:, None].expand(3, 8, 5) + turned(m.line(x)).bfloat16(),
    "bf16 and an expanded f32": lambda m, x: x[:, :, 0][:, None].expand(3, 8, 5) + turned(m.line(x)).bfloat16(),
    "alpha dropout": lambda m, x: F.alpha_dropout(turned(m.line(x)), 0.2, True),
    "dropout in place": lambda m, x: F.dropout(turned(m.line(x)) * 1, 0.3, inplace=True),
    "bernoulli_": lambda m, x: turned(m.line(x)) * torch.empty_like(turned(x)).bernoulli_(0.3),
    "bernoulli": lambda m, x: turned(m.line(x)) * torch.bernoulli(turned(x), 0.3),
    "cumsum_": lambda m, x: (turned(m.line(x)) * 1).cumsum_(1),
    "cumsum_ through a view": lambda m, x: turned_in_place(m.line(x) * 1),
    "tril_": lambda m, x: (turned(m.line(x)) * 1).tril_(),
    "baddbmm_": lambda m, x: (turned(m.line(x)) * 1).baddbmm_(x.mT.contiguous(), x[:, :, :5]),
    "out=": lambda m, x: torch.mul(x.mT.contiguous(), 2, out=torch.empty_like(turned(x))) * m.line.bias[:, None],
    "out= of a product": lambda m, x: torch.bmm(x.mT, x, out=torch.empty(3, 8, 8).mT) * m.line.bias,
    "3-d convolution": lambda m, x: F.conv3d(m.line(x)[:, None, None].permute(0, 4, 1, 2, 3), torch.ones(8, 8, 1, 1, 2)),
    "scalar power": lambda m, x: torch.pow(1.5, turned(m.line(x))),
}


class Masked(nn.Module):
    def __init__(self, layer):
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.line, self.norm, self.drop = layer, nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.4)

    def forward(self, x):
        return self.drop(self.layer(self, x))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("door", DOORS)
def test_masks_and_strides_are_eagers(door: str) -> None:
    for name, layer in MASKED.items():
        torch._dynamo.reset()  # past eight traces of the same code it would leave the rest to Python
        found = []
        for way in (lambda module: module, DOORS[door]):
            torch.manual_seed(2)
            module = way(Masked(layer))
            result = module(torch.rand(3, 5, 8))
            result.square().sum().backward()
            found.append((result.detach(), result.stride(), *(p.grad for p in module.parameters())))
        (wanted, strides_wanted, *grads_wanted), (got, strides_got, *grads) = found
        assert torch.equal(got == 0, wanted == 0) and strides_got == strides_wanted, name
        tolerances = {"rtol": 1e-4, "atol": 1e-5} if got.dtype is torch.float32 else {"rtol": 0.02, "atol": 0.02}
        torch.testing.assert_close(got, wanted, **tolerances)
        for a, b in zip(grads, grads_wanted, strict=True):
            assert (a is None) == (b is None), name
            if a is not None:
                torch.testing.assert_close(a, b, rtol=0.03 if "bf16" in name else 1e-3, atol=0.2 if "bf16" in name else 1e-4)


def test_rules_go_by_the_names_of_pytorchs() -> None:
    """Fake tensors ask for the name of a rule whether it is PyTorch's own, once in a process: under another name the operation
    would have another rule for good, in traces that are not trainc's, too."""
    for operator, rule in layouts_of_results.WRITTEN_OUT.items():
        own = compat.decomposition_table[operator]
        assert rule is not own and (rule.__module__, rule.__name__) == (own.__module__, own.__name__)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_an_expanded_operand_has_no_say(dtype: torch.dtype) -> None:
    """Of elementwise operations, where eager converts it neither; a bool beside numbers is converted, and then it has."""
    operations = [torch.add, torch.mul, torch.maximum, torch.atan2, torch.pow, torch.gt, torch.fmod, torch.lerp, torch.addcmul]
    other = torch.rand(3, 2).t()
    expanded = [torch.ones(1, 3, dtype=kind).expand(2, 3) for kind in (dtype, torch.float32, torch.float64, torch.bool)]
    for operation in operations:
        for first in expanded:
            operands = [first, other.to(dtype)]
            if operation in (torch.lerp, torch.addcmul):
                operands.append(other.to(dtype))
            try:
                wanted = operation(*operands).stride()
            except RuntimeError:  # these types do not go together
                continue
            with FakeTensorMode() as mode, enable_python_dispatcher(), traced_kernels.as_eager():
                got = operation(*map(mode.from_tensor, operands)).stride()
            assert got == wanted, (operation.__name__, first.dtype)


def test_masks_of_a_checkpoint_that_dynamo_compiles_again() -> None:
    """For the second layout of its argument it is another trace, in which masks stay as they are, too."""
    torch._dynamo.reset()
    found = []
    for way in (lambda module: module, DOORS["torch"]):
        torch.manual_seed(2)
        module = way(Masked(lambda m, x: checkpoint(lambda y: m.drop(m.line(y)), x, use_reentrant=False)))
        for x in (torch.rand(3, 5, 8), torch.rand(5, 3, 8).transpose(0, 1)):
            module(x).square().sum().backward()
        found.append(([p.grad for p in module.parameters()], torch.rand(1)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)
