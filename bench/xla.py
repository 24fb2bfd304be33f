"""XLA:CPU and trainc.jit as contestants: the training step of GPT-2 in JAX, for the cases that are GPT-2, where JAX is installed.

The same architecture, initial weights, batches and AdamW as the PyTorch model that it is made from; dropout at the same rates
from JAX's own generator, so its losses differ from eager's as two seeds do. One jitted function with donated state; bf16 as
autocast has it: products in bf16, their sums, norms, softmax and loss in f32.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any


def installed() -> bool:
    return importlib.util.find_spec("jax") is not None


def stepping(model: Any, optimizer: Any, bf16: bool, seed: int, compiled: bool = False) -> Callable[[dict], Any]:
    """`batch -> loss` for a Hugging Face GPT2LMHeadModel, of whose weights it takes a copy, and the numbers of a torch AdamW.
    `compiled`: through trainc.jit, in the place of jax.jit."""
    import jax
    import jax.numpy as jnp

    config, (group,) = model.config, optimizer.param_groups
    rate, (b1, b2), eps, decay = group["lr"], group["betas"], group["eps"], group["weight_decay"]
    names = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}  # that is wte's
    weights = {name.removeprefix("transformer."): jnp.array(value.numpy()) for name, value in names.items()}
    loss_of = functools.partial(_loss, config, bf16)

    if compiled:
        import trainc
    jit = trainc.jit if compiled else jax.jit

    @functools.partial(jit, donate_argnums=(0, 1, 2, 3))
    def advance(weights: dict, first: dict, second: dict, count: Any, key: Any, ids: Any) -> tuple:
        loss, gradients = jax.value_and_grad(loss_of)(weights, ids, jax.random.fold_in(key, count))
        count = count + 1
        first = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, first, gradients)
        second = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, second, gradients)
        step, root = rate / (1 - b1**count), jnp.sqrt(1 - b2**count)

        def updated(p: Any, m: Any, v: Any) -> Any:
            return p * (1 - rate * decay) - step * m / (jnp.sqrt(v) / root + eps)

        return jax.tree.map(updated, weights, first, second), first, second, count, loss

    key = jax.random.key(seed, impl="threefry2x32" if compiled else "rbg")  # the quicker of its generators for each
    state = [weights, jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights), jnp.zeros((), jnp.float32)]

    def step(batch: dict) -> Any:
        *state[:], loss = jax.block_until_ready(advance(*state, key, batch["input_ids"].numpy()))
        return loss

    return step


def _loss(config: Any, bf16: bool, weights: dict, ids: Any, key: Any) -> Any:
    """Mean cross-entropy of the next words, f32; `ids` int [batch, length]."""
    import jax
    import jax.numpy as jnp

    batch, length = ids.shape
    keys = iter(jax.random.split(key, 3 * config.n_layer + 1))

    def dropped(x: Any, rate: float) -> Any:
        kept = jax.random.bernoulli(next(keys), 1 - rate, x.shape)
        return jnp.where(kept, x / (1 - rate), 0)

    def product(pattern: str, x: Any, y: Any) -> Any:
        return jnp.einsum(pattern, x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)) if bf16 else jnp.einsum(pattern, x, y)

    def linear(x: Any, name: str) -> Any:
        bias = weights[name + ".bias"]
        return product("btc,cd->btd", x, weights[name + ".weight"]) + (bias.astype(jnp.bfloat16) if bf16 else bias)

    def norm(x: Any, name: str) -> Any:
        x = x.astype(jnp.float32)
        centred = x - x.mean(-1, keepdims=True)
        rstd = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + config.layer_norm_epsilon)
        return centred * rstd * weights[name + ".weight"] + weights[name + ".bias"]

    causal = jnp.tril(jnp.ones((length, length), bool))

    def attention(x: Any, name: str) -> Any:
        heads = linear(x, name + ".c_attn").reshape(batch, length, 3, config.n_head, -1)
        q, k, v = heads[:, :, 0], heads[:, :, 1], heads[:, :, 2]
        scores = product("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / q.shape[-1] ** 0.5
        shares = dropped(jax.nn.softmax(jnp.where(causal, scores, -jnp.inf)), config.attn_pdrop)
        return linear(product("bhqk,bkhd->bqhd", shares, v).reshape(x.shape), name + ".c_proj")

    x = dropped(weights["wte.weight"][ids] + weights["wpe.weight"][:length], config.embd_pdrop)
    for i in range(config.n_layer):
        x = x + dropped(attention(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn"), config.resid_pdrop)
        inner = jax.nn.gelu(linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), approximate=True)
        x = x + dropped(linear(inner, f"h.{i}.mlp.c_proj"), config.resid_pdrop)
    logits = product("btc,vc->btv", norm(x, "ln_f"), weights["wte.weight"]).astype(jnp.float32)
    told = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), ids[:, 1:, None], axis=-1)
    return -told.mean()
