"""Training steps as people write them in JAX: functions of a state and a batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

WIDTHS = (20, 33, 7)  # odd, so that tiles have ends
BATCH = 9
RATE = 0.05


def weights(seed: int = 0, widths: tuple[int, ...] = WIDTHS, dtype=np.float32) -> list[dict]:
    random = np.random.default_rng(seed)
    return [
        {"w": jnp.asarray(random.normal(size=(i, o)) / np.sqrt(i), dtype), "b": jnp.asarray(random.normal(size=o) / 9, dtype)}
        for i, o in zip(widths, widths[1:], strict=False)
    ]


def batch(seed: int = 1, size: int = BATCH, dtype=np.float32) -> tuple[jax.Array, jax.Array]:
    random = np.random.default_rng(seed)
    return jnp.asarray(random.normal(size=(size, WIDTHS[0])), dtype), jnp.asarray(random.integers(0, WIDTHS[-1], size))


def loss(weights: list[dict], x, y, key=None, kept: float = 0.8):
    for i, layer in enumerate(weights):
        x = x @ layer["w"] + layer["b"]
        if i + 1 < len(weights):
            x = jax.nn.gelu(x)
            if key is not None:
                mask = jax.random.bernoulli(jax.random.fold_in(key, i), kept, x.shape)
                x = jnp.where(mask, x / kept, 0)
    told = jax.nn.log_softmax(x)
    return -jnp.take_along_axis(told, y[:, None], axis=1).mean()


def sgd(weights: list[dict], x, y):
    value, gradients = jax.value_and_grad(loss)(weights, x, y)
    return jax.tree.map(lambda w, g: w - RATE * g, weights, gradients), value


def adam_state(weights: list[dict]) -> dict:
    zeros = jax.tree.map(jnp.zeros_like, weights)
    again = jax.tree.map(jnp.zeros_like, weights)  # of its own: a donated array is donated once
    return {"weights": weights, "first": zeros, "second": again, "count": jnp.zeros((), jnp.int32)}


def adam(state: dict, key, x, y):
    count = state["count"] + 1
    value, gradients = jax.value_and_grad(loss)(state["weights"], x, y, jax.random.fold_in(key, count))
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradients)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["second"], gradients)
    step, root = 0.01 / (1 - 0.9**count), jnp.sqrt(1 - 0.99**count)
    updated = jax.tree.map(lambda w, m, v: w - step * m / (jnp.sqrt(v) / root + 1e-8), state["weights"], first, second)
    return {"weights": updated, "first": first, "second": second, "count": count}, value
