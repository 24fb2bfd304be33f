# ruff: noqa: E501, E741 (a case is a line)
"""A case for each row of src/frontend/stablehlo, and for what its rows have to mind: functions of JAX and their arguments.

A case compares results bit for bit with XLA's, but for floats that are computed: these lie within `ulp` units of their dtype of
XLA's in fp64, or (sums) within `relative` of the greatest one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

BF16 = ml_dtypes.bfloat16
FLOATS = (np.float32, BF16, np.float16)
SIGNED = (np.int8, np.int16, np.int32, np.int64)
UNSIGNED = (np.uint8, np.uint16, np.uint32, np.uint64)
INTEGERS = SIGNED + UNSIGNED


@dataclasses.dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    exact: bool = True
    ulp: float = 0
    relative: float = 0
    wide: bool = False  # with jax_enable_x64


CASES: dict[str, Case] = {}


def case(name: str, function: Callable[..., Any], *arguments: Any, ulp: float = 0, relative: float = 0) -> None:
    assert name not in CASES, name
    wide = any(np.asarray(x).real.dtype.itemsize == 8 for x in jax.tree.leaves(arguments) if hasattr(x, "dtype"))
    CASES[name] = Case(function, arguments, not (ulp or relative), ulp, relative, wide)


def random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng([seed, *shape])
    if np.dtype(dtype) == np.bool_:
        return draw.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return draw.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    return draw.normal(size=shape).astype(dtype)


def special(dtype: Any) -> np.ndarray:
    """Of any dtype: what lies at its edges, and some others."""
    if np.dtype(dtype) == np.bool_:
        return np.array([False, True, True, False, True])
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        signed = [-1, -2, -3, -7, -100, info.min + 1] if info.min < 0 else [7, 8, 127, info.max // 2, info.max // 2 + 1]
        return np.array([0, 1, 2, 3, info.max, info.max - 1, info.min, 31, 100, *signed], dtype)
    few = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 3.0, 1e-3, -7.25, 100.0, 3e4, -3e4]
    return np.array(few, dtype)


def pairs(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    x = special(dtype)
    return np.repeat(x, len(x)), np.tile(x, len(x))


def name_of(dtype: Any) -> str:
    return np.dtype(dtype).name


# --- elementwise

for d in (*FLOATS, np.float64, *INTEGERS):
    for name, f in {"add": lax.add, "sub": lax.sub, "mul": lax.mul, "max": lax.max, "min": lax.min}.items():
        case(f"{name}/{name_of(d)}", f, *pairs(d), ulp=0 if d in INTEGERS else 0.5001)
    for name, f in {"eq": lax.eq, "ne": lax.ne, "lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge}.items():
        case(f"{name}/{name_of(d)}", f, *pairs(d))
    case(f"div/{name_of(d)}", lax.div, *pairs(d), ulp=0 if d in INTEGERS else 0.5001)
    case(
        f"select/{name_of(d)}",
        lambda c, x, y: lax.select(c, x, y),
        random(9, dtype=np.bool_),
        *(random(9, dtype=d, seed=i) for i in (1, 2)),
    )
    case(
        f"select_n/{name_of(d)}",
        lambda c, *x: lax.select_n(c, *x),
        np.array([0, 2, 1, 1], np.int32),
        *(random(4, dtype=d, seed=i) for i in (1, 2, 3)),
    )
    case(f"clamp/{name_of(d)}", lambda x: lax.clamp(np.array(1, x.dtype), x, np.array(3, x.dtype)), special(d))
    case(f"sign/{name_of(d)}", lax.sign, special(d))
for d in INTEGERS:
    for name, f in {
        "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor, "shl": lax.shift_left,
        "shr": lax.shift_right_logical, "sar": lax.shift_right_arithmetic, "rem": lax.rem, "mulhi": lax.mulhi,
    }.items():  # fmt: skip
        case(f"{name}/{name_of(d)}", f, *pairs(d))
    for name, f in {"not": lax.bitwise_not, "popcnt": lax.population_count, "clz": lax.clz}.items():
        case(f"{name}/{name_of(d)}", f, special(d))
    case(f"neg/{name_of(d)}", lax.neg, special(d))
    case(f"integer_pow/{name_of(d)}", lambda x: lax.integer_pow(x, 3), special(d))
for d in SIGNED:
    case(f"abs/{name_of(d)}", lax.abs, special(d))
for name, f in {
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
    "eq": lax.eq,
    "lt": lax.lt,
    "max": lax.max,
    "min": lax.min,
}.items():
    case(f"{name}/bool", f, *pairs(np.bool_))
case("not/bool", lax.bitwise_not, special(np.bool_))

UNARY = {
    "neg": (lax.neg, 0), "abs": (lax.abs, 0), "floor": (lax.floor, 0), "ceil": (lax.ceil, 0), "sqrt": (lax.sqrt, 0.5001),
    "rsqrt": (lax.rsqrt, 1.6), "exp": (lax.exp, 1), "expm1": (lax.expm1, 1), "log": (lax.log, 1), "log1p": (lax.log1p, 1),
    "sin": (lax.sin, 1.5), "cos": (lax.cos, 1.5), "tan": (lax.tan, 1), "tanh": (lax.tanh, 2), "logistic": (lax.logistic, 3),
    "cbrt": (lax.cbrt, 1), "erf": (lax.erf, 2), "erfc": (lax.erfc, 6), "erf_inv": (lax.erf_inv, 1), "asin": (lax.asin, 1),
    "acos": (lax.acos, 1), "atan": (lax.atan, 1), "sinh": (lax.sinh, 1), "cosh": (lax.cosh, 1), "asinh": (lax.asinh, 1),
    "acosh": (lax.acosh, 1), "atanh": (lax.atanh, 1), "lgamma": (lax.lgamma, 1), "digamma": (lax.digamma, 1),
    "bessel_i1e": (lax.bessel_i1e, 1),
    "square": (lax.square, 0.5001), "round": (lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), 0),
    "round_afz": (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), 0), "is_finite": (lax.is_finite, 0),
}  # fmt: skip
for name, (f, ulp) in UNARY.items():
    for d in FLOATS:
        values = np.concatenate([special(d), (random(200, seed=3) * 3).astype(d), (random(40, seed=4) * 1e-3).astype(d)])
        case(f"{name}/{name_of(d)}", f, values, ulp=ulp)
for name, f in {"atan2": lax.atan2, "pow": lax.pow}.items():
    for d in FLOATS:
        case(f"{name}/{name_of(d)}", f, *pairs(d), ulp=1)
ABOVE_ONE, POSITIVE = np.array([1, 1.5, 2, 3, 7, 30, 0.5]).repeat(6), np.tile(np.array([1e-2, 0.5, 1, 2.5, 9, 100]), 7)
for d in FLOATS:
    case(f"zeta/{name_of(d)}", lax.zeta, ABOVE_ONE.astype(d), POSITIVE.astype(d), ulp=1)
    case(f"polygamma/{name_of(d)}", lax.polygamma, np.floor(ABOVE_ONE).astype(d), POSITIVE.astype(d), ulp=1)
for d in FLOATS:
    case(f"rem/{name_of(d)}", lax.rem, *pairs(d))
    case(f"nextafter/{name_of(d)}", lax.nextafter, *pairs(d))
    case(f"reduce_precision_bf16/{name_of(d)}", lambda x: lax.reduce_precision(x, 8, 7), random(40, dtype=d))
    case(
        f"reduce_precision_f16/{name_of(d)}",
        lambda x: lax.reduce_precision(x, 5, 10),
        (random(60) * 10.0 ** np.arange(-9, 6)[:, None].repeat(4, 1).ravel()).astype(d),
    )
case(
    "rem/far",
    lax.rem,
    np.array([3e38, -1e30, 7.5, 1e-30, 5.0], np.float32),
    np.array([1.1e-30, 3e-5, 0.1, 1e-34, -3.0], np.float32),
)

# --- conversions

ALL = (*FLOATS, np.float64, *INTEGERS, np.bool_)
for a in ALL:
    for b in ALL:
        if a != b:
            extra = np.array([3e9, -3e9, 1e19, -1e19, 2e19, 65535.5, 65536, -129, 254.7, 255.5, 2**31, 2**32], np.float64)
            values = (
                np.concatenate([special(a), extra.astype(a)])
                if np.dtype(a) in map(np.dtype, (np.float32, np.float64))
                else special(a)
            )
            case(f"convert/{name_of(a)}_to_{name_of(b)}", lambda x, b=b: lax.convert_element_type(x, b), values)
for a, b in (
    (np.float32, np.uint32), (np.uint32, np.float32), (np.float32, np.int32), (np.float64, np.uint64), (BF16, np.uint16),
    (np.uint16, BF16), (np.float16, np.int16), (np.int16, np.float16), (np.uint32, np.uint8), (np.int32, np.int16),
    (np.float32, np.uint16), (np.uint64, np.uint32),
):  # fmt: skip
    case(f"bitcast/{name_of(a)}_to_{name_of(b)}", lambda x, b=b: lax.bitcast_convert_type(x, b), special(a))
case("bitcast/pairs", lambda x: lax.bitcast_convert_type(x, jnp.float32), random(5, 2, dtype=np.uint16))
case("bitcast/bytes", lambda x: lax.bitcast_convert_type(x, jnp.int32), random(3, 4, dtype=np.uint8))
case("total_order", lambda x: jnp.sort(x), np.tile(special(np.float32), 2))

# --- movements

X = random(3, 5, 7)
for name, f in {
    "reshape": lambda x: x.reshape(5, 21), "transpose": lambda x: x.transpose(2, 0, 1), "reverse": lambda x: x[::-1, :, ::-1],
    "slice": lambda x: x[1:, 1:4:2, 3:], "slice_none": lambda x: x[:, 2:2],
    "broadcast": lambda x: jnp.broadcast_to(x[:, None], (3, 4, 5, 7)),
    "broadcast_in_dim": lambda x: lax.broadcast_in_dim(x, (2, 3, 5, 4, 7), (1, 2, 4)),
    "concatenate": lambda x: jnp.concatenate([x, x[:1], x[:0]], 0),
    "pad": lambda x: lax.pad(x, 9.0, [(1, 2, 0), (0, 0, 2), (3, 0, 1)]),
    "pad_negative": lambda x: lax.pad(x, 9.0, [(-1, 1, 0), (2, -3, 1), (-2, -2, 2)]),
    "pad_away": lambda x: lax.pad(x, 9.0, [(-3, 0, 0), (0, 0, 0), (0, 0, 0)]), "stack": lambda x: jnp.stack([x, x + 1], 1),
    "pad_through": lambda x: lax.pad(x, 9.0, [(-5, 8, 0), (0, 0, 0), (0, 0, 0)]),
    "squeeze": lambda x: x[:1].squeeze(0), "roll": lambda x: jnp.roll(x, 2, 1), "repeat": lambda x: jnp.repeat(x, 3, axis=1),
    "tile": lambda x: jnp.tile(x, (2, 1, 2)), "tril": lambda x: jnp.tril(x),
}.items():  # fmt: skip
    case(f"move/{name}", f, X)
case("move/empty", lambda x: jnp.concatenate([x.reshape(0, 4), x.reshape(0, 4)]), random(4, 0))
for d in (np.float32, BF16, np.int32, np.int8, np.uint64, np.uint16):
    case(f"iota/{name_of(d)}", lambda d=d: lax.broadcasted_iota(d, (3, 200), 1))
    case(
        f"constant/{name_of(d)}",
        lambda x, d=d: x + jnp.asarray(np.array([[1, 2, 3], [4, 5, 60]], d)),
        random(2, 3, dtype=d).astype(d),
        ulp=0 if np.dtype(d).kind in "iu" else 0.5001,
    )
case("constant/large", lambda x: x + np.arange(2000, dtype=np.float32), random(2000), ulp=0.5001)
case("constant/nan", lambda x: jnp.where(x > 0, np.float32(np.nan), np.float32(-0.0)), random(5))
case("sizes/scalar", lambda x: jnp.where(x > 0, x + 1, x), np.float32(2), ulp=0.5001)
case("sizes/none", lambda x: (x * 2, x.sum(), x.max(initial=-1.0)), np.zeros((0, 3), np.float32))
case("sizes/unused", lambda x, y: x, random(3), random(4))

# --- reductions

for d in (np.float32, BF16, np.int32, np.uint32, np.int8):
    x = random(4, 9, 5, dtype=d)
    whole = np.dtype(d).kind in "iu"
    for name, f in {"sum": lax.reduce_sum, "max": lax.reduce_max, "min": lax.reduce_min, "prod": lax.reduce_prod}.items():
        case(f"reduce_{name}/{name_of(d)}", lambda x, f=f: f(x, (0, 2)), x, relative=0 if whole else 1e-2 if d == BF16 else 1e-5)
    for name in ("argmax", "argmin"):
        f = getattr(lax, name)
        case(f"{name}/{name_of(d)}", lambda x, f=f: f(x, 1, np.int32), (x if whole else np.round(x)).astype(d))
    if whole:
        case(f"reduce_xor/{name_of(d)}", lambda x: lax.reduce_xor(x, (1,)), x)
        case(f"reduce_and/{name_of(d)}", lambda x: lax.reduce_and(x, (0,)), x)
        case(f"reduce_or/{name_of(d)}", lambda x: lax.reduce_or(x, (0, 1)), x)
NANS = np.array([[1, np.nan, 3, np.nan], [np.inf, 2, -np.inf, 7], [-0.0, 0.0, -1, -1]], np.float32)
case("reduce_max/nan", lambda x: (x.max(1), x.min(1), x.max(), x.min(0)), NANS)
case("argmax/nan", lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 1), jnp.argmax(x), jnp.argmin(x, 0)), NANS)
case("reduce_bool", lambda x: (x.all(1), x.any(0), x.all(), x.any()), random(5, 6, dtype=np.bool_))
case("reduce_with_initial", lambda x: (x.max(1, initial=0.5), x.min(0, initial=-0.5)), random(4, 6))
case(
    "reduce_function",
    lambda x: lax.reduce(x, np.float32(0), lambda a, b: jnp.maximum(jnp.abs(a), jnp.abs(b)), (1,)),
    random(3, 7),
)
case(
    "reduce_pairs",
    lambda x, y: lax.reduce(
        (x, y), (np.zeros((), x.dtype), np.int32(0)), lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1])), (0,)
    ),
    random(7, 3),
    random(7, 3, dtype=np.int32) // 2 + 2**30,
    relative=1e-5,
)
case("logsumexp", jax.nn.logsumexp, random(4, 9), relative=1e-6)
for name, f in {"cumsum": lax.cumsum, "cumprod": lax.cumprod, "cummax": lax.cummax, "cummin": lax.cummin}.items():
    case(
        f"{name}/f32",
        lambda x, f=f: (f(x, 1), f(x, 0, reverse=True)),
        random(5, 13),
        relative=0 if name in ("cummax", "cummin") else 1e-5,
    )
    case(f"{name}/i32", lambda x, f=f: (f(x, 1), f(x, 0, reverse=True)), random(5, 13, dtype=np.int32))
case("cumlogsumexp", lambda x: lax.cumlogsumexp(x, 1), random(3, 9), relative=1e-5)
case(
    "associative_scan",
    lambda x: lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x, x + 1)),
    random(11),
    relative=1e-5,
)

# --- windows

P = random(2, 9, 8, 3)
MAX, SUM = (
    (lambda x, w, s, p: lax.reduce_window(x, -np.inf, lax.max, w, s, p)),
    (lambda x, w, s, p: lax.reduce_window(x, 0.0, lax.add, w, s, p)),
)
for name, (w, s, p) in {
    "halves": ((1, 2, 2, 1), (1, 2, 2, 1), "VALID"), "overlap": ((1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    "padded": ((1, 3, 2, 1), (1, 1, 3, 1), [(0, 0), (1, 2), (0, 1), (0, 0)]),
    "all": ((1, 9, 8, 1), (1, 1, 1, 1), "VALID"),
}.items():  # fmt: skip
    case(f"max_pool/{name}", lambda x, w=w, s=s, p=p: MAX(x, w, s, p), P)
    case(f"sum_pool/{name}", lambda x, w=w, s=s, p=p: SUM(x, w, s, p), P, relative=1e-5)
    case(
        f"max_pool_gradient/{name}",
        lambda x, w=w, s=s, p=p: jax.grad(lambda x: (MAX(x, w, s, p) ** 2).sum())(x),
        np.round(P, 1),
        relative=1e-6,
    )
    case(
        f"sum_pool_gradient/{name}",
        lambda x, w=w, s=s, p=p: jax.grad(lambda x: (SUM(x, w, s, p) ** 2).sum())(x),
        P,
        relative=1e-5,
    )
case(
    "reduce_window/dilated",
    lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 1, 1), "VALID", (1, 2, 1, 1), (1, 1, 3, 1)),
    P,
    relative=1e-5,
)
case("reduce_window/i32", lambda x: lax.reduce_window(x, np.int32(0), lax.add, (3,), (2,), "SAME"), random(11, dtype=np.int32))

for name, f in {"add": lambda a, b: a + b, "mul": lambda a, b: a * b, "max": lax.max, "sub": lambda a, b: a - b}.items():
    case(  # an initial value that is not neutral counts once, and not where the padding is
        f"reduce_window/initial_{name}",
        lambda x, f=f: lax.reduce_window(x, jnp.asarray(0.5, x.dtype), f, (3, 2), (1, 1), [(1, 1), (0, 2)], (2, 1), (1, 2)),
        random(4, 5),
        relative=1e-6,
    )
case("reduce/order", lambda x: lax.reduce(x, jnp.asarray(2, x.dtype), lambda a, b: a - 2 * b, (1,)), random(3, 7), relative=1e-6)
case("reduce/initial_or", lambda x: lax.reduce(x, np.int32(6), lax.bitwise_xor, (1,)), random(3, 7, dtype=np.int32))
case(
    "reduce/initial_pairs",
    lambda x, y: lax.reduce((x, y), (jnp.asarray(1, x.dtype), np.int32(1)), lambda a, b: (a[0] + b[0], a[1] + b[1]), (0,)),
    random(7, 3),
    random(7, 3, dtype=np.int32),
    relative=1e-6,
)

# --- products


def dot(x, y, contracting, batch=((), ()), **more):
    return lax.dot_general(x, y, (contracting, batch), **more)


for name, (a, b, contracting, batch) in {
    "matmul": ((5, 7), (7, 9), ((1,), (0,)), ((), ())), "transposed": ((7, 5), (9, 7), ((0,), (1,)), ((), ())),
    "batched": ((3, 5, 7), (3, 7, 4), ((2,), (1,)), ((0,), (0,))),
    "batch_within": ((5, 3, 7), (7, 4, 3), ((2,), (0,)), ((1,), (2,))),
    "two_axes": ((5, 3, 7), (3, 4, 7), ((1, 2), (0, 2)), ((), ())), "vector": ((7,), (7,), ((0,), (0,)), ((), ())),
    "outer": ((5,), (4,), ((), ()), ((), ())),
    "two_batches": ((2, 3, 5, 4), (3, 2, 4), ((3,), (2,)), ((0, 1), (1, 0))), "nothing": ((5, 0), (0, 4), ((1,), (0,)), ((), ())),
}.items():  # fmt: skip
    for d in (np.float32, BF16, np.int32, np.uint32, np.int8):
        whole = np.dtype(d).kind in "iu"
        case(
            f"dot/{name}/{name_of(d)}",
            lambda x, y, c=contracting, m=batch: dot(x, y, c, m),
            random(*a, dtype=d),
            random(*b, dtype=d, seed=1),
            relative=0 if whole else 1e-2 if d == BF16 else 1e-5,
        )
case(
    "dot/wider",
    lambda x, y: dot(x, y, ((1,), (0,)), preferred_element_type=jnp.float32),
    random(5, 7, dtype=BF16),
    random(7, 3, dtype=BF16),
    relative=1e-5,
)
case(
    "dot/bytes",
    lambda x, y: dot(x, y, ((1,), (0,)), preferred_element_type=jnp.int32),
    random(5, 7, dtype=np.int8),
    random(7, 3, dtype=np.int8),
)
case("einsum", lambda x, y: jnp.einsum("bihd,bjhd->bhij", x, y), random(2, 5, 3, 4), random(2, 6, 3, 4), relative=1e-5)

for name, (a, w, more) in {
    "plain": ((2, 3, 9, 8), (4, 3, 3, 2), dict(window_strides=(1, 1), padding="VALID")),
    "same": ((2, 3, 9, 8), (4, 3, 3, 3), dict(window_strides=(2, 2), padding="SAME")),
    "padded": ((2, 3, 5, 6), (4, 3, 3, 3), dict(window_strides=(1, 2), padding=[(2, 1), (0, 3)])),
    "cut": ((2, 3, 9, 8), (4, 3, 3, 3), dict(window_strides=(1, 1), padding=[(-1, 1), (2, -2)])),
    "dilated": ((2, 3, 9, 8), (4, 3, 3, 2), dict(window_strides=(2, 1), padding="SAME", rhs_dilation=(2, 3))),
    "transposed": ((2, 3, 5, 4), (4, 3, 3, 3), dict(window_strides=(1, 1), padding=[(1, 2), (2, 2)], lhs_dilation=(2, 3))),
    "both_dilated": (
        (2, 3, 5, 4), (4, 3, 2, 3),
        dict(window_strides=(2, 1), padding=[(1, 2), (2, 2)], lhs_dilation=(2, 3), rhs_dilation=(1, 2)),
    ),
    "groups": ((2, 6, 7, 5), (4, 3, 3, 2), dict(window_strides=(1, 1), padding="SAME", feature_group_count=2)),
    "depthwise": ((2, 6, 7, 5), (12, 1, 3, 3), dict(window_strides=(2, 1), padding="SAME", feature_group_count=6)),
    "batch_groups": ((4, 3, 7, 5), (6, 3, 3, 2), dict(window_strides=(1, 1), padding="VALID", batch_group_count=2)),
    "one_axis": ((2, 3, 9), (4, 3, 3), dict(window_strides=(2,), padding="SAME")),
    "three_axes": ((1, 2, 4, 5, 3), (3, 2, 2, 2, 2), dict(window_strides=(1, 2, 1), padding="VALID")),
    "sparse_taps": ((2, 3, 4, 4), (4, 3, 1, 2), dict(window_strides=(1, 1), padding=[(1, 1), (0, 1)], lhs_dilation=(3, 2))),
}.items():  # fmt: skip
    f = lambda x, w, more=more: lax.conv_general_dilated(x, w, **more)  # noqa: E731
    case(f"conv/{name}", f, random(*a), random(*w, seed=1), relative=1e-5)
    case(
        f"conv_gradients/{name}",
        lambda x, w, f=f: jax.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1))(x, w),
        random(*a),
        random(*w, seed=1),
        relative=1e-5,
    )
for layout in (("NHWC", "HWIO", "NHWC"), ("HWNC", "OHWI", "CHWN")):
    order = [layout[0].index(c) for c in "NCHW"]
    shape = tuple(np.array((2, 3, 7, 6))[np.argsort(order)].tolist())
    kernel = tuple(np.array((4, 3, 3, 2))[np.argsort([layout[1].index(c) for c in "OIHW"])].tolist())
    case(
        f"conv/{'_'.join(layout)}",
        lambda x, w, d=layout: lax.conv_general_dilated(x, w, (1, 2), "SAME", dimension_numbers=d),
        random(*shape),
        random(*kernel, seed=1),
        relative=1e-5,
    )
case(
    "conv/bf16",
    lambda x, w: lax.conv(x, w, (1, 1), "SAME"),
    random(2, 3, 6, 5, dtype=BF16),
    random(4, 3, 3, 3, dtype=BF16, seed=1),
    relative=1e-2,
)
for d in (np.int32, np.int8, np.uint16):
    case(
        f"conv/{name_of(d)}",
        lambda x, w: lax.conv_general_dilated(x, w, (1, 2), [(1, 1), (0, 1)], lhs_dilation=(2, 1)),
        random(2, 3, 6, 5, dtype=d),
        random(4, 3, 3, 3, dtype=d, seed=1),
    )
case(
    "conv/wider",
    lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", preferred_element_type=jnp.int32),
    random(2, 3, 6, 5, dtype=np.int8),
    random(4, 3, 3, 3, dtype=np.int8, seed=1),
)
case(
    "conv_transpose",
    lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"),
    random(2, 5, 4, 3),
    random(3, 3, 3, 2, seed=1),
    relative=1e-5,
)

# --- by index

T = random(6, 4, 5)
PLACES = np.array([[0, 5], [-1, 2], [7, -9]], np.int32)
for name, f in {
    "rows": lambda x, i: x[i], "take": lambda x, i: jnp.take(x, i, axis=1),
    "take_clip": lambda x, i: jnp.take(x, i, axis=2, mode="clip"),
    "two": lambda x, i: x[i[:, 0], :, i[:, 1]], "vmap": lambda x, i: jax.vmap(lambda x, i: x[i])(x, i.reshape(6)),
    "along": lambda x, i: jnp.take_along_axis(x, jnp.tile(i[:, :, None], (2, 2, 5)), axis=1),
    "windows": lambda x, i: jax.vmap(lambda i: lax.dynamic_slice(x, (i, 1, i), (2, 3, 2)))(i[:, 0]),
    "gather_fill": lambda x, i: x.at[i].get(mode="fill", fill_value=3.0), "u8": lambda x, i: x[i.astype(jnp.uint8) % 9],
}.items():  # fmt: skip
    case(f"gather/{name}", f, T, PLACES)
U = random(3, 2, 4, 5, seed=5)
ROWS = lax.ScatterDimensionNumbers(update_window_dims=(1, 2), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
for name, f in {
    "add": lambda x, i, u: x.at[i].add(u), "set": lambda x, i, u: x.at[i].set(u),
    "set_unique": lambda x, i, u: x.at[i[:, 0]].set(u[:, 0]),
    "add_two": lambda x, i, u: x.at[i[:, 0], :, i[:, 1]].add(u[:, 0, :, 0]), "drop": lambda x, i, u: x.at[i].add(u, mode="drop"),
    "clip": lambda x, i, u: x.at[i].set(u, mode="clip"),
    "mul_unique": lambda x, i, u: x.at[jnp.array([1, 3, 4])].mul(u[:, 0], unique_indices=True),
    "vmap": lambda x, i, u: jax.vmap(lambda x, i, u: x.at[i].add(u))(x, i.reshape(6) % 4, u[:, :, 0].reshape(6, 5)),
    "add_apply": lambda x, i, u: x.at[2].apply(jnp.cos),
    "mul_often": lambda x, i, u: x.at[i % 3].mul(u), "max_often": lambda x, i, u: x.at[i].max(u),
    "apply_often": lambda x, i, u: x.at[i % 2, 0, 0].apply(lambda v: v * 2 + 1),
    "min_often": lambda x, i, u: x.at[i % 2].min(u), "sub": lambda x, i, u: lax.scatter_sub(x, i[:, :1], u[:, 0], ROWS),
    "max_one": lambda x, i, u: x.at[i[:1, :1]].max(u[:1, :1]), "max_bytes": lambda x, i, u: (x * 9).astype(jnp.int8).at[i].max((u * 9).astype(jnp.int8)),
    "mul_vmap": lambda x, i, u: jax.vmap(
        lambda x, i, u: x.at[i].mul(u))(x, i.reshape(6) % 4, u[:, :, 0].reshape(6, 5)),
    "max_unique": lambda x, i, u: x.at[jnp.array([1, 3, 4])].max(u[:, 0], unique_indices=True),
}.items():  # fmt: skip
    case(f"scatter/{name}", f, T, PLACES, U, relative=1e-6)
case(
    "scatter/windows",
    lambda x, i, u: jax.vmap(lambda i, u: lax.dynamic_update_slice(x, u, (i, 1, i)))(i[:, 0], u),
    T,
    PLACES,
    random(3, 2, 3, 2),
)
case(
    "embedding_gradient",
    lambda t, i: jax.grad(lambda t: (t[i] ** 2).sum())(t),
    random(11, 5),
    np.array([1, 4, 4, 0, 10, 4], np.int32),
    relative=1e-6,
)
for d in (np.int32, np.uint8, np.int64, np.uint32):
    for start in sorted({0, 3, 100, np.iinfo(d).max, np.iinfo(d).min}):
        case(
            f"dynamic_slice/{name_of(d)}_{start}",
            lambda x, i: lax.dynamic_slice(x, (i, i * 0, np.zeros((), i.dtype)), (2, 4, 3)),
            T,
            np.array(start, d),
        )
        case(
            f"dynamic_update_slice/{name_of(d)}_{start}",
            lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i * 0, np.ones((), i.dtype))),
            T,
            random(2, 4, 3),
            np.array(start, d),
        )

# --- sort

S = np.array([[3, np.nan, -0.0, 0.0, -np.inf, 3, np.inf, -2], [1, 1, 2, 2, 0, 0, -np.nan, 5]], np.float32)
for name, f in {
    "sort": lambda x: jnp.sort(x, 1), "sort_rows": lambda x: jnp.sort(x, 0), "argsort": lambda x: jnp.argsort(x, 1),
    "descending": lambda x: jnp.argsort(x, 1, descending=True),
    "top_k": lambda x: lax.top_k(x, 3), "two_keys": lambda x: lax.sort((jnp.round(x), -x, x * 2), dimension=1, num_keys=2),
    "median": lambda x: jnp.median(x[:, :1], 1),
}.items():  # fmt: skip
    case(f"sort/{name}", f, S)
for n in (0, 1, 2, 3, 33, 100):
    case(f"sort/{n}", lambda x: jnp.sort(x), random(n, dtype=np.int32))
    case(f"argsort/{n}", lambda x: jnp.argsort(x), random(n, dtype=np.int32) % 7)
for d in (np.uint32, np.int8, BF16):
    case(f"sort/{name_of(d)}", lambda x: lax.top_k(x, 4), random(2, 9, dtype=d))
    case(f"top_k/{name_of(d)}", lambda x: lax.top_k(x, 3), random(2, 40, dtype=d))  # one after the other
NUMBERS = np.tile(special(np.float32), 4)
case("top_k/special", lambda x: lax.top_k(x, 5), np.stack([NUMBERS, np.full_like(NUMBERS, -np.nan)]))
case("top_k/ties", lambda x: lax.top_k(x, 6), np.array([[3, 1, 3, 3] * 20, [-(2**31)] * 80, [*[-(2**31)] * 78, 5, 5]], np.int32))

# --- random bits

KEYS = {  # a counter whose lower half wraps in the middle, too
    "low": np.array([1, 2, 3, 4], np.uint32),
    "wraps": np.array([7, 2**32 - 1, 2**32 - 2, 2**32 - 1], np.uint32),
    "wide": np.array([2**40 + 3, 2**64 - 2], np.uint64),
}
SHAPES = ((), (1,), (0,), (5,), (3, 1, 7), (3, 4), (2, 0, 3), (1, 1))
for name, d in (("u32", np.uint32), ("u8", np.uint8), ("u16", np.uint16), ("u64", np.uint64)):
    for algorithm in list(lax.RandomAlgorithm)[0 if name == "u32" else 1 :]:  # the default one is one of the others
        for key in {"u32": ["low", "wraps"], "u64": ["wide"]}.get(name, ["wraps"]):
            case(
                f"rng_bit_generator/{algorithm.name}_{name}_{key}",
                lambda k, d=d, a=algorithm, shapes=SHAPES[name in ("u8", "u16") and 4 :]: [
                    lax.rng_bit_generator(k, shape, d, a) for shape in shapes
                ],
                KEYS[key],
            )
for impl in ("rbg", "unsafe_rbg"):
    case(
        f"rng_bit_generator/{impl}",
        lambda seed, impl=impl: [
            jax.random.key_data(k := jax.random.fold_in(jax.random.key(seed, impl=impl), 3)),
            [jax.random.bernoulli(k, 0.3, (33, 5)) for k in jax.random.split(k)],
            jax.random.bits(k, (7,), np.uint8),
            jax.vmap(lambda k: jax.random.bits(k, (5,)))(jax.random.split(k, 2)),
        ],
        np.int32(5),
    )

# few elements of a tensor that is large beside them
for d in (np.float32, jnp.bfloat16, np.float16, np.int8, np.uint32, np.bool_, np.complex64):
    for where, sizes in {"rows": (1, 7, 5), "two": (2, 1, 5), "columns": (40, 1, 1), "inside": (3, 2, 2)}.items():
        case(
            f"dynamic_update_slice/few_{np.dtype(d).name}_{where}",
            lambda x, u, i: [lax.dynamic_update_slice(x, u, (i, i // 7, i // 9)), lax.dynamic_update_slice(x, u, (-i, i, 2))],
            (random(40, 7, 5) * 3).astype(d),
            (random(*sizes) * 3).astype(d),
            np.int32(16),
        )

# along each of its axes, at a place that is known or not, and of one element, some, or the whole
for known in itertools.product((False, True), repeat=3):
    for sizes in ((1, 1, 2), (2, 3, 2), (4, 3, 6), (1, 5, 6), (4, 5, 6)):
        case(
            f"dynamic_update_slice/known_{known}_{sizes}",
            lambda x, u, i, known=known: lax.dynamic_update_slice(
                x, u, [k if known[axis] else i + k for axis, k in enumerate((1, 3, 2))]
            ),
            random(4, 5, 6),
            random(*sizes),
            np.int32(0),
        )

# one slice, where it lies and where it does not
for d, kinds in {
    np.float32: ("set", "add", "max"),
    jnp.bfloat16: ("add",),
    np.bool_: ("min",),
    np.complex64: ("set", "subtract"),
}.items():
    for kind in kinds:
        case(
            f"scatter/one_{kind}_{np.dtype(d).name}",
            lambda x, i, kind=kind: [
                [getattr(x.at[at], kind)(x[2, 0]) for at in (i, i - 60, i + 60, (i, i - 14))],
                getattr(x.at[:, i - 14], kind)(x[:, 0]),
                getattr(x.at[i + 60, 2], kind)(x[2, 0], mode="clip"),
            ],
            (random(40, 7, 5) * 3).astype(d),
            np.int32(16),
            relative=2**-8 if d == jnp.bfloat16 else 1e-6,
        )
    case(
        f"scatter/one_window_{np.dtype(d).name}",
        lambda x, u, i: [
            lax.scatter(x, jnp.stack([j, i - 14]), u, lax.ScatterDimensionNumbers((0, 1, 2), (), (0, 2)), mode="drop")
            for j in (i, i * 2 + 6, i - 17)
        ],
        (random(40, 7, 5) * 3).astype(d),
        (random(3, 7, 2) * 3).astype(d),
        np.int32(16),
    )

# --- control

case("while/scan", lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x), random(5, 4), relative=1e-5)
case("while/scan_reverse", lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x, reverse=True), random(5, 4), relative=1e-5)
case("while/fori", lambda x: lax.fori_loop(0, 5, lambda i, x: x.at[i].set(x[i] * 2 + i), x), random(6), relative=1e-6)
case(
    "while/gradient",
    lambda x: jax.grad(lambda x: lax.scan(lambda c, y: (jnp.sin(c + y), c), x[0], x)[0].sum())(x),
    random(5, 4),
    relative=1e-5,
)
case("while/never", lambda x: lax.fori_loop(0, 0, lambda i, x: x * 2, x), random(3))
case(
    "while/nested",
    lambda x: lax.fori_loop(0, 3, lambda i, x: lax.fori_loop(0, i, lambda j, x: x + i * j, x), x),
    random(3),
    relative=1e-6,
)
case("cond", lambda p, x: lax.cond(p > 0, lambda x: x * 2, lambda x: x + 1, x), np.int32(-1), random(4), ulp=0.5001)
case(
    "switch",
    lambda p, x: [lax.switch(i, [jnp.negative, lambda x: x * 2, jnp.abs], x) for i in p],
    np.array([-1, 0, 1, 2, 3], np.int32),
    random(4),
    ulp=0.5001,
)
case("switch/known", lambda x: lax.switch(2, [jnp.negative, lambda x: x * 2, jnp.abs], x), random(4))
case("barrier", lambda x: lax.optimization_barrier((x, x + 1))[1], random(4), ulp=0.5001)
case("checkpoint", lambda x: jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum())(x), random(4), ulp=3)
