# ruff: noqa: E501 (a case is a line)
"""Cases of complex numbers for the rows of src/frontend/stablehlo (row_cases.py): results are pairs of reals, compared within a
share of the greatest."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from row_cases import case, random


def z(*shape: int, dtype: type = np.complex64, seed: int = 0) -> np.ndarray:
    return (random(*shape, dtype=np.float64, seed=seed) + 1j * random(*shape, dtype=np.float64, seed=seed + 50)).astype(dtype)


UNARY = {
    "abs": lax.abs, "sign": lax.sign, "exp": lax.exp, "expm1": lax.expm1, "log": lax.log, "log1p": lax.log1p, "sqrt": lax.sqrt,
    "rsqrt": lax.rsqrt, "sin": lax.sin, "cos": lax.cos, "tan": lax.tan, "tanh": lax.tanh, "sinh": lax.sinh,
    "cosh": lax.cosh, "asin": lax.asin, "acos": lax.acos, "atan": lax.atan, "asinh": lax.asinh, "acosh": lax.acosh,
    "atanh": lax.atanh, "logistic": lax.logistic, "square": lax.square, "neg": lax.neg, "real": lax.real, "imag": lax.imag,
    "conj": lax.conj, "reciprocal": lambda x: 1 / x, "integer_pow": lambda x: lax.integer_pow(x, 3), "angle": jnp.angle,
}  # fmt: skip
BINARY = {
    "add": lax.add, "sub": lax.sub, "mul": lax.mul, "div": lax.div, "pow": lax.pow, "eq": lambda x, y: (lax.eq(x, y), lax.eq(x, x)),
    "ne": lambda x, y: (lax.ne(x, y), lax.ne(x, x)), "max": lax.max, "min": lax.min, "lt": jnp.less,
}  # fmt: skip
for d in (np.complex64, np.complex128):
    relative = 4e-7 if d == np.complex64 else 1e-14
    for n in (0, 1, 7):
        for name, f in UNARY.items():
            case(f"complex/{name}/{np.dtype(d).name}_{n}", f, z(n, dtype=d), relative=relative)
        for name, f in BINARY.items():
            case(f"complex/{name}/{np.dtype(d).name}_{n}", f, z(n, dtype=d), z(n, dtype=d, seed=1), relative=relative)
# Parts that are near each other, whose squares cancel.
for near in (3000.001 + 3000.0012j, -7.0000005 + 7j, 1e18 - 1.0000001e18j):
    case(f"complex/square_{near}", lambda x: lax.square(x).real, np.array([near], np.complex64), relative=4e-7)
case("complex/complex", lambda x, y: lax.complex(x, y), random(5), random(5, seed=1))
case("complex/of_real", lambda x, i: (x.astype(np.complex64), i.astype(np.complex64)), random(3), np.arange(3))
case("complex/of_bool", lambda x: x.astype(np.complex64), random(5, dtype=np.bool_))
case("complex/to_bool", lambda x: x.astype(bool), np.array([0, 1, 1j, -0.0, np.nan], np.complex64))
case("complex/to_real", lambda x: lax.convert_element_type(x.real, np.int32), z(4) * 5)
with jax.enable_x64(True):
    case("complex/wider", lambda x: x.astype(np.complex128), np.float64(1), relative=1e-15)

# --- movements: bit for bit

Z = z(4, 5, 3)
MOVEMENTS = {
    "reshape": lambda x: x.reshape(3, 20), "transpose": lambda x: x.transpose(2, 0, 1), "slice": lambda x: x[1:4:2, ::3],
    "reverse": lambda x: x[::-1, :, ::-1], "pad": lambda x: lax.pad(x, np.complex64(1 - 2j), ((1, -1, 2), (0, 3, 0), (-1, 2, 1))),
    "concatenate": lambda x: jnp.concatenate([x, x[:1] * 0], 0), "broadcast": lambda x: jnp.broadcast_to(x[:, :1], (2, 4, 6, 3)),
    "stack": lambda x: jnp.stack([x, x], 1), "where": lambda x: jnp.where(x.real > 0, x, 2j), "roll": lambda x: jnp.roll(x, 2, 1),
    "tile": lambda x: jnp.tile(x, (1, 2, 1)), "diagonal": lambda x: jnp.diagonal(x[:3, :3]), "tril": lambda x: jnp.tril(x),
    "itself": lambda x: (x, x[0]), "moved": lambda x: jnp.moveaxis(x, 0, 2), "empty": lambda x: x[:0],
    "barrier": lambda x: lax.optimization_barrier(x),
}  # fmt: skip
for name, f in MOVEMENTS.items():
    case(f"complex/{name}", f, Z)
for start in (-7, 0, 2, 90):
    case(f"complex/dynamic_slice_{start}", lambda x, i: lax.dynamic_slice(x, (i, i, 0), (2, 2, 3)), Z, np.int32(start))
    case(
        f"complex/dynamic_update_slice_{start}",
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0, i)),
        Z,
        z(2, 5, 1),
        np.int32(start),
    )
I = np.array([2, 0, 3, 2, -1, 7], np.int32)  # noqa: E741
case("complex/gather", lambda x, i: x[i], Z, I)
case("complex/gather_two", lambda x, i: x[i, :, i % 3], Z, I)
case("complex/scatter_set", lambda x, i: x.at[i[:3]].set(x[1] * 2), Z, I)
for name in ("add", "subtract", "multiply"):
    case(f"complex/scatter_{name}", lambda x, i, u, name=name: getattr(x.at[i], name)(u), Z, I, z(6, 5, 3), relative=1e-6)
case("complex/scatter_apply", lambda x, i: x.at[i].apply(lambda v: v * v + 1), Z, I, relative=1e-6)
case("complex/constants", lambda x: x + np.array([1 + 2j, -3j, 5], np.complex64) * np.complex64(2 - 1j), Z, relative=1e-6)
case("complex/constant_large", lambda x: x + z(4, 5, 3, seed=3), Z, relative=1e-6)
case("complex/constant_none", lambda x: (x, np.array([np.inf - 1j, 1 + np.nan * 1j, -0.0], np.complex64) + 0), Z)
case("complex/iota", lambda x: lax.iota(np.complex64, 5) + x[0, :, 0], Z, relative=1e-6)

# --- sums, products, loops

for name, f in {
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, 2))), "mean": lambda x: x.mean(1), "prod": lambda x: (x.prod(1), x.prod()),
    "sum_from": lambda x: lax.reduce(x, np.array(1 + 2j, x.dtype), lax.add, (1,)), "var": lambda x: x.var(0), "std": lambda x: x.std(),
    "any": lambda x: (x.any(1), x.all()), "cumsum": lambda x: jnp.cumsum(x, 1), "cumprod": lambda x: jnp.cumprod(x, 1),
    "max": lambda x: x.max(1), "norm": lambda x: jnp.linalg.norm(x),
    "nansum": lambda x: jnp.nansum(x), "window": lambda x: lax.reduce_window(x, np.array(0, x.dtype), lax.add, (2, 2, 1), (1, 2, 1), "SAME"),
    "window_mul": lambda x: lax.reduce_window(x, np.array(1, x.dtype), lax.mul, (2, 1, 2), (1, 1, 1), "SAME"),
    "sort": lambda x: jnp.sort(x, 1), "sort_zeros": lambda x: jnp.sort(jnp.round(x), 1), "argsort": lambda x: jnp.argsort(x, 0),
    "outer": lambda x: jnp.outer(x[0], x[1]), "dot": lambda x: x[0].T @ x[1], "vdot": lambda x: jnp.vdot(x[0], x[1]),
    "batched": lambda x: jnp.einsum("bij,bkj->bik", x, x.conj()), "mixed": lambda x: x @ jnp.ones((3, 2)),
    "convolution": lambda x: lax.conv_general_dilated(x, x[:2, :, :2], (1,), "SAME"), "convolve": lambda x: jnp.convolve(x[0, :, 0], x[1, :, 1]),
    "polyval": lambda x: jnp.polyval(x[0, :, 0], x[1]), "logsumexp": lambda x: jax.nn.logsumexp(x, 1), "sinc": jnp.sinc, "empty_sum": lambda x: x[:0].sum(0),
}.items():  # fmt: skip
    case(f"complex/{name}", f, Z, relative=2e-6)
case("complex/scan", lambda x: lax.scan(lambda c, y: (c * y + 1j, c - y), x[0], x), Z, relative=1e-5)
case("complex/fori", lambda x: lax.fori_loop(0, 3, lambda i, x: x.at[i].set(x[i] * (i + 1j)), x), Z, relative=1e-6)
case("complex/cond", lambda p, x: lax.cond(p > 0, lambda x: x * 1j, lambda x: x.conj(), x), np.int32(-1), Z, relative=1e-6)
case("complex/switch_known", lambda x: lax.switch(1, [jnp.negative, lambda x: x * 2], x), Z, relative=1e-6)
case("complex/gradient", lambda x: jax.grad(lambda x: jnp.abs(jnp.sin(x) * x).sum())(x), Z, relative=2e-6)
case("complex/holomorphic", lambda x: jax.grad(lambda x: (jnp.exp(x) / x).sum(), holomorphic=True)(x), Z, relative=4e-6)
