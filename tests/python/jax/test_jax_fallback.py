"""What cannot be compiled runs in JAX, as a whole where there is little beside it (test_split.py: where there is more), and is
named once."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import trainc
from trainc.base import config, messages, records


def told(function, *arguments, calls=2, route="eager", **options):
    """Results and warnings of calls of a function that is not compiled."""
    ours = trainc.jit(function, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [ours(*arguments) for _ in range(calls)]
    (record,) = records.of(ours)
    assert record.route == route and record.reason
    return results, [str(w.message) for w in caught if issubclass(w.category, messages.TraincWarning)]


def test_an_effect(capfd):
    def shows(x):
        y = x + 1
        jax.debug.print("sum {}", y.sum())
        return y

    (one, two), (warning,) = told(shows, jnp.ones(3))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("sum 6.0") == 2
    np.testing.assert_array_equal(one, two)
    assert "shows runs in JAX: debug" in warning and "test_jax_fallback.py:" in warning


def test_an_operation_without_a_row():
    def transforms(x):
        return jnp.abs(jnp.fft.fft(x + 1))

    (one, _), (warning,) = told(transforms, jnp.arange(4.0))
    np.testing.assert_array_equal(one, jax.jit(transforms)(jnp.arange(4.0)))
    assert "transforms runs in JAX" in warning and "fft" in warning and "test_jax_fallback.py:" in warning


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int4"])
def test_constants_of_a_dtype_that_is_not_compiled(dtype):
    def adds(x):
        return x.astype(dtype) + jnp.array([1, 2, 3], dtype) + jnp.array(1, dtype)

    (one, _), (warning,) = told(adds, jnp.ones(3))
    np.testing.assert_array_equal(one, jax.jit(adds)(jnp.ones(3)))
    assert "adds runs in JAX" in warning and "dtype" in warning


def test_an_operation_that_is_lowered_for_named_platforms_alone():
    def solves(x):
        return lax.linalg.cholesky(x @ x.T + jnp.eye(3), symmetrize_input=False)

    (one, _), (warning,) = told(solves, jnp.arange(9.0).reshape(3, 3), route="split")
    np.testing.assert_allclose(one, jax.jit(solves)(jnp.arange(9.0).reshape(3, 3)), rtol=1e-5)
    assert "what runs in JAX" in warning and "cholesky" in warning


def test_where_it_is_to_run_is_said():
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    _, (warning,) = told(lambda x: x + 1, jnp.ones(2), out_shardings=device)
    assert "out_shardings" in warning


def test_without_fallback_it_is_an_error(monkeypatch):
    monkeypatch.setattr(config, "fallback", False)
    with pytest.raises((trainc.UserError, trainc.InternalError), match="fft"):
        trainc.jit(lambda x: jnp.fft.fft(x))(jnp.ones(4))


def test_another_signature_of_it_is_compiled():
    def f(x, shows):
        if shows:
            jax.debug.print("{}", x)
        return x + 1

    ours = trainc.jit(f, static_argnums=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours(jnp.ones(2), True)
        ours(jnp.ones(2), False)
    assert [record.route for record in records.of(ours)] == ["eager", "compiled"]
    assert "runs in JAX: debug" in str(trainc.explain(ours))
