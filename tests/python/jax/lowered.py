"""A JAX function as a plan and as the reference means it, without the door: what the tests of the importer's rows run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from plans import HOST

from trainc import _core
from trainc.base.options import CompileOptions
from trainc.xla import wire

NUMPY = {
    "f64": np.float64, "f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "i64": np.int64, "i32": np.int32,
    "i16": np.int16, "i8": np.int8, "u64": np.uint64, "u32": np.uint32, "u16": np.uint16, "u8": np.uint8, "bool": np.bool_,
}  # fmt: skip


def is_float(dtype) -> bool:
    return dtype.kind == "f" or dtype == ml_dtypes.bfloat16


def flat(tree: Any) -> list[np.ndarray]:
    """Leaves as numpy arrays of reals; keys as their words, complex numbers as their parts, as they are a plan's."""
    leaves = [jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in jax.tree.leaves(tree)]
    return [_reals(np.asarray(x)) for x in leaves]


def _reals(x: np.ndarray) -> np.ndarray:
    return np.stack([x.real, x.imag], -1) if x.dtype.kind == "c" else x


@dataclasses.dataclass
class Lowered:
    text: str
    inputs: list[np.ndarray]
    results: list[tuple[np.dtype, tuple[int, ...]]]

    @staticmethod
    def of(function: Callable[..., Any], *arguments: Any) -> Lowered:
        traced = jax.jit(function, keep_unused=True).trace(*arguments)
        module = traced.lower(lowering_platforms=("trainc",)).compiler_ir("stablehlo")
        inputs = flat(arguments)
        graph, constants = wire.written(module, "rows", [False] * len(inputs))
        results = json.loads(graph.canonical)["functions"]["main"]
        shapes = {v["name"]: v for v in _values(results)}
        types = [_of_reals(shapes[n]["dtype"], tuple(shapes[n]["shape"])) for n in results["returns"]]
        return Lowered(graph.text(), inputs + [_reals(x) for x in constants], types)

    def reference(self, precision: str = "truth") -> list[np.ndarray]:
        """In fp64, or rounded after each operation; floats as f64."""
        given = _core.evaluate(self.text, self.inputs, precision)
        return [x.reshape(s) if is_float(d) else x.astype(d).reshape(s) for x, (d, s) in zip(given, self.results, strict=True)]

    def compiled(self) -> list[np.ndarray]:
        plan = _core.compile(self.text, "rows", CompileOptions.of(HOST).for_compiler())
        inputs = [np.ascontiguousarray(x) for x in self.inputs]
        outputs = [np.empty(s, d) for d, s in self.results]
        for info, (dtype, shape) in zip(plan.output_info, self.results, strict=True):
            assert (NUMPY[info[0]], info[1]) == (dtype, shape)
        plan.run([x.ctypes.data for x in inputs], [x.ctypes.data for x in outputs])
        for i, info in enumerate(plan.output_info):
            if info[3] >= 0:  # an input as it is: the caller's own
                outputs[i] = inputs[info[3]].reshape(self.results[i][1])
        return outputs


def _of_reals(dtype: str, shape: tuple[int, ...]) -> tuple[np.dtype, tuple[int, ...]]:
    if dtype.startswith("complex<"):
        dtype, shape = dtype[len("complex<") : -1], (*shape, 2)
    return np.dtype(NUMPY[dtype]), shape


def _values(function: dict) -> list[dict]:
    return function["args"] + [v for node in function["body"] for v in node["results"]]


def truth(function: Callable[..., Any], *arguments: Any) -> list[np.ndarray]:
    """What XLA gives operation by operation where all floats are f64."""
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(x, _wide(x)), arguments)
        return flat(function(*wide))


def _wide(x: Any) -> Any:
    kinds = {"c": np.complex128, "f": np.float64, "V": np.float64}  # V: bf16
    return kinds.get(x.dtype.kind) if isinstance(x, np.ndarray) else None


def ulps(got: np.ndarray, wanted: np.ndarray) -> float:
    """The greatest distance, in units of the last place of `got`'s dtype; infinite where one is no number."""
    info = ml_dtypes.finfo(got.dtype)
    got, wanted = got.astype(np.float64), np.asarray(wanted, np.float64)
    overflows = np.abs(wanted) > float(info.max)
    wanted = np.where(overflows, np.sign(wanted) * np.inf, wanted)
    equal = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    with np.errstate(all="ignore"):
        unit = np.exp2(np.maximum(np.floor(np.log2(np.abs(wanted))), float(info.minexp)) - info.nmant)
        distance = np.abs(got - wanted) / unit
    distance = np.where(equal, 0, np.where(np.isfinite(distance), distance, np.inf))
    return float(distance.max(initial=0))
