"""`trainc.function` beside `tf.function(jit_compile=True)`: programs that people write, and those that break assumptions."""

import copy
import gc
import warnings
import weakref

import numpy as np
import pytest

import trainc
from trainc.base import records

tf = pytest.importorskip("tensorflow", reason="make test-tensorflow")
from beside_xla import beside_xla  # noqa: E402

RANDOM = np.random.default_rng(0)


def normal(*shape, dtype="float32"):
    return tf.constant(RANDOM.normal(size=shape).astype(np.float32), dtype)


X, Y = normal(6, 4), normal(6, 1)
W = RANDOM.normal(size=(4, 8)).astype("float32")


def mlp():
    layers = [tf.Variable(W), tf.Variable(tf.zeros(8)), tf.Variable(W.T[:, :1])]

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.nn.relu(x @ layers[0] + layers[1]) @ layers[2] - y) ** 2)
        gradients = tape.gradient(loss, layers)
        for v, g in zip(layers, gradients, strict=True):
            v.assign_sub(0.05 * g)
        return {"loss": loss, "gradients": gradients, "none": None}

    return step, layers


def test_a_loop_of_ones_own():
    step = beside_xla(mlp, (X, Y), (X, Y), (X[:5], Y[:5]), (X.numpy(), Y.numpy()))
    assert len(records.of(step)) == 2
    assert "dimension 0 of `x` changed from 6 to 5" in records.of(step)[1].recompiled
    assert "0 calls" in str(trainc.explain(step))


def test_what_is_captured_is_taken_in_its_order():
    """A tensor between two variables, all of one shape, and one of another shape behind them."""

    def make():
        first, second, row = tf.Variable(2.0), tf.Variable(3.0), tf.Variable([1.0, 2.0])
        between, behind = tf.constant(np.array(0.5, "float32")), tf.constant(np.array([7.0, 5.0, 1.0], "float32"))

        def step(x):
            y = (x * first + between) * second
            row.assign_add(row * tf.reduce_sum(y))
            return y, tf.reduce_sum(behind) * row

        return step, [first, second, row]

    beside_xla(make, (X,), (X,))


def test_variables_are_updated_where_they_lie():
    step, variables = mlp()
    step = trainc.function(step)
    step(X, Y)

    def places():
        return [v.read_value()._numpy().__array_interface__["data"][0] for v in variables]

    before, held = places(), variables[0].read_value()
    kept = held.numpy()
    step(X, Y)
    assert places()[1:] == before[1:]
    np.testing.assert_array_equal(held.numpy(), kept)  # a reader keeps what it read
    assert (variables[0].numpy() != kept).any()


def with_variables(*values):
    """A maker of functions whose variables are made of these."""

    def decorate(function):
        def make():
            variables = [tf.Variable(v) for v in values]
            return (lambda *a, **k: function(variables, *a, **k)), variables

        return make

    return decorate


@with_variables(tf.ones(3), 5)
def assigned_twice(v, x):
    v[0].assign(v[0] * 2.0)
    read = v[0] + 1.0
    v[0].assign_add(read * x)
    v[1].assign_add(2)
    v[1].assign(v[1] * v[1])
    return read, v[0], v[1].read_value(), tf.shape(x), tf.constant(7)


@with_variables(tf.random.stateless_normal((10, 4), (0, 1)))
def embedding(v, i):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(v[0], i) ** 3)
    slices = tape.gradient(loss, v[0])
    v[0].assign_sub(0.1 * tf.convert_to_tensor(slices))
    v[0].scatter_sub(tf.IndexedSlices(0.1 * slices.values, slices.indices))
    return loss, slices


@with_variables(0.0)
def control_flow(v, x, n):
    for i in tf.range(n):
        if tf.reduce_sum(x) > 3.0:
            x = x * 0.5
        else:
            x = x + tf.cast(i, tf.float32)
    return x, tf.cond(x[0, 0] > 0, lambda: tf.sin(x), lambda: tf.cos(x)), tf.map_fn(lambda r: r * 2.0, x)


@with_variables(tf.zeros(3), 0)
def loops_by_data(v, x, n):
    """Trips that tensors decide, each of which updates variables."""
    while tf.reduce_sum(x) < 100.0:
        x = x * 2.0
        v[1].assign_add(1)
    for i in tf.range(n):
        v[0].assign_add(x[0] * tf.cast(i, tf.float32))
    return x, v[1].read_value()


@with_variables(tf.random.stateless_normal((3, 3, 2, 4), (0, 1)), tf.ones(4), tf.zeros(4))
def convolution(v, x):
    with tf.GradientTape() as tape:
        y = tf.nn.conv2d(x, v[0], 1, "SAME")
        y, mean, variance = tf.compat.v1.nn.fused_batch_norm(y, v[1], v[2])[:3]
        y = tf.nn.avg_pool2d(tf.nn.max_pool2d(tf.nn.relu(y), 2, 2, "VALID"), 2, 2, "SAME")
        loss = tf.reduce_sum(y**2)
    for p, g in zip(v, tape.gradient(loss, v), strict=True):
        p.assign_sub(0.01 * g)
    return loss, mean, variance


@with_variables(tf.constant([1, 2, 3], tf.uint64))
def seeded(v, x):
    generator = tf.random.Generator.from_state(tf.cast(v[0].read_value(), tf.int64), "philox")
    mask = tf.random.stateless_uniform(x.shape, (1, 2)) < 0.5
    return tf.where(mask, x, 0.0), tf.random.stateless_normal((3,), (3, 4)), generator.uniform_full_int((5,), tf.uint32)


def generator():
    drawn = tf.random.Generator.from_seed(3)

    def step(x):
        return x * drawn.normal(x.shape), drawn.uniform((4,), 0, 10, tf.int32)

    return step, [drawn.state]


@with_variables(tf.zeros(4))
def accumulated(v, x):
    v[0].assign_add(tf.reduce_sum(x, 0))
    return tf.debugging.assert_all_finite(x, "not finite"), tf.sort(x, 1), tf.math.top_k(x, 2), tf.cumsum(x, 1)


@with_variables(tf.zeros(()))
def nested(v, x):
    @tf.function
    def inner(y):
        v[0].assign_add(1.0)
        return tf.math.erf(y) * v[0]

    return inner(inner(x))


PROGRAMS = {
    "assigned twice": (assigned_twice, (tf.ones(3),)), "embedding": (embedding, (tf.constant([1, 7, 1]),)),
    "control flow": (control_flow, (X, 3)),
    "loops by data": (loops_by_data, (tf.ones((2, 3)), tf.constant(4))),
    "convolution": (convolution, (normal(2, 8, 8, 2),)),
    "accumulated": (accumulated, (X,)), "nested": (nested, (X,)), "generator": (generator, (X,)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    make, batch = PROGRAMS[name]
    beside_xla(make, batch, batch)


DTYPES = ("float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "uint32", "bool", "complex64")


def test_dtypes_sizes_and_numbers_at_the_edge():
    """Many variables of all dtypes in one step; empty ones; NaN and infinities."""

    def make():
        variables = {d: tf.Variable(tf.cast([0, 1, 1, 0, 1], d)) for d in DTYPES}
        variables["empty"] = tf.Variable(tf.zeros((0, 3)))
        edge = tf.Variable([np.nan, np.inf, -np.inf, -0.0, 3.0], dtype=tf.float32)

        def step(values, empty):
            for dtype, x in values.items():
                v = variables[dtype]
                v.assign(tf.math.logical_xor(v, x) if dtype == "bool" else v + x * x)
            variables["empty"].assign_add(empty)
            edge.assign(edge * 2.0)
            return {d: v.read_value() for d, v in variables.items()}, tf.reduce_sum(empty), edge.read_value()

        return step, [*variables.values(), edge]

    values = {d: tf.cast([1, 0, 1, 1, 0], d) for d in DTYPES}
    step = trainc.function(make()[0])
    got = step(values, tf.zeros((0, 3)))
    assert [c.route for c in records.of(step)] == ["compiled"]
    wanted = tf.function(make()[0])(values, tf.zeros((0, 3)))
    for g, w in zip(tf.nest.flatten(got), tf.nest.flatten(wanted), strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_array_equal(g.numpy(), w.numpy())
        if g.dtype == tf.float32:
            known = ~np.isnan(w.numpy())
            np.testing.assert_array_equal(np.signbit(g.numpy())[known], np.signbit(w.numpy())[known])


@pytest.mark.filterwarnings("ignore::trainc.RecompileWarning")
def test_arguments_as_tensorflow_has_them():
    """One variable under two names, Python's numbers, keywords, a signature with sizes that are open, a method, an object."""

    def make():
        v, w = tf.Variable(1.0), tf.Variable(10.0)

        def step(a, b, scale, *, more=None):
            a.assign_add(scale)
            b.assign(b * 2.0)
            return a + b + (more["x"] if more else 0.0)

        return step, [v, w]

    step, (v, w) = make()
    step = trainc.function(step)
    assert float(step(v, w, 1.0)) == 22 and (float(v), float(w)) == (2, 20)
    assert float(step(v, v, 1.0)) == 12 and float(v) == 6  # (2 + 1) * 2, once as each
    assert float(step(w, b=v, scale=2, more={"x": tf.constant(0.5)})) == 34.5 and (float(v), float(w)) == (12, 22)
    assert [c.route for c in records.of(step)] == ["compiled"] * 3
    assert "static argument `scale` changed" in records.of(step)[2].recompiled

    spec = [tf.TensorSpec((None, 2), tf.float32)]
    one = trainc.function(lambda x: tf.reduce_sum(x), input_signature=spec)
    assert [float(one(np.ones((n, 2)))) for n in (1, 3, 1)] == [2, 6, 2]
    assert [c.route for c in records.of(one)] == ["compiled"] * 2
    with pytest.raises(TypeError):
        one(tf.ones((2, 3)))

    class Model(tf.Module):
        def __init__(self):
            self.v = tf.Variable(0.0)

        @trainc.function(input_signature=[tf.TensorSpec((), tf.float32)])
        def step(self, x):
            self.v.assign_add(x)
            return self.v

    first, second = Model(), Model()
    assert [float(m.step(3)) for m in (first, second, first)] == [3, 3, 6]
    assert [c.route for c in records.of(first.step)] == ["compiled"]
    gone = weakref.ref(second)
    del second
    gc.collect()
    assert gone() is None


def test_draws_without_a_seed_of_their_own():
    def step(x):
        kept = tf.nn.dropout(x, 0.25)
        whole = tf.random.uniform((500,), -3, 4, tf.int64)
        return kept, tf.random.normal(x.shape, 2.0, 3.0), tf.random.uniform(x.shape, 1.0, 5.0), whole

    def runs():
        tf.random.set_seed(5)
        compiled = trainc.function(step)
        return [[r.numpy() for r in compiled(tf.ones((100, 50)))] for _ in range(2)]

    with pytest.warns(trainc.TraincWarning, match="step draws random numbers without a seed of their own") as said:
        first, second = runs()
    assert len(said) == 1
    for a, b in zip(first, second, strict=True):
        assert (a != b).any()
    for a, b in zip(runs()[1], second, strict=True):
        np.testing.assert_array_equal(a, b)
    kept, drawn, uniform, whole = first
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.75)} and abs((kept == 0).mean() - 0.25) < 0.03
    assert abs(drawn.mean() - 2) < 0.2 and abs(drawn.std() - 3) < 0.15 and np.isfinite(drawn).all()
    assert 1 <= uniform.min() < 1.01 and 4.99 < uniform.max() < 5 and set(whole) == set(range(-3, 4))


def test_xlas_own_draws_follow_no_seed():
    """Why ours are not XLA's: those of a function depend on what the process compiled and ran before it."""

    def first_drawn():
        tf.random.set_seed(5)
        return tf.function(lambda: tf.random.uniform((8,)), jit_compile=True)().numpy()

    assert (first_drawn() != first_drawn()).any()


def told(function, *batch):
    """What a function gives whose fallback is told, and that."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", trainc.TraincWarning)
        results = [function(*batch), function(*batch)]
    said = [str(w.message) for w in caught if issubclass(w.category, trainc.TraincWarning)]
    assert len(said) == 1, said
    return results[-1], said[0]


def test_what_is_not_compiled_runs_in_tensorflow():
    seen = []
    counted = tf.Variable(0.0)

    def calls_python(x):
        counted.assign_add(1.0)
        return tf.py_function(lambda z: (seen.append(1), z)[1], [x], tf.float32)

    result, said = told(trainc.function(calls_python), X)
    np.testing.assert_array_equal(result, X)
    assert len(seen) == 2 and float(counted) == 2 and "no EagerPyFunc" in said

    grows = tf.Variable(tf.zeros(2), shape=tf.TensorShape([None]))
    added = trainc.function(lambda x: grows + x)
    result, said = told(added, 1.0)
    assert result.shape == (2,) and "shape may change" in said
    grows.assign(tf.zeros(5))
    np.testing.assert_array_equal(added(1.0), tf.ones(5))

    def prints(x):
        tf.print(x, output_stream=lambda _: seen.append(2)) if False else tf.print("", end="")
        return tf.strings.as_string(x)

    result, said = told(trainc.function(prints), tf.constant(3))
    assert result.numpy() == b"3"

    model = {}

    def makes_variables(x):
        if "v" not in model:
            model["v"] = tf.Variable(2.0)
        return model["v"] * x

    step = trainc.function(makes_variables)
    assert float(step(tf.constant(3.0))) == 6 and float(step(tf.constant(4.0))) == 8


def test_errors_are_the_users():
    counted = tf.Variable(0.0)

    @trainc.function
    def raises(x):
        counted.assign_add(1.0)
        raise KeyError("of the user")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError, match="of the user"):
            raises(X)
    assert float(counted) == 0
    for bad in ({"tune": "most"}, {"memory": "1GB"}):
        with pytest.raises(ValueError):
            trainc.function(lambda x: x, **bad)


def test_around_and_within_tensorflows_own():
    v = tf.Variable(3.0)
    step = trainc.function(lambda x: x * v)
    with pytest.warns(trainc.TraincWarning, match="GradientTape"), tf.GradientTape() as tape:
        y = step(tf.constant(2.0))
    assert float(tape.gradient(y, v)) == 2
    assert float(tf.function(lambda x: step(x) + 1.0)(tf.constant(2.0))) == 7
    with pytest.warns(trainc.TraincWarning, match="strategy"), tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        assert float(step(tf.constant(2.0))) == 6
    tf.config.run_functions_eagerly(True)
    try:
        assert float(step(tf.constant(2.0))) == 6
    finally:
        tf.config.run_functions_eagerly(False)
    assert not records.of(step)


def test_nothing_is_kept_of_what_is_gone():
    class Model(tf.Module):
        def __init__(self):
            self.v = tf.Variable(tf.zeros(4))

    model = Model()
    step = trainc.function(lambda x: model.v.assign_add(x))
    step(tf.ones(4))
    gone = tf.Variable(tf.zeros(3))
    other = trainc.function(lambda v: v.assign_add(tf.ones(3)))
    other(gone)
    del gone
    gc.collect()
    fresh = tf.Variable(tf.ones(3))
    np.testing.assert_array_equal(other(fresh), [2, 2, 2])


def test_it_is_copied_as_a_function_is():
    step = trainc.function(lambda x: x * 2)
    for of in (copy.copy, copy.deepcopy):
        np.testing.assert_array_equal(of({"apply": step})["apply"](tf.ones(3)), 2 * np.ones(3))
