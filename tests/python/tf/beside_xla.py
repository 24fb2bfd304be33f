"""A TensorFlow function through `trainc.function` and through XLA: from the same state, with the same arguments."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import trainc
from trainc.base import records

Made = tuple[Callable[..., Any], list[tf.Variable]]  # a step and its variables


def flat(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in tf.nest.flatten(tree, expand_composites=True) if x is not None]


def close(got: list[np.ndarray], wanted: list[np.ndarray], rtol: float) -> None:
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        if g.dtype.kind in "biu" or g.dtype == np.dtype(object):
            np.testing.assert_array_equal(g, w)
        else:
            wide = np.complex128 if g.dtype.kind == "c" else np.float64
            g, w = g.astype(wide), w.astype(wide)
            finite = w[np.isfinite(w)]
            np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol * np.abs(finite).max(initial=1e-30))


def beside_xla(make: Callable[[], Made], *batches: tuple, rtol: float = 2e-5, compiled: bool = True, **options: Any) -> Any:
    """Both for each batch: results and variables. What trainc made of it. `compiled`: whether a plan is to be made of it."""
    tf.random.set_seed(1)
    step, variables = make()
    tf.random.set_seed(1)
    wanted_step, wanted_variables = make()
    wanted_step = tf.function(wanted_step, **{"jit_compile": True, **options})
    with warnings.catch_warnings():
        warnings.simplefilter("error" if compiled else "ignore", trainc.TraincWarning)
        warnings.simplefilter("ignore", trainc.RecompileWarning)
        step = trainc.function(step, **options)
        for batch in batches:
            got, wanted = step(*batch), wanted_step(*batch)
            tf.nest.assert_same_structure(got, wanted, expand_composites=True)
            close(flat(got), flat(wanted), rtol)
            close([v.numpy() for v in variables], [v.numpy() for v in wanted_variables], rtol)
    assert all((c.route == "compiled") is compiled for c in records.of(step)), [c.reason for c in records.of(step)]
    return step
