"""JAX's own cases of its primitives, which its wheel holds (`jax._src.internal_test_util.test_harnesses`), as tests.

The function of a case is jitted, and so is ours; its operations one by one, which are XLA's, are what it is compared with. Of
functions of float32 there is a second test, of their gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax._src.test_util as jtu
import jax.numpy as jnp
import numpy as np
from jax._src.internal_test_util import test_harnesses

jax.config.parse_flags_with_absl()


class Harnesses(jtu.JaxTestCase):
    """Has methods for each case."""

    def compare(self, function: Callable[..., Any], arguments: list[Any]) -> None:
        """By JAX's tolerance; where that is too narrow for two orders of a sum, by float64: twice XLA's error is allowed. XLA is
        the truth where a case names dtypes that do not go with float64."""
        one_by_one = function(*arguments)
        ours = jax.jit(function)(*arguments)
        try:
            self.assertAllClose(ours, one_by_one)
        except AssertionError:
            ours, one_by_one = jax.tree.leaves(ours), jax.tree.leaves(one_by_one)
            truth = self._in_f64(function, arguments) or one_by_one
            for got, wanted, exact in zip(ours, one_by_one, truth, strict=True):
                _check_beside(np.asarray(got), np.asarray(wanted), np.asarray(exact))

    def _in_f64(self, function: Callable[..., Any], arguments: list[Any]) -> list[Any]:
        """The leaves; none where it cannot be computed so."""
        with jax.enable_x64(True):
            try:
                return jax.tree.leaves(function(*jax.tree.map(_widened, arguments)))
            except (TypeError, ValueError):
                return []


def _widened(x: Any) -> Any:
    if not isinstance(x, np.ndarray | jax.Array) or not jnp.issubdtype(x.dtype, np.inexact):
        return x
    return jnp.asarray(x, np.complex128 if jnp.issubdtype(x.dtype, np.complexfloating) else np.float64)


def _check_beside(got: np.ndarray, wanted: np.ndarray, exact: np.ndarray) -> None:
    """`got` lies not much further from `exact` than `wanted` does."""
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    if not jnp.issubdtype(got.dtype, np.inexact):
        np.testing.assert_array_equal(got, wanted)
        return
    eps = float(jnp.finfo(got.dtype).eps)
    wide = np.complex128 if jnp.issubdtype(got.dtype, np.complexfloating) else np.float64
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(got[~finite], wanted[~finite])
    got, wanted, exact = (x.astype(wide)[finite] for x in (got, wanted, exact))
    largest = np.abs(exact).max(initial=0)
    allowed = 2 * np.abs(wanted - exact).max(initial=0) + 4 * eps * largest + 8 * eps * np.abs(exact)
    np.testing.assert_array_less(np.abs(got - exact), allowed + 1e-300)


def _skip(self: Harnesses, case: test_harnesses.Harness) -> None:
    if not case.filter("cpu"):
        self.skipTest("JAX itself has no such thing on a CPU")
    if case.group_name == "sort" and not case.params["is_stable"] and case.params["num_arrays"] > 1:
        self.skipTest("which of equal keys comes first is left open, and what goes along with them")


def _test_of(case: test_harnesses.Harness) -> Callable[[Harnesses], None]:
    def test(self: Harnesses) -> None:
        _skip(self, case)
        self.compare(case.dyn_fun, case.dyn_args_maker(self.rng()))

    return test


def _gradients_of(case: test_harnesses.Harness) -> Callable[[Harnesses], None]:
    def test(self: Harnesses) -> None:
        _skip(self, case)
        arguments = case.dyn_args_maker(self.rng())
        floats = [i for i, x in enumerate(arguments) if getattr(x, "dtype", None) == np.float32]

        def gradients(*arguments: Any) -> Any:
            def weighed(*given: Any) -> Any:
                every = list(arguments)
                for i, x in zip(floats, given, strict=True):
                    every[i] = x
                leaves = [x for x in jax.tree.leaves(case.dyn_fun(*every)) if jnp.issubdtype(x.dtype, np.floating)]
                # other weights for each element, or a gradient that went to the wrong place would be the same
                return sum((x * jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)).sum() for x in leaves)

            return jax.grad(weighed, tuple(range(len(floats))))(*(arguments[i] for i in floats))

        try:
            gradients(*arguments)
        except (TypeError, ValueError, NotImplementedError) as reason:
            self.skipTest(f"JAX has no gradient of it: {reason}")
        self.compare(gradients, arguments)

    return test


for _case in test_harnesses.all_harnesses:
    setattr(Harnesses, f"test_{_case.fullname}", _test_of(_case))
    if _case.dtype == np.float32:
        setattr(Harnesses, f"test_gradients_{_case.fullname}", _gradients_of(_case))
