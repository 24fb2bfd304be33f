"""Random numbers of TensorFlow's stateful operations (`tf.random.normal`, `tf.nn.dropout`): XLA draws them from a state of its
own, `stablehlo.rng`; a plan from a state that is one of its inputs, Philox's, and that it leaves behind for the next call.

Numbers differ from XLA's, whose state nobody can set; they have the same distribution. What a seed decides (stateless operations,
`tf.random.Generator`, Keras's layers) is no draw of these, and is XLA's to the bit."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from trainc.base.step_graph import GraphText

STATE_TYPE = "tensor<3xui64>"  # the key, and a counter of 128 bits
_STATE = {"dtype": "u64", "shape": [3]}
_FLOATS = ("f16", "bf16", "f32", "f64")
_UNSIGNED = {"i64": "u64", "u64": "u64"}  # others draw 32 bits

Json = dict[str, Any]


def with_state(graph: GraphText) -> GraphText | None:
    """The graph whose "main" takes the state as its last argument, and gives the next one as its last result; None where it draws
    nothing. (What draws within a loop or a function keeps its operation, which the compiler refuses by name.)"""
    root = json.loads(graph.canonical)
    main = root["functions"]["main"]
    if not any(_draws(node) for node in main["body"]):
        return None
    written = _Written(main)
    for node in main["body"]:
        if _draws(node):
            written.draw(node)
        else:
            written.body.append(node)
    main["args"].append({"name": written.first, **_STATE, "donated": True})
    main["body"] = written.body
    main["returns"].append(written.state)
    return GraphText(json.dumps(root), graph.origins)


def _draws(node: Json) -> bool:
    if node["op"] != "stablehlo.rng":
        return False
    dtype = node["results"][0]["dtype"]
    return dtype in _FLOATS or (node["attrs"].get("rng_distribution") == "UNIFORM" and dtype[0] in "iu" and dtype != "i1")


class _Written:
    """A body whose draws are made of the state."""

    def __init__(self, main: Json):
        self.body: list[Json] = []
        self._count = 0
        self._origin = ""
        self.first = self.state = "%state"

    def draw(self, node: Json) -> None:
        low, high = node["operands"][:2]  # or the mean and the deviation
        (result,) = node["results"]
        self._origin = node["origin"]
        dtype, shape = result["dtype"], result["shape"]
        if dtype not in _FLOATS:
            bits = _UNSIGNED.get(dtype, "u32")
            span = self._convert(self._op("subtract", [high, low], dtype, []), bits, [])
            drawn = self._op("remainder", [self._bits(bits, shape), self._spread(span, bits, shape)], bits, shape)
            self._op("add", [self._convert(drawn, dtype, shape), self._spread(low, dtype, shape)], dtype, shape, result["name"])
            return
        wide = "f64" if dtype == "f64" else "f32"
        normal = node["attrs"]["rng_distribution"] == "NORMAL"
        drawn = self._normal(wide, shape) if normal else self._unit(wide, shape, centered=False)
        low, high = (self._convert(x, wide, []) for x in (low, high))
        start, scale = (low, high) if normal else (low, self._op("subtract", [high, low], wide, []))
        scaled = self._op("multiply", [drawn, self._spread(scale, wide, shape)], wide, shape)
        self._convert(self._op("add", [scaled, self._spread(start, wide, shape)], wide, shape), dtype, shape, result["name"])

    def _unit(self, dtype: str, shape: list[int], centered: bool) -> str:
        """In [0, 1); `centered`: in the middle of each step, so that neither end is met."""
        bits, digits = ("u64", 52) if dtype == "f64" else ("u32", 23)
        size = 64 if dtype == "f64" else 32
        number = self._op("shift_right_logical", [self._bits(bits, shape), self._full(size - digits, bits, shape)], bits, shape)
        real = self._convert(number, dtype, shape)
        if centered:
            real = self._op("add", [real, self._full(0.5, dtype, shape)], dtype, shape)
        return self._op("multiply", [real, self._full(0.5**digits, dtype, shape)], dtype, shape)

    def _normal(self, dtype: str, shape: list[int]) -> str:
        """By the inverse of its distribution: sqrt(2) erf^-1(2u - 1)."""
        unit = self._unit("f64", shape, centered=True)
        both = self._op("subtract", [self._op("add", [unit, unit], "f64", shape), self._full(1, "f64", shape)], "f64", shape)
        inverse = self._op("erf_inv", [both], "f64", shape, dialect="chlo")
        return self._convert(self._op("multiply", [inverse, self._full(2**0.5, "f64", shape)], "f64", shape), dtype, shape)

    def _bits(self, dtype: str, shape: list[int]) -> str:
        state, bits = self._name(), self._name()
        results = [{"name": state, **_STATE}, {"name": bits, "dtype": dtype, "shape": shape}]
        self._node("stablehlo.rng_bit_generator", [self.state], results, {"rng_algorithm": "PHILOX"})
        self.state = state
        return bits

    def _full(self, value: float, dtype: str, shape: list[int]) -> str:
        numpy = {"f": np.dtype(f"f{int(dtype[1:]) // 8}"), "u": np.dtype(f"u{int(dtype[1:]) // 8}")}[dtype[0]]
        splat = base64.b64encode(np.array(value, numpy).tobytes()).decode()
        name = self._name()
        self._node("stablehlo.constant", [], [{"name": name, "dtype": dtype, "shape": shape}], {"value": {"splat": splat}})
        return name

    def _spread(self, number: str, dtype: str, shape: list[int]) -> str:
        return self._op("broadcast_in_dim", [number], dtype, shape, attrs={"broadcast_dimensions": []})

    def _convert(self, x: str, dtype: str, shape: list[int], name: str | None = None) -> str:
        return self._op("convert", [x], dtype, shape, name)

    def _op(
        self, op: str, operands: list[str], dtype: str, shape: list[int], name: str | None = None, attrs: Json | None = None,
        dialect: str = "stablehlo",
    ) -> str:  # fmt: skip
        name = name or self._name()
        self._node(f"{dialect}.{op}", operands, [{"name": name, "dtype": dtype, "shape": shape}], attrs or {})
        return name

    def _node(self, op: str, operands: list[str], results: list[Json], attrs: Json) -> None:
        made = {"op": op, "operands": operands, "results": results, "attrs": attrs, "regions": [], "origin": self._origin}
        self.body.append(made)

    def _name(self) -> str:
        self._count += 1
        return f"%drawn{self._count}"


__all__ = ["STATE_TYPE", "with_state"]
