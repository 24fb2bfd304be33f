"""Trains a GPT-2 written in JAX alone, on the source of Python's standard library: loss, gradients and AdamW are one function,
and `trainc.jit` in the place of `jax.jit` is all that changes.

    python examples/jax_gpt2.py                    # 124M parameters, 4 rows of 256 bytes a step
    python examples/jax_gpt2.py --xla              # the same step through jax.jit, to compare
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np

import trainc

VOCABULARY, RATE, DECAY, B1, B2 = 50257, 3e-4, 0.01, 0.9, 0.99


def initial(key, layers: int, width: int, length: int) -> dict:
    shapes = {"wte": (VOCABULARY, width), "wpe": (length, width), "norm": (2, width)}
    for i in range(layers):
        shapes |= {f"{i}.qkv": (width, 3 * width), f"{i}.proj": (width, width), f"{i}.up": (width, 4 * width)}
        shapes |= {f"{i}.down": (4 * width, width), f"{i}.norm1": (2, width), f"{i}.norm2": (2, width)}
    ones = jnp.array([[1.0], [0.0]])
    keys = zip(shapes.items(), jax.random.split(key, len(shapes)), strict=True)
    return {n: ones * jnp.ones(s) if "norm" in n else 0.02 * jax.random.normal(k, s) for (n, s), k in keys}


def loss_of(weights: dict, ids, key, heads: int, rate: float):
    keys = iter(jax.random.split(key, len(weights)))
    batch, length = ids.shape

    def dropped(x):
        return jnp.where(jax.random.bernoulli(next(keys), 1 - rate, x.shape), x / (1 - rate), 0) if rate else x

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * weights[name][0] + weights[name][1]

    x = dropped(weights["wte"][ids] + weights["wpe"][:length])
    causal = jnp.tril(jnp.ones((length, length), bool))
    for i in range(sum(name.endswith(".qkv") for name in weights)):
        q, k, v = jnp.moveaxis((norm(x, f"{i}.norm1") @ weights[f"{i}.qkv"]).reshape(batch, length, 3, heads, -1), 2, 0)
        scores = jnp.where(causal, jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5, -jnp.inf)
        x = x + dropped(jnp.einsum("bhqk,bkhd->bqhd", dropped(jax.nn.softmax(scores)), v).reshape(x.shape) @ weights[f"{i}.proj"])
        x = x + dropped(jax.nn.gelu(norm(x, f"{i}.norm2") @ weights[f"{i}.up"]) @ weights[f"{i}.down"])
    told = jax.nn.log_softmax(norm(x, "norm")[:, :-1] @ weights["wte"].T)
    return -jnp.take_along_axis(told, ids[:, 1:, None], axis=-1).mean()


def train_step(state, key, ids, heads: int, rate: float):
    weights, first, second, count = state
    loss, gradients = jax.value_and_grad(loss_of)(weights, ids, jax.random.fold_in(key, count), heads, rate)
    count = count + 1
    first = jax.tree.map(lambda m, g: B1 * m + (1 - B1) * g, first, gradients)
    second = jax.tree.map(lambda v, g: B2 * v + (1 - B2) * g * g, second, gradients)
    step, root = RATE / (1 - B1**count), jnp.sqrt(1 - B2**count)
    update = lambda p, m, v: p * (1 - RATE * DECAY) - step * m / (jnp.sqrt(v) / root + 1e-8)  # noqa: E731
    return (jax.tree.map(update, weights, first, second), first, second, count), loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xla", action="store_true")
    for name, value in {"steps": 10, "layers": 12, "width": 768, "heads": 12, "batch": 4, "length": 256}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dropout", type=float, default=0.1)
    args = parser.parse_args()
    text = np.frombuffer(b"".join(p.read_bytes() for p in sorted(pathlib.Path(pathlib.__file__).parent.glob("*.py"))), np.uint8)
    step = functools.partial(train_step, heads=args.heads, rate=args.dropout)
    step = (jax.jit if args.xla else trainc.jit)(step, donate_argnums=0)
    weights = initial(jax.random.key(0), args.layers, args.width, args.length)
    state = (weights, jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights), jnp.zeros((), jnp.int32))
    for i in range(args.steps):
        start, rows = time.perf_counter(), np.random.default_rng(i).integers(0, len(text) - args.length, args.batch)
        state, loss = step(state, jax.random.key(1), np.stack([text[r : r + args.length] for r in rows]).astype(np.int32))
        print(f"step {i}  loss {float(loss):.5f}  {time.perf_counter() - start:.2f} s", flush=True)


if __name__ == "__main__":
    main()
