"""Every row of the StableHLO front end: reference and plan against XLA, operation by operation, and against fp64."""

import complex_cases  # noqa: F401 (its cases)
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowered import Lowered, flat, is_float, truth, ulps
from row_cases import CASES

from trainc import _core


def agree(got, wanted, exact, case):
    assert len(got) == len(wanted)
    for g, w, e in zip(got, wanted, exact, strict=True):
        assert g.shape == w.shape
        if not is_float(g.dtype):
            np.testing.assert_array_equal(g, e)
        elif case.exact:
            assert ulps(g.astype(e.dtype), e) == 0
        elif case.ulp:
            assert ulps(g, w) <= case.ulp
        else:
            np.testing.assert_allclose(g.astype(np.float64), w, rtol=0, atol=case.relative * np.abs(w).max(initial=1e-30))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_row(name):
    case = CASES[name]
    with jax.enable_x64(case.wide):
        lowered = Lowered.of(case.function, *case.arguments)
        exact = flat(case.function(*jax.tree.map(jnp.asarray, case.arguments)))
    wanted = exact if case.exact else truth(case.function, *case.arguments)
    given = zip(lowered.reference("rounded"), lowered.results, strict=True)
    reference = [x.astype(d) if is_float(d) else x for x, (d, _) in given]
    agree(reference, wanted, exact, case)
    agree(lowered.compiled(), wanted, exact, case)


def _operations(text):
    import json

    def is_complex(node):
        return any(dtypes[v].startswith("complex") for v in [*node["operands"], *(r["name"] for r in node["results"])])

    def of(region):
        dtypes.update((v["name"], v["dtype"]) for v in region["args"])
        for node in region["body"]:
            dtypes.update((v["name"], v["dtype"]) for v in node["results"])
            yield ("complex " if is_complex(node) else "") + node["op"]
            for inner in node.get("regions", []):
                yield from of(inner)

    dtypes: dict[str, str] = {}
    return {op for f in json.loads(text)["functions"].values() for op in of(f)}


# What JAX lowers no function to, or not on its own: tests/cpp/frontend/stablehlo has them.
ELSEWHERE = {
    "stablehlo.composite",
    "stablehlo.custom_call",
    "stablehlo.if",
    "sdy.sharding_constraint",
    "stablehlo.logistic",
    "chlo.tan",
    # of XLA's own modules, which TensorFlow's programs come as
    "mhlo.copy",
    "mhlo.erf",
    "stablehlo.batch_norm_grad",
    "stablehlo.batch_norm_inference",
    "stablehlo.batch_norm_training",
    "stablehlo.dot",
    "stablehlo.set_dimension_size",
}
_OF_PARTS = ("stablehlo.cbrt", "stablehlo.sine", "stablehlo.cosine", "chlo.conj")  # JAX takes them apart, or has none
ELSEWHERE |= {f"complex {name}" for name in ELSEWHERE} | {f"complex {n}" for n in _OF_PARTS}


@pytest.mark.thorough
def test_every_row_has_a_case():
    met = set()
    for case in CASES.values():
        with jax.enable_x64(case.wide):
            met |= _operations(Lowered.of(case.function, *case.arguments).text)
    assert set(_core.supported_operations("stablehlo")) - met <= ELSEWHERE
