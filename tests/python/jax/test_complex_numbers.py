"""Complex numbers through `trainc.jit`: what JAX gives, its gradients, donated memory, edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import trainc
from trainc.base import records


@pytest.fixture(autouse=True)
def compiled_or_failed(strict):
    """Whatever these tests jit is compiled."""


def z(*shape, seed=0, dtype=np.complex64):
    draw = np.random.default_rng([seed, *shape])
    return (draw.normal(size=shape) + 1j * draw.normal(size=shape)).astype(dtype)


def agrees(function, *arguments, rtol=2e-6, **options):
    wanted = jax.jit(function)(*arguments)
    got = trainc.jit(function, **options)(*arguments)
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert jax.typeof(a) == jax.typeof(b)
        scale = np.abs(np.asarray(b)[np.isfinite(b)]).max(initial=1e-30)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * scale)


def test_arguments_and_results_of_all_kinds():
    def f(a, b, c):
        return {"sum": a["x"] + b, "re": b.real, "same": b, "scaled": c * a["x"], "abs": jnp.abs(b), "n": a["n"] + 1}

    agrees(f, {"x": z(3, 5), "n": jnp.arange(4)}, z(5, seed=1), 2.5 - 1j)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1, 1), (2, 3, 5)])
def test_sizes(shape):
    agrees(lambda x, y: (x * y, x.sum(), jnp.exp(x) / y, x.conj().T, x), z(*shape), z(*shape, seed=1))


def test_128_bits():
    with jax.enable_x64(True):
        agrees(
            lambda x, y: (x * y, x / y, jnp.log(x), x @ y, jnp.abs(x)),
            z(4, 4, dtype=np.complex128),
            z(4, 4, dtype=np.complex128),
            rtol=1e-14,
        )


# XLA flushes what is denormal, and rounds a product and a sum in one where it likes: neither is met by these.
PARTS = [0.0, -0.0, 1.0, -1.0, 0.75, -2.5, 6.0, np.inf, -np.inf, np.nan]
EDGES = np.array([complex(a, b) for a in PARTS for b in PARTS], np.complex64)
# Where XLA's result depends on what it overflowed to, or is only a side of a cut at infinity.
OPEN = {"rsqrt": "an infinity beside NaN", "atan": "-0 beside an infinity", "atanh": "-0 beside an infinity"}


def agrees_at_edges(function, *arguments, but=None):
    wanted, got = (np.asarray(f(*arguments)) for f in (function, trainc.jit(function)))
    if wanted.dtype.kind != "c":
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
        return
    size = np.where(np.isfinite(wanted), np.abs(wanted), 0)
    ok = np.isnan(wanted) & np.isnan(got)  # in whichever part
    parts = []
    for a, b in ((got.real, wanted.real), (got.imag, wanted.imag)):
        with np.errstate(invalid="ignore"):
            parts.append((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= 2e-6 * size))
    ok |= parts[0] & parts[1]
    if but is not None:
        ok |= but
    bad = [(*(x[i] for x in arguments), wanted[i], got[i]) for i in np.flatnonzero(~ok)]
    assert not bad, f"{len(bad)}: {bad[:5]}"


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "eq", "ne"])
def test_infinities_nan_and_zeros_of_two(name):
    agrees_at_edges(getattr(lax, name), np.repeat(EDGES, len(EDGES)), np.tile(EDGES, len(EDGES)))


NAMES = """real imag conj abs sign exp expm1 log log1p sqrt rsqrt sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh
logistic square"""


@pytest.mark.parametrize("name", NAMES.split())
def test_infinities_nan_and_zeros(name):
    agrees_at_edges(getattr(lax, name), EDGES, but=~np.isfinite(EDGES) if name in OPEN else None)


def test_quotients_are_xlas_to_the_bit():
    """What an eigenvalue's order hangs on: `jnp.roots` divides its coefficients by the first, LAPACK decides by the last bits."""
    draw = np.random.default_rng(0)
    x, y = (z(4000, seed=s) * np.float32(2) ** draw.integers(-40, 40, 4000) for s in (1, 2))
    for f in (lax.div, lambda x, y: -x / y):
        np.testing.assert_array_equal(trainc.jit(f)(x, y).view(np.uint32), jax.jit(f)(x, y).view(np.uint32))


# --- gradients, by JAX's convention: of a real function the conjugate of what is steepest


def test_gradients_of_real_functions():
    def loss(w, x):
        return (jnp.abs(jnp.sin(x @ w)) ** 2).mean() + jnp.log1p(w.real**2).mean()

    def step(w, x):
        value, g = jax.value_and_grad(loss)(w, x)
        return value, w - 0.05 * g.conj()

    w, x = z(4, 3) * 0.3, z(5, 4, seed=1)
    agrees(step, w, x, rtol=1e-5)
    train = trainc.jit(step)
    before, w = train(w, x)
    after, w = train(w, x)
    assert after < before


def test_holomorphic_gradients_and_derivatives():
    f = lambda x: (jnp.sin(x) * jnp.sqrt(x + 3) / (x - 2j)).sum()  # noqa: E731
    agrees(jax.grad(f, holomorphic=True), z(6), rtol=1e-5)
    agrees(lambda x, t: jax.jvp(f, (x,), (t,)), z(6), z(6, seed=1), rtol=1e-5)
    agrees(lambda x: jax.vjp(jnp.real, x)[1](jnp.ones(6)), z(6))


# --- loops, choices, constants


def test_scans_carry_them():
    def f(x, y):
        def body(carry, u):
            h, n = carry
            h = h * jnp.exp(1j * u.real) + u
            return (h, n + 1), (h, h.imag)

        return lax.scan(body, (x, 0), y)

    agrees(f, z(3), z(7, 3, seed=1), rtol=1e-5)
    agrees(lambda x, y: jax.grad(lambda x: jnp.abs(f(x, y)[0][0]).sum())(x), z(3), z(7, 3, seed=1), rtol=1e-5)


def test_choices():
    agrees(lambda p, x: lax.cond(p, lambda x: x * 1j, jnp.conj, x), True, z(3))
    agrees(lambda i, x: lax.switch(i, [jnp.negative, jnp.sin, lambda x: x * 2], x), 1, z(3))


def test_constants():
    large, few = z(40, 40, seed=9), np.array([1 + 2j, complex(np.nan, np.inf), -0.0], np.complex64)
    agrees(lambda x: (x @ large, few + 1, jnp.full(3, 2 - 3j), large * 2, jnp.zeros((100, 2), complex) + x[0, 0]), z(40, 40))
    agrees(lambda x: x + np.zeros((0, 3), np.complex64), np.zeros((1, 3), np.complex64))
    agrees(lambda x: x * np.complex64(1 + 1j), np.ones((), np.complex64))


# --- memory


def test_a_donated_argument_gives_its_memory():
    """To XLA, which copies: the kernel of the second part reads what that of the first one would have written over."""
    ours = trainc.jit(lambda w, g: (w - 0.5 * g, jnp.abs(g).sum()), donate_argnums=0)
    w, g = jnp.array(z(64, 32)), jnp.array(z(64, 32, seed=1))
    wanted = np.asarray(w) - 0.5 * np.asarray(g)
    where, old = w.unsafe_buffer_pointer(), w
    w, _ = ours(w, g)
    assert old.is_deleted() and w.unsafe_buffer_pointer() == where
    (record,) = records.of(ours)
    assert record.forward.plan.given_away == []
    np.testing.assert_allclose(w, wanted, rtol=1e-6)


READERS = {
    "transposed": lambda a: (a.T.conj() + 1, a.sum()),
    "reversed": lambda a: (a[::-1, ::-1] * 2j, a[0]),
    "a product": lambda a: (a @ a.T, a * a),
    "itself": lambda a: (a, a + 1),
    "turned": lambda a: (lax.complex(a.imag, a.real), jnp.abs(a)),
    "its parts": lambda a: (lax.complex(a.imag[::-1], a.real), a.real),
}


@pytest.mark.parametrize("name", READERS)
def test_an_argument_is_read_before_it_is_overwritten(name):
    a = z(6, 6)
    wanted = jax.jit(READERS[name])(a)
    got = trainc.jit(READERS[name], donate_argnums=0)(jnp.array(a))
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-6, atol=1e-6)


def test_a_real_argument_gives_no_memory_to_complex_results():
    x = jnp.array(np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32))
    ours = trainc.jit(lambda x: lax.complex(x[:, 0], x[:, 1]), donate_argnums=0)
    with pytest.warns(UserWarning, match="donated"):
        got = ours(x)
    assert got.shape == (4,)
