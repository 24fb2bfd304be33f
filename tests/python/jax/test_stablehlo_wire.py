"""The text that a StableHLO module becomes."""

import base64
import json
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from trainc.xla import attributes, wire


def text_of(function, *arguments, donated=()):
    traced = jax.jit(function, keep_unused=True).trace(*arguments)
    module = traced.lower(lowering_platforms=("trainc",)).compiler_ir("stablehlo")
    count = len(jax.tree.leaves(arguments))
    graph, constants = wire.written(module, "f", [i in donated for i in range(count)])
    return json.loads(graph.text()), constants, graph


def nodes(module, name):
    return [node for function in module["functions"].values() for node in function["body"] if node["op"] == name]


def test_a_module_is_its_functions():
    module, constants, _ = text_of(lambda x, y: (x + y, jax.nn.relu(x)), jnp.ones((2, 3)), jnp.ones(3), donated=[1])
    main = module["functions"]["main"]
    assert (module["front"], module["name"], constants) == ("stablehlo", "f", [])
    assert [(a["dtype"], a["shape"], a.get("donated", False)) for a in main["args"]] == [
        ("f32", [2, 3], False), ("f32", [3], True)
    ]  # fmt: skip
    (call,) = nodes(module, "func.call")
    assert module["functions"][call["attrs"]["callee"]]["returns"]
    results = [r["name"] for node in main["body"] for r in node["results"]]
    assert all(name in results for name in main["returns"])


def test_names_are_unique_in_the_module_and_regions_read_those_outside():
    def scanned(x, y):
        return lax.scan(lambda c, t: (c * y, t + c), x, jnp.ones((4, 3)))

    module, _, _ = text_of(scanned, jnp.ones(3), jnp.ones(3))
    names: list[str] = []
    known: set[str] = set()

    def walk(function):
        for value in function["args"]:
            names.append(value["name"])
        known.update(v["name"] for v in function["args"])
        for node in function["body"]:
            assert known.issuperset(node["operands"])
            for region in node["regions"]:
                walk(region)
            names.extend(v["name"] for v in node["results"])
            known.update(v["name"] for v in node["results"])
        assert known.issuperset(function["returns"])

    for function in module["functions"].values():
        walk(function)
    assert len(names) == len(set(names))
    assert nodes(module, "stablehlo.while")


def test_structured_attributes_have_every_field():
    def f(x, w, i):
        y = lax.conv_general_dilated(x, w, (2, 1), [(0, 1), (2, 3)], dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return y, x[i], lax.dot_general(x, x, (((1, 2), (1, 2)), ((0,), (0,)))), x.at[i].add(1), lax.lt(x, 2.0)

    module, _, _ = text_of(f, jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 4)), jnp.arange(2))
    (convolution,) = nodes(module, "stablehlo.convolution")
    assert convolution["attrs"]["dimension_numbers"] == {
        "input_batch_dimension": 0, "input_feature_dimension": 3, "input_spatial_dimensions": [1, 2],
        "kernel_output_feature_dimension": 3, "kernel_input_feature_dimension": 2, "kernel_spatial_dimensions": [0, 1],
        "output_batch_dimension": 0, "output_feature_dimension": 3, "output_spatial_dimensions": [1, 2],
    }  # fmt: skip
    assert (convolution["attrs"]["padding"], convolution["attrs"]["padding_shape"]) == ([0, 1, 2, 3], [2, 2])
    assert convolution["attrs"]["window_strides"] == [2, 1]
    (dot,) = nodes(module, "stablehlo.dot_general")
    assert dot["attrs"]["dot_dimension_numbers"] == {
        "lhs_batching_dimensions": [0], "rhs_batching_dimensions": [0],
        "lhs_contracting_dimensions": [1, 2], "rhs_contracting_dimensions": [1, 2],
    }  # fmt: skip
    assert dot["attrs"]["precision_config"] == ["DEFAULT", "DEFAULT"]
    (gather,) = nodes(module, "stablehlo.gather")
    assert gather["attrs"]["dimension_numbers"] == {
        "offset_dims": [1, 2, 3], "collapsed_slice_dims": [0], "operand_batching_dims": [], "start_indices_batching_dims": [],
        "start_index_map": [0], "index_vector_dim": 1,
    }  # fmt: skip
    (scatter,) = nodes(module, "stablehlo.scatter")
    assert scatter["attrs"]["scatter_dimension_numbers"]["input_batching_dims"] == []
    assert {n["attrs"]["comparison_direction"] for n in nodes(module, "stablehlo.compare")} == {"LT"}


VALUES = [0.0, -0.0, 1.5, -2.25, float("inf"), float("-inf"), float("nan"), 1e-40]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8", "uint32", "bool"])
@pytest.mark.parametrize("count", [1, 8, 500])  # 500: MLIR prints these as bytes
def test_constants_keep_their_bits(dtype, count, monkeypatch):
    values = np.resize(VALUES, count)
    if not dtype.startswith(("float", "bfloat")):
        values = np.where(np.isfinite(values), np.abs(values), 3)
    monkeypatch.setattr(wire, "WRITTEN", 1 << 30)
    with jax.enable_x64(True):
        array = jnp.asarray(values, dtype)
        module, _, _ = text_of(lambda x: (x, array), jnp.ones(2))
    import base64

    main = module["functions"]["main"]
    (node,) = [n for n in main["body"] if n["results"][0]["name"] == main["returns"][1]]
    value = node["attrs"]["value"]
    given = np.frombuffer(base64.b64decode(value.get("bytes") or value["splat"]), np.asarray(array).dtype)
    assert np.broadcast_to(given, array.shape).tobytes() == np.asarray(array).tobytes()


def test_a_splat_is_one_element():
    module, _, _ = text_of(lambda x: x + jnp.full((1000, 1000), 2, jnp.bfloat16).astype(x.dtype), jnp.ones((1000, 1000)))
    assert all(len(str(node["attrs"])) < 100 for node in nodes(module, "stablehlo.constant"))


def test_large_constants_become_inputs_also_of_functions_that_are_called():
    large = jnp.arange(3000.0)

    @jax.jit
    def inner(x):
        return x * large

    def f(x):
        return inner(x) + inner(x + large), lax.fori_loop(0, 3, lambda i, c: c + large, x)

    module, constants, _ = text_of(f, jnp.ones(3000))
    (constant,) = constants
    np.testing.assert_array_equal(constant, large)
    assert [a["shape"] for a in module["functions"]["main"]["args"]] == [[3000], [3000]]
    calls = [n for n in nodes(module, "func.call") if n["attrs"]["callee"].startswith("inner")]
    lifted = module["functions"]["main"]["args"][1]["name"]
    assert calls and all(call["operands"][-1] == lifted for call in calls)
    assert all(len(module["functions"][call["attrs"]["callee"]]["args"]) == 2 for call in calls)


def test_the_same_program_on_other_lines_has_the_same_canonical_text():
    source = textwrap.dedent("""
        import jax.numpy as jnp
        def f(x):
            y = jnp.sin(x)
            return y * 2
    """)
    graphs = []
    for before in ("", "\n\n\n"):
        space: dict = {}
        exec(compile(before + source, "/home/train.py", "exec"), space)
        graphs.append(text_of(space["f"], jnp.ones(3))[2])
    assert graphs[0].canonical == graphs[1].canonical
    assert graphs[0].origins != graphs[1].origins
    assert any(line.startswith("train.py:4 (") and line.endswith("sin)") for line in graphs[0].origins)


def test_what_has_no_dtype_of_ours_keeps_its_text():
    module, _, _ = text_of(lambda x: x.astype("int4"), jnp.ones(2))
    assert module["functions"]["main"]["body"][-1]["results"][0]["dtype"] == "i4"


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_constants_are_read_to_the_bit(dtype):
    """MLIR's Python has no attribute for them: they are read off its text."""
    numbers = np.array([1 + 2j, complex(np.nan, -np.inf), complex(-0.0, 1e-40), complex(0.1, -1e30)], dtype)
    with jax.enable_x64(True):
        values = {
            "few": numbers,
            "one": numbers[2:3].reshape(()),
            "same": np.full((3, 2), numbers[3]),
            "none": numbers[:0],
            "many": np.tile(numbers, 16),
        }
        for name, value in values.items():
            module, constants, _ = text_of(lambda: lax.optimization_barrier(jnp.asarray(value)))  # noqa: B023
            assert constants == []
            (constant,) = nodes(module, "stablehlo.constant")
            ((kind, text),) = constant["attrs"]["value"].items()
            told = np.frombuffer(base64.b64decode(text), dtype)
            assert kind == ("splat" if name == "same" else "bytes"), name
            bits = np.broadcast_to(told, value.size).copy().view(np.uint8)
            np.testing.assert_array_equal(bits, value.ravel().view(np.uint8), name)
        large = np.tile(numbers, 50).reshape(2, 100)
        _, (lifted,), _ = text_of(lambda: jnp.asarray(large))
        assert lifted.dtype == dtype and lifted.tobytes() == large.tobytes()


def test_a_dtype_is_numpy_s():
    assert attributes.NUMPY["bf16"].itemsize == 2 and attributes.NUMPY["bool"] == np.bool_
