"""`trainc.jit` beside `jax.jit`: the same results, the same behaviour."""

import copy
import dataclasses
import functools
import gc

import jax
import jax.numpy as jnp
import jax_steps
import numpy as np
import pytest
from jax import lax

import trainc
from trainc.base import messages, records


@pytest.fixture(autouse=True)
def compiled_or_failed(strict):
    """Whatever these tests jit is compiled."""


def same_bits(got, wanted):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert jax.typeof(a) == jax.typeof(b)
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def train(step, state, steps=10, **kwargs):
    losses = []
    for i in range(steps):
        state, loss = step(*state, *jax_steps.batch(i, **kwargs))
        state = state if isinstance(state, tuple) else (state,)
        losses.append(float(loss))
    return np.array(losses), state


def error_beside_xla(step, state_of, **kwargs):
    """Our losses' distance from those of f64, over XLA's, in the mean over steps."""
    ours, _ = train(trainc.jit(step), state_of(np.float32), **kwargs)
    xla, _ = train(jax.jit(step), state_of(np.float32), **kwargs)
    with jax.enable_x64(True):
        truth, _ = train(jax.jit(step), state_of(np.float64), dtype=np.float64, **kwargs)
    assert np.isfinite(truth).all() and len(set(ours)) == len(ours)
    return np.abs(ours - truth).mean(), np.abs(xla - truth).mean()


def test_a_whole_step_trains_as_in_f64():
    ours, xla = error_beside_xla(jax_steps.sgd, lambda dtype: (jax_steps.weights(dtype=dtype),), steps=20)
    assert ours <= 1.1 * xla + 2e-8  # half a unit of the last place of such a loss is 1.2e-7


def test_adam_with_dropout_draws_xlas_masks():
    def step(state, key, x, y):
        return (*jax_steps.adam(state, key, x, y)[:1], key), jax_steps.adam(state, key, x, y)[1]

    def state_of(dtype):
        with jax.enable_x64(dtype == np.float64):
            return jax_steps.adam_state(jax_steps.weights(dtype=dtype)), jax.random.key(3)

    ours, _ = train(trainc.jit(step), state_of(np.float32))
    xla, _ = train(jax.jit(step), state_of(np.float32))
    np.testing.assert_allclose(ours, xla, rtol=2e-6)  # another mask would be another loss


@pytest.mark.parametrize("shape", [(), (1,), (7, 33), (0, 3), (3, 1000)])
def test_draws_are_xlas_to_the_bit(shape):
    def draws(key):
        one, two = jax.random.split(key)
        mask = jax.random.bernoulli(one, 0.3, shape)
        return mask, jax.random.uniform(two, shape), jax.random.bits(two, shape), jax.random.randint(one, shape, 0, 100), one

    for seed in (0, 1, 2**31 - 1):
        same_bits(trainc.jit(draws)(jax.random.key(seed)), jax.jit(draws)(jax.random.key(seed)))


def test_structures_weak_types_and_keywords():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class State:
        a: jax.Array
        b: tuple

    def f(state, rate, *, scale=2.0, nothing=None):
        return {"state": State(state.a * rate, (state.b[0] + 1, None)), "weak": rate * 2, "scale": scale + 1, "int": 3}

    state = State(jnp.arange(5.0), (jnp.int32(3), None))
    for arguments, keywords in (((state, 0.5), {}), ((state, jnp.float32(0.5)), {"scale": 3}), ((state, 2), {"scale": True})):
        same_bits(trainc.jit(f)(*arguments, **keywords), jax.jit(f)(*arguments, **keywords))


def test_static_arguments():
    def f(x, kind, *, power=2):
        return x**power if kind == "power" else x * power

    ours = trainc.jit(f, static_argnums=1, static_argnames="power")
    x = jnp.arange(4.0)
    for arguments, keywords in ((("power",), {}), (("times",), {}), (("power",), {"power": 3}), (("power",), {})):
        same_bits(ours(x, *arguments, **keywords), f(x, *arguments, **keywords))
    assert len(records.of(ours)) == 3
    with pytest.raises(ValueError, match="[Nn]on-hashable"):
        ours(x, [1])


def test_unused_arguments_and_results_that_are_arguments():
    def f(a, b, c, d):
        return b, a, b, jnp.float32(7), c + 1

    x = [jnp.arange(3.0) + i for i in range(4)]
    same_bits(trainc.jit(f)(*x), jax.jit(f)(*x))


def test_two_shapes_and_why_the_second():
    ours = trainc.jit(jax_steps.sgd)
    weights = jax_steps.weights()
    ours(weights, *jax_steps.batch())
    with pytest.warns(messages.RecompileWarning, match=r"sgd is compiled again: dimension 0 of `x` changed from 9 to 5"):
        got = ours(weights, *jax_steps.batch(size=5))
    wanted = jax.jit(jax_steps.sgd)(weights, *jax_steps.batch(size=5))
    np.testing.assert_allclose(got[1], wanted[1], rtol=1e-6)
    ours(weights, *jax_steps.batch(2))
    assert len(records.of(ours)) == 2


def test_x64_is_another_signature():
    ours = trainc.jit(lambda x: x * 2 + 1)
    assert ours(1.5).dtype == jnp.float32
    with jax.enable_x64(True):
        assert ours(1.5).dtype == jnp.float64


def test_within_other_transformations_it_is_jaxs():
    ours = trainc.jit(lambda w, x: jnp.tanh(x @ w).sum())
    w, x = jnp.ones((3, 2)) / 3, jnp.arange(12.0).reshape(4, 3)
    plain = jax.jit(lambda w, x: jnp.tanh(x @ w).sum())
    same_bits(jax.grad(ours)(w, x), jax.grad(plain)(w, x))
    same_bits(jax.vmap(ours, (None, 0))(w, x), jax.vmap(plain, (None, 0))(w, x))
    same_bits(jax.jit(lambda w, x: ours(w, x) + 1)(w, x), jax.jit(lambda w, x: plain(w, x) + 1)(w, x))
    assert jax.eval_shape(ours, w, x).shape == ()
    with jax.disable_jit():
        assert float(ours(w, x)) == float(plain(w, x))
    assert not records.of(ours)


def test_as_a_decorator_of_functions_and_methods():
    class Model:
        @functools.partial(trainc.jit, static_argnums=0)
        def forward(self, x):
            return x * self.by

        by = 3.0

    @trainc.jit(donate_argnums=())
    def twice(x):
        """Doubles."""
        return 2 * x

    assert float(Model().forward(jnp.float32(2))) == 6
    assert float(twice(jnp.float32(2))) == 4 and twice.__name__ == "twice" and twice.__doc__ == "Doubles."
    for of in (copy.copy, copy.deepcopy):  # of a train state that holds its step
        assert float(of({"apply": twice, "count": 1})["apply"](jnp.float32(2))) == 4


def test_lower_and_trace_have_the_plan():
    ours = trainc.jit(lambda x: jnp.sin(x) + 1)
    x = jnp.arange(3.0)
    compiled = ours.lower(x).compile()
    same_bits(compiled(x), ours(x))
    assert "trainc_plan" in ours.lower(x).as_text() and len(ours.trace(x).jaxpr.eqns) == 1


def test_what_a_function_closes_over():
    large, small = jnp.arange(5000.0), np.arange(3.0, dtype=np.float32)
    f = lambda x: (x + large, x[:3] * small)  # noqa: E731
    same_bits(trainc.jit(f)(large), jax.jit(f)(large))


@pytest.mark.parametrize("size", [8, 1000])  # small constants are text of the plan, large ones its inputs
def test_an_array_that_a_function_closes_over_may_change_when_jaxs_may(size):
    held = np.arange(size, dtype=np.float32)

    def f(x):
        return x * held + held.sum()

    ours, plain = trainc.jit(f), jax.jit(f)
    x, y = np.ones(size, np.float32), np.ones((2, size), np.float32)
    same_bits(ours(x), plain(x))
    held[:] = 0
    for call in (x, y, x):  # what was compiled keeps the old numbers, another signature has the new ones
        same_bits(ours(call), plain(call))


def test_the_users_own_error_is_the_users():
    def f(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trainc.jit(f)(jnp.ones(2))
    with pytest.raises(jax.errors.TracerBoolConversionError):
        trainc.jit(lambda x: x if x > 0 else -x)(1.0)
    with pytest.raises(TypeError):
        trainc.jit(lambda x: x)("no array")


def test_what_is_not_there_is_a_user_error():
    with pytest.raises(trainc.UserError, match="memory= is not there"):
        trainc.jit(lambda x: x, memory="1GB")
    with pytest.raises(trainc.UserError, match="tune='most' is not known"):
        trainc.jit(lambda x: x, tune="most")


def test_tuning_asks_about_each_contraction_and_changes_no_bit(monkeypatch):
    asked = []
    monkeypatch.setattr("trainc.base.tuning.race", lambda variants, measure: asked.append(variants) or (variants - 1, {}))
    monkeypatch.setattr(trainc.config, "cache", False)
    arguments = (jax_steps.weights(), *jax_steps.batch())
    wanted = trainc.jit(jax_steps.sgd)(*arguments)
    assert not asked
    same_bits(trainc.jit(jax_steps.sgd, tune="max")(*arguments), wanted)
    assert asked and min(asked) > 1


def test_a_report_of_a_timed_call(tmp_path):
    ours = trainc.jit(lambda w, x: jax.grad(lambda w: jnp.tanh(x @ w).sum())(w))
    with trainc.profile():
        ours(jnp.ones((64, 64)), jnp.ones((32, 64)))
    report = trainc.report(ours, tmp_path / "report.html")
    (phase,) = report.figures.phases
    assert phase.name == "step" and report.figures.timed and phase.blocks and report.figures.peaks is None
    page = report.path.read_text()
    assert "Graph after the passes" in page and "id=roofline" not in page and "calls of JAX" in page


def test_explain():
    ours = trainc.jit(jax_steps.sgd)
    arguments = (jax_steps.weights(), *jax_steps.batch())
    assert "nothing is compiled yet" in str(trainc.explain(ours))
    told = str(trainc.explain(ours, batch=arguments))
    assert "sgd: compiled for 1 signature" in told and "weights[0]['b'] float32[33]" in told
    assert "jax_steps.py:" in told
    ours(*arguments)
    assert len(records.of(ours)) == 1


@pytest.mark.parametrize("value", [0.0, np.float32(0), np.zeros(2, np.float32)])
def test_debugging_of_nan_and_infinities_names_the_operation(value):
    """JAX runs what gave one again, operation by operation, with numbers in the place of tracers."""
    ours = trainc.jit(lambda x, n: jnp.log(x) * n + 1, static_argnums=1)
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match=r"invalid value \(inf\) encountered in log"):
        ours(value, 2)
    with jax.debug_nans(True):
        np.testing.assert_array_equal(ours(value, 2), np.full_like(value, -np.inf))
        with pytest.raises(FloatingPointError, match=r"invalid value \(nan\) encountered in mul"):
            ours(value, 0)


def test_what_depends_on_the_platform_is_the_cpus():
    def f(x):
        first = lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)
        second = lax.platform_dependent(x, tpu=jnp.exp, default=jnp.cos)
        third = lax.platform_dependent(x, cuda=jnp.exp, cpu=lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.tan, x))
        return first, second, third, jax.vmap(lambda x: lax.platform_dependent(x, tpu=jnp.exp, cpu=jnp.sqrt))(x)

    x = jnp.arange(1.0, 4.0)
    for got, wanted in zip(trainc.jit(f)(x), jax.jit(f)(x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_the_collector_rests_while_a_function_is_traced():
    rested = []

    @trainc.jit
    def step(x):
        rested.append(not gc.isenabled())
        return jnp.sin(x) + 1

    assert gc.isenabled()
    step(jnp.ones(3))
    assert rested == [True] and gc.isenabled()

    @trainc.jit
    def fails(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails(jnp.ones(3))
    assert gc.isenabled()
