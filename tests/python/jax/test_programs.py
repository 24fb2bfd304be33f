"""Whole programs through trainc.jit: random draws bit for bit XLA's, results as near to fp64 as XLA's."""

import pathlib
import re
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import jax_steps
import numpy as np
import pytest
from jax import lax, random

import trainc

EXAMPLE = pathlib.Path(__file__).parents[3] / "examples" / "jax_gpt2.py"


def losses(*words):
    ran = subprocess.run([sys.executable, EXAMPLE, *words], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", ran.stdout)]


@pytest.mark.thorough
def test_gpt2_with_dropout_in_every_layer():
    """Its causal mask is looked for among the bits of the dropout masks: in expressions that would not end."""
    words = "--layers", "2", "--width", "64", "--heads", "2", "--length", "64", "--steps", "3", "--dropout", "0.1"
    assert losses(*words) == pytest.approx(losses(*words, "--xla"), abs=2e-5)


def test_what_sorts_many_compiles_in_seconds():
    """Steps of a network that became one kernel had minutes of code."""
    x = jnp.asarray(np.random.default_rng(0).integers(-300, 300, (2, 1000)), jnp.float32)
    start = time.process_time()
    ordered, places = trainc.jit(lambda x: (jnp.sort(x), jnp.argsort(x, stable=True)))(x)
    assert time.process_time() - start < 20
    np.testing.assert_array_equal(ordered, np.sort(x, kind="stable"))
    np.testing.assert_array_equal(places, np.argsort(x, kind="stable"))


DRAWS = {
    "normal": lambda k: random.normal(k, (33, 7)),
    "uniform": lambda k: random.uniform(k, (5, 3), minval=-2.0, maxval=3.0),
    "bernoulli": lambda k: random.bernoulli(k, 0.3, (64, 5)),
    "randint": lambda k: random.randint(k, (17,), -5, 1000),
    "bits": lambda k: random.bits(k, (9,), jnp.uint32),
    "permutation": lambda k: random.permutation(k, 20),
    "choice": lambda k: random.choice(k, jnp.arange(12.0), (4,)),
    "categorical": lambda k: random.categorical(k, jnp.log(jnp.array([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]])), shape=(6, 2)),
    "split": lambda k: random.key_data(random.split(random.fold_in(k, 3), 4)),
    "truncated": lambda k: random.truncated_normal(k, -1.0, 2.0, (40,)),
    "exponential": lambda k: random.exponential(k, (8,)),
    "gumbel": lambda k: random.gumbel(k, (8,)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws(name, strict):
    key = random.key(42)
    for got, wanted in zip(jax.tree.leaves(trainc.jit(DRAWS[name])(key)), jax.tree.leaves(DRAWS[name](key)), strict=True):
        if jnp.issubdtype(wanted.dtype, jnp.floating):  # uniform bits through functions that XLA rounds its own way
            np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)
        else:
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_dropout_by_other_generators(impl, strict):
    """Of keys that are XLA's own operation."""

    def step(state, key, x, y):
        def loss(weights):
            return jax_steps.loss(weights, x, y, key)

        value, gradients = jax.value_and_grad(loss)(state)
        return value, gradients, random.bernoulli(random.fold_in(key, 0), 0.8, (jax_steps.BATCH, jax_steps.WIDTHS[1]))

    arguments = jax_steps.weights(), random.key(3, impl=impl), *jax_steps.batch()
    (*got, mask), (*wanted, its_mask) = trainc.jit(step)(*arguments), jax.jit(step)(*arguments)
    np.testing.assert_array_equal(mask, its_mask)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-6)


def mlp(weights, x):
    for w, b in weights:
        x = jax.nn.silu(x @ w + b)
    return (x**2).mean()


def scanned(weights, x):
    return (lax.scan(lambda h, w: (jnp.tanh(h @ w) + h, None), x, weights)[0] ** 2).mean()


def checkpointed(weights, x):
    for w in weights:
        x = jax.checkpoint(lambda x, w: jnp.sin(x @ w) * x)(x, w)
    return (x**2).mean()


def convolutional(weights, x):
    x = lax.conv_general_dilated(x, weights[0], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    x = (x - mean) * lax.rsqrt(variance + 1e-5)
    x = lax.conv_general_dilated(x, weights[1], (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.nn.logsumexp(x.mean((1, 2)), -1).mean()


def attending(weights, x):
    q, k, v = (x @ w for w in weights)
    scores = jnp.where(jnp.tril(jnp.ones((x.shape[1],) * 2, bool)), q @ k.mT / x.shape[-1] ** 0.5, -jnp.inf)
    return ((jax.nn.softmax(scores) @ v) ** 2).mean()


def drawn(seed, *shapes):
    return [np.random.default_rng([seed, i]).normal(0, 0.4, shape).astype(np.float32) for i, shape in enumerate(shapes)]


PROGRAMS = {
    "mlp": (mlp, lambda s: [(w, w[0]) for w in drawn(s, (7, 33), (33, 33), (33, 5))], (9, 7)),
    "scan": (scanned, lambda s: drawn(s, (4, 8, 8))[0], (5, 8)),
    "checkpoint": (checkpointed, lambda s: drawn(s, (8, 8), (8, 8)), (5, 8)),
    "convolutional": (convolutional, lambda s: drawn(s, (3, 3, 3, 8), (3, 3, 8, 6)), (2, 10, 12, 3)),
    "attention": (attending, lambda s: drawn(s, (16, 16), (16, 16), (16, 16)), (2, 11, 16)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name, strict):
    """Error against fp64, over XLA's, for twelve sets of weights: of one the ratio is chance."""
    function, weights_of, shape = PROGRAMS[name]
    step, ratios = jax.value_and_grad(function), []
    compiled, plain = trainc.jit(step), jax.jit(step)
    for seed in range(12):
        weights, x = weights_of(seed), drawn(100 + seed, shape)[0]
        with jax.enable_x64(True):
            truth = step(jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), weights), jnp.asarray(x, jnp.float64))
        results = compiled(weights, x), plain(weights, x), truth
        for got, its, true in zip(*map(jax.tree.leaves, results), strict=True):
            scale = np.linalg.norm(true)
            error, its_error = (np.linalg.norm(np.asarray(a, np.float64) - true) / scale for a in (got, its))
            assert error < 2e-6
            ratios.append((error + 3e-8) / (its_error + 3e-8))  # half a unit in the last place is nobody's fault
    assert np.exp(np.mean(np.log(ratios))) < 1.1, ratios
