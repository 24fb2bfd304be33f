"""MLIR attributes of StableHLO operations as plain JSON."""

from __future__ import annotations

import base64
import dataclasses
import re
from typing import Any

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir

from trainc.base.errors import InternalError

# MLIR's names of element types -> (ours, numpy's). Others keep MLIR's text: the compiler does not know them.
_DTYPES: dict[str, tuple[str, Any]] = {
    "f64": ("f64", np.float64), "f32": ("f32", np.float32), "f16": ("f16", np.float16), "bf16": ("bf16", ml_dtypes.bfloat16),
    "i64": ("i64", np.int64), "i32": ("i32", np.int32), "i16": ("i16", np.int16), "i8": ("i8", np.int8), "i1": ("bool", np.bool_),
    "ui64": ("u64", np.uint64), "ui32": ("u32", np.uint32), "ui16": ("u16", np.uint16), "ui8": ("u8", np.uint8),
}  # fmt: skip
_COMPLEX: dict[str, Any] = {"complex<f32>": np.complex64, "complex<f64>": np.complex128}  # ours have the same names
NUMPY = {ours: np.dtype(dtype) for ours, dtype in _DTYPES.values()}

# Fields of structured attributes: MLIR's text leaves out empty lists.
_FIELDS: dict[str, dict[str, Any]] = {
    "dot": dict.fromkeys(
        ("lhs_batching_dimensions", "rhs_batching_dimensions", "lhs_contracting_dimensions", "rhs_contracting_dimensions"), []
    ),
    "gather": {
        **dict.fromkeys(
            ("offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims", "start_index_map"), []
        ),
        "index_vector_dim": 0,
    },
    "scatter": {
        **dict.fromkeys(
            (
                "update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims",
                "scatter_dims_to_operand_dims",
            ),
            [],
        ),
        "index_vector_dim": 0,
    },
}  # fmt: skip
_LAYOUTS = ("result_layout", "source_layout", "operand_layouts", "result_layouts", "xla_shape")
_STRUCTURED = re.compile(r"#(?:stablehlo|chlo)\.(\w+)<(.*)>", re.DOTALL)
_ENUM = re.compile(r"#(?:stablehlo|chlo)<\w+ (\w+)>")
_FIELD = re.compile(r"(\w+) = (\[[^\]]*\]|[^,\[\]]+)")
_CONVOLUTION = re.compile(r"\[([^\]]*)\]x\[([^\]]*)\]->\[([^\]]*)\]")
_NUMBER = re.compile(r"0x[0-9A-Fa-f]+|[-+]?\d[\d.]*(?:[eE][-+]?\d+)?")


def type_of(type_: ir.Type) -> dict[str, Any]:
    """{"dtype", "shape"} of a value; of what is no tensor, MLIR's text and the shape of a scalar."""
    if not isinstance(type_, ir.RankedTensorType):
        return {"dtype": str(type_), "shape": []}
    element = str(type_.element_type)
    return {"dtype": _DTYPES.get(element, (element,))[0], "shape": list(type_.shape)}


def plain(attribute: ir.Attribute) -> Any:
    """An attribute as JSON; as MLIR's text where it is of a kind that no operation of ours has."""
    if isinstance(attribute, ir.BoolAttr | ir.IntegerAttr | ir.FloatAttr | ir.StringAttr | ir.FlatSymbolRefAttr):
        return attribute.value
    if isinstance(attribute, ir.DenseBoolArrayAttr | ir.DenseI32ArrayAttr | ir.DenseI64ArrayAttr):
        return list(attribute)
    if isinstance(attribute, ir.ArrayAttr):
        return [plain(a) for a in attribute]
    if isinstance(attribute, ir.DictAttr):
        return {a.name: plain(a.attr) for a in attribute}
    if isinstance(attribute, ir.DenseElementsAttr):
        return elements(attribute).ravel().tolist()
    if isinstance(attribute, ir.TypeAttr):
        return type_of(attribute.value)
    if isinstance(attribute, ir.UnitAttr):
        return True
    text = str(attribute)
    enum = _ENUM.fullmatch(text)
    if enum:
        return enum[1]
    structured = _STRUCTURED.fullmatch(text)
    return _structured(structured[1], structured[2]) if structured else text


def attributes_of(operation: ir.Operation) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in operation.attributes:
        if name.startswith(("mhlo.", "jax.", "sdy.")) or name in _LAYOUTS:
            continue  # how a value is spread over devices, or named: of one device; or how it lies in XLA's memory
        attribute = operation.attributes[name]
        found[name] = plain(attribute)
        if isinstance(attribute, ir.DenseElementsAttr) and attribute.type.rank > 1:
            found[f"{name}_shape"] = list(attribute.type.shape)
    return found


@dataclasses.dataclass(frozen=True)
class ComplexElements:
    """The attribute of a complex constant, which MLIR's Python does not hold: as it is written."""

    text: str  # "(1.0,2.0)" for all elements, nested lists of such, or '"0x..."', all bytes
    type: ir.Type

    @property
    def is_splat(self) -> bool:
        return self.text.startswith("(")

    def elements(self) -> np.ndarray:
        dtype, shape = np.dtype(_COMPLEX[str(self.type.element_type)]), tuple(self.type.shape)
        if self.text.startswith('"0x'):
            return np.frombuffer(bytes.fromhex(self.text[3:-1]), dtype).reshape(shape)
        part = np.empty(0, dtype).real.dtype
        numbers = np.array([_number(word, part) for word in _NUMBER.findall(self.text)], part).view(dtype)
        return np.broadcast_to(numbers.reshape(()), shape) if self.is_splat else numbers.reshape(shape)


Elements = ir.Attribute | ComplexElements


def value_of(constant: ir.Operation) -> Elements | None:
    """The elements of a stablehlo.constant; None of a dtype that is not compiled, whose attribute Python may not even hold."""
    type_ = constant.results[0].type
    element = str(type_.element_type)
    if element in _COMPLEX:
        return ComplexElements(str(constant).partition("dense<")[2].rpartition("> : ")[0], type_)
    return constant.attributes["value"] if element in _DTYPES else None


def constant(value: Elements | None) -> dict[str, str]:
    """The "value" of stablehlo.constant. Without one the compiler refuses it by its dtype."""
    if value is None:
        return {}
    if _is_splat(value) and value.type.shape:
        return {"splat": _base64(elements(value).reshape(-1)[:1])}
    return {"bytes": _base64(elements(value))}


def distinct_elements(value: Elements | None) -> int:
    """How many elements of a constant are to be told; 1 of a splat, 0 of dtypes that are not compiled."""
    if value is None:
        return 0
    return 1 if _is_splat(value) else int(np.prod(value.type.shape))


def _is_splat(value: Elements) -> bool:
    return isinstance(value, ir.DenseElementsAttr | ComplexElements) and value.is_splat


def elements(attribute: Elements) -> np.ndarray:
    """The elements of a dense attribute, in its shape."""
    if isinstance(attribute, ComplexElements):
        return attribute.elements()
    shape = tuple(attribute.type.shape)
    name = str(attribute.type.element_type)
    if name == "index" or name not in ("bf16", *_DTYPES):
        raise InternalError(f"a constant of dtype {name}")
    if name != "bf16":
        return np.array(attribute).reshape(shape)
    # MLIR's Python has no buffer of this dtype: its text is decimal numbers of more digits than it has, or all bytes.
    dtype = np.dtype(_DTYPES[name][1])
    if attribute.is_splat:
        return np.broadcast_to(_number(str(attribute.get_splat_value()).split(" :")[0], dtype), shape)
    text = str(attribute).removeprefix("dense<").rpartition("> :")[0]
    if text.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(text[3:-1]), dtype).reshape(shape)
    return np.array([_number(word, dtype) for word in _NUMBER.findall(text)], dtype).reshape(shape)


def _number(word: str, dtype: np.dtype) -> Any:
    """Of MLIR's text, where what is no finite number is written as its bits."""
    if word.startswith("0x"):
        return np.array(int(word, 16), f"u{dtype.itemsize}").view(dtype)[()]
    return dtype.type(float(word))


def _structured(kind: str, text: str) -> Any:
    if kind == "conv":
        return _convolution(text)
    found = {name: _value(value.strip()) for name, value in _FIELD.findall(text)}
    return {**_FIELDS.get(kind, {}), **found}


def _value(text: str) -> Any:
    if text.startswith("["):
        return [_value(word.strip()) for word in text[1:-1].split(",") if word.strip()]
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return {"true": True, "false": False}.get(text, text)


def _convolution(text: str) -> dict[str, Any]:
    """ "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]" with StableHLO's field names."""
    match = _CONVOLUTION.fullmatch(text.strip())
    if match is None:
        raise InternalError(f"convolution dimension numbers {text!r} are not understood")
    found: dict[str, Any] = {}
    for side, (outer, inner), labels in zip(
        ("input", "kernel", "output"),
        (("batch", "feature"), ("output_feature", "input_feature"), ("batch", "feature")),
        match.groups(),
        strict=True,
    ):
        places = {label.strip(): i for i, label in enumerate(labels.split(","))}
        letters = ("o", "i") if side == "kernel" else ("b", "f")
        found[f"{side}_{outer}_dimension"] = places.pop(letters[0])
        found[f"{side}_{inner}_dimension"] = places.pop(letters[1])
        found[f"{side}_spatial_dimensions"] = [places[str(i)] for i in range(len(places))]
    return found


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


__all__ = ["NUMPY", "Elements", "attributes_of", "constant", "distinct_elements", "elements", "type_of", "value_of"]
