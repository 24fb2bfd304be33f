"""Whole training steps beside XLA's: draws and integers to the bit, losses and states as near to fp64, the state where it lay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from whole_steps import STEPS

import trainc
from trainc.base import records

SEEDS, TRIPS = range(0, 160, 10), 3


def trained(step, state, batch_of, seed):
    """The last state, and what each step told."""
    told = []
    for i in range(TRIPS):
        state, said = step(state, jax.random.fold_in(jax.random.key(seed), i), batch_of(seed + i))
        told.append(jax.tree.map(np.asarray, said))
    return jax.tree.map(np.asarray, state), told


def wide(tree):
    return jax.tree.map(lambda a: jnp.asarray(a, jnp.float64 if a.dtype == np.float32 else a.dtype), tree)


def floats(tree):
    return np.concatenate([np.ravel(a).astype(np.float64) for a in jax.tree.leaves(tree) if a.dtype.kind == "f"])


def updated_in_place(step, state, batch):
    state = jax.tree.map(jnp.array, state)
    places = {a.unsafe_buffer_pointer() for a in jax.tree.leaves(state)}
    after, _ = step(state, jax.random.key(0), batch)
    assert all(a.is_deleted() for a in jax.tree.leaves(state))
    assert np.mean([a.unsafe_buffer_pointer() in places for a in jax.tree.leaves(after)]) > 0.9


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_trains_as_in_f64(name, strict):
    step, state_of, batch_of = STEPS[name]
    ours, plain = trainc.jit(step, donate_argnums=0), jax.jit(step)
    errors, ratios = [], []
    updated_in_place(ours, state_of(0), batch_of(0))
    for seed in SEEDS:
        got, told = trained(ours, jax.tree.map(jnp.array, state_of(seed)), batch_of, seed)
        its, its_told = trained(plain, state_of(seed), batch_of, seed)
        with jax.enable_x64(True):
            truth, true_told = trained(plain, wide(state_of(seed)), lambda seed: wide(batch_of(seed)), seed)
        for mine, xlas, true in zip(told, its_told, true_told, strict=True):
            for what in mine.keys() - {"loss"}:
                np.testing.assert_array_equal(mine[what], xlas[what])
            errors.append([abs(float(x["loss"]) - float(true["loss"])) for x in (mine, xlas)])
        error, its_error = (np.linalg.norm(floats(state) - floats(truth)) for state in (got, its))
        ratios.append(error / its_error)
    loss, its_loss = np.sqrt(np.mean(np.square(errors), 0))
    assert loss <= 1.1 * its_loss + 6e-8
    assert np.exp(np.mean(np.log(ratios))) < 1.25  # a model's differs by a third, by chance, and Adam makes more of it
    assert [record.route for record in records.of(ours)] == ["compiled"]


def test_an_error_in_a_step_is_the_users_with_its_line():
    step, state_of, batch_of = STEPS["vit"]
    batch = batch_of(0) | {"x": np.ones((6, 9, 9, 4), np.float32)}  # four channels
    with pytest.raises((TypeError, ValueError)) as ours:
        trainc.jit(step)(state_of(0), jax.random.key(0), batch)
    with pytest.raises((TypeError, ValueError)) as plain:
        jax.jit(step)(state_of(0), jax.random.key(0), batch)
    assert str(ours.value) == str(plain.value)
    assert any("whole_steps.py" in str(entry.path) for entry in ours.traceback)
