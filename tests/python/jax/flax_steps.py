"""A BERT in flax, trained by optax, as a step of whole_steps.py: masked words, dropout in each layer and in attention, sentences
of several lengths."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

WORDS, WIDTH, LAYERS, HEADS, LENGTH = 41, 24, 2, 4, 10
RATE = np.float32(0.1)  # of 32 bits also where floats have 64: draws are then the same
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, eps=1e-4))


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, seen):
        attend = nn.MultiHeadDotProductAttention(num_heads=HEADS, dropout_rate=RATE, deterministic=False)
        attended = attend(x, mask=seen[:, None, None, :])
        x = nn.LayerNorm()(x + nn.Dropout(RATE, deterministic=False)(attended))
        inner = nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(x), approximate=False))
        return nn.LayerNorm()(x + nn.Dropout(RATE, deterministic=False)(inner))


class Bert(nn.Module):
    @nn.compact
    def __call__(self, ids, seen):
        words = nn.Embed(WORDS, WIDTH)
        places = self.param("places", nn.initializers.normal(0.02), (LENGTH, WIDTH))
        x = nn.Dropout(RATE, deterministic=False)(nn.LayerNorm()(words(ids) + places))
        for _ in range(LAYERS):
            x = Layer()(x, seen)
        x = nn.LayerNorm()(nn.gelu(nn.Dense(WIDTH)(x), approximate=False))
        return words.attend(x) + self.param("bias", nn.initializers.zeros, (WORDS,))


def bert_state(seed: int):
    keys = {"params": jax.random.key(seed), "dropout": jax.random.key(0)}
    with jax.enable_x64(False):  # else flax draws other ones
        weights = Bert().init(keys, jnp.zeros((1, LENGTH), jnp.int32), jnp.ones((1, LENGTH), bool))
    return jax.tree.map(np.asarray, {"weights": weights, "optimizer": OPTIMIZER.init(weights)})


def bert(state, key, batch):
    ids, seen = batch["ids"], jnp.arange(LENGTH) < batch["lengths"][:, None]
    hidden = jax.random.bernoulli(jax.random.fold_in(key, 0), np.float32(0.3), ids.shape) & seen

    def loss_of(weights):
        logits = Bert().apply(weights, jnp.where(hidden, 0, ids), seen, rngs={"dropout": key})
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, ids)
        return jnp.where(hidden, losses, 0).sum() / jnp.maximum(hidden.sum(), 1)

    loss, gradients = jax.value_and_grad(loss_of)(state["weights"])
    updates, optimizer = OPTIMIZER.update(gradients, state["optimizer"], state["weights"])
    return {"weights": optax.apply_updates(state["weights"], updates), "optimizer": optimizer}, {"loss": loss, "hidden": hidden}
