"""Loops whose trips depend on an argument run in the plan: what they give is XLA's, to the bit where it is integers."""

import functools
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import trainc
from trainc.base import records

RANDOM = np.random.default_rng(0)
X, W = (RANDOM.normal(size=(6, 6)).astype(np.float32) for _ in range(2))


def whole(function, *arguments, **options):
    """What `function` gives, which is one plan."""
    ours = trainc.jit(function, **options)
    results = ours(*arguments)
    (record,) = records.of(ours)
    assert (record.engine, record.route) == ("core", "compiled"), record.reason
    return results


def same(got, wanted, tolerance):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert jax.typeof(g) == jax.typeof(w)
        kinds = (jnp.floating, jnp.complexfloating)
        if tolerance and any(jnp.issubdtype(g.dtype, k) for k in kinds):
            wide = [np.asarray(v, np.complex128) for v in (g, w)]
            np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(g, w)


def shrinks(x):
    return lax.while_loop(lambda c: (c[0] ** 2).sum() > 1, lambda c: (c[0] * x.dtype.type(0.5), c[1] + 1), (x, 0))


def collatz(n):
    def trip(c):
        n, trips = c
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), trips + 1

    return lax.while_loop(lambda c: c[0] > 1, trip, (n, jnp.zeros_like(n)))


def powers(x, n):
    return lax.fori_loop(0, n, lambda i, c: c @ x + i, x)


def nested(x, n):
    """Trips of the inner loop by the outer one's counter, and one whose trips are known."""

    def outer(i, x):
        x = lax.fori_loop(0, i, lambda j, x: x * 0.5 + i * j, x)
        return lax.fori_loop(0, 3, lambda j, x: x + j, x)

    return lax.fori_loop(0, n, outer, x)


def until_small(x):
    """A loop in a loop, each until its own condition on what it carries."""

    def inner(x):
        return lax.while_loop(lambda x: jnp.abs(x).max() > 3, lambda x: x * 0.7, x)

    return lax.while_loop(lambda c: c[1] < jnp.argmax(c[0][0]) + 2, lambda c: (inner(c[0] * 2.0), c[1] + 1), (x, 0))


def swaps(x, y, n):
    return lax.fori_loop(0, n, lambda i, c: (c[1], c[0], c[2] + c[0].sum()), (x, y, jnp.float32(0)))


def turns(x, y, z, n):
    """Each takes another's place; one is written where the next still has to be read."""
    return lax.fori_loop(0, n, lambda i, c: (c[1] * 2, c[2], c[0] - 1), (x, y, z))


def one_twice(x, n):
    return lax.fori_loop(0, n, lambda i, c: (c[0] + c[1], c[0] - 1), (x, x))


def reads_beside(x, w, n):
    """What is carried is read by the loop as it was before, too, and behind it."""
    y = jnp.tanh(x @ w)
    z = lax.fori_loop(0, n, lambda i, c: jnp.sin(c) + y, y)
    return z, y, z.T


def keeps(x, w, n):
    """Values that every trip gives as they are; one that no trip changes, and the loop gives."""

    def trip(c):
        i, x, w, never = c
        return i + 1, x @ w, w, never

    return lax.while_loop(lambda c: c[0] < n, trip, (0, x, w, jnp.arange(3)))


def asks_a_flag(x):
    return lax.while_loop(lambda c: c[1], lambda c: (c[0] + 1, (c[0] + 1).sum() < 50), (x, True))


def flags(n):
    return lax.while_loop(lambda c: c[0].any(), lambda c: (c[0] & (jnp.arange(5) > c[1]), c[1] + 1), (jnp.arange(5) < n, 0))


def writes_a_row(x, n):
    return lax.fori_loop(0, n, lambda i, c: c.at[i].set(c[i] * 2 + c[i - 1]), x)


def nans(x):
    """A comparison with NaN ends it; the other way round it would not."""
    return lax.while_loop(lambda c: c[0] < 10, lambda c: (jnp.where(c[1] > 2, jnp.nan, c[0] + 1), c[1] + 1), (x, 0))


def complexes(z, n):
    return lax.while_loop(lambda c: (jnp.abs(c[0]) < 4) & (c[1] < n), lambda c: (c[0] * c[0] + z, c[1] + 1), (z, 0))


def orbit(z):
    def one(z):
        return lax.while_loop(lambda c: (jnp.abs(c[0]) < 2) & (c[1] < 30), lambda c: (c[0] * c[0] + z, c[1] + 1), (z, 0))

    return jax.vmap(one)(z)


def rows(x, trips):
    return jax.vmap(lambda x, n: lax.fori_loop(0, n, lambda i, c: jnp.sin(c) + i, x))(x, trips)


def of_no_element(n):
    return lax.fori_loop(0, n, lambda i, c: (c[0] * 2, c[1] + 1), (jnp.zeros((0, 3)), 0))


def two(x, n, m):
    """One after the other, alike but for their trips."""
    return powers(powers(x / 4, n) / 100, m), powers(x, n)


def forward(x, n):
    return jax.jvp(lambda x: powers(x / 4, n), (x,), (jnp.ones_like(x),))


def draws(key, n):
    def trip(i, c):
        key, x = c
        key, sub = jax.random.split(key)
        return key, x + jax.random.bits(sub, (5,), jnp.uint32)

    return lax.fori_loop(0, n, trip, (key, jnp.zeros(5, jnp.uint32)))


def in_a_branch(x, n):
    return lax.cond(n > 2, lambda x: powers(x, n), lambda x: x * 2, x)


def never_ends(x):
    return lax.while_loop(lambda c: c[0] < 50, lambda c: c * 1, x)


def endless_in_branches(x, n):
    """Loops that do not end where their branch is not taken: of `if`, of a choice, of a choice in a branch, in a loop's body."""

    def choice(i, x):
        doubles = lambda x: lax.while_loop(lambda c: c[0] < 50, lambda c: c * 2 + 1, x)  # noqa: E731
        x = lax.switch(i % 4 - 1, [never_ends, doubles, lambda x: lax.cond(i > 90, never_ends, lambda x: x - 60, x)], x + 0 * n)
        return lax.cond(i < 3, lambda x: x + 1, never_ends, x)

    x = lax.switch(n, [never_ends, never_ends, lambda x: x + 1, never_ends], x)
    return lax.fori_loop(n, n + 1, choice, x)


def endless_in_the_last(x, n):
    """An index outside is the last one's."""
    return lax.switch(n, [never_ends, never_ends, lambda x: powers(x[:, None] * x, n)[0]], x)


def counts_down(x, n):
    return lax.while_loop(lambda c: c[0] != 0, lambda c: (c[0] - 1, c[1] * 2), (n, x))


def puts_rows(x, n):
    """A row a trip into what is carried, which the trip reads before or behind."""

    def trip(i, c):
        c = lax.dynamic_update_slice(c, jnp.sin(c[i - 1])[None], (i, 0))
        c = lax.dynamic_update_slice(c, c[:1] + i, (i + 3, 0))
        return lax.dynamic_update_slice(c, c[:, :1] * 0.5, (0, i))

    return lax.fori_loop(0, n, trip, x)


def fills(x, n):
    def trip(i, c):
        return c[0] * 0.5, lax.dynamic_update_slice(c[1], c[0][None], (i, 0))

    return lax.fori_loop(0, n, trip, (x, jnp.zeros((70, 9))))


def sets_rows_of_much(x, n, rows=lambda i: i):
    return lax.fori_loop(0, n, lambda i, c: c.at[rows(i)].set(c[rows(i) - 1] * 2), x)


I = np.int32  # noqa: E741
CASES = {
    "shrinks": (shrinks, X * 4, 1e-6),
    "no trip": (shrinks, X * 1e-3, 0),
    "matmul": (powers, X / 4, I(3), 1e-4),
    "matmul, no trip": (powers, X, I(0), 0),
    "matmul, trips below 0": (powers, X, I(-5), 0),
    "nested": (nested, X, I(4), 1e-5),
    "nested, none": (nested, X, I(0), 0),
    "until small": (until_small, X, 1e-5),
    "swaps": (swaps, X, W, I(3), 1e-5),
    "turns": (turns, X, W, X + W, I(7), 0),
    "one twice": (one_twice, X, I(5), 1e-6),
    "reads beside": (reads_beside, X, W, I(4), 1e-5),
    "keeps": (keeps, X / 4, W, I(4), 1e-4),
    "a flag": (asks_a_flag, X, 1e-5),
    "bools": (flags, I(4), 0),
    "a row": (writes_a_row, X, I(5), 1e-5),
    "rows that are put": (puts_rows, np.ascontiguousarray(np.tile(X, (4, 2))), I(7), 1e-6),
    "filled": (fills, np.arange(9, dtype=np.float32), I(80), 0),
    "nan": (nans, np.float32(1), 0),
    "nan at once": (nans, np.float32(np.nan), 0),
    "complex": (complexes, np.complex64(0.3 + 0.5j), I(9), 1e-5),
    "orbits": (orbit, (RANDOM.normal(size=50) + 1j * RANDOM.normal(size=50)).astype(np.complex64), 1e-3),
    "rows": (rows, X, np.array([3, 0, 7, 1, 1, 2], np.int32), 1e-5),
    "no element": (of_no_element, I(4), 0),
    "two": (two, X, I(2), I(3), 1e-4),
    "forward": (forward, X, I(3), 1e-4),
    "draws": (draws, np.array([1, 2], np.uint32), I(4), 0),
    "a branch": (in_a_branch, X / 4, I(4), 1e-4),
    "a branch, none": (in_a_branch, X / 4, I(1), 1e-4),
    "branches without an end": (endless_in_branches, np.arange(4, dtype=np.float32), I(2), 0),
    "the last branch": (endless_in_the_last, np.arange(4, dtype=np.float32), I(7), 1e-4),
    "unsigned": (counts_down, X, np.uint8(5), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_xla_gives(name):
    function, *arguments, tolerance = CASES[name]
    same(whole(function, *arguments), jax.jit(function)(*arguments), tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_floats(dtype):
    x = jnp.asarray(X, dtype)
    for function, *beside in ((shrinks,), (powers, I(2)), (nested, I(3)), (until_small,)):
        tolerance = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-4}[dtype]
        same(whole(function, x / 4, *beside), jax.jit(function)(x / 4, *beside), tolerance)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32"])
def test_integers(dtype):
    n = np.asarray(27 if dtype not in ("int8", "uint8") else 6, dtype)
    same(whole(collatz, n), jax.jit(collatz)(n), 0)
    many = np.arange(20, dtype=dtype)
    both = lambda many: jax.vmap(collatz)(many)  # noqa: E731
    same(whole(both, many), jax.jit(both)(many), 0)


def test_x64():
    with jax.enable_x64(True):
        x = X.astype(np.float64)
        for arguments in ((powers, x / 4, np.int64(3)), (until_small, x), (nested, x, np.int64(4))):
            same(whole(*arguments), jax.jit(arguments[0])(*arguments[1:]), 1e-12)
        same(whole(collatz, np.int64(97)), jax.jit(collatz)(np.int64(97)), 0)


def test_other_trips_of_one_plan():
    ours, theirs = trainc.jit(powers), jax.jit(powers)
    for n in (3, 0, 1, 5, 2, 0):
        same(ours(X / 4, I(n)), theirs(X / 4, I(n)), 1e-3)
    assert len(records.of(ours)) == 1


def trains(state, x, trips):
    """A state that every trip updates; trips are known when it runs."""

    def step(_, state):
        w, m = state
        g = jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
        m = 0.9 * m + g
        return w - 0.1 * m, m

    return lax.fori_loop(0, trips, step, state)


def test_a_state_that_is_given_away():
    ours, theirs = trainc.jit(trains, donate_argnums=0), jax.jit(trains, donate_argnums=0)
    mine, its = ((jnp.array(W), jnp.zeros_like(W)) for _ in range(2))
    for n in (2, 0, 5, 1):
        before = mine[0]
        mine, its = ours(mine, X, n), theirs(its, X, n)
        same(mine, its, 1e-4)
        assert before.is_deleted()


class Drawn:
    """A loop over values that all lie in memory of one shape: each is given from old ones, another's place or what a row was put
    into among them. All numbers are small integers, so that no order of sums shows."""

    def __init__(self, seed, depth=0):
        self._draw = np.random.default_rng(seed)
        self.depth, self.carried = depth, int(self._draw.integers(1, 6))
        self.rules = [self._draw.integers(0, 9) for _ in range(self.carried)]
        self.of = self._draw.integers(0, self.carried, (self.carried, 2))
        self.beside = self._draw.integers(0, 3, self.carried) == 0
        self.inner = Drawn(seed + 1000, depth + 1) if depth < 2 and self._draw.integers(0, 3) == 0 else None
        self.trips = int(self._draw.integers(0, 4))

    def value(self, k, i, values, x):
        a, b = values[self.of[k][0]], values[self.of[k][1]]
        match self.rules[k]:
            case 0:
                return a  # another's place, or its own
            case 1:
                return values[k]
            case 2:
                return x  # what is read beside it
            case 3:
                return lax.dynamic_update_slice(values[k], (a[:1] + i) % 7, (i % 4, 0))
            case 4:
                return lax.dynamic_update_slice(
                    values[k], b[1:2] % 5, ((a[0, 0] % 4).astype(int), 0)
                )  # the row's place is read there, too
            case 5:
                return (a.T + b) % 11
            case 6:
                return a.at[i % 4].add(1.0)
            case 7:
                return (a @ b) % 13
            case _:
                return (a + b + i) % 9

    def __call__(self, values, x, n):
        def trip(i, values):
            new = [self.value(k, i, values, x) for k in range(self.carried)]
            if self.inner:
                first = [new[k % self.carried] for k in range(self.inner.carried)]
                again = self.inner(first, values[0], (i + self.trips) % 4)
                new[:1] = again[:1]
            return tuple(
                v if not kept else (v + values[k]) % 10 for k, (v, kept) in enumerate(zip(new, self.beside, strict=True))
            )

        results = lax.fori_loop(0, n, trip, tuple(values))
        return (*results, values[0]) if self.depth == 0 else results


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(6))
def test_drawn_loops(part):
    x = np.arange(16, dtype=np.float32).reshape(4, 4) % 5
    for seed in range(part * 8, part * 8 + 8):
        drawn = Drawn(seed)
        one = seed % 3 == 0  # all begin as one value
        values = [x if one else (x + k) % 6 for k in range(drawn.carried)]
        function = functools.partial(drawn)
        ours, theirs = trainc.jit(function), jax.jit(function)
        for n in (0, 1, 2, 5, 3):
            same(ours(values, x, I(n)), theirs(values, x, I(n)), 0)
        assert all(record.route == "compiled" for record in records.of(ours))


def test_drawn_loops_over_what_is_given_away():
    x = np.arange(16, dtype=np.float32).reshape(4, 4) % 5
    for seed in range(100, 112):
        drawn = Drawn(seed)
        ours, theirs = (jit(functools.partial(drawn), donate_argnums=0) for jit in (trainc.jit, jax.jit))
        for n in (3, 0, 4):
            first = lambda: [jnp.asarray((x + k) % 6) for k in range(drawn.carried)]  # noqa: E731, B023
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Some donated buffers")
                same(ours(first(), x, I(n)), theirs(first(), x, I(n)), 0)


def test_explain_names_a_loop_with_its_line_and_what_runs_in_it():
    ours = trainc.jit(lambda x, n: nested(x * 0.75, n))  # no other test's plan: what runs is counted
    text = str(trainc.explain(ours, batch=(X, I(4))))
    assert re.search(r"a loop, until its data ends it: test_loops.py:\d+", text), text
    ours(X, I(4)), ours(X, I(2))
    lines = str(trainc.explain(ours)).splitlines()
    outer, inner = (n for n, line in enumerate(lines) if "a loop, until its data ends it" in line)
    assert re.search(r"test_loops.py:\d+ .*, 6 trips in 2 runs so far", lines[outer]), lines
    assert re.search(r"test_loops.py:\d+ .*, 7 trips in 4 runs so far", lines[inner]), lines  # 1 + 2 + 3 and 1: none at i = 0
    assert lines[inner].startswith("      a loop") and lines[outer].startswith("    a loop")
    assert all(re.match(r"      \S", line) for line in lines[outer + 1 : inner]) and inner > outer + 1, lines
    assert lines[inner + 1].startswith("        map_"), lines


def test_a_depth():
    def within(depth):
        def function(x, n):
            return lax.fori_loop(0, n, lambda i, x: within(depth - 1)(x, n) if depth > 1 else x + 1, x)

        return function

    same(whole(within(5), X, I(2)), jax.jit(within(5))(X, I(2)), 0)


def test_threads_that_run_one_loop():
    from concurrent.futures import ThreadPoolExecutor

    ours, theirs = trainc.jit(powers), jax.jit(powers)
    ours(X / 4, I(1))
    with ThreadPoolExecutor(4) as pool:
        for n, got in enumerate(pool.map(lambda n: ours(X / 4, I(n % 5)), range(40))):
            same(got, theirs(X / 4, I(n % 5)), 1e-3)


def test_large_values():
    """Kernels of several threads, and arguments that no kernel of the plan reads but the loop."""
    x = RANDOM.normal(size=(300, 1000)).astype(np.float32)
    function = lambda x, n: lax.fori_loop(0, n, lambda i, c: jnp.sin(c) * x + c.mean(1, keepdims=True), x)  # noqa: E731
    same(whole(function, x, I(5)), jax.jit(function)(x, I(5)), 1e-4)


SPECIAL = {
    "igamma": (jax.scipy.special.gammainc, 1e-5),
    "igammac": (jax.scipy.special.gammaincc, 1e-5),
    "betainc": (functools.partial(jax.scipy.special.betainc, 1.5), 1e-5),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(name):
    function, tolerance = SPECIAL[name]
    a, x = (RANDOM.uniform(0.05, 0.95, 200).astype(np.float32) for _ in range(2))
    same(whole(function, a, x), jax.jit(function)(a, x), tolerance)


DISTRIBUTIONS = {
    "gamma": lambda key: jax.random.gamma(key, 0.7, (50,)),
    "poisson": lambda key: jax.random.poisson(key, 3.5, (50,)),
    "beta": lambda key: jax.random.beta(key, 2.0, 0.5, (20,)),
    "binomial": lambda key: jax.random.binomial(key, 20, 0.3, (50,)),
    "dirichlet": lambda key: jax.random.dirichlet(key, jnp.array([0.5, 1.0, 3.0]), (10,)),
    "loggamma": lambda key: jax.random.loggamma(key, 0.01, (30,)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_rejection_sampling(name):
    """A number on the other side of what is rejected would be another draw from there on."""
    same(whole(DISTRIBUTIONS[name], jax.random.key(3)), jax.jit(DISTRIBUTIONS[name])(jax.random.key(3)), 1e-5)


def test_what_the_body_refuses_is_refused():
    function = lambda x, n: lax.fori_loop(0, n, lambda i, c: jnp.abs(jnp.fft.fft(c)) / 4, x)  # noqa: E731
    ours = trainc.jit(function)
    with pytest.warns(trainc.TraincWarning, match="fft"):
        same(ours(X, 2), jax.jit(function)(X, 2), 1e-4)


@pytest.mark.parametrize("rows", [lambda i: i, lambda i: i * 90, lambda i: (slice(None), i * 30 - 40), lambda i: (i, i * 40)])
def test_few_elements_of_much_are_written(rows):
    """Places outside, which nothing is written to, too."""

    def sets(x, n):
        return lax.fori_loop(0, n, lambda i, c: c.at[rows(i)].set(c[i * 30 - 40, i] * 2).at[rows(i)].add(i), x)

    x = RANDOM.normal(size=(300, 100)).astype(np.float32)
    same(whole(sets, x, I(5)), jax.jit(sets)(x, I(5)), 0)
    same(whole(sets_rows_of_much, x, I(5)), jax.jit(sets_rows_of_much)(x, I(5)), 0)


def test_several_places_of_much_are_xlas_to_write():
    several = lambda x, n: sets_rows_of_much(x, n, lambda i: jnp.stack([i, i + 7]))  # noqa: E731
    ours = trainc.jit(several)
    x = RANDOM.normal(size=(300, 100)).astype(np.float32)
    with pytest.warns(trainc.TraincWarning, match="few elements of a large tensor"):
        same(ours(x, I(5)), jax.jit(several)(x, I(5)), 0)


# --- known trips, too many to be unrolled


def many(x, trips=20_000):
    def body(c, r):
        return jnp.tanh(0.5 * c + r), (c.sum(), c[1])

    last, (sums, ones) = lax.scan(body, x, jnp.resize(x, (trips, x.shape[0])))
    return last, sums, ones[::97], lax.fori_loop(0, 30_000, lambda i, n: n * 3 + i, 1)


def within(x):
    inner = lambda c: lax.scan(lambda d, r: (d * 0.5 + 0.1 * jnp.sin(r), None), c, jnp.resize(c, (60, 4)))[0]  # noqa: E731
    return lax.fori_loop(0, 400, lambda i, c: inner(c), x)


@pytest.mark.parametrize("function", [many, within])
def test_loops_of_many_known_trips_run_in_the_plan(function):
    x = RANDOM.normal(size=4).astype(np.float32)
    ours = trainc.jit(function)
    same(ours(x), jax.jit(function)(x), 1e-4)
    (record,) = records.of(ours)
    assert record.route == "compiled" and "a loop, until its data ends it" in str(trainc.explain(ours))
