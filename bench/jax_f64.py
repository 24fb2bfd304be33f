"""Losses and gradients of GPT-2 124M in JAX beside the same in fp64: our error over XLA's.

    python bench/jax_f64.py                  # 1 row of 64 bytes, 4 seeds; 6 GB, two minutes
    python bench/jax_f64.py --layers 2 --width 64 --heads 4 --seeds 16
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import trainc

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import jax_gpt2  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"layers": 12, "width": 768, "heads": 12, "batch": 1, "length": 64, "seeds": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    step = jax.value_and_grad(functools.partial(jax_gpt2.loss_of, heads=args.heads, rate=0.0))  # fp64 would draw other masks
    text = np.frombuffer(Path(jax_gpt2.__file__).read_bytes(), np.uint8)
    doors = (trainc.jit(step), jax.jit(step))
    truth, key, errors = jax.jit(step), jax.random.key(0), []
    for seed in range(args.seeds):
        weights = jax_gpt2.initial(jax.random.key(seed), args.layers, args.width, args.length)
        starts = np.random.default_rng(seed).integers(0, len(text) - args.length, args.batch)
        ids = np.stack([text[s : s + args.length] for s in starts]).astype(np.int32)
        with jax.enable_x64(True):
            true, wanted = truth({name: jnp.asarray(w, jnp.float64) for name, w in weights.items()}, ids, key)
            true, wanted = float(true), {name: np.asarray(g) for name, g in wanted.items()}
        for door in doors:
            loss, got = door(weights, ids, key)
            off = np.sqrt(sum(np.square(np.asarray(got[n], np.float64) - g).sum() for n, g in wanted.items()))
            errors.append((float(loss) - true, off / np.sqrt(sum(np.square(g).sum() for g in wanted.values()))))
        (loss, off), (its_loss, its_off) = errors[-2:]
        told = f"errors {loss:+.1e} and {its_loss:+.1e}; of the gradients {off:.2e} and {its_off:.2e}"
        print(f"seed {seed}: loss {true:.4f}, {told}", flush=True)
    loss, off = np.sqrt(np.mean(np.square(np.array(errors).reshape(-1, 2, 2)), 0)).T
    print(f"trainc over XLA: losses {loss[0] / loss[1]:.2f}, gradients {off[0] / off[1]:.2f}")


if __name__ == "__main__":
    main()
