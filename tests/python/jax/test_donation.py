"""Donated arguments: gone as in JAX, updated where they lie, and never read after they were."""

import jax
import jax.numpy as jnp
import jax_steps
import numpy as np
import pytest

import trainc
from trainc.base import records


@pytest.fixture(autouse=True)
def compiled_or_failed(strict):
    """Whatever these tests jit is compiled."""


def copied(tree):
    return jax.tree.map(lambda x: jnp.array(x, copy=True), tree)


def pointers(tree):
    return [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree)]


def test_a_step_updates_its_state_where_it_lies():
    ours, theirs = trainc.jit(jax_steps.adam, donate_argnums=0), jax.jit(jax_steps.adam)
    state = jax.block_until_ready(copied(jax_steps.adam_state(jax_steps.weights())))
    plain = copied(state)
    key = jax.random.key(0)
    for i in range(5):
        before, old = pointers(state), state
        state, loss = ours(state, key, *jax_steps.batch(i))
        plain, wanted = theirs(plain, key, *jax_steps.batch(i))
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))
        assert pointers(state) == before
        np.testing.assert_allclose(loss, wanted, rtol=1e-6)
    (record,) = records.of(ours)
    assert len(record.forward.plan.given_away) == len(before)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5), state, plain)


X = jnp.arange(24.0).reshape(4, 6) / 7

# What reads the argument after its successor could be written: each a silent wrong number if it were in its memory.
READERS = {
    "transposed": lambda a: (a.T.reshape(4, 6) + 1, a.sum()),
    "reversed": lambda a: (a[::-1, ::-1] * 2, a[0]),
    "a sum of all": lambda a: (a - a.sum(), a.mean(0)),
    "a product": lambda a: (a @ a.T @ a, a @ a.T),
    "a sort": lambda a: (jnp.cumsum(a, 1), a + 1),
    "a gather": lambda a: (a[jnp.array([3, 0, 1, 1])], a[2]),
    "a scatter": lambda a: (a.at[1:3].add(a[:2]), a[0] + a[1]),
    "itself": lambda a: (a, a + 1),
    "twice": lambda a: (a + 1, a + 2),
    "not at all": lambda a: (jnp.full((4, 6), 3.0), jnp.zeros(())),
    "a roll": lambda a: (jnp.roll(a, 1, 0), a.max()),
    "a slice into it": lambda a: (jax.lax.dynamic_update_slice(a, a[:2] * 2, (1, 0)), a[3]),
}


@pytest.mark.parametrize("name", READERS)
def test_an_argument_is_read_before_it_is_overwritten(name):
    f = READERS[name]
    wanted = jax.jit(f)(X)
    got = trainc.jit(f, donate_argnums=0)(copied(X))
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_arguments_that_change_places():
    swap = lambda a, b, c: (b, c + 1, a)  # noqa: E731
    arguments = [copied(X + i) for i in range(3)]
    wanted = jax.jit(swap)(*arguments)
    got = trainc.jit(swap, donate_argnums=(0, 1, 2))(*arguments)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_array_that_is_given_twice_is_refused_or_right():
    """As in JAX: donated and read beside that it is an error, or the memory is another's."""
    f = lambda a, b: (a + 1, (a * b).sum() + b)  # noqa: E731
    results = []
    for jit in (jax.jit, trainc.jit):
        array = copied(X)
        try:
            results.append([np.asarray(r) for r in jit(f, donate_argnums=0)(array, array)])
        except Exception as error:
            results.append(type(error))
    if isinstance(results[0], type):
        assert results[1] is results[0]
    else:
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_donated_and_used_again_is_jaxs_error():
    ours = trainc.jit(lambda a: a + 1, donate_argnums=0)
    array = copied(X)
    ours(array)
    with pytest.raises((RuntimeError, ValueError), match="deleted|donated"):
        ours(array)


def test_memory_of_numpys_is_not_written():
    """JAX may take an array of numpy's as it lies: who donates that gives away a copy."""
    numpys = np.ascontiguousarray(np.asarray(X))
    kept = numpys.copy()
    ours = trainc.jit(lambda a: a * 2, donate_argnums=0)
    np.testing.assert_array_equal(ours(numpys), kept * 2)
    np.testing.assert_array_equal(numpys, kept)


def test_one_that_nothing_reads_is_dropped_as_jax_does():
    """Not deleted then; nor does it give its memory to a result before one that is read."""
    for jit in (jax.jit, trainc.jit):
        unread, read, shaped = copied(X), copied(X), copied(X)
        step = jit(lambda unread, read, shaped: (read * 2, jnp.zeros(shaped.shape).sum()), donate_argnums=(0, 1, 2))
        before = pointers(read)
        result, _ = step(unread, read, shaped)
        assert (unread.is_deleted(), read.is_deleted(), shaped.is_deleted()) == (False, True, False)
        assert pointers(result) == before
        np.testing.assert_array_equal(result, np.asarray(X) * 2)


def test_a_few_elements_are_put_where_the_argument_lies():
    """The rest is not copied: in one memory there is nothing to do."""
    put = lambda cache, new, i: (jax.lax.dynamic_update_slice(cache, new[:, None], (0, i, 0)), new.sum())  # noqa: E731
    ours, theirs = trainc.jit(put, donate_argnums=0), jax.jit(put)
    kept = trainc.jit(put)
    mine, its = jnp.zeros((3, 50, 4)), jnp.zeros((3, 50, 4))
    for i in (0, 7, 49, 60, -3, 7):
        new, before = jnp.full((3, 4), i + 1.0), pointers(mine)
        old = copied(mine)
        again, _ = kept(old, new, np.int32(i))  # not given away: copied
        mine, _ = ours(mine, new, np.int32(i))
        its, _ = theirs(its, new, np.int32(i))
        assert pointers(mine) == before
        np.testing.assert_array_equal(mine, its)
        np.testing.assert_array_equal(again, its)


PUT = {
    "a row": lambda x, i: x.at[i].set(i * 0.5),
    "an element": lambda x, i: x.at[i, i + 1].add(2.5),
    "a column": lambda x, i: x.at[:, i].multiply(2.0),
    "its own row": lambda x, i: jax.lax.dynamic_update_slice(x, x[i - 1][None] * 2, (i, 0)),
    "a row of it, at a place of it": lambda x, i: x.at[x[i, 0].astype(int) % 50].set(x[i, ::-1]),
}


@pytest.mark.parametrize("name", PUT)
def test_few_elements_made_of_the_argument_are_put_where_it_lies(name):
    """What they are made of is read before; a place outside is none."""
    ours, theirs = trainc.jit(PUT[name], donate_argnums=0), jax.jit(PUT[name])
    mine = its = jnp.asarray(np.random.default_rng(0).normal(size=(50, 40)).astype(np.float32) * 9)
    mine = copied(mine)
    for i in (3, 49, 60, -1, -70):
        mine, its = ours(mine, np.int32(i)), theirs(its, np.int32(i))
        np.testing.assert_array_equal(mine, its)
    (record,) = records.of(ours)
    assert record.forward.plan.given_away == [(0, 0)]


def test_results_lie_on_the_mesh_that_the_function_names():
    """Of one device; with more it is JAX's."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("rows",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))

    def step(x, y):
        x = jax.lax.with_sharding_constraint(jnp.tanh(x), rows)
        return x * 2, jax.jit(lambda y: jax.lax.with_sharding_constraint(y + 1, rows))(y), x.sum()

    found = []
    for jit in (jax.jit, trainc.jit):
        x, y = copied(X), copied(X)
        before = [*pointers(x), *pointers(y)]
        results = jit(step, donate_argnums=(0, 1))(x, y)
        assert [*pointers(results[0]), *pointers(results[1])] == before
        found.append([(r.sharding, r.committed) for r in results])
    assert found[0] == found[1] and all(isinstance(s, jax.sharding.NamedSharding) for s, _ in found[1])


def test_by_name():
    ours = trainc.jit(lambda a, b: a + b, donate_argnames="b")
    a, b = copied(X), copied(X)
    ours(a, b=b)
    assert b.is_deleted() and not a.is_deleted()
