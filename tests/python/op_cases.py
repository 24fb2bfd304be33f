"""One case table over all rows of the ATen table: what is computed, from which inputs, how near to eager it must be.

A bound has two parts: `ulps`, in units of the result's epsilon times each element, and `slack`, in units of epsilon times
the result's largest element, 1 at least (sums: rounding depends on the size of what is summed, not on the sum).
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

import trainc.torch.capture.traced_kernels  # noqa: F401 (the operations that it registers)

aten = torch.ops.aten
INF, NAN = math.inf, math.nan


@dataclass(frozen=True)
class Spec:
    """An input: made from a seed, so that a case is the same in every run."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    low: float = 0
    high: float = 0  # ints: low <= i < high
    values: str = "normal"  # or positive, unit (0..1), special (with inf, nan, zeros)
    layout: str = "plain"  # or transposed, strided (gaps), expanded

    def tensor(self, generator: torch.Generator) -> torch.Tensor:
        shape = list(self.shape)
        if self.layout == "transposed":
            shape.reverse()
        elif self.layout == "strided":
            shape[-1] *= 2
        elif self.layout == "expanded":
            shape[0] = 1
        x = self._values(shape, generator)
        if self.layout == "transposed":
            return x.permute(*reversed(range(len(shape))))
        if self.layout == "strided":
            return x[..., ::2]
        return x.expand(self.shape)

    def _values(self, shape: list[int], generator: torch.Generator) -> torch.Tensor:
        if self.dtype == torch.bool:
            return torch.rand(shape, generator=generator) < 0.5
        if not self.dtype.is_floating_point:
            return torch.randint(int(self.low), int(self.high), shape, generator=generator).to(self.dtype)
        x = torch.randn(shape, generator=generator) * 1.5
        if self.values == "positive":
            x = x.abs() + 0.1
        elif self.values == "unit":
            x = torch.rand(shape, generator=generator) * 0.98 + 0.01
        elif self.values == "special":
            flat = x.view(-1)
            for i, v in enumerate([INF, -INF, NAN, 0.0, -0.0, 3.0, -3.0, 0.5, 100.0, -100.0, 1e-30]):
                if i < flat.numel():
                    flat[i] = v
        return x.to(self.dtype)


def f32(*shape, **kw):
    return Spec(shape, **kw)


def bf16(*shape, **kw):
    return Spec(shape, torch.bfloat16, **kw)


def i64(*shape, low=0, high=10, dtype=torch.int64, **kw):
    return Spec(shape, dtype, low, high, **kw)


def mask(*shape, **kw):
    return Spec(shape, torch.bool, **kw)


@dataclass(frozen=True)
class Case:
    name: str
    fn: Callable
    inputs: tuple[Spec, ...]
    ulps: float = 2
    slack: float = 0
    truth: bool = True  # also compared in fp64 (off where the function names a dtype)
    extern: bool = False  # expected to run in the framework, whole or in part
    masks: Callable | None = None  # eager's results -> the masks it drew, in drawing order, laid out as drawn

    def tensors(self) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(1 + sum(map(ord, self.name)))
        return [spec.tensor(generator) for spec in self.inputs]


CASES: list[Case] = []


def case(name: str, fn: Callable, *inputs: Spec, **kw) -> None:
    CASES.append(Case(name, fn, inputs, **kw))


def over(name: str, fn: Callable, *inputs: Spec, **kw) -> None:
    """The case as it is, with a size of 1, with other layouts, and in bf16."""
    case(name, fn, *inputs, **kw)
    for layout in ("transposed", "strided"):
        case(f"{name}/{layout}", fn, *[replace(s, layout=layout) if len(s.shape) > 1 else s for s in inputs], **kw)
    if all(s.dtype == torch.float32 for s in inputs):
        case(f"{name}/bf16", fn, *[replace(s, dtype=torch.bfloat16) for s in inputs], **kw | {"truth": False})


SUM = dict(ulps=4, slack=4)  # a sum in another order
SHAPES = [(7, 13), (1,), (), (0, 3), (2, 1, 5)]

# ---- elementwise ----------------------------------------------------------------------------------------------------
UNARY = "exp expm1 sin cos tanh erf sigmoid reciprocal floor ceil round trunc neg abs sign sgn".split()
for op in UNARY:
    f = getattr(aten, op)
    over(op, f, f32(7, 13))
    case(f"{op}/special", f, f32(12, values="special"))
for op in "log log1p sqrt rsqrt".split():
    over(op, getattr(aten, op), f32(7, 13, values="positive"))
    case(f"{op}/special", getattr(aten, op), f32(12, values="special"))
for shape in SHAPES:
    case(f"exp/{shape}", aten.exp, f32(*shape))
    case(f"add/{shape}", lambda x, y: x + y, f32(*shape), f32(*shape))
    case(f"sum/{shape}", lambda x: x.sum(), f32(*shape), ulps=4, slack=16)
for op in "neg abs sign".split():
    case(f"{op}/i64", getattr(aten, op), i64(5, 3, low=-5))
for op in "exp sqrt sin".split():
    case(f"{op}/i64", getattr(aten, op), i64(5, 3))
for op in "floor ceil round trunc".split():
    case(f"{op}/i64", getattr(aten, op), i64(5, low=-5))
case("special_erf", aten.special_erf, f32(5))

BINARY = {"add": aten.add.Tensor, "sub": aten.sub.Tensor, "mul": aten.mul.Tensor, "div": aten.div.Tensor,
          "maximum": aten.maximum, "minimum": aten.minimum}  # fmt: skip
for name, f in BINARY.items():
    over(name, f, f32(7, 13), f32(7, 13))
    case(f"{name}/broadcast", f, f32(7, 1, 3), f32(5, 1))
    case(f"{name}/scalar tensor", f, f32(7, 3), f32())
    case(f"{name}/special", f, f32(12, values="special"), f32(12))
    case(f"{name}/i64", f, i64(7, 3, low=-9), i64(7, 3, low=1), ulps=1)
    case(f"{name}/i64 f32", f, i64(7, 3, low=-9), f32(7, 3))
    case(f"{name}/bf16 f32", f, bf16(7, 3), f32(7, 3))
over("logaddexp", aten.logaddexp, f32(7, 13), f32(7, 13), slack=2)
case("logaddexp/broadcast", aten.logaddexp, f32(7, 1, 3), f32(5, 1), slack=2)
case("logaddexp/special", lambda x, y: aten.logaddexp(x[:, None], y), f32(12, values="special"), f32(12, values="special"))
case("logaddexp/bf16 f32", aten.logaddexp, bf16(7, 3), f32(7, 3), slack=2)
for name in "add sub mul div".split():
    tensor, scalar = BINARY[name], getattr(aten, name).Scalar
    for number in (3, 0.1, -2.5):
        case(f"{name}/f32 {number}", functools.partial(lambda f, n, x: f(x, n), tensor, number), f32(7, 3), truth=False)
        case(f"{name}.Scalar/f32 {number}", functools.partial(lambda f, n, x: f(x, n), scalar, number), f32(7, 3))
        case(f"{name}/i64 {number}", functools.partial(lambda f, n, x: f(x, n), tensor, number), i64(7, 3, low=-9), truth=False)
        case(f"{name}/bf16 {number}", functools.partial(lambda f, n, x: f(x, n), tensor, number), bf16(7, 3), truth=False)
case("add/alpha", lambda x, y: aten.add.Tensor(x, y, alpha=0.3), f32(7, 3), f32(3), slack=1)
case("sub/alpha", lambda x, y: aten.sub.Tensor(x, y, alpha=3), f32(7, 3), f32(3), slack=1)
case("add/bool", lambda x, y: x + y, mask(7, 3), mask(3))
case("mul/bool", lambda x, y: x * y, mask(7, 3), mask(3))
case("mul/bool i64", lambda x, y: x * y, mask(7, 3), i64(3))
case("rsub", lambda x: aten.rsub.Scalar(x, 1.5, 2), f32(7, 3))
case("rsub/tensor", lambda x, y: aten.rsub.Tensor(x, y), f32(7, 3), f32(3))
case("div/trunc", lambda x, y: aten.div.Tensor_mode(x, y, rounding_mode="trunc"), f32(7, 3), f32(7, 3))
case("div/none", lambda x, y: aten.div.Tensor_mode(x, y, rounding_mode=None), f32(7, 3), f32(7, 3))
case("div/scalar mode", lambda x: aten.div.Scalar_mode(x, 4, rounding_mode="floor"), i64(7, 3, low=-9))
case("div/floor i64", lambda x, y: aten.div.Tensor_mode(x, y, rounding_mode="floor"), i64(7, 3, low=-9), i64(7, 3, low=1))
case("div/trunc i64", lambda x, y: aten.div.Tensor_mode(x, y, rounding_mode="trunc"), i64(7, 3, low=-9), i64(7, 3, low=1))
case("div/floor f32", lambda x, y: aten.div.Tensor_mode(x, y, rounding_mode="floor"), f32(7, 3), f32(7, 3), extern=True)
case("floor_divide", aten.floor_divide.default, i64(7, 3, low=-9), i64(3, low=1))
case("floor_divide/scalar", lambda x: aten.floor_divide.Scalar(x, 4), i64(7, 3, low=-9))
case("remainder", aten.remainder.Tensor, i64(7, 3, low=-9), i64(3, low=1))
case("remainder/scalar", lambda x: aten.remainder.Scalar(x, -4), i64(7, 3, low=-9))
case("fmod", aten.fmod.Tensor, i64(7, 3, low=-9), i64(3, low=1))
case("fmod/scalar", lambda x: aten.fmod.Scalar(x, 4), i64(7, 3, low=-9))
for e in (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 2.5, 1.7):
    case(f"pow/{e}", functools.partial(lambda e, x: aten.pow.Tensor_Scalar(x, e), e), f32(7, 3, values="positive"), ulps=4)
case("pow/negative base", lambda x: aten.pow.Tensor_Scalar(x, 3), f32(7, 3), ulps=4)
case("pow/i64", lambda x: aten.pow.Tensor_Scalar(x, 3), i64(7, 3))
case("pow/tensor", aten.pow.Tensor_Tensor, f32(7, 3, values="positive"), f32(7, 3), ulps=4)
case("pow/base", lambda x: aten.pow.Scalar(10000.0, x), f32(7, 3), ulps=4)
case("addcmul", lambda x, a, b: aten.addcmul(x, a, b, value=0.3), f32(7, 3), f32(7, 3), f32(3), slack=1)
case("addcdiv", lambda x, a, b: aten.addcdiv(x, a, b, value=-0.01), f32(7, 3), f32(7, 3), f32(7, 3, values="positive"), slack=1)
for w in (0.1, 0.9):
    case(f"lerp/{w}", functools.partial(lambda w, x, y: aten.lerp.Scalar(x, y, w), w), f32(7, 3), f32(7, 3), slack=2)
case("lerp/tensor", aten.lerp.Tensor, f32(7, 3), f32(7, 3), f32(7, 3, values="unit"), slack=2)

for op in "lt le gt ge eq ne".split():
    f = getattr(aten, op)
    case(f"{op}", f.Tensor, f32(12, values="special"), f32(12, values="special"))
    case(f"{op}/i64", f.Tensor, i64(7, 3, high=3), i64(3, high=3))
    case(f"{op}/i64 0.5", functools.partial(lambda f, x: f.Scalar(x, 0.5), f), i64(7, 3, low=-1, high=3))
    case(f"{op}/bf16 scalar", functools.partial(lambda f, x: f.Scalar(x, 0.1), f), bf16(7, 3))
    case(f"{op}/i64 f32", f.Tensor, i64(7, 3, high=3), f32(7, 3))
    case(f"{op}/bool", f.Tensor, mask(7, 3), mask(3))
for op in "and or xor".split():
    case(f"logical_{op}", getattr(aten, f"logical_{op}"), mask(7, 3), mask(3))
    case(f"logical_{op}/f32", getattr(aten, f"logical_{op}"), f32(12, values="special"), mask(12))
    case(f"bitwise_{op}", getattr(aten, f"bitwise_{op}").Tensor, i64(7, 3, low=-9), i64(3))
    case(f"bitwise_{op}/bool", getattr(aten, f"bitwise_{op}").Tensor, mask(7, 3), mask(3))
    case(
        f"bitwise_{op}/scalar", functools.partial(lambda f, x: f(x, 6), getattr(aten, f"bitwise_{op}").Scalar), i64(7, 3, low=-9)
    )
    case(f"__{op}__", getattr(aten, f"__{op}__").Tensor, mask(7, 3), mask(3))
    case(f"__{op}__/scalar", functools.partial(lambda f, x: f(x, 6), getattr(aten, f"__{op}__").Scalar), i64(7, 3))
case("logical_not", aten.logical_not, f32(12, values="special"))
case("bitwise_not", aten.bitwise_not, i64(7, low=-9))
case("bitwise_not/bool", aten.bitwise_not, mask(7))
for op in "isnan isinf".split():
    case(op, getattr(aten, op), f32(12, values="special"))
    case(f"{op}/i64", getattr(aten, op), i64(3))
case("nan_to_num", aten.nan_to_num, f32(12, values="special"), truth=False)
case("nan_to_num/bf16", aten.nan_to_num, bf16(12, values="special"), truth=False)
case("nan_to_num/given", lambda x: aten.nan_to_num(x, 1.0, 2.0, 3.0), f32(12, values="special"))

case("where", aten.where.self, mask(7, 3), f32(7, 3), f32(3))
case("where/mixed", aten.where.self, mask(7, 3), f32(7, 3), i64())
case("where/ScalarSelf", lambda c, y: aten.where.ScalarSelf(c, -INF, y), mask(7, 3), f32(3))
case("where/ScalarOther", lambda c, y: aten.where.ScalarOther(c, y, 2), mask(7, 3), f32(3))
case("where/Scalar", lambda c: aten.where.Scalar(c, 1.0, 2.0), mask(7, 3), truth=False)
case("masked_fill", lambda x, m: aten.masked_fill.Scalar(x, m, -INF), f32(7, 3), mask(3))
case("masked_fill/tensor", aten.masked_fill.Tensor, f32(7, 3), mask(3), f32())
case("clamp", lambda x: aten.clamp(x, -0.5, 0.7), f32(12, values="special"))
case("clamp/min", lambda x: aten.clamp(x, min=0), i64(7, low=-5))
case("clamp/tensor", aten.clamp.Tensor, f32(7, 3), f32(3), f32(7, 1))
case("clamp_min", lambda x: aten.clamp_min(x, 0.1), f32(7, 3))
case("clamp_max", lambda x: aten.clamp_max(x, 0.1), bf16(7, 3))
case("clamp_min/tensor", aten.clamp_min.Tensor, f32(7, 3), f32(3))
case("clamp_max/tensor", aten.clamp_max.Tensor, f32(7, 3), f32(3))
for src in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
    for dst in (torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.float64):
        case(
            f"cast/{src} {dst}",
            functools.partial(lambda d, x: aten._to_copy(x, dtype=d), dst),
            Spec((7, 3), src, -9, 9),
            truth=False,
        )
case("convert_element_type", lambda x: torch.ops.prims.convert_element_type(x, torch.bfloat16), f32(7, 3), truth=False)
case("copy", aten.copy, f32(7, 3), i64(3))
case("fill", lambda x: aten.fill.Scalar(x, 2.5), f32(7, 3))
case("fill/tensor", aten.fill.Tensor, f32(7, 3), f32())

# ---- activations ----------------------------------------------------------------------------------------------------
X = f32(7, 13)
SMOOTH = dict(ulps=6, slack=2)
for approximate in ("none", "tanh"):
    over(f"gelu/{approximate}", functools.partial(lambda a, x: aten.gelu(x, approximate=a), approximate), X, **SMOOTH)
    over(
        f"gelu_backward/{approximate}",
        functools.partial(lambda a, g, x: aten.gelu_backward(g, x, approximate=a), approximate),
        X,
        X,
        **SMOOTH,
    )
over("relu", aten.relu, X)
case("relu/special", aten.relu, f32(12, values="special"))
case("threshold", lambda x: aten.threshold(x, 0.2, -1.0), X)
over("threshold_backward", lambda g, x: aten.threshold_backward(g, x, 0), X, X)
case("threshold_backward/special", lambda g, x: aten.threshold_backward(g, x, 0), f32(12), f32(12, values="special"))
over("leaky_relu", lambda x: aten.leaky_relu(x, 0.2), X)
over("leaky_relu_backward", lambda g, x: aten.leaky_relu_backward(g, x, 0.2, False), X, X)
for shrink in (aten.hardshrink, aten.softshrink):
    name = shrink.__name__
    over(name, lambda x, shrink=shrink: shrink(x, 0.7), X)
    case(f"{name}/special", lambda x, shrink=shrink: shrink(x, 0.5), f32(12, values="special"))
over("hardshrink_backward", lambda g, x: aten.hardshrink_backward(g, x, 0.7), X, X)
over("softshrink_backward", lambda g, x: aten.softshrink_backward(g, x, 0.7), X, X)
over("hardtanh", lambda x: aten.hardtanh(x, -0.5, 0.7), X)
over("hardtanh_backward", lambda g, x: aten.hardtanh_backward(g, x, -0.5, 0.7), X, X)
WIDE = f32(64, values="special")  # holds 3 and -3, where the pieces meet; a multiple of eager's vectors
for op in "hardswish hardsigmoid".split():
    over(op, getattr(aten, op), X, ulps=4)
    case(f"{op}/special", getattr(aten, op), WIDE, ulps=4)
    over(f"{op}_backward", getattr(aten, f"{op}_backward"), X, X, ulps=4)
    case(f"{op}_backward/special", getattr(aten, f"{op}_backward"), f32(64), WIDE, ulps=4)
over("elu", lambda x: aten.elu(x, 1.3, 1.1), X, **SMOOTH)
over("elu_backward", lambda g, x: aten.elu_backward(g, 1.3, 1.1, 1, False, x), X, X, **SMOOTH)
over("elu_backward/result", lambda g, y: aten.elu_backward(g, 1.3, 1.1, 1, True, y), X, X, **SMOOTH)
over("softplus", lambda x: aten.softplus(x, 2.0, 3.0), X, **SMOOTH)
over("softplus_backward", lambda g, x: aten.softplus_backward(g, x, 2.0, 3.0), X, X, **SMOOTH)
for op in "silu mish".split():
    over(op, getattr(aten, op), X, **SMOOTH)
    over(f"{op}_backward", getattr(aten, f"{op}_backward"), X, X, **SMOOTH)
over("log_sigmoid", lambda x: aten.log_sigmoid_forward(x)[0], X, **SMOOTH)
over("log_sigmoid_backward", lambda g, x: aten.log_sigmoid_backward(g, x, aten.log_sigmoid_forward(x)[1]), X, X, **SMOOTH)
over("sigmoid_backward", aten.sigmoid_backward, X, f32(7, 13, values="unit"))
over("tanh_backward", aten.tanh_backward, X, f32(7, 13, values="unit"), ulps=4, slack=1)

# ---- reductions -----------------------------------------------------------------------------------------------------
R = f32(5, 1, 7, 3)
for op in "sum mean".split():
    f = getattr(aten, op)
    over(op, f.default, R, **SUM)
    for dims, keep in (([0], False), ([-1], True), ([0, 2], False), ([3, 1], True)):
        over(
            f"{op}/{dims}{keep}",
            functools.partial(lambda f, d, k, x: f(x, d, k), f.dim if op == "mean" else f.dim_IntList, dims, keep),
            R,
            **SUM,
        )
case("sum/all by list", lambda x: aten.sum.dim_IntList(x, []), R, **SUM)
case("sum/i64", lambda x: x.sum(1), i64(5, 7, low=-5))
case("sum/bool", lambda x: x.sum(), mask(5, 7))
case("sum/dtype", lambda x: aten.sum.dim_IntList(x, [1], dtype=torch.float32), bf16(5, 7), truth=False, **SUM)
case("sum/empty axis", lambda x: x.sum(1), f32(5, 0))
case("mean/dtype", lambda x: aten.mean.dim(x, [1], dtype=torch.float32), i64(5, 7), truth=False, **SUM)
for op in "var std".split():
    f = getattr(aten, op)
    over(f"{op}.correction", functools.partial(lambda f, x: f.correction(x, [0, 2], correction=0), f), R, **SUM)
    case(f"{op}.dim", functools.partial(lambda f, x: f.dim(x, [2], True, True), f), R, **SUM)
    case(f"{op}.default", functools.partial(lambda f, x: f.default(x), f), R, **SUM)
    case(
        f"{op}_mean.correction",
        functools.partial(lambda f, x: f.correction(x, [2], correction=1, keepdim=True), getattr(aten, f"{op}_mean")),
        R,
        **SUM,
    )
for op in "amax amin".split():
    over(op, functools.partial(lambda f, x: f(x, [0, -1]), getattr(aten, op)), R)
    case(f"{op}/all", functools.partial(lambda f, x: f(x), getattr(aten, op)), R)
    case(f"{op}/nan", functools.partial(lambda f, x: f(x, [1], True), getattr(aten, op)), f32(3, 12, values="special"))
    case(f"{op}/bool", functools.partial(lambda f, x: f(x, [1]), getattr(aten, op)), mask(3, 12))
for op in "max min".split():
    over(f"{op}.dim", functools.partial(lambda f, x: f.dim(x, 2, True), getattr(aten, op)), R)
    case(f"{op}.dim/ties", functools.partial(lambda f, x: f.dim(x, 1), getattr(aten, op)), i64(5, 9, high=2))
    case(f"{op}.dim/nan", functools.partial(lambda f, x: f.dim(x, 0), getattr(aten, op)), f32(12, values="special"))
    case(f"{op}.dim/scalar", functools.partial(lambda f, x: f.dim(x, 0), getattr(aten, op)), f32())
    case(f"{op}.default", functools.partial(lambda f, x: f.default(x), getattr(aten, op)), R)
for op in "argmax argmin".split():
    over(op, functools.partial(lambda f, x: f(x, 2), getattr(aten, op)), R)
    case(f"{op}/all", functools.partial(lambda f, x: f(x), getattr(aten, op)), R)
    case(f"{op}/keep", functools.partial(lambda f, x: f(x, -1, True), getattr(aten, op)), i64(5, 9, high=2))
case("prod", lambda x: aten.prod(x), f32(7), ulps=8)
case("prod/dim", lambda x: aten.prod.dim_int(x, 1), R, ulps=8)
for op in "any all".split():
    f = getattr(aten, op)
    case(op, f.default, mask(5, 7))
    case(f"{op}/f32", functools.partial(lambda f, x: f.dim(x, 1, True), f), f32(3, 12, values="special"))
    case(f"{op}/dims", functools.partial(lambda f, x: f.dims(x, [0, 2]), f), mask(2, 3, 2))
    case(f"{op}/empty", functools.partial(lambda f, x: f.dim(x, 1), f), mask(2, 0))
over("cumsum", lambda x: aten.cumsum(x, 1), f32(5, 13), **SUM)
case("cumsum/i32", lambda x: aten.cumsum(x, -1), i64(5, 13, dtype=torch.int32))
case("cumsum/bool", lambda x: aten.cumsum(x, 0), mask(5, 13))
over("logsumexp", lambda x: aten.logsumexp(x, [1]), f32(5, 13), **SUM)
case("logsumexp/-inf", lambda x: aten.logsumexp(x - INF, [1], True), f32(5, 13))
for order in (1, 2, INF):
    over(f"vector_norm/{order}", functools.partial(lambda o, x: aten.linalg_vector_norm(x, o), order), f32(5, 13), **SUM)
case("vector_norm/dim", lambda x: aten.linalg_vector_norm(x, 2, [1], True), f32(5, 13), **SUM)
case("vector_norm/3", lambda x: aten.linalg_vector_norm(x, 3), f32(5, 13), extern=True, **SUM)
case("norm", lambda x: aten.norm.Scalar(x, 2), f32(5, 13), **SUM)
case("norm/dim", lambda x: aten.norm.ScalarOpt_dim(x, 2, [0]), f32(5, 13), **SUM)

# ---- views ----------------------------------------------------------------------------------------------------------
V = f32(4, 6, 5)
case("view", lambda x: aten.view(x, [8, 3, 5]), V)
case("view/-1", lambda x: aten.view(x, [-1]), V)
case("_unsafe_view", lambda x: aten._unsafe_view(x, [24, 5]), V)
case("reshape/transposed", lambda x: x.reshape(6, 20), replace(V, layout="transposed"))
case("reshape_alias", lambda x: aten._reshape_alias(x, [24, 5], [5, 1]), V)
case("view_copy", lambda x: aten.view_copy(x, [24, 5]), V)
case("squeeze", aten.squeeze.default, f32(1, 3, 1))
case("squeeze/dim", lambda x: aten.squeeze.dim(x, 0), f32(1, 3, 1))
case("squeeze/dims", lambda x: aten.squeeze.dims(x, [0, 1]), f32(1, 3, 1))
case("unsqueeze", lambda x: aten.unsqueeze(x, -1), V)
for op in "alias detach clone alias_copy detach_copy lift_fresh_copy".split():
    case(op, getattr(aten, op), V)
    case(f"{op}/transposed", functools.partial(lambda f, x: f(x) * 1, getattr(aten, op)), replace(V, layout="transposed"))
case("clone/contiguous", lambda x: aten.clone(x, memory_format=torch.contiguous_format), replace(V, layout="transposed"))
case("expand", lambda x: aten.expand(x, [2, -1, 6, -1]) + 0, f32(4, 1, 5))
case("expand_copy", lambda x: aten.expand_copy(x, [4, 6, 5]), f32(1, 5))
case("expand/output", lambda x: aten.expand(x, [4, 6, 5]), f32(1, 5))
case("permute", lambda x: aten.permute(x, [2, 0, -2]), V)
case("transpose", lambda x: aten.transpose.int(x, 0, -1), V)
case("t", aten.t, f32(4, 6))
case("t/vector", aten.t, f32(4))
case("repeat", lambda x: aten.repeat(x, [2, 3, 1]), f32(4, 5))
case("slice", lambda x: aten.slice.Tensor(x, 1, 1, -1), V)
case("slice/step", lambda x: aten.slice.Tensor(x, 1, -5, 100, 2), V)
case("slice/none", lambda x: aten.slice.Tensor(x, 2, 4, 1), V)
case("slice/strided input", lambda x: aten.slice.Tensor(x, 0, 1, 3) * 2, replace(V, layout="strided"))
case("select", lambda x: aten.select.int(x, 1, -2), V)
for start, end, step in ((1, 5, 1), (0, 6, 2), (1, 6, 2), (1, 5, 3), (2, 2, 1), (-3, 2**63 - 1, 1)):
    n = len(range(*slice(start, end, step).indices(6)))
    case(
        f"slice_backward/{start}:{end}:{step}",
        functools.partial(lambda a, x: aten.slice_backward(x, [4, 6, 5], 1, *a), (start, end, step)),
        f32(4, n, 5),
    )
    case(
        f"slice_scatter/{start}:{end}:{step}",
        functools.partial(lambda a, x, y: aten.slice_scatter(x, y, 1, *a), (start, end, step)),
        V,
        f32(4, n, 5),
    )
case("select_backward", lambda x: aten.select_backward(x, [4, 6, 5], 1, -1), f32(4, 5))
case("select_scatter", lambda x, y: aten.select_scatter(x, y, 1, 2), V, f32(4, 5))
case("split", lambda x: aten.split.Tensor(x, 4, 1), V)
case("split_with_sizes", lambda x: aten.split_with_sizes(x, [1, 3, 1], -1), V)
case("unbind", lambda x: aten.unbind.int(x, 1), f32(4, 3, 5))
case("cat", lambda x, y: aten.cat([x, y], -1), V, f32(4, 6, 2))
case("cat/mixed", lambda x, y: aten.cat([x, y], 0), f32(3, 2), i64(2, 2))
case("cat/legacy empty", lambda x, y: aten.cat([x, y], -2), f32(0), V)
case("cat/size 0", lambda x, y: aten.cat([x, y], 1), V, f32(4, 0, 5))
case("stack", lambda x, y: aten.stack([x, y], -1), f32(3, 2), f32(3, 2))
case("flip", lambda x: aten.flip(x, [-1, 0]), V)
case("roll", lambda x: aten.roll(x, [2, -1], [1, 0]), V)
case("roll/flat", lambda x: aten.roll(x, [7]), V)
case("pixel_shuffle", lambda x: aten.pixel_shuffle(x, 2), f32(2, 12, 3, 5))
case("pixel_shuffle/no batch", lambda x: aten.pixel_shuffle(x, 3), f32(9, 2, 1))
case("pixel_shuffle/batches", lambda x: aten.pixel_shuffle(x, 2), i64(2, 1, 4, 2, 3))
case("pixel_shuffle/size 0", lambda x: aten.pixel_shuffle(x, 2), f32(0, 4, 2, 3))
case("pixel_unshuffle", lambda x: aten.pixel_unshuffle(x, 2), f32(2, 3, 6, 4))
case("channel_shuffle", lambda x: aten.channel_shuffle(x, 3), f32(2, 6, 3, 5))
case("channel_shuffle/one axis", lambda x: aten.channel_shuffle(x, 2), f32(2, 6, 5))
case("channel_shuffle/size 0", lambda x: aten.channel_shuffle(x, 2), f32(0, 6, 5, 1))
case("pixel_unshuffle/no batch", lambda x: aten.pixel_unshuffle(x, 3), f32(2, 3, 6))
case("pad", lambda x: aten.constant_pad_nd(x, [1, 2, 0, 3], 1.5), V)
case("pad/negative", lambda x: aten.constant_pad_nd(x, [-1, 2, 1, -2]), V)
case("pad/i64", lambda x: aten.constant_pad_nd(x, [0, 1], -100.0), i64(2, 9))

# ---- views that step through an axis or through memory --------------------------------------------------------------
MATRICES = [(4, 6, 5), (5, 5), (1, 1), (1, 4), (7, 3), (0, 3), (2, 3, 0)]
for shape in MATRICES:
    for offset in (0, 1, -2, 9):
        of = (offset, 0, len(shape) - 1)
        case(f"diagonal/{shape}:{offset}", functools.partial(lambda of, x: aten.diagonal(x, *of), of), f32(*shape))
        diagonal = torch.empty(shape).diagonal(*of).shape
        case(
            f"diagonal_backward/{shape}:{offset}",
            functools.partial(lambda s, of, g: aten.diagonal_backward(g, s, *of), shape, of),
            f32(*diagonal),
        )
        case(
            f"diagonal_scatter/{shape}:{offset}",
            functools.partial(lambda of, x, y: aten.diagonal_scatter(x, y, *of), of),
            f32(*shape),
            f32(*diagonal),
        )
over("diagonal/permuted", lambda x: aten.diagonal(x, -1, 2, 0), f32(4, 6, 5))
case("diagonal_copy", lambda x: aten.diagonal_copy(x, 1), f32(4, 6))
case("diagonal/i64", lambda x: aten.diagonal(x), i64(4, 6))
case("diagonal_scatter/mixed", lambda x, y: aten.diagonal_scatter(x, y), f32(4, 6), bf16(4))
for shape in ((4, 5), (1,), (0,), (3, 0), (2, 3, 1)):
    for of in ((0, -2, -1), (2, 0, 1), (-1, -1, 0)):
        case(f"diag_embed/{shape}:{of}", functools.partial(lambda of, x: aten.diag_embed(x, *of), of), f32(*shape))
# (length, size, step): apart, side by side, overlapping, with a tail, one window, of 1, of 0, large ones
WINDOWS = [
    (10, 2, 3), (12, 3, 3), (10, 3, 1), (11, 4, 3), (7, 7, 1), (5, 1, 1), (9, 1, 4), (40, 19, 2), (30, 17, 16), (6, 0, 2),
    (1, 1, 1),
]  # fmt: skip
for length, size, step in WINDOWS:
    of = (length, size, step)
    for axis, shape in ((1, (3, length, 2)), (0, (length,)), (-1, (2, length))):
        windows = torch.empty(shape).unfold(axis, size, step).shape
        case(f"unfold/{of}:{axis}", functools.partial(lambda d, n, s, x: aten.unfold(x, d, n, s), axis, size, step), f32(*shape))
        case(
            f"unfold_backward/{of}:{axis}",
            functools.partial(lambda shape, d, n, s, g: aten.unfold_backward(g, shape, d, n, s), shape, axis, size, step),
            f32(*windows),
            **SUM,
        )
over("unfold/layouts", lambda x: aten.unfold(x, 0, 3, 2), f32(8, 5))
case("unfold/scalar", lambda x: aten.unfold(x, 0, 1, 1), f32())
case("unfold_copy", lambda x: aten.unfold_copy(x, 1, 2, 1), f32(3, 5))
case("unfold/size 0", lambda x: aten.unfold(x, 1, 2, 1), f32(0, 5))
case("unfold_backward/bf16", lambda g: aten.unfold_backward(g, [9], 0, 3, 2), bf16(4, 3), truth=False, **SUM)
# kernel, dilation, padding, stride of im2col and its adjoint
PATCHES = [
    ((2, 3), (1, 1), (0, 0), (1, 1)), ((3, 3), (1, 1), (1, 1), (2, 2)), ((2, 2), (3, 2), (2, 1), (1, 2)),
    ((3, 1), (1, 1), (0, 2), (3, 1)), ((1, 1), (1, 1), (0, 0), (1, 1)), ((7, 8), (1, 1), (0, 0), (1, 1)),
    ((4, 4), (1, 1), (0, 0), (5, 5)),
]  # fmt: skip
for i, patch in enumerate(PATCHES):
    for shape in ((2, 3, 7, 9), (1, 8, 10)):
        columns = torch.nn.functional.unfold(torch.empty(shape), patch[0], patch[1], patch[2], patch[3]).shape
        case(f"im2col/{i}:{len(shape)}", functools.partial(lambda p, x: aten.im2col(x, *p), patch), f32(*shape))
        case(
            f"col2im/{i}:{len(shape)}",
            functools.partial(lambda size, p, x: aten.col2im(x, size, *p), shape[-2:], patch),
            f32(*columns),
            **SUM,
        )
case("im2col/no images", lambda x: aten.im2col(x, [2, 2], [1, 1], [0, 0], [1, 1]), f32(0, 3, 4, 4))
case("im2col/layouts", lambda x: aten.im2col(x, [2, 2], [1, 1], [1, 1], [1, 1]), f32(2, 3, 4, 4, layout="strided"))
# sizes, strides, offset in 60 elements: whole, a part, windows, interleaved, repeated, backwards through the axes, single, none
VIEWS = [
    ((4, 15), (15, 1), 0), ((15, 4), (1, 15), 0), ((3, 5), (20, 3), 2), ((8, 6), (4, 1), 3), ((2, 3), (3, 2), 50),
    ((5, 3, 2), (0, 9, 4), 1), ((2, 3, 4, 5), (12, 4, 1, 2), 0), ((1, 7, 1), (99, 1, 0), 53), ((), (), 59), ((3, 0), (1, 1), 7),
    ((4, 3), (1, 1), 0), ((2, 2, 3), (20, 20, 1), 0),
]  # fmt: skip
for of in VIEWS:
    for layout in ("plain", "transposed"):
        case(
            f"as_strided/{of}/{layout}",
            functools.partial(lambda of, x: aten.as_strided(aten.neg(x), *of), of),
            f32(3, 4, 5, layout=layout),
        )
case("as_strided/of an argument", lambda x: aten.as_strided(x, [3, 4], [1, 5]), f32(3, 7))
case("as_strided/of a slice", lambda x: aten.as_strided(aten.slice.Tensor(aten.neg(x), 0, 2, 5), [2, 3], [5, 1], 10), f32(6, 5))
case("as_strided_copy", lambda x: aten.as_strided_copy(x, [3, 4], [1, 5]), f32(3, 7))
case("as_strided/bool", lambda x: aten.as_strided(x, [3, 4], [1, 5]), mask(3, 7))
WRITTEN = [
    ((4, 15), (15, 1), 0), ((15, 4), (1, 15), 0), ((3, 5), (20, 3), 2), ((8,), (4,), 3), ((2, 3), (3, 2), 50), ((10,), (1,), 7),
    ((1, 7, 1), (99, 1, 0), 53), ((), (), 59), ((3, 0), (1, 1), 7), ((3, 2, 4), (4, 20, 1), 5),
]  # fmt: skip
for of in WRITTEN:
    for layout in ("plain", "transposed"):
        case(
            f"as_strided_scatter/{of}/{layout}",
            functools.partial(lambda of, x, y: aten.as_strided_scatter(aten.neg(x), y, *of), of),
            f32(3, 4, 5, layout=layout),
            f32(*of[0]),
        )

# ---- creation -------------------------------------------------------------------------------------------------------
for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
    case(f"full/{dtype}", functools.partial(lambda d: aten.full([3, 2], 1, dtype=d), dtype), truth=False)
    case(f"ones/{dtype}", functools.partial(lambda d: aten.ones([3, 2], dtype=d), dtype), truth=False)
case("zeros", lambda: aten.zeros([3, 0]), truth=False)
case("full/inf", lambda: aten.full([3], -INF), truth=False)
case("scalar_tensor", lambda: aten.scalar_tensor(-INF, dtype=torch.float32), truth=False)
for op in "zeros_like ones_like".split():
    case(op, getattr(aten, op), V)
for op in "empty_like".split():
    case(op, lambda x: aten.fill.Scalar(aten.empty_like(x), 1.0) * x, V)
case("empty", lambda x: aten.fill.Scalar(aten.empty.memory_format([5]), 1.0) * x, f32(5), truth=False)
case("empty_strided", lambda x: aten.fill.Scalar(aten.empty_strided([2, 3], [1, 2]), 1.0) * x, f32(3), truth=False)
case("new_empty", lambda x: aten.fill.Scalar(aten.new_empty(x, [5]), 1.0), f32(2))
case("new_empty_strided", lambda x: aten.fill.Scalar(aten.new_empty_strided(x, [2, 3], [1, 2]), 1.0), f32(2))
case("full_like", lambda x: aten.full_like(x, 2.5), V)
case("efficientzerotensor", lambda x: aten.add(x, aten._efficientzerotensor([2, 3])), f32(2, 3))
case("new_zeros", lambda x: aten.new_zeros(x, [2, 3]), V)
case("new_ones", lambda x: aten.new_ones(x, [], dtype=torch.bool), V)
case("new_full", lambda x: aten.new_full(x, [2], 7), V)
case("arange", lambda: aten.arange.default(9), truth=False)
case("arange/f32", lambda: aten.arange.default(9, dtype=torch.float32), truth=False)
case("arange/start", lambda: aten.arange.start(3, 9), truth=False)
case("arange/step", lambda: aten.arange.start_step(10, 1, -3), truth=False)
case("arange/step f32", lambda: aten.arange.start_step(0.5, 9.0, 0.3), truth=False)
case("arange/0", lambda: aten.arange.default(0), truth=False)
for op in "tril triu".split():
    for diagonal in (0, 2, -1):
        case(f"{op}/{diagonal}", functools.partial(lambda f, d, x: f(x, d), getattr(aten, op), diagonal), V)
    case(f"{op}/bool", getattr(aten, op), mask(5, 5))
    case(f"{op}/nan", getattr(aten, op), f32(3, 4, values="special"))
case("eye", lambda: aten.eye(4), truth=False)
case("eye/m", lambda: aten.eye.m(3, 5, dtype=torch.int64), truth=False)

# ---- contractions ---------------------------------------------------------------------------------------------------
DOT = dict(ulps=4, slack=8)
for m, k, n in ((7, 13, 5), (1, 17, 1), (33, 64, 70), (3, 0, 2), (0, 3, 2)):
    case(f"mm/{m},{k},{n}", aten.mm, f32(m, k), f32(k, n), **DOT)
    case(f"addmm/{m},{k},{n}", aten.addmm, f32(n), f32(m, k), f32(k, n), **DOT)
over("mm", aten.mm, f32(9, 21), f32(21, 6), **DOT)
over("bmm", aten.bmm, f32(3, 9, 21), f32(3, 21, 6), **DOT)
case("bmm/size 1", aten.bmm, f32(3, 1, 21), f32(3, 21, 1), **DOT)
over("addmm", aten.addmm, f32(9, 6), f32(9, 21), f32(21, 6), **DOT)
case("addmm/scaled", lambda b, x, y: aten.addmm(b, x, y, beta=0.5, alpha=2), f32(6), f32(9, 21), f32(21, 6), **DOT)
case("addmm/beta 0", lambda b, x, y: aten.addmm(b, x, y, beta=0), f32(1, 6, values="special"), f32(9, 21), f32(21, 6), **DOT)
case("addmm/bf16 bias", aten.addmm, bf16(6), bf16(9, 21), bf16(21, 6), truth=False, **DOT)
over("baddbmm", aten.baddbmm, f32(3, 9, 6), f32(3, 9, 21), f32(3, 21, 6), **DOT)
case("mm/i64", aten.mm, i64(3, 4), i64(4, 5), extern=True)
case("mv", aten.mv, f32(9, 21), f32(21), **DOT)
case("addmv", lambda b, m, v: aten.addmv(b, m, v, beta=2), f32(9), f32(9, 21), f32(21), **DOT)
case("dot", aten.dot, f32(21), f32(21), **DOT)

# ---- softmax --------------------------------------------------------------------------------------------------------
S = f32(5, 13, 3)
for dim in (1, -1):
    over(f"_softmax/{dim}", functools.partial(lambda d, x: aten._softmax(x, d, False), dim), S, **SUM)
    over(f"_log_softmax/{dim}", functools.partial(lambda d, x: aten._log_softmax(x, d, False), dim), S, **SUM)
    over(f"_safe_softmax/{dim}", functools.partial(lambda d, x: aten._safe_softmax(x, d), dim), S, **SUM)
case(
    "_safe_softmax/-inf", lambda x, m: aten._safe_softmax(aten.masked_fill.Scalar(x, m, -INF), -1), f32(5, 13), mask(5, 1), **SUM
)
case("_softmax/-inf", lambda x: aten._softmax(x - INF, -1, False), f32(2, 3))
case("_softmax/large", lambda x: aten._log_softmax(x * 1e4, -1, False), S, **SUM)
for op, result in (("_softmax", aten._softmax), ("_log_softmax", aten._log_softmax)):
    backward = getattr(aten, f"{op}_backward_data")
    for dtype in (torch.float32, torch.bfloat16):
        s = replace(S, dtype=dtype)
        case(
            f"{op}_backward/{dtype}",
            functools.partial(lambda f, b, d, g, x: b(g, f(x, 1, False), 1, d), result, backward, dtype),
            s, s, truth=False, **SUM,
        )  # fmt: skip

# ---- normalization --------------------------------------------------------------------------------------------------
NORM = dict(ulps=6, slack=8)
W = f32(13, values="positive")
over("native_layer_norm", lambda x, w, b: aten.native_layer_norm(x, [13], w, b, 1e-5), f32(2, 5, 13), W, f32(13), **NORM)
case(
    "native_layer_norm/two axes",
    lambda x, w: aten.native_layer_norm(x, [5, 13], w, None, 1e-5),
    f32(2, 5, 13),
    f32(5, 13),
    **NORM,
)
case("native_layer_norm/no weight", lambda x: aten.native_layer_norm(x, [13], None, None, 1e-5), f32(5, 13), **NORM)
case("native_layer_norm/size 1", lambda x, w, b: aten.native_layer_norm(x, [1], w, b, 1e-5), f32(5, 1), f32(1), f32(1), **NORM)


def layer_norm_backward(g, x, w, b, axes=1, wanted=(True, True, True)):
    shape = list(x.shape[-axes:])
    _, mean, rstd = aten.native_layer_norm(x, shape, w, b, 1e-5)
    return [r for r in aten.native_layer_norm_backward(g, x, shape, mean, rstd, w, b, list(wanted)) if r is not None]


over("native_layer_norm_backward", layer_norm_backward, f32(2, 5, 13), f32(2, 5, 13), W, f32(13), **NORM)
case(
    "native_layer_norm_backward/two axes",
    functools.partial(layer_norm_backward, axes=2),
    f32(2, 5, 13),
    f32(2, 5, 13),
    f32(5, 13),
    f32(5, 13),
    **NORM,
)
case(
    "native_layer_norm_backward/no weight",
    lambda g, x: layer_norm_backward(g, x, None, None, wanted=(True, False, False))[0],
    f32(5, 13),
    f32(5, 13),
    **NORM,
)

B = (f32(4, 3, 5, 2), f32(3, values="positive"), f32(3), f32(3), f32(3, values="positive"))
for training in (True, False):
    case(
        f"batch_norm/{training}",
        functools.partial(lambda t, *a: aten._native_batch_norm_legit_functional(*a, t, 0.1, 1e-5), training),
        *B, truth=False, **NORM,
    )  # fmt: skip
    for rank in (2, 3, 4):
        x = Spec((4, 3, 5, 2)[:rank])
        case(
            f"batch_norm_backward/{training} rank {rank}",
            functools.partial(
                lambda t, g, x, w, m, v: aten.native_batch_norm_backward(g, x, w, m, v, m, v, t, 1e-5, [True] * 3), training),
            x, x, B[1], B[3], B[4], **NORM,
        )  # fmt: skip
case(
    "batch_norm/rank 2",
    lambda *a: aten._native_batch_norm_legit_functional(*a, True, 0.1, 1e-5),
    f32(7, 3),
    *B[1:],
    truth=False,
    **NORM,
)
case(
    "batch_norm/transposed",
    lambda *a: aten._native_batch_norm_legit_functional(*a, True, 0.1, 1e-5),
    replace(B[0], layout="transposed"),
    *B[1:],
    truth=False,
    **NORM,
)
case("batch_norm/no_stats", lambda x, w, b: aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5), *B[:3], **NORM)
case("batch_norm/no_training", lambda *a: aten._native_batch_norm_legit_no_training(*a, 0.1, 1e-5)[0], *B, **NORM)
case("batch_norm/eval", lambda *a: aten.native_batch_norm(*a, False, 0.1, 1e-5)[0], *B, **NORM)
case("batch_norm/eval legit", lambda *a: aten._native_batch_norm_legit(*a, False, 0.1, 1e-5)[0], *B, **NORM)
case("group_norm", lambda x, w, b: aten.native_group_norm(x, w, b, 2, 6, 5, 3, 1e-5), f32(2, 6, 5), f32(6), f32(6), **NORM)
case("group_norm/no weight", lambda x: aten.native_group_norm(x, None, None, 2, 6, 5, 1, 1e-5), f32(2, 6, 5), **NORM)
case(
    "group_norm_backward",
    lambda g, x, m, r, w: aten.native_group_norm_backward(g, x, m, r, w, 2, 6, 5, 3, [True, True, True]),
    f32(2, 6, 5), f32(2, 6, 5), f32(2, 3), f32(2, 3, values="positive"), f32(6), **NORM,
)  # fmt: skip

# ---- losses ---------------------------------------------------------------------------------------------------------
for reduction in (0, 1, 2):
    for weight in (False, True):
        w = (f32(6, values="positive"),) if weight else ()
        for ignore in (-100, 2):
            args = (reduction, ignore)
            case(
                f"nll_loss/{reduction} {weight} {ignore}",
                functools.partial(lambda a, x, t, w=None: aten.nll_loss_forward(x, t, w, *a), args),
                f32(9, 6), i64(9, high=6), *w, **SUM,
            )  # fmt: skip
            case(
                f"nll_loss2d/{reduction} {weight} {ignore}",
                functools.partial(lambda a, x, t, w=None: aten.nll_loss2d_forward(x, t, w, *a), args),
                f32(2, 6, 3, 5), i64(2, 3, 5, high=6), *w, **SUM,
            )  # fmt: skip
            for name, shape, target in (("nll_loss_backward", (9, 6), (9,)), ("nll_loss2d_backward", (2, 6, 3, 5), (2, 3, 5))):
                case(
                    f"{name}/{reduction} {weight} {ignore}",
                    functools.partial(lambda f, a, g, x, t, n, w=None: f(g, x, t, w, *a, n), getattr(aten, name), args),
                    Spec(target if reduction == 0 else ()), Spec(shape), Spec(target, torch.int64, 0, 6),
                    f32(values="positive"), *w,
                )  # fmt: skip
    case(f"mse_loss/{reduction}", functools.partial(lambda r, x, t: aten.mse_loss(x, t, r), reduction), X, X, **SUM)
    case(
        f"smooth_l1_loss/{reduction}",
        functools.partial(lambda r, x, t: aten.smooth_l1_loss(x, t, r, 0.7), reduction),
        X,
        X,
        **SUM,
    )
    case(f"huber_loss/{reduction}", functools.partial(lambda r, x, t: aten.huber_loss(x, t, r, 0.7), reduction), X, X, **SUM)
    dy = X if reduction == 0 else f32()
    case(
        f"mse_loss_backward/{reduction}",
        functools.partial(lambda r, g, x, t: aten.mse_loss_backward(g, x, t, r), reduction),
        dy,
        X,
        X,
        ulps=4,
    )
    for name in ("smooth_l1_loss_backward", "huber_loss_backward"):
        case(
            f"{name}/{reduction}",
            functools.partial(lambda f, r, g, x, t: f(g, x, t, r, 0.7), getattr(aten, name), reduction),
            dy,
            X,
            X,
            ulps=4,
        )
    U = f32(7, 13, values="unit")
    case(f"bce/{reduction}", functools.partial(lambda r, x, t: aten.binary_cross_entropy(x, t, None, r), reduction), U, U, **SUM)
    case(
        f"bce/weight {reduction}",
        functools.partial(lambda r, x, t, w: aten.binary_cross_entropy(x, t, w, r), reduction),
        U,
        U,
        U,
        **SUM,
    )
    case(
        f"bce_backward/{reduction}",
        functools.partial(lambda r, g, x, t: aten.binary_cross_entropy_backward(g, x, t, None, r), reduction),
        dy,
        U,
        U,
        **SUM,
    )
    case(
        f"bce_with_logits/{reduction}",
        functools.partial(lambda r, x, t: aten.binary_cross_entropy_with_logits(x, t, None, None, r), reduction),
        X,
        U,
        **SUM,
    )
    case(
        f"bce_with_logits/weights {reduction}",
        functools.partial(lambda r, x, t, w, p: aten.binary_cross_entropy_with_logits(x, t, w, p, r), reduction),
        X, U, U, f32(13, values="positive"), **SUM,
    )  # fmt: skip
case("nll_loss/one sample", lambda x, t: aten.nll_loss_forward(x, t, None, 1, -100), f32(6), i64(high=6))
case("nll_loss/all ignored", lambda x, t: aten.nll_loss_forward(x, t, None, 1, 0), f32(4, 6), i64(4, high=1))
case("mse_loss/bf16", lambda x, t: aten.mse_loss(x, t, 1), bf16(7, 13), bf16(7, 13), truth=False, **SUM)

# ---- attention ------------------------------------------------------------------------------------------------------
FLASH = aten._scaled_dot_product_flash_attention_for_cpu
ATTENTION = dict(ulps=8, slack=16)
for name, (h, g, rows, columns) in {
    "plain": (4, 4, 9, 9),
    "grouped": (4, 2, 9, 9),
    "cross": (2, 2, 5, 11),
    "one": (1, 1, 1, 1),
}.items():
    q, k = f32(2, h, rows, 8), f32(2, g, columns, 8)
    for causal in (False, True):
        case(f"flash/{name} {causal}", functools.partial(lambda c, q, k, v: FLASH(q, k, v, 0.0, c), causal), q, k, k, **ATTENTION)
        case(
            f"flash_backward/{name} {causal}",
            functools.partial(
                lambda c, dy, q, k, v: aten._scaled_dot_product_flash_attention_for_cpu_backward(
                    dy, q, k, v, *FLASH(q, k, v, 0.0, c), 0.0, c), causal),
            q, q, k, k, **ATTENTION,
        )  # fmt: skip
case(
    "flash/mask",
    lambda q, k, v, m: FLASH(q, k, v, 0.0, False, attn_mask=m, scale=0.2),
    *[f32(2, 3, 5, 8)] * 3,
    f32(2, 1, 5, 5),
    **ATTENTION,
)
case(
    "flash/masked row",
    lambda q, k, v, m: FLASH(q, k, v, attn_mask=m * -INF)[0],
    *[f32(1, 1, 3, 8)] * 3,
    f32(1, 1, 3, 3, values="positive"),
    **ATTENTION,
)
case(
    "flash_backward/mask",
    lambda dy, q, k, v, m: aten._scaled_dot_product_flash_attention_for_cpu_backward(
        dy, q, k, v, *FLASH(q, k, v, attn_mask=m), 0.0, False, attn_mask=m),
    *[f32(2, 3, 5, 8)] * 4, f32(1, 1, 5, 5), **ATTENTION,
)  # fmt: skip

# ---- indexing -------------------------------------------------------------------------------------------------------
TABLE = f32(11, 5)
case("embedding", aten.embedding, TABLE, i64(3, 4, high=11))
case("embedding/i32", aten.embedding, TABLE, i64(4, high=11, dtype=torch.int32))
case("embedding/scalar", aten.embedding, TABLE, i64(high=11))
case("embedding/none", aten.embedding, TABLE, i64(0, high=11))
for padding in (-1, 3):
    case(
        f"embedding_backward/{padding}",
        functools.partial(lambda p, g, i: aten.embedding_dense_backward(g, i, 11, p, False), padding),
        f32(6, 7, 5),
        i64(6, 7, high=11),
        **SUM,
    )
case(
    "embedding_backward/bf16",
    lambda g, i: aten.embedding_dense_backward(g, i, 11, -1, False),
    bf16(7, 5),
    i64(7, high=5),
    truth=False,
    ulps=4,
    slack=4,
)
case(
    "embedding_backward/frequency",
    lambda g, i: aten.embedding_dense_backward(g, i, 11, -1, True),
    f32(7, 5),
    i64(7, high=11),
    extern=True,
    **SUM,
)
case("classes", lambda i: torch.ops.trainc.classes(i, 10), i64(3, 4))
case("gather", lambda x, i: aten.gather(x, 1, i), f32(6, 7), i64(6, 4, high=7))
case("gather/smaller", lambda x, i: aten.gather(x, 0, i), f32(6, 7), i64(4, 3, high=6))
case("index_select", lambda x, i: aten.index_select(x, 1, i), f32(3, 7, 2), i64(5, high=7))
PERM = i64(4, 6, high=4)
case("scatter_add", lambda x, i, s: aten.scatter_add(x, 0, i, s), f32(5, 6), PERM, f32(4, 7), **SUM)
case("scatter_add/i64", lambda x, i, s: aten.scatter_add(x, 1, i, s), i64(4, 6), i64(4, 9, high=6), i64(4, 9))
case("scatter.value", lambda x, i: aten.scatter.value(x, 1, i, 2.5), f32(4, 6), i64(4, 3, high=6))
case("scatter.src", lambda x, s: aten.scatter.src(x, 1, aten.expand(aten.arange.default(3), [4, 3]), s), f32(4, 6), f32(4, 3))
case("index_add", lambda x, i, s: aten.index_add(x, 1, i, s, alpha=0.5), f32(4, 6), i64(9, high=6), f32(4, 9), **SUM)
case("index_copy", lambda x, s: aten.index_copy(x, 1, aten.arange.default(3), s), f32(4, 6), f32(4, 3))
INDEX = functools.partial(i64, low=-3, high=3)
case("index", lambda x, i: aten.index.Tensor(x, [i]), f32(3, 4), INDEX(5, 2))
case("index/second", lambda x, i: aten.index.Tensor(x, [None, i]), f32(4, 3, 5), INDEX(5, 2))
case("index/two", lambda x, i, j: aten.index.Tensor(x, [i, j]), f32(3, 3, 5), INDEX(4, 1), INDEX(6))
case("index/inner two", lambda x, i, j: aten.index.Tensor(x, [None, i, j]), f32(2, 3, 3, 5), INDEX(4), INDEX(4))
case("index/apart", lambda x, i, j: aten.index.Tensor(x, [i, None, j]), f32(3, 4, 3, 2), INDEX(4), INDEX(4))
case("index/unsafe", lambda x, i: aten._unsafe_index.Tensor(x, [i]), f32(3, 4), INDEX(5))
case("index/bool input", lambda x, i, j: aten.index.Tensor(x, [i, j]), mask(3, 3), INDEX(4, 1), INDEX(5))
case("index_put/accumulate", lambda x, i, v: aten.index_put(x, [i], v, True), f32(3, 4), INDEX(9), f32(9, 4), **SUM)
case(
    "index_put/accumulate apart",
    lambda x, i, v: aten.index_put(x, [i, None, i], v, True),
    f32(3, 4, 3),
    INDEX(9),
    f32(9, 4),
    **SUM,
)
case("index_put/broadcast", lambda x, i, v: aten.index_put(x, [None, i], v, True), f32(4, 3), INDEX(2), f32(), **SUM)
case("index_put", lambda x, v: aten.index_put(x, [aten.arange.default(3)], v), f32(5, 4), f32(3, 4))
case("index_put/unsafe", lambda x, v: aten._unsafe_index_put(x, [None, aten.arange.default(3)], v), f32(2, 4), f32(3))
case("index_put/impl", lambda x, i, v: aten._index_put_impl(x, [i], v, True), f32(3, 4), INDEX(9), f32(9, 4), **SUM)
case("index_put/mask", lambda x, m, v: aten.index_put(x, [m], v), f32(3, 4), mask(3, 4), f32())

# ---- random: the mask that eager drew is given ----------------------------------------------------------------------
case("native_dropout", lambda x: aten.native_dropout(x, 0.3, True), f32(7, 13), masks=lambda out: [out[1]])
case("native_dropout/bf16", lambda x: aten.native_dropout(x, 0.3, True), bf16(7, 13), masks=lambda out: [out[1]], truth=False)
case("native_dropout/transposed", lambda x: aten.native_dropout(x, 0.3, True), f32(7, 3, 2, layout="transposed"),
     masks=lambda out: [out[1].permute(2, 1, 0)])  # fmt: skip
case("native_dropout/twice", lambda x: [aten.native_dropout(x, 0.5, True)[1] for _ in range(2)], f32(64), masks=lambda out: out)
case("native_dropout/evaluation", lambda x: aten.native_dropout(x, 0.3, False), f32(7, 13))
case("native_dropout/p 0", lambda x: aten.native_dropout(x, 0.0, True), f32(7, 13))
case("native_dropout/p 1", lambda x: aten.native_dropout(x, 1.0, True), f32(7, 13))
case("native_dropout/empty", lambda x: aten.native_dropout(x, 0.3, True)[0], f32(0, 3))  # eager's mask has another dtype there
over("native_dropout_backward", lambda g, m: aten.native_dropout_backward(g, m, 1.0 / 0.7), f32(7, 13), mask(7, 13))
case(
    "native_dropout_backward/bf16",
    lambda g, m: aten.native_dropout_backward(g, m, 1.0 / 0.7),
    bf16(7, 13),
    mask(7, 13),
    truth=False,
)
case("bernoulli.p", lambda x: aten.bernoulli.p(x, 0.3), f32(7, 13), masks=lambda out: [out[0] != 0])

# ---- pools ----------------------------------------------------------------------------------------------------------
P = f32(2, 3, 6, 4)
case("adaptive_avg_pool2d", lambda x: aten._adaptive_avg_pool2d(x, [3, 2]), P, **SUM)
case("adaptive_avg_pool2d/uneven", lambda x: aten._adaptive_avg_pool2d(x, [4, 2]), P, extern=True, **SUM)
case("adaptive_avg_pool2d_backward", aten._adaptive_avg_pool2d_backward, f32(2, 3, 3, 2), P, **SUM)
case("avg_pool2d", lambda x: aten.avg_pool2d(x, [2, 2]), P, **SUM)
case("avg_pool2d/overlap", lambda x: aten.avg_pool2d(x, [3, 3], [1, 1]), P, extern=True, **SUM)

MAX_POOLS = {
    "resnet": ([3, 3], [2, 2], [1, 1]),
    "tiles": ([2, 2], [], [0, 0]),
    "dilated": ([2, 3], [1, 2], [1, 1], [2, 1]),
    "one place": ([1, 1], [2, 1], [0, 0]),
}
for name, form in MAX_POOLS.items():
    case(f"max_pool2d/{name}", lambda x, form=form: aten.max_pool2d_with_indices(x, *form), f32(2, 3, 7, 6))
    case(
        f"max_pool2d_backward/{name}",
        lambda g, x, form=form: aten.max_pool2d_with_indices_backward(
            g.expand_as(y := aten.max_pool2d_with_indices(x, *form)[0]) * y,
            x, form[0], form[1], form[2], form[3] if len(form) > 3 else [1, 1], False, aten.max_pool2d_with_indices(x, *form)[1],
        ),
        f32(1, 3, 1, 1),
        f32(2, 3, 7, 6),
        **SUM,
    )  # fmt: skip
case("max_pool2d/special", lambda x: aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]), f32(1, 1, 4, 5, values="special"))
case(
    "max_pool2d/several NaN",
    lambda x: aten.max_pool2d_with_indices(torch.where(x < 0, NAN, x), [3, 3], [1, 1], [1, 1]),
    f32(1, 2, 5, 4),
)
case(
    "max_pool2d/nothing but -inf, and equals",
    lambda x: aten.max_pool2d_with_indices(torch.where(x < 0.5, -INF, 1.0), [3, 2], [2, 1], [1, 1]),
    f32(2, 2, 6, 5),
)
case("max_pool2d/bf16", lambda x: aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]), bf16(2, 3, 7, 6), truth=False)
case(
    "max_pool2d/ceil",
    lambda x: aten.max_pool2d_with_indices(x * 2, [3, 3], [2, 2], [1, 1], [1, 1], True),
    f32(2, 3, 7, 6),
    extern=True,
)

# ---- convolutions over patches --------------------------------------------------------------------------------------


def patches(step, rank=2):
    return [step] * rank, [0] * rank, [1] * rank, False, [0] * rank, 1


def convolved(step, rank=2):
    return lambda x, w: aten.convolution(x, w, None, *patches(step, rank))


case(
    "convolution/patches",
    lambda x, w, b: aten.convolution(x, w, b, *patches(2)),
    f32(2, 3, 6, 4),
    f32(5, 3, 2, 2),
    f32(5),
    **SUM,
)
case("convolution/1x1", convolved(1), f32(2, 3, 5, 7), f32(4, 3, 1, 1), **SUM)
case("convolution/1d", convolved(3, 1), f32(2, 3, 9), f32(4, 3, 3), **SUM)
case("convolution/bf16", convolved(2), bf16(2, 3, 6, 4), bf16(5, 3, 2, 2), truth=False, **SUM)
case(
    "convolution/remainder",
    convolved(2),
    f32(2, 3, 7, 4),
    f32(5, 3, 2, 2),
    **SUM,
)
case(
    "convolution_backward/patches",
    lambda g, x, w: aten.convolution_backward(g, x, w, [5], *patches(2), [True, True, True]),
    f32(2, 5, 3, 2),
    f32(2, 3, 6, 4),
    f32(5, 3, 2, 2),
    **SUM,
)
case(
    "convolution_backward/weight alone",
    lambda g, x, w: aten.convolution_backward(g, x, w, None, *patches(2), [False, True, False])[1],
    f32(2, 4, 3, 5),
    f32(2, 3, 6, 10),
    f32(4, 3, 2, 2),
    **SUM,
)

# ---- convolutions ---------------------------------------------------------------------------------------------------


def conv_form(x, w, stride=1, padding=0, dilation=1, groups=1, more=None):
    """The result's shape, and the arguments of aten.convolution behind the bias. `more`: a transposed one's output padding."""
    axes = len(w) - 2
    each = [[v] * axes if isinstance(v, int) else v for v in (stride, padding, dilation, more or 0)]
    size = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1 if more is None else (n - 1) * s - 2 * p + d * (k - 1) + 1 + m
        for n, k, s, p, d, m in zip(x[2:], w[2:], *each, strict=True)
    ]
    channels = w[0] if more is None else w[1] * groups
    return (x[0], channels, *size), (*each[:3], more is not None, each[3], groups)


def conv_case(name, x, w, make=f32, slack=4, truth=True, **form):
    """Forward with a bias, and the three gradients of it."""
    y, rest = conv_form(x, w, **form)
    kw = SUM | dict(slack=slack, truth=truth)
    case(f"convolution/{name}", lambda x, w, b: aten.convolution(x, w, b, *rest), make(*x), make(*w), make(y[1]), **kw)
    case(
        f"convolution_backward/{name}",
        lambda g, x, w: aten.convolution_backward(g, x, w, [y[1]], *rest, [True, True, True]),
        make(*y),
        make(*x),
        make(*w),
        **kw,
    )


conv_case("3x3", (2, 5, 7, 6), (4, 5, 3, 3), padding=1)
conv_case("3x3 no padding", (1, 3, 5, 9), (4, 3, 3, 3))
conv_case("3x3 wide padding", (2, 3, 4, 5), (4, 3, 3, 3), padding=[3, 2])
conv_case("3x3 step 2", (2, 4, 7, 8), (3, 4, 3, 3), stride=2, padding=1)
conv_case("3x3 step 2, channels of whole vectors", (2, 64, 6, 7), (48, 64, 3, 3), stride=2, padding=1, slack=16)
conv_case("3x3, channels of whole vectors", (1, 32, 5, 6), (64, 32, 3, 3), padding=1, slack=16)
conv_case("7x7 step 2", (1, 3, 15, 14), (5, 3, 7, 7), stride=2, padding=3, slack=16)
conv_case("1x1 step 2", (2, 4, 7, 6), (3, 4, 1, 1), stride=2)
conv_case("1x1 step 3, dilation counts for nothing", (2, 4, 7, 6), (3, 4, 1, 1), stride=3, dilation=2)
conv_case("dilation", (2, 3, 9, 8), (4, 3, 3, 2), padding=2, dilation=[2, 3])
conv_case("dilation and step with a common factor", (2, 3, 13, 12), (4, 3, 3, 3), stride=[4, 3], padding=2, dilation=[2, 2])
conv_case("step beyond the kernel", (2, 3, 9, 11), (4, 3, 2, 2), stride=[3, 5])
conv_case("step beyond the kernel, padding", (2, 3, 9, 11), (4, 3, 2, 3), stride=[4, 2], padding=[1, 2])
conv_case("whole image", (3, 4, 5, 6), (7, 4, 5, 6))
conv_case("size 1", (1, 1, 1, 1), (1, 1, 3, 3), padding=1)
conv_case("1d strided", (2, 3, 11), (4, 3, 5), stride=2, padding=2)
conv_case("3d", (1, 2, 4, 5, 6), (3, 2, 3, 2, 3), stride=[1, 2, 1], padding=[1, 0, 1])
conv_case("depthwise 3x3", (2, 5, 7, 6), (5, 1, 3, 3), padding=1, groups=5)
conv_case("depthwise 7x7, channels of whole vectors", (2, 32, 9, 8), (32, 1, 7, 7), padding=3, groups=32, slack=16)
conv_case("depthwise 5x5 step 2", (2, 6, 9, 8), (6, 1, 5, 5), stride=2, padding=2, groups=6)
conv_case("depthwise, dilation and step", (1, 3, 13, 12), (3, 1, 3, 3), stride=[4, 3], padding=2, dilation=[2, 2], groups=3)
conv_case("depthwise, two pieces of channels", (1, 120, 3, 2), (120, 1, 3, 3), padding=1, groups=120)
conv_case("depthwise, channels in no equal pieces", (1, 67, 3, 4), (67, 1, 3, 3), padding=1, groups=67)
conv_case("depthwise 1d, causal", (2, 7, 11), (7, 1, 4), padding=3, groups=7)
conv_case("depthwise 1x1", (2, 4, 3, 5), (4, 1, 1, 1), groups=4)
conv_case("depthwise bf16", (2, 5, 7, 6), (5, 1, 3, 3), padding=1, groups=5, make=bf16, truth=False)
conv_case("groups", (2, 34, 5, 4), (48, 17, 3, 2), padding=1, groups=2, slack=16)
conv_case("groups of whole vectors, step 2", (1, 32, 9, 8), (64, 16, 3, 3), stride=2, padding=1, groups=2, slack=16)
conv_case("groups, 1x1", (2, 48, 3, 4), (51, 16, 1, 1), groups=3, slack=16)
conv_case("groups 1d, dilation", (2, 32, 11), (34, 16, 3), stride=2, padding=2, dilation=2, groups=2, slack=16)
conv_case("groups bf16", (2, 32, 5, 4), (32, 16, 3, 3), padding=1, groups=2, make=bf16, truth=False)
conv_case("transposed 2x2 step 2", (2, 5, 4, 3), (5, 6, 2, 2), stride=2, more=0)
conv_case("transposed 2x2 step 2, one channel", (2, 5, 4, 3), (5, 1, 2, 2), stride=2, more=0)
conv_case("transposed 4x4 step 2", (2, 4, 3, 5), (4, 3, 4, 4), stride=2, padding=1, more=0)
conv_case("transposed 3x3 step 2, whole vectors", (1, 32, 4, 5), (32, 16, 3, 3), stride=2, padding=1, more=1, slack=16)
conv_case("transposed, of a single place", (3, 7, 1, 1), (7, 17, 4, 3), more=0)
conv_case("transposed, dilation", (2, 3, 5, 4), (3, 4, 3, 2), stride=[2, 3], padding=[2, 1], dilation=[2, 1], more=[1, 0])
conv_case("transposed, more than a step behind", (1, 3, 4, 3), (3, 2, 2, 2), stride=[1, 2], dilation=3, more=[2, 1])
conv_case("transposed, places that nothing reaches", (2, 3, 3, 4), (3, 4, 2, 1), stride=[4, 3], padding=[1, 0], more=[2, 2])
conv_case("transposed groups", (2, 32, 4, 3), (32, 17, 3, 3), stride=2, padding=1, groups=2, more=1, slack=16)
conv_case("transposed depthwise", (2, 4, 5, 3), (4, 1, 4, 3), stride=2, padding=1, groups=4, more=0)
conv_case("transposed 1d", (2, 3, 6), (3, 4, 4), stride=2, padding=1, more=0)
conv_case("transposed 3d", (1, 2, 2, 3, 2), (2, 3, 2, 3, 2), stride=[1, 2, 2], padding=[0, 1, 0], more=[0, 1, 0])
conv_case("transposed bf16", (2, 4, 3, 5), (4, 3, 4, 4), stride=2, padding=1, more=0, make=bf16, truth=False)
conv_case("3x3 bf16", (2, 5, 7, 6), (4, 5, 3, 3), padding=1, make=bf16, truth=False)
case(
    "convolution/fused with its neighbours",
    lambda x, w, v, s: aten.convolution(
        aten.relu(aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1) * s.view(1, -1, 1, 1)),
        v, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1,
    ).mean([2, 3]),
    f32(2, 3, 6, 5),
    f32(4, 3, 3, 3),
    f32(5, 4, 1, 1),
    f32(4),
    **SUM,
)  # fmt: skip


def random_convolution(seed: int) -> Case:
    """A convolution of any form, transposed or not: its result and the image's gradient of numbers that are special, too, and the
    other gradients."""
    draw = random.Random(seed)
    while True:
        axes, groups, more = draw.choice((1, 1, 2, 2, 2, 3)), draw.choice((1, 1, 1, 2, 3, 4)), None
        sizes = (1, 2, 3, 4), (1, 1, 2, 3, 5), (1, 1, 2, 3)
        kernel, stride, dilation = ([draw.choice(of) for _ in range(axes)] for of in sizes)
        padding = [draw.randrange(d * (k - 1) + 2) for k, d in zip(kernel, dilation, strict=True)]
        inward, outward = (groups * draw.choice((1, 2, 3, 5) if groups == 1 else (16, 17)) for _ in range(2))
        if groups > 1 and draw.random() < 0.4:
            inward = outward = groups  # depthwise
        if transposed := draw.random() < 0.5:
            more = [draw.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)]
        x = (draw.randint(1, 2), inward, *(draw.randint(1, 7) for _ in range(axes)))
        w = (inward, outward // groups, *kernel) if transposed else (outward, inward // groups, *kernel)
        y, rest = conv_form(x, w, stride, padding, dilation, groups, more)
        if min(y) > 0:
            break

    def results(special, x, w, b, special_gradient, g):
        value = aten.convolution(special, w, b, *rest)
        image = aten.convolution_backward(special_gradient, x, w, [y[1]], *rest, [True, False, False])[0]
        return value, image, aten.convolution_backward(g, x, w, [y[1]], *rest, [False, True, True])[1:]

    specs = (f32(*x, values="special"), f32(*x), f32(*w), f32(y[1]), f32(*y, values="special"), f32(*y))
    return Case(f"convolution {seed}: {x} by {w}, {rest}", results, specs, **SUM)


# ---- the framework's ------------------------------------------------------------------------------------------------
case(
    "convolution/groups of few channels",
    lambda x, w, b: aten.convolution(x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 2) * 2,
    f32(2, 4, 6, 5),
    f32(4, 2, 3, 3),
    f32(4),
    extern=True,
    **SUM,
)
case("sort", lambda x: aten.sort(x * 2, 1), f32(5, 7), extern=True)
case("topk", lambda x: aten.topk(x, 3)[0] + 1, f32(5, 7), extern=True)
case("atan2", aten.atan2, f32(5, 7), f32(5, 7), extern=True)
