# ruff: noqa: E501
"""Every elementwise row, activation and loss at the numbers where formulas part (special_values.py), forward and backward, against eager: the same
bits, or a stated bound. What eager refuses while it runs (x // 0, an index out of bounds) raises the same error compiled."""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import special_values as special
import torch
import torch.nn.functional as F
from plans import compiled_text
from special_values import ALL, FLOATS, INF, INTEGERS, NAN, NUMBERS
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import trainc
from trainc import _core
from trainc.base.messages import RecompileWarning
from trainc.torch.doors.backend import backend
from trainc.torch.graph import wire

aten = torch.ops.aten
F32, BF16, F16, F64, U8 = torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.uint8
GRADIENTS = [1.0, -2.0, 0.3, 0.0, -0.0, INF, NAN]


@dataclass(frozen=True)
class Case:
    """`fn` of `inputs(dtype)` for each dtype; within `ulps` of eager (0: the same bits), or, where there is a bound, of eager in a wider dtype; `slack`: an
    absolute bound beside it, in units of epsilon, of what loses its digits by subtraction; `also`: another spelling, of which either will do (a product
    and a sum that eager rounds once, and we twice)."""

    name: str
    fn: Callable
    inputs: Callable[[torch.dtype], list[torch.Tensor]]
    dtypes: tuple[torch.dtype, ...]
    ulps: float = 0
    slack: float = 0
    zeros: bool = True  # the sign of a zero is compared
    also: Callable | None = None

    def wrong(self, got: torch.Tensor, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        want = self.fn(*tensors)
        bad = special.wrong(got, want, self.ulps, self.zeros, self.slack)
        if self.also:
            bad &= special.wrong(got, self.also(*tensors), self.ulps, self.zeros, self.slack)
        for wider in (F32, F64):
            if self.ulps and want.dtype.is_floating_point and want.dtype.itemsize < wider.itemsize and bad.any():
                more = self.fn(*[t.to(wider) if t.is_floating_point() else t for t in tensors])
                bad &= special.wrong(got, more.to(want.dtype), self.ulps, self.zeros, self.slack)
        return bad, want


CASES: list[Case] = []


def case(name: str, fn: Callable, inputs: Callable, dtypes: tuple = FLOATS, **kw) -> None:
    CASES.append(Case(name, fn, inputs, dtypes, **kw))


def one(d: torch.dtype) -> list[torch.Tensor]:
    return special.grid(special.of(d))


def two(d: torch.dtype) -> list[torch.Tensor]:
    return special.grid(special.of(d), special.of(d))


def three(d: torch.dtype) -> list[torch.Tensor]:
    return special.grid(special.of(d), special.of(d), special.of(d), limit=2048)


def divided(d: torch.dtype) -> list[torch.Tensor]:
    """No divisor 0, which raises; nor the least integer over -1, which ends the process in eager."""
    x, y = special.grid(special.of(d), special.of(d, nonzero=True))
    keep = ~((x == torch.iinfo(d).min) & (y == -1)) if not d.is_floating_point else torch.ones_like(x, dtype=torch.bool)
    return [special.whole(x[keep]), special.whole(y[keep])]


def with_gradient(d: torch.dtype) -> list[torch.Tensor]:
    return special.grid(torch.tensor(GRADIENTS).to(d), special.of(d))


def pair_with_gradient(d: torch.dtype) -> list[torch.Tensor]:
    return special.grid(torch.tensor(GRADIENTS).to(d), special.of(d), special.of(d))


def probabilities(d: torch.dtype) -> list[torch.Tensor]:
    p = special.of(d)
    p = p[(p >= 0) & (p <= 1)]
    return special.grid(p, p)


# ---- one input
for op in "floor ceil round trunc isnan isinf nan_to_num relu".split():
    case(op, getattr(aten, op).default, one, NUMBERS)
for op in "neg abs sign sgn".split():
    case(op, getattr(aten, op).default, one, NUMBERS)
case("abs of neg", lambda x: aten.abs(aten.neg(x)), one, NUMBERS)
case("logical_not", aten.logical_not.default, one, ALL)
case("bitwise_not", aten.bitwise_not.default, one, (*INTEGERS, torch.bool))
for op in "sqrt rsqrt reciprocal".split():
    case(op, getattr(aten, op).default, one, ALL, ulps=1)
for op in "exp expm1 log log1p sin cos tanh erf sigmoid".split():
    case(op, getattr(aten, op).default, one, ALL, ulps=4)
case("special_erf", aten.special_erf.default, one, ulps=4)
for source in ALL:
    for target in ALL:
        case(f"cast to {target} of", functools.partial(lambda d, x: aten._to_copy(x, dtype=d), target), one, (source,))
case("convert_element_type", lambda x: torch.ops.prims.convert_element_type(x, BF16), one, ALL)

# ---- two inputs
for op in "add sub mul div".split():
    case(op, getattr(aten, op).Tensor, two, NUMBERS)
case("rsub", aten.rsub.Tensor, two, NUMBERS)
case("add alpha", lambda x, y: aten.add.Tensor(x, y, alpha=3), two, NUMBERS, ulps=1, also=lambda x, y: x + y * 3)
case("sub alpha", lambda x, y: aten.sub.Tensor(x, y, alpha=3), two, NUMBERS, ulps=1, also=lambda x, y: x - y * 3)
for op in "lt le gt ge eq ne".split():
    case(op, getattr(aten, op).Tensor, two, ALL)
for op in "maximum minimum logical_and logical_or logical_xor".split():
    case(op, getattr(aten, op).default, two, ALL)
for op in "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__".split():
    case(op, getattr(aten, op).Tensor, two, (*INTEGERS, torch.bool))
for op in "fmod remainder".split():
    case(op, getattr(aten, op).Tensor, divided, NUMBERS)
case("floor_divide", aten.floor_divide.default, divided, NUMBERS)
for mode in ("trunc", "floor", None):
    case(f"div {mode}", functools.partial(lambda m, x, y: aten.div.Tensor_mode(x, y, rounding_mode=m), mode), divided, NUMBERS)
case("pow", aten.pow.Tensor_Tensor, two, NUMBERS, ulps=2)
case("logaddexp", aten.logaddexp.default, two, FLOATS, ulps=4, slack=4)
for op in "clamp_min clamp_max".split():
    case(f"{op}.Tensor", getattr(aten, op).Tensor, two, NUMBERS)
case("where", lambda x, y: aten.where.self(x > y, x, y), two, ALL)
case("masked_fill", lambda x, y: aten.masked_fill.Scalar(x, y > 0, 3), two, NUMBERS)
case("masked_fill.Tensor", lambda x, y: aten.masked_fill.Tensor(x, y > 0, y[0]), two, NUMBERS)
case("copy", aten.copy.default, two, ALL)

# ---- three inputs
case("clamp.Tensor", aten.clamp.Tensor, three, NUMBERS)
case("addcmul", lambda x, a, b: aten.addcmul(x, a, b, value=3), three, NUMBERS, ulps=2, also=lambda x, a, b: x + a * 3 * b)
case("addcdiv", lambda x, a, b: aten.addcdiv(x, a, b, value=3), three, ulps=2)
LERP = dict(ulps=4, slack=8)
case("lerp", aten.lerp.Tensor, three, **LERP,
     also=lambda x, e, w: torch.where(w.abs() < 0.5, x + w * (e - x), e + (w - 1) * (e - x)))  # fmt: skip
case("lerp.Scalar", lambda x, e: aten.lerp.Scalar(x, e, 0.3), two, **LERP, also=lambda x, e: x + 0.3 * (e - x))

# ---- dtypes that meet, and Python's numbers
for left in ALL:
    for right in ALL:
        if left is not right:
            meet = functools.partial(lambda r, d: special.grid(special.of(d), special.of(r)), right)
            for op in "add mul div lt eq maximum".split():
                fn = getattr(aten, op).default if op == "maximum" else getattr(aten, op).Tensor
                case(f"{op} with {right} of", fn, meet, (left,))
SCALARS = (0.5, 0.1, 3, -1, True, 2.0**24 + 1, 2**24 + 1, 2**53 + 1, 300, -300, NAN, INF, -0.0, 1e-50)


def both_ways(op: str, number: float) -> Callable:
    return functools.partial(lambda f, n, x: f(x, n), getattr(aten, op).Scalar, number)


for number in SCALARS:
    for op in "add mul div eq ne lt le gt ge sub rsub".split():
        if not (number is True and op in ("sub", "rsub")):
            case(f"{op} {number!r}", both_ways(op, number), one, NUMBERS)
    for op in "clamp clamp_min clamp_max".split():
        dtypes = FLOATS if not isinstance(number, float) and abs(number) < 400 or number in (0.5, 0.1, -0.0, 1e-50) else (F32, F64)
        case(f"{op} {number!r}", functools.partial(lambda f, n, x: f(x, n), getattr(aten, op).default, number), one, dtypes)
for number in (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 1 / 3, -2.5, INF, NAN):
    case(f"pow to {number}", functools.partial(lambda e, x: aten.pow.Tensor_Scalar(x, e), number), one, ulps=2 if number not in (1, 2) else 0)
    case(f"pow of {number}", functools.partial(lambda b, x: aten.pow.Scalar(b, x), number), one, ulps=2)
for number in (0, 1, 2, 3):
    case(f"integers to {number}", functools.partial(lambda e, x: aten.pow.Tensor_Scalar(x, e), number), one, INTEGERS)
for number in (0.3, 3):  # of halves: a number on the right of a product keeps its digits, of a sum it does not; alpha does not
    case(f"add.Tensor {number}", functools.partial(lambda n, x: aten.add.Tensor(x, n), number), one)
    case(f"add number alpha {number}", functools.partial(lambda n, x: aten.add.Tensor(x, 1.0, alpha=n), number), one, (BF16, F16))
    case(f"div trunc {number}", functools.partial(lambda n, x: aten.div.Scalar_mode(x, n, rounding_mode="trunc"), number), one)
for op in "fmod remainder floor_divide".split():
    case(f"{op} 7", functools.partial(lambda f, x: f(x, 7), getattr(aten, op).Scalar), one, INTEGERS)
for op in "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__".split():
    case(f"{op} 6", functools.partial(lambda f, x: f(x, 6), getattr(aten, op).Scalar), one, INTEGERS)
SINGLES = {"f32[]": torch.tensor(0.1003), "f64[]": torch.tensor(0.1003, dtype=F64), "i64[1]": torch.tensor([2049])}
for name, single in SINGLES.items():
    for op in "add sub mul div".split():
        fn = getattr(aten, op).Tensor
        case(f"{op} {name}", fn, functools.partial(lambda s, d: [*one(d), s], single))
        case(f"{name} {op}", functools.partial(lambda f, x, s: f(s, x), fn), functools.partial(lambda s, d: [*one(d), s], single))
case("where.ScalarSelf", lambda x: aten.where.ScalarSelf(x > 0, 0.3, x), one)
case("where.ScalarOther", lambda x: aten.where.ScalarOther(x > 0, x, 0.3), one)
case("where.Scalar", lambda x: aten.where.Scalar(x > 0, 0.3, 2), one)
case("fill", lambda x: aten.fill.Scalar(x, 0.3), one)
case("fill.Tensor", lambda x: aten.fill.Tensor(x, x[3]), one)

# ---- activations. Eager's GELU of f32 is a library's: its last digits, and its sign of 0, are its own.
LOSES = dict(ulps=4, slack=4)
case("gelu", aten.gelu.default, one, **LOSES, zeros=False)
case("gelu tanh", lambda x: aten.gelu(x, approximate="tanh"), one, **LOSES, zeros=False)
case("gelu_backward", aten.gelu_backward.default, with_gradient, **LOSES, zeros=False)
case("gelu_backward tanh", lambda g, x: aten.gelu_backward(g, x, approximate="tanh"), with_gradient, **LOSES, zeros=False)
for op in "silu mish hardswish hardsigmoid elu softplus".split():
    case(op, getattr(aten, op).default, one, ulps=4)
for op in "silu mish hardswish hardsigmoid sigmoid tanh".split():
    case(f"{op}_backward", getattr(aten, f"{op}_backward").default, with_gradient, ulps=4)
case("threshold", lambda x: aten.threshold(x, 0.25, 20.0), one)
case("threshold_backward", lambda g, x: aten.threshold_backward(g, x, 0), with_gradient)
case("leaky_relu", lambda x: aten.leaky_relu(x, 0.1), one)
case("leaky_relu_backward", lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False), with_gradient)
for low, high in ((-1.0, 1.0), (0.0, 6.0), (-0.7, 0.3)):
    case(f"hardtanh {low}", functools.partial(lambda a, x: aten.hardtanh(x, *a), (low, high)), one)
    case(f"hardtanh_backward {low}", functools.partial(lambda a, g, x: aten.hardtanh_backward(g, x, *a), (low, high)), with_gradient)
case("selu", torch.selu, one, ulps=4)
for op in "hardshrink softshrink".split():
    for lambd in (0.5, 0.3):
        case(f"{op} {lambd}", functools.partial(lambda f, n, x: f(x, n), getattr(aten, op).default, lambd), one, ulps=1)
        case(f"{op}_backward {lambd}", functools.partial(lambda f, n, g, x: f(g, x, n), getattr(aten, f"{op}_backward").default, lambd), with_gradient)
case("_efficientzerotensor", lambda x: aten._efficientzerotensor(x.shape, dtype=x.dtype) + 0 * aten.zeros_like(x), one, (F32,))
for is_result in (False, True):
    case(f"elu_backward {is_result}", functools.partial(lambda r, g, x: aten.elu_backward(g, 1.6, 1.05, 1, r, x), is_result), with_gradient, ulps=4)
case("softplus_backward", lambda g, x: aten.softplus_backward(g, x, 2.0, 3.0), with_gradient, ulps=4)
case("log_sigmoid", lambda x: aten.log_sigmoid_forward(x)[0], one, ulps=4)
case("log_sigmoid_backward", lambda g, x: aten.log_sigmoid_backward(g, x, aten.log_sigmoid_forward(x)[1]), with_gradient, ulps=4)

# ---- losses
for beta in (1.0, 0.5, 0.0):
    case(f"smooth_l1 {beta}", functools.partial(lambda b, x, t: aten.smooth_l1_loss(x, t, 0, b), beta), two, ulps=4)
    case(f"smooth_l1_backward {beta}", functools.partial(lambda b, g, x, t: aten.smooth_l1_loss_backward(g, x, t, 0, b), beta), pair_with_gradient, ulps=4)
case("huber", lambda x, t: aten.huber_loss(x, t, 0, 0.7), two, ulps=4)
case("huber_backward", lambda g, x, t: aten.huber_loss_backward(g, x, t, 0, 0.7), pair_with_gradient, ulps=4)
case("mse", lambda x, t: aten.mse_loss(x, t, 0), two, ulps=4)
case("mse_backward", lambda g, x, t: aten.mse_loss_backward(g, x, t, 0), pair_with_gradient, ulps=4)
case("bce", lambda x, t: aten.binary_cross_entropy(x, t, None, 0), probabilities, ulps=4)
case("bce_backward", lambda x, t: aten.binary_cross_entropy_backward(torch.ones_like(x), x, t, None, 0), probabilities, ulps=4)
LOGITS = (F32, F64)  # of halves eager rounds between its operations: other numbers altogether where the terms cancel
case("bce_with_logits", lambda x, t: aten.binary_cross_entropy_with_logits(x, t, None, None, 0), two, LOGITS, **LOSES)
case("bce_with_logits pos_weight", lambda x, t: aten.binary_cross_entropy_with_logits(x, t, None, t, 0), two, LOGITS, **LOSES)


def eager_takes(c: Case, dtype: torch.dtype) -> bool:
    try:
        c.fn(*c.inputs(dtype))
    except (RuntimeError, TypeError, NotImplementedError):
        return False  # "not implemented for 'Half'", a number that is none of the dtype
    return True


@functools.cache
def groups(c: Case) -> tuple[tuple[torch.dtype, ...], list[list[torch.Tensor]]]:
    dtypes = tuple(d for d in c.dtypes if eager_takes(c, d))
    return dtypes, [c.inputs(d) for d in dtypes]


def traced(c: Case) -> tuple[str, torch.fx.GraphModule]:
    """All dtypes in one graph."""
    _, inputs = groups(c)
    sizes = [len(tensors) for tensors in inputs]

    def fn(*flat: torch.Tensor) -> list[torch.Tensor]:
        given = iter(flat)
        return [c.fn(*[next(given) for _ in range(size)]) for size in sizes]

    gm = make_fx(fn, tracing_mode="fake")(*[t for tensors in inputs for t in tensors])
    return wire.graph_json(gm.graph, "special"), gm


EACH = pytest.mark.parametrize("c", CASES, ids=lambda c: f"{c.name} {'' if len(c.dtypes) > 1 else c.dtypes[0]}".strip())


def compare(c: Case, results: list[torch.Tensor]) -> None:
    dtypes, inputs = groups(c)
    for dtype, tensors, got in zip(dtypes, inputs, results, strict=True):
        bad, want = c.wrong(got, tensors)
        assert not bad.any(), f"{dtype}: {special.report(got, want, tensors, bad)}"


@pytest.mark.sampled(4)
@EACH
def test_compiled(c: Case) -> None:
    if not groups(c)[0]:
        return  # eager takes none of these dtypes
    executable = compiled_text(traced(c)[0], "special")
    compare(c, executable([t for tensors in groups(c)[1] for t in tensors]))


def test_every_row_has_a_case() -> None:
    """A row is here, or it is no arithmetic of elements."""
    called = set()

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.add(str(func))
            return func(*args, **(kwargs or {}))

    for c in CASES:
        for dtype in groups(c)[0][:1]:
            with Calls():
                c.fn(*c.inputs(dtype))
    missing = set(_core.supported_operations()) - called
    assert {name for name in missing if not name.split(".")[1].startswith(OTHER_FAMILIES)} - PYTHON_NEVER_CALLS == set()


OTHER_FAMILIES = (
    "_adaptive", "_index_put", "as_strided", "channel_shuffle", "classes", "col2im", "diag", "im2col", "unfold", "_log_softmax", "_native_batch", "_reshape", "_safe_softmax", "_scaled", "_softmax", "_unsafe", "addmm", "addmv", "alias",
    "all", "amax", "amin", "any", "arange", "argm", "avg_pool", "baddbmm", "bernoulli", "bmm", "cat", "clone", "constant_pad", "contiguous", "convolution",
    "cumsum", "detach", "dot", "embedding", "empty", "expand", "eye", "flip", "full", "gather", "index", "lift", "linalg", "logsumexp", "max.", "max", "mean",
    "min", "mm", "mv", "native_", "new_", "nll_", "norm", "ones", "permute", "pixel", "prod", "repeat", "reshape", "roll", "scalar_tensor", "scatter", "select", "slice",
    "split", "squeeze", "stack", "std", "sum", "t", "transpose", "tril", "triu", "unbind", "unsqueeze", "var", "view", "zeros",
)  # fmt: skip
PYTHON_NEVER_CALLS = {  # other names of rows that have a case, which a trace replaces
    "aten.special_erf.default", "aten.where.Scalar", "aten.where.ScalarOther", "aten.where.ScalarSelf",
    *(f"aten.__{op}__.{overload}" for op in ("and", "or", "xor") for overload in ("Scalar", "Tensor")),
}  # fmt: skip


# ---- the default dtype, in which an integer meets a Python float
@pytest.mark.parametrize("default", [F32, F64, BF16], ids=str)
@pytest.mark.parametrize("op", "eq ne lt le gt ge add mul div pow".split())
def test_default_dtype(op: str, default: torch.dtype) -> None:
    overload = getattr(aten, op).Tensor_Scalar if op == "pow" else getattr(aten, op).Scalar
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        for number in (2.0**24, 2.0**53, 0.1, 1e-50):
            c = Case("", functools.partial(lambda n, x: overload(x, n), number), one, INTEGERS, ulps=2 * (op == "pow"))
            compare(c, compiled_text(traced(c)[0], "d")([t for tensors in groups(c)[1] for t in tensors]))
    finally:
        torch.set_default_dtype(before)


# ---- what eager refuses while it runs
class Refuses(nn.Module):
    def __init__(self, fn: Callable):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.fn = fn

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        y = self.fn(*tensors)
        return (y.float() * self.weight).sum()


INDEX, ROW = torch.tensor([5]), torch.full((1, 4), 5)
TABLE, ZERO = torch.randn(3, 4), torch.zeros(3, dtype=torch.int64)
REFUSED = {
    "floor_divide": (lambda x, y: x // y, [ZERO + 7, ZERO]),
    "floor_divide by 0": (lambda x: x // 0, [ZERO + 7]),
    "div trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), [ZERO + 7, ZERO]),
    "remainder": (lambda x, y: x % y, [ZERO.int() + 7, ZERO.int()]),
    "fmod": (torch.fmod, [ZERO.to(U8) + 7, ZERO.to(U8)]),
    "bce above": (F.binary_cross_entropy, [torch.tensor([0.5, 1.5]), torch.tensor([0.5, 1.0])]),
    "bce below": (F.binary_cross_entropy, [torch.tensor([0.5, -0.1]), torch.tensor([0.5, 1.0])]),
    "bce nan": (F.binary_cross_entropy, [torch.tensor([0.5, NAN]), torch.tensor([0.5, 1.0])]),
    "bce target": (F.binary_cross_entropy, [torch.tensor([0.5, 0.5]), torch.tensor([0.5, 2.0])]),
    "embedding": (F.embedding, [INDEX, TABLE]),
    "gather": (lambda x, i: x.gather(0, i), [TABLE, ROW]),
    "gather below": (lambda x, i: x.gather(0, i), [TABLE, -ROW]),
    "index_select": (lambda x, i: x.index_select(0, i), [TABLE, INDEX]),
    "index": (lambda x, i: x[i], [TABLE, INDEX]),
    "index_put": (lambda x, i: x.index_put((i,), torch.ones(4)), [TABLE, INDEX]),
    "scatter": (lambda x, i: x.scatter(0, i, 1.0), [TABLE, ROW]),
    "scatter_add": (lambda x, i: x.scatter_add(0, i, x), [TABLE, ROW]),
    "index_add": (lambda x, i: x.index_add(0, i, x[:1]), [TABLE, INDEX]),
    "index_copy": (lambda x, i: x.index_copy(0, i, x[:1]), [TABLE, INDEX]),
    "nll_loss": (F.nll_loss, [TABLE[:1], INDEX]),
    "cross_entropy": (F.cross_entropy, [TABLE[:1], INDEX]),
    "cross_entropy below": (F.cross_entropy, [TABLE[:1], torch.tensor([-1])]),
    "nll_loss2d": (F.nll_loss, [TABLE[:1, :, None, None], INDEX[:, None, None]]),
    "one_hot": (lambda i: F.one_hot(i, 3), [INDEX]),
    "one_hot below": (lambda i: F.one_hot(i, 3), [-INDEX]),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 300), [torch.ones(3, dtype=U8)]),
    "where": (lambda x: torch.where(x > 0, x, 300), [torch.ones(3, dtype=U8)]),
    "sub of bools": (lambda x: x - True, [TABLE]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_eager(name: str, core) -> None:
    fn, tensors = REFUSED[name]
    plain = Refuses(fn)
    ours = trainc.compile(copy.deepcopy(plain))
    with pytest.raises(Exception) as eager:
        plain(*tensors)
    for _ in range(2):  # when it is compiled, and when the plan is there
        with pytest.raises(type(eager.value)) as compiled:
            ours(*tensors)
        assert type(compiled.value) is type(eager.value)


WORDS = {
    "floor_divide": "ZeroDivisionError", "remainder": "ZeroDivisionError", "fmod": "ZeroDivisionError", "div trunc": "ZeroDivisionError",
    "bce above": "all elements of input should be between 0 and 1", "bce target": "all elements of target should be between 0 and 1",
    "nll_loss": "is out of bounds.", "one_hot below": "Class values must be non-negative",
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
def test_eagers_words(name: str, core, strict) -> None:
    fn, tensors = REFUSED[name]
    plain = Refuses(fn)
    for model in (plain, trainc.compile(copy.deepcopy(plain)), torch.compile(copy.deepcopy(plain), backend=backend)):
        with pytest.raises((RuntimeError, IndexError), match=re.escape(WORDS[name])):
            model(*tensors)


WRONG_AT = {  # by size and place of the one wrong number
    "division": (torch.ops.aten.floor_divide, lambda n: [torch.arange(n) + 5, torch.ones(n, dtype=torch.int64)], 1, 0, RuntimeError),
    "remainder": (torch.remainder, lambda n: [torch.ones(n, dtype=U8), torch.ones(n, dtype=U8)], 1, 0, RuntimeError),
    "bce": (F.binary_cross_entropy, lambda n: [torch.full((n,), 0.5), torch.full((n,), 0.5)], 0, 1.5, RuntimeError),
    "bce target": (F.binary_cross_entropy, lambda n: [torch.full((n,), 0.5), torch.full((n,), 0.5)], 1, -0.5, RuntimeError),
    "nll_loss": (F.nll_loss, lambda n: [torch.full((n, 3), -1.0), torch.zeros(n, dtype=torch.int64)], 1, 3, IndexError),
    "one_hot": (lambda i: F.one_hot(i, 3), lambda n: [torch.zeros(n, dtype=torch.int64)], 0, 3, RuntimeError),
}


@pytest.mark.parametrize("name", WRONG_AT)
def test_one_wrong_number_wherever_it_stands(name: str, core, strict) -> None:
    """Whole vectors, their tails, and the parts of several threads."""
    fn, make, which, bad, error = WRONG_AT[name]
    for n in (1, 7, 17, 64, 100_003):
        tensors = make(n)
        plain = Refuses(fn)
        ours = trainc.compile(copy.deepcopy(plain))
        torch.testing.assert_close(ours(*tensors), plain(*tensors))
        for place in (0, n // 2, n - 1):
            good = tensors[which][place].clone()
            tensors[which][place] = bad
            for model in (plain, ours):
                with pytest.raises(error):
                    model(*tensors)
            tensors[which][place] = good
        torch.testing.assert_close(ours(*tensors), plain(*tensors))


class Beside(nn.Module):
    """What is refused has no part in the loss."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.constant = nn.Parameter(torch.ones(3))  # its gradient needs nothing of the forward

    def forward(self, x, k):
        y = self.linear(x).square().mean() + self.constant.sum()
        return y, 7 // k


@pytest.mark.parametrize("fused", [False, True])
def test_nothing_is_written_after_the_error(fused: bool, core, strict) -> None:
    model = Beside()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    compiled = model if fused else trainc.compile(model)

    def step(x, k):
        loss, other = compiled(x, k)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss, other

    run = trainc.train_step(step) if fused else step
    x = torch.randn(3, 4)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            run(x, torch.tensor([1, 0]))
        for key, value in model.state_dict().items():
            assert torch.equal(value, before[key]), key
    run(x, torch.tensor([1, 2]))
    assert not torch.equal(model.linear.weight, before["linear.weight"])


def test_a_check_lets_right_numbers_pass(core, strict) -> None:
    fits = {
        "floor_divide": [ZERO + 7, ZERO - 2], "floor_divide by 0": [ZERO[:0]], "remainder": [ZERO.int() + 7, ZERO.int() - 2],
        "bce above": [torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])], "gather": [TABLE, ROW * 0], "nll_loss": [TABLE[:1], INDEX * 0],
        "one_hot": [INDEX * 0], "scatter": [TABLE, ROW * 0],
    }  # fmt: skip
    for name, tensors in fits.items():
        plain = Refuses(REFUSED[name][0])
        torch.testing.assert_close(trainc.compile(copy.deepcopy(plain))(*tensors), plain(*tensors), msg=name)


# ---- the signature
class Number(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x, k, d=()):
        y = x * self.weight + 7 if isinstance(k, float) and k != k else x * self.weight * math.copysign(2.0, k)
        y = y + {bool: 100, int: 0, float: 1000}[type(k)]
        for key in d:
            y = y * (3 if type(key) is bool else 5 if type(key) is int else math.copysign(7, key))
        return y


def test_numbers_are_told_apart_by_type_and_bits(core, strict) -> None:
    plain = Number()
    ours = trainc.compile(copy.deepcopy(plain))
    x = torch.tensor([1.0, 2.0])
    calls = [(k, ()) for k in (0.0, -0.0, 0, True, 1, 1.0, NAN, float("nan"), False, -1.0, -0.0, 0.0)]
    calls += [(1, {key: x}) for key in (1, True, 1.0, 0.0, -0.0, 0, False)]
    with pytest.warns(RecompileWarning):
        for k, d in calls:
            assert torch.equal(ours(x, k, d), plain(x, k, d)), (k, d)


# ---- dropout's factor
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dropout_multiplies_with_eagers_factor(dtype: torch.dtype) -> None:
    x = torch.ones(64, dtype=dtype)
    for p in (0.05, 0.1, 0.15, 0.3, 0.37, 0.45, 0.6, 0.7, 0.83, 0.9):
        scale = 1 / (1 - p)
        scaled = functools.partial(lambda s, g, m: [aten.native_dropout_backward(g, m, s)], scale)
        text = wire.graph_json(make_fx(scaled, tracing_mode="fake")(x, x > 0).graph, "d")
        torch.manual_seed(0)
        assert compiled_text(text, "d")([x, x > 0])[0].max() == F.dropout(x, p).max(), p


# Of one term each: eager adds to 0.0.
ONE_TERM = {
    "sum": lambda x: x.sum(0), "sum/all": lambda x: x[0, 0].sum(), "sum/kept": lambda x: x.sum(0, keepdim=True), "mean": lambda x: x.mean(0),
    "dot": lambda x: x[0, :1].dot(torch.ones_like(x[0, :1])),
    "average pool": lambda x: F.avg_pool2d(x[None], 1), "adaptive pool": lambda x: F.adaptive_avg_pool2d(x[None], (1, 3)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, BF16, F16, F64], ids=str)
@pytest.mark.parametrize("name", ONE_TERM)
def test_a_sum_of_one_negative_zero_is_zero(name: str, dtype: torch.dtype, core, strict) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ONE_TERM[name](x)

    x = torch.full((1, 3), -0.0, dtype=dtype)
    assert not ONE_TERM[name](x).signbit().any() and not trainc.compile(Model())(x).signbit().any()


@pytest.mark.parametrize("dtype", [F32, BF16, F64], ids=str)
@pytest.mark.parametrize("kind", [lambda d: nn.LayerNorm(3, dtype=d), lambda d: nn.GroupNorm(1, 3, dtype=d)], ids=["layer", "group"])
def test_gradients_of_one_row_have_eagers_zeros(kind: Callable, dtype: torch.dtype, core, strict) -> None:
    found = []
    for wrap in (lambda model: model, trainc.compile):
        model = kind(dtype)
        wrap(model)(torch.tensor([[1.0, 2, 4]], dtype=dtype)).backward(torch.full((1, 3), -0.0, dtype=dtype))
        found.append([p.grad.signbit() for p in model.parameters()])
    assert all(torch.equal(ours, eagers) and not eagers.any() for eagers, ours in zip(*found, strict=True))


def test_what_is_dropped_of_integers_is_zero(core, strict) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return aten.native_dropout_backward(x, mask, 2.0)

    given = torch.tensor([-3, -3, 3, 3]), torch.tensor([True, False, True, False])
    ours, eagers = trainc.compile(Model())(*given), Model()(*given)
    assert torch.equal(ours, eagers) and torch.equal(ours.signbit(), eagers.signbit())
