"""Functions that are compiled in parts, around what stays JAX's: results, gradients, memory and effects are jax.jit's."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import trainc
from trainc.base import config, messages, records
from trainc.jax import equations

RANDOM = np.random.default_rng(0)
X, W = (jnp.asarray(RANDOM.normal(size=(6, 6)), jnp.float32) for _ in range(2))
SEEN = []  # what callbacks were given


@pytest.fixture(autouse=True)
def quiet():
    SEEN.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", messages.TraincWarning)
        yield


def block(x, w):
    """Worth a plan of its own."""
    for _ in range(2):
        x = jnp.tanh(x @ w) + jax.nn.gelu(x) * 0.5 - jnp.sin(x) / (1 + x * x)
    return x


def fft(x):
    return jnp.abs(jnp.fft.fft(x)) / 4


def see(value):
    SEEN.append(float(np.sum(value)))


def same(got, wanted, tolerance=3e-5):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert jax.typeof(g) == jax.typeof(w) and getattr(g, "weak_type", None) == getattr(w, "weak_type", None)
        if jnp.issubdtype(g.dtype, jax.dtypes.prng_key):
            g, w = jax.random.key_data(g), jax.random.key_data(w)
        if jnp.issubdtype(g.dtype, jnp.floating):
            np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(g, w)


def compiled(function, *arguments, parts=None, **options):
    """What `function` gives, which is compiled in parts."""
    ours = trainc.jit(function, **options)
    results = ours(*arguments)
    (record,) = records.of(ours)
    assert record.route == "split" and record.parts, record.reason
    assert parts is None or len(record.parts) == parts
    return results


# ---- programs drawn at random ---------------------------------------------------------------------------------------

STEPS = {
    "block": block,
    "small": lambda x, w: x * 2 - w,
    "fft": lambda x, w: fft(x),
    "cholesky": lambda x, w: jnp.linalg.cholesky(x @ x.T / 9 + jnp.eye(6)),
    "print": lambda x, w: (jax.debug.callback(see, x, ordered=True), x)[1],
    "jit": lambda x, w: jax.jit(lambda x: block(jax.jit(fft)(x), w))(x),
    "checkpoint": lambda x, w: jax.checkpoint(lambda x: block(fft(x), w))(x),
    "scan": lambda x, w: lax.scan(lambda c, y: (jnp.tanh(block(fft(c), w) + y), None), x, jnp.stack([x, w]))[0],
    "cond": lambda x, w: lax.cond(x.sum() > 0, lambda x: block(fft(x), w), lambda x: block(x, w), x),
    "shape": lambda x, w: block(x[:, :, None] * w[:, None, :], w).sum(1) / 36,  # small values in, large ones between
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
def test_random_programs(seed):
    draw = np.random.default_rng(seed)
    names = ["block", "print", *draw.permutation([*STEPS])[:3], "fft", *draw.permutation([*STEPS])[:1]]

    def program(x, w):
        values = [x]
        for name in names:
            values.append(jnp.tanh(STEPS[name](values[draw.integers(max(0, len(values) - 3), len(values))], w)))
        return sum(v.sum() for v in values[-3:]), values[-1]

    draw_again = draw.bit_generator.state

    def gradient(x, w):
        draw.bit_generator.state = draw_again  # each trace draws the same
        return jax.value_and_grad(program, (0, 1), has_aux=True)(x, w)

    wanted = jax.jit(gradient)(X, W)
    jax.effects_barrier()
    shown, SEEN[:] = list(SEEN), []
    got = compiled(gradient, X, W)
    jax.effects_barrier()
    np.testing.assert_allclose(SEEN, shown, rtol=1e-3, atol=1e-4)
    same(got, wanted, 2e-3)


# ---- loops that stay JAX's, around plans ----------------------------------------------------------------------------


def trains(w, x, steps):
    def step(i, w):
        return w - 0.01 * jax.grad(lambda w: (block(x, w) ** 2).mean())(w) + 0 * fft(w)

    return lax.fori_loop(0, steps, step, w)


def settles(x, w):
    return lax.while_loop(lambda c: (c[0] ** 2).sum() > 1, lambda c: (block(fft(c[0]), w) * 0.1, c[1] + 1), (x, 0))


def settle_apart(x, w, trips, key):
    """Each of its own number of trips, with a key that each trip splits: a row that is done keeps its numbers."""

    def settled(x, trips):
        def trip(c):
            x, i, key = c
            return block(fft(x), w), i + 1, jax.random.split(key)[0]

        return lax.while_loop(lambda c: c[1] < trips, trip, (x, 0, key))

    x, trips, keys = jax.vmap(settled)(jnp.stack([x, x + 1, x - 1, x * 2]), trips)
    return x, trips, jax.random.key_data(keys)


def scans(x, w):
    def trip(c, y):
        return block(fft(block(c, w)) + y, w), c.sum()

    return lax.scan(trip, x, jnp.stack([x] * 3), reverse=True)


def switches(i, x, w):
    return lax.switch(i, [lambda x: block(fft(x), w), lambda x: block(x, w), fft], x)


LOOPS = {
    "for": (trains, (W, X, 4), 1),
    "while": (settles, (X, W), 1),
    "rows": (settle_apart, (X, W, np.array([2, 0, 3, 1]), jax.random.key(0)), 1),
    "scan": (scans, (X, W), 2),
    "switch": (switches, (2, X, W), 2),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LOOPS)
def test_what_a_loop_runs(name):
    function, arguments, parts = LOOPS[name]
    same(compiled(function, *arguments, parts=parts), jax.jit(function)(*arguments))


def test_a_callback_in_a_loop_sees_each_trip():
    """Though the next trip's value takes the memory of what it sees."""

    def shows(x, w, trips):
        def trip(_, c):
            jax.debug.callback(see, c, ordered=True)
            return block(c, w)

        return lax.fori_loop(0, trips, trip, x)

    wanted = jax.jit(shows)(X, W, 5)
    jax.effects_barrier()
    shown, SEEN[:] = list(SEEN), []
    same(compiled(shows, jnp.array(X, copy=True), W, 5, donate_argnums=0), wanted)
    jax.effects_barrier()
    np.testing.assert_allclose(SEEN, shown, rtol=1e-4)


# ---- what JAX keeps of values ---------------------------------------------------------------------------------------


def test_keys_weak_types_and_what_goes_through():
    def function(key, x, w, s, unused):
        first, second = jax.random.split(key)
        y = fft(block(x, w))
        third = lax.cond(y.sum() > 0, lambda: first, lambda: second)
        z = jax.random.bernoulli(third, 0.5, y.shape) * block(y, w)
        return {"key": third, "z": z, "s": s * 2, "where": jnp.where(s > 0, s, 1), "x": x, "three": 3}

    arguments = jax.random.key(1), X, W, 2.0, {"a": X}
    same(compiled(function, *arguments), jax.jit(function)(*arguments))


def test_x64():
    with jax.enable_x64(True):
        x, w = (jnp.asarray(a, jnp.float64) for a in (X, W))
        function = lambda x, w, n: (block(fft(block(x, w)), w) * n, lax.fori_loop(0, n, lambda i, x: block(x, w) + i, x))  # noqa: E731
        same(compiled(function, x, w, 3), jax.jit(function)(x, w, 3), 1e-12)


def test_dtypes_that_are_not_compiled_are_passed_on_by_jax():
    function = lambda x, w: block(block(x, w).astype("float8_e4m3fn").astype(jnp.float32), w)  # noqa: E731
    same(compiled(function, X, W, parts=2), jax.jit(function)(X, W), 3e-2)  # a value between two of these few bits


def test_callbacks_and_arrays_that_are_changed():
    def function(x, w):
        cell = jax.new_ref(block(x, w))
        cell[...] = block(cell[...], w) + jax.pure_callback(lambda v: np.sort(v), jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return block(cell[...], w)

    same(compiled(function, X, W), jax.jit(function)(X, W))


def test_effects_keep_their_order():
    """Though the second needs nothing that is computed."""

    def function(x, w):
        y = block(fft(block(x, w)), w)
        jax.debug.callback(see, y * 0 + 1, ordered=True)
        jax.debug.callback(see, x * 0, ordered=True)
        return y

    compiled(function, X, W, parts=2)
    jax.effects_barrier()
    assert SEEN == [36, 0]


# ---- memory, words, what is not split -------------------------------------------------------------------------------


def update(state, x):
    jax.debug.callback(see, state["w"])  # reads what the plan writes over
    loss, gradients = jax.value_and_grad(lambda s: (block(x, s["w"]) ** 2).mean())(state)
    return jax.tree.map(lambda s, g: s - 0.1 * g, state, gradients), loss


def test_donated_arguments_are_updated_where_they_lie():
    size = 64  # what XLA hands on is of any size, but its own small arrays may share a block
    state = {"w": jnp.asarray(RANDOM.normal(size=(size, size)) / size, jnp.float32)}
    x = jnp.asarray(RANDOM.normal(size=(9, size)), jnp.float32)
    wanted = jax.jit(update)(state, x)
    jax.effects_barrier()
    donated = jax.tree.map(jnp.copy, state)
    place = donated["w"].unsafe_buffer_pointer()
    got = compiled(update, donated, x, donate_argnums=0)
    jax.effects_barrier()
    same(got, wanted)
    assert donated["w"].is_deleted() and got[0]["w"].unsafe_buffer_pointer() == place
    np.testing.assert_allclose(SEEN[0], SEEN[1], rtol=1e-5)


def test_it_is_said_once_and_explained(tmp_path):
    def shows(x, w):
        jax.debug.print("{}", x.sum())
        return block(fft(block(x, w)), w)

    ours = trainc.jit(shows)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours(X, W), ours(X, W)
    (warning,) = [str(w.message) for w in caught if issubclass(w.category, messages.TraincWarning)]
    told = str(trainc.explain(ours))
    for text in (warning, told):
        assert "debug_print at" in text and "no row for stablehlo.fft" in text and text.count("test_split.py:") >= 2
        assert "trainc_run" not in text
    assert "compiled in 2 parts, around what runs in JAX" in told and "shows, part 2" in told
    trainc.report(ours, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "part 1" in page and "part 2" in page


def test_plans_of_parts_are_stored(monkeypatch, tmp_path):
    monkeypatch.setattr(config, "cache", True)
    monkeypatch.setattr(config, "cache_dir", str(tmp_path))
    for stored in (False, True):
        ours = trainc.jit(lambda x, w: block(fft(block(x, w)), w))
        ours(X, W)
        (record,) = records.of(ours)
        assert [part.report()["from_cache"] for part in record.parts] == [stored, stored]


def test_without_fallback_it_is_an_error(monkeypatch):
    monkeypatch.setattr(config, "fallback", False)
    with pytest.raises((trainc.UserError, trainc.InternalError), match="fft"):
        trainc.jit(lambda x, w: block(fft(block(x, w)), w))(X, W)


def test_what_is_small_stays_jaxs_as_a_whole():
    ours = trainc.jit(lambda x: fft(x * 2) + 1)
    ours(X)
    (record,) = records.of(ours)
    assert record.route == "eager" and not record.parts


def test_transforms_of_a_split_function_are_jaxs():
    ours = trainc.jit(lambda x, w: block(fft(block(x, w)), w))
    wanted = ours(X, W)
    same(jax.vmap(ours, (0, None))(X[None], W)[0], wanted)
    same(jax.jit(lambda x, w: ours(x, w) * 2)(X, W), wanted * 2)
    assert jax.grad(lambda w: ours(X, w).sum())(W).shape == W.shape
    assert ours.lower(X, W).compile()(X, W).shape == wanted.shape


def test_calls_that_are_opened():
    """Of the equation of each kind of call: JAX may rename what it is made of."""

    @jax.custom_vjp
    def transform(x):
        return fft(x)

    transform.defvjp(lambda x: (fft(x), x), lambda x, g: (g * x,))
    calls = (jax.jit(fft), jax.checkpoint(fft), transform, jax.nn.relu)
    for call in calls:
        (equation,) = jax.make_jaxpr(call)(X).eqns
        opened = equations.call_of(equation)
        assert opened is not None, equation.primitive
        same(opened(X), [call(X)])


def test_parts_that_jax_does_not_take_again_fall_back(monkeypatch):
    """And what the function does beside its results is not done twice."""

    def fails(equation, bodies, values):
        raise TypeError("as if a newer JAX asked for more")

    monkeypatch.setattr(equations, "with_bodies", fails)
    told = []

    def step(x, w, steps):
        jax.debug.callback(lambda: told.append(1))
        return trains(w, x, steps)

    function = trainc.jit(step)
    with pytest.warns(trainc.TraincWarning, match="step runs in JAX") as said:
        same(function(X, W, 2), jax.jit(trains)(W, X, 2))
    jax.effects_barrier()
    assert len(said) == 1 and told == [1]
