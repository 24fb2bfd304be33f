"""A training loop of one's own in TensorFlow: a small transformer that continues Python's standard library, letter by letter.
`trainc.function` in the place of `tf.function` is all that changes.

    python examples/tf/custom_loop.py              # a step is one plan
    python examples/tf/custom_loop.py --xla        # the same step through tf.function(jit_compile=True), to compare
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import time

import numpy as np
import tensorflow as tf

import trainc

BYTES, RATE, B1, B2, DROPPED = 256, 1e-3, 0.9, 0.99, 0.1


class Model(tf.Module):
    def __init__(self, layers: int, width: int, length: int):
        super().__init__()
        self.heads, self.layers = max(width // 32, 1), []
        self.letters, self.places = self.normal(BYTES, width), self.normal(length, width)
        for _ in range(layers):
            shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
            self.layers.append({name: self.normal(*shape) for name, shape in shapes.items()})
            self.layers[-1] |= {name: tf.Variable(tf.ones(width)) for name in ("before", "between")}

    @staticmethod
    def normal(*shape: int) -> tf.Variable:
        return tf.Variable(tf.random.normal(shape, stddev=0.02))

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        """ids [N, T] of bytes: logits [N, T, 256]"""
        batch, length = ids.shape
        x = tf.nn.embedding_lookup(self.letters, ids) + self.places[:length]
        causal = tf.linalg.band_part(tf.ones((length, length), tf.bool), -1, 0)
        for layer in self.layers:
            qkv = tf.reshape(normalized(x) * layer["before"] @ layer["qkv"], (batch, length, 3, self.heads, -1))
            q, k, v = tf.unstack(tf.transpose(qkv, (2, 0, 3, 1, 4)))
            scores = tf.where(causal, tf.matmul(q, k, transpose_b=True) / q.shape[-1] ** 0.5, -np.inf)
            mixed = tf.transpose(tf.nn.dropout(tf.nn.softmax(scores), DROPPED) @ v, (0, 2, 1, 3))
            x += tf.reshape(mixed, x.shape) @ layer["out"]
            x += tf.nn.dropout(tf.nn.gelu(normalized(x) * layer["between"] @ layer["up"]) @ layer["down"], DROPPED)
        return normalized(x) @ tf.transpose(self.letters)


def normalized(x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-5)


class Adam(tf.Module):
    def __init__(self, weights: list[tf.Variable]):
        super().__init__()
        self.count = tf.Variable(0.0)
        self.states = [(w, tf.Variable(tf.zeros_like(w)), tf.Variable(tf.zeros_like(w))) for w in weights]

    def apply(self, gradients: list[tf.Tensor]) -> None:
        count = self.count.assign_add(1.0)
        for (weight, first, second), gradient in zip(self.states, gradients, strict=True):
            gradient = tf.convert_to_tensor(gradient)
            m = first.assign(B1 * first + (1 - B1) * gradient) / (1 - B1**count)
            v = second.assign(B2 * second + (1 - B2) * gradient**2) / (1 - B2**count)
            weight.assign_sub(RATE * m / (tf.sqrt(v) + 1e-8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"layers": 4, "width": 256, "length": 128, "batch": 16, "steps": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--xla", action="store_true")
    args = parser.parse_args()
    tf.random.set_seed(0)
    model = Model(args.layers, args.width, args.length)
    weights = list(model.trainable_variables)
    optimizer = Adam(weights)

    @functools.partial(tf.function, jit_compile=True) if args.xla else trainc.function
    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(ids[:, 1:], model(ids[:, :-1]))
            loss = tf.reduce_mean(losses)
        optimizer.apply(tape.gradient(loss, weights))
        return loss

    text = np.frombuffer(b"".join(p.read_bytes() for p in sorted(pathlib.Path(functools.__file__).parent.glob("*.py"))), np.uint8)
    draw = np.random.default_rng(0)
    for i in range(args.steps):
        starts = draw.integers(0, len(text) - args.length - 1, args.batch)
        batch = np.stack([text[s : s + args.length + 1] for s in starts]).astype(np.int32)
        start = time.perf_counter()
        loss = float(step(batch))
        print(f"step {i}: loss {loss:.3f}, {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
