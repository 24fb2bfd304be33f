"""Training steps of whole models, each a function (state, key, batch) -> (state, told): told["loss"], and the integers and masks
that a step drew or counted. Small: what matters is which operations meet. Draws are of 32 bits also where floats have 64."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import jax_gpt2  # noqa: E402

KEPT = np.float32(0.9)


def normal(seed: int, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    fan = lambda s: np.prod(s[:-1]) if len(s) != 3 else s[1]  # noqa: E731 (of stacked layers the first axis counts them)
    return {n: draw.normal(0, 1 / np.sqrt(fan(s)) if len(s) > 1 else 0.1, s).astype(np.float32) for n, s in shapes.items()}


def dropped(x, key):
    mask = jax.random.bernoulli(key, KEPT, x.shape)
    return jnp.where(mask, x / KEPT, 0), mask


def layer_norm(x, scale):
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * (1 + scale)


def attention(x, qkv, heads: int, seen=None):
    """x: [B, L, E]; qkv: [E, 3 E]; seen: [B, L], which places there are."""
    q, k, v = jnp.moveaxis((x @ qkv).reshape(*x.shape[:2], 3, heads, -1), 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1]).astype(x.dtype)
    if seen is not None:
        scores = jnp.where(seen[:, None, None, :], scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)


def cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]


# ---- optimizers -----------------------------------------------------------------------------------------------------


def adamw_state(weights):
    return {"weights": weights, "m": jax.tree.map(jnp.zeros_like, weights), "v": jax.tree.map(jnp.zeros_like, weights),
            "count": jnp.zeros((), jnp.int32)}  # fmt: skip


def adamw(state, gradients, rate: float = 1e-2):
    count = state["count"] + 1
    norm = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda g: g * jnp.minimum(1, 1 / norm), gradients)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], gradients)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], gradients)
    step, root = rate / (1 - 0.9**count), jnp.sqrt(1 - 0.99**count)
    update = lambda w, m, v: w * (1 - rate * 0.01) - step * m / (jnp.sqrt(v) / root + 1e-4)  # noqa: E731
    return {"weights": jax.tree.map(update, state["weights"], m, v), "m": m, "v": v, "count": count}


# ---- an encoder in the manner of BERT: layers in a scan, each checkpointed, dropout, a loss of masked words ----------

WORDS, WIDTH, LAYERS, LENGTH = 41, 24, 3, 10


def encoder_state(seed: int):
    shapes = {
        "qkv": (WIDTH, 3 * WIDTH),
        "out": (WIDTH, WIDTH),
        "up": (WIDTH, 48),
        "down": (48, WIDTH),
        "first": (1, WIDTH),
        "second": (1, WIDTH),
    }
    stacked = normal(seed, **{name: (LAYERS, *shape) for name, shape in shapes.items()})
    return adamw_state(normal(seed + 1, words=(WORDS, WIDTH), places=(LENGTH, WIDTH), last=(WIDTH,)) | {"layers": stacked})


def encoder_batch(seed: int):
    draw = np.random.default_rng(seed)
    return {"ids": draw.integers(0, WORDS, (3, LENGTH), np.int32), "lengths": np.array([10, 7, 4], np.int32)}


def encoder(state, key, batch):
    ids, seen = batch["ids"], jnp.arange(LENGTH) < batch["lengths"][:, None]
    hidden = jax.random.bernoulli(jax.random.fold_in(key, 0), np.float32(0.3), ids.shape) & seen

    def loss_of(weights):
        def layer(x, given):
            w, key = given
            one, two = jax.random.split(key)
            attended, mask = dropped(attention(layer_norm(x, w["first"]), w["qkv"], 4, seen) @ w["out"], one)
            x = x + attended
            x = x + dropped(jax.nn.gelu(layer_norm(x, w["second"]) @ w["up"]) @ w["down"], two)[0]
            return x, mask

        x = weights["words"][jnp.where(hidden, 0, ids)] + weights["places"]
        x, masks = lax.scan(jax.checkpoint(layer), x, (weights["layers"], jax.random.split(key, LAYERS)))
        losses = cross_entropy(layer_norm(x, weights["last"]) @ weights["words"].T, ids)
        return jnp.where(hidden, losses, 0).sum() / jnp.maximum(hidden.sum(), 1), masks

    (loss, masks), gradients = jax.value_and_grad(loss_of, has_aux=True)(state["weights"])
    return adamw(state, gradients), {"loss": loss, "masks": masks, "hidden": hidden}


# ---- a small ResNet: batch norm with running statistics, momentum ---------------------------------------------------

CHANNELS = 8


def resnet_state(seed: int):
    kernels = {
        "stem": (3, 3, 3, CHANNELS),
        "a": (3, 3, CHANNELS, CHANNELS),
        "b": (3, 3, CHANNELS, CHANNELS),
        "c": (3, 3, CHANNELS, 16),
    }
    weights = normal(seed, **kernels, short=(1, 1, CHANNELS, 16), head=(16, 5))
    weights |= normal(seed + 1, n0=(CHANNELS,), n1=(CHANNELS,), n2=(CHANNELS,), n3=(16,))
    running = {n: np.zeros(weights[n].shape, np.float32) for n in ("n0", "n1", "n2", "n3")}
    return {"weights": weights, "momentum": jax.tree.map(np.zeros_like, weights), "running": running}


def resnet_batch(seed: int):
    draw = np.random.default_rng(seed)
    return {
        "x": draw.normal(size=(6, 9, 9, 3)).astype(np.float32),
        "y": draw.integers(0, 5, 6, np.int32),
        "unused": np.ones(3, np.float32),
    }


def resnet(state, key, batch):
    def loss_of(weights):
        running = {}

        def norm(x, name):
            mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
            running[name] = 0.9 * state["running"][name] + 0.1 * mean
            return (x - mean) * lax.rsqrt(variance + 1e-5) * (1 + weights[name])

        def conv(x, name, step=1):
            return lax.conv_general_dilated(x, weights[name], (step, step), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

        x = jax.nn.relu(norm(conv(batch["x"], "stem"), "n0"))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        x = jax.nn.relu(x + norm(conv(jax.nn.relu(norm(conv(x, "a"), "n1")), "b"), "n2"))
        x = jax.nn.relu(norm(conv(x, "c", 2), "n3") + conv(x, "short", 2))
        logits = x.mean((1, 2)) @ weights["head"]
        return cross_entropy(logits, batch["y"]).mean(), running

    (loss, running), gradients = jax.value_and_grad(loss_of, has_aux=True)(state["weights"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradients)
    weights = jax.tree.map(lambda w, m: w - 0.02 * m, state["weights"], momentum)
    return {"weights": weights, "momentum": momentum, "running": running}, {"loss": loss}


# ---- a ViT: patches, a class token, dropout, a cosine schedule ------------------------------------------------------

PATCHES = 9


def vit_state(seed: int):
    weights = normal(seed, patch=(3, 3, 3, WIDTH), token=(1, WIDTH), places=(PATCHES + 1, WIDTH), head=(WIDTH, 5), last=(WIDTH,))
    for i in range(2):
        weights |= normal(seed + 7 * i + 1, **{f"{i}.qkv": (WIDTH, 3 * WIDTH), f"{i}.out": (WIDTH, WIDTH), f"{i}.up": (WIDTH, 48),
                                               f"{i}.down": (48, WIDTH), f"{i}.n1": (WIDTH,), f"{i}.n2": (WIDTH,)})  # fmt: skip
    return adamw_state(weights)


def vit(state, key, batch):
    def loss_of(weights):
        x = lax.conv_general_dilated(batch["x"], weights["patch"], (3, 3), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = x.reshape(x.shape[0], PATCHES, WIDTH)
        x = jnp.concatenate([jnp.broadcast_to(weights["token"], (x.shape[0], 1, WIDTH)), x], 1) + weights["places"]
        x, mask = dropped(x, key)
        for i in range(2):
            x = x + attention(layer_norm(x, weights[f"{i}.n1"]), weights[f"{i}.qkv"], 4) @ weights[f"{i}.out"]
            x = x + jax.nn.gelu(layer_norm(x, weights[f"{i}.n2"]) @ weights[f"{i}.up"], approximate=False) @ weights[f"{i}.down"]
        logits = layer_norm(x[:, 0], weights["last"]) @ weights["head"]
        return cross_entropy(logits, batch["y"]).mean(), (mask, logits.argmax(-1))

    (loss, (mask, said)), gradients = jax.value_and_grad(loss_of, has_aux=True)(state["weights"])
    rate = 0.005 * (1 + jnp.cos(jnp.pi * state["count"] / 20))
    return adamw(state, gradients, rate), {"loss": loss, "mask": mask, "said": said}


# ---- GPT-2, as the example has it, with dropout in each layer --------------------------------------------------------


def gpt2_state(seed: int):
    shapes = {"wte": (WORDS, WIDTH), "wpe": (LENGTH, WIDTH), "norm": (2, WIDTH)}
    for i in range(2):
        shapes |= {f"{i}.qkv": (WIDTH, 3 * WIDTH), f"{i}.proj": (WIDTH, WIDTH), f"{i}.up": (WIDTH, 4 * WIDTH),
                   f"{i}.down": (4 * WIDTH, WIDTH), f"{i}.norm1": (2, WIDTH), f"{i}.norm2": (2, WIDTH)}  # fmt: skip
    return adamw_state(normal(seed, **shapes))


def gpt2(state, key, batch):
    loss, gradients = jax.value_and_grad(jax_gpt2.loss_of)(state["weights"], batch["ids"], key, 4, np.float32(0.1))
    return adamw(state, gradients), {"loss": loss}


STEPS = {
    "gpt2": (gpt2, gpt2_state, encoder_batch),
    "encoder": (encoder, encoder_state, encoder_batch),
    "resnet": (resnet, resnet_state, resnet_batch),
    "vit": (vit, vit_state, resnet_batch),
}
if find_spec("flax"):  # `pip install flax`: it is no part of what tests need
    import flax_steps

    STEPS["flax bert"] = (flax_steps.bert, flax_steps.bert_state, encoder_batch)
