"""FX graph -> the JSON text that src/frontend/aten/import.h reads. Every value is static: shapes are ints."""

from __future__ import annotations

import functools
import json
import math
import operator
import os
import re
from collections.abc import Collection
from typing import Any

import torch
from torch.utils import deterministic

from trainc.base import PACKAGE
from trainc.base.errors import InternalError
from trainc.base.step_graph import GraphText
from trainc.torch import compat
from trainc.torch.device import HOST, Host
from trainc.torch.strided import can_lie, laid

DTYPE_NAMES = {
    torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
_PAIRS = (torch.complex64, torch.complex128)
STARTED = "trainc_started"  # the namespace of operations that go on beside a plan's kernels (src/compiler/lower_plan.cpp)
_DENSE = "dense"  # how the framework is given an operand that the program has made so
RECOMPUTE = "trainc_recompute"  # node.meta: inside an activation checkpoint
LATE = "trainc_late"  # node.meta, in a backward: names of the inputs that it reads as they are by then
LATE_NAME = "@late"  # what such an input is called there

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_INTERNAL = (os.path.dirname(torch.__file__) + os.sep, PACKAGE)
_TYPED = ("<stdin>", "<console>", "<python-input-", "<ipython-input-", "<doctest ")  # code that the user types, without a file


@functools.cache
def is_internal_file(path: str) -> bool:
    """A frame of PyTorch's or ours, or of generated code: never the user's line. (Of "<string>" `trust.is_trusted_code` knows
    more: it may be what dataclasses write, and a program that is a string.)"""
    return path.startswith(_INTERNAL) or path.startswith("<") and not path.startswith(_TYPED)


def short(path: str) -> str:
    """A file as it is named in messages."""
    return os.path.basename(path)


def origin(node: torch.fx.Node) -> str:
    """The user's own line, "model.py:41", or ""."""
    for path, line in reversed(_FRAME.findall(node.stack_trace or "")):
        if not is_internal_file(path):
            return f"{short(path)}:{line}"
    return ""


def give_backward_its_lines(graph: torch.fx.Graph) -> None:
    """An operation of the backward belongs to the user's line of the forward that it is the gradient of (autograd's number)."""
    lines: dict[int, str] = {}
    for node in graph.nodes:
        number = node.meta.get("seq_nr")
        if number is None:
            continue
        if node.stack_trace:
            lines.setdefault(number, node.stack_trace)
        elif number in lines:
            node.stack_trace = lines[number]


def mark_backward(joint: torch.fx.Graph, forward_outputs: int) -> None:
    """AOTAutograd marks all of a joint graph's forward when that is traced. Of what comes behind it leaves unmarked a backward
    that Dynamo has traced on its own (of an `autograd.Function`): its draws and checks are the backward's, too. And what it puts
    in the place of operations once they are traced, in both halves: those on a number that Dynamo has made an input. What results
    are made of is the forward's."""
    if not any(is_forward(node) for node in joint.nodes):
        return
    output = next(iter(joint.find_nodes(op="output")))
    outputs, told = _flat(output.args[0])[:forward_outputs], output.meta.get("desc") or ()
    news = [i for i, desc in enumerate(told) if hasattr(desc, "mutated_input")]  # a backward may write to what forward was given
    waiting = [node for i, node in enumerate(outputs) if isinstance(node, torch.fx.Node) and i not in news]
    seen: set[torch.fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += node.all_input_nodes
    for node in joint.nodes:
        if node.op == "call_function":
            node.meta.setdefault("partitioner_tag", "is_forward" if node in seen else "is_backward")


def mark_late(joint: torch.fx.Graph, learning: Collection[torch.fx.Node]) -> None:
    """What eager's backward reads as it is by then: it keeps the tensor itself, which `p.data = other` changes. Of the inputs
    those `learning`, and BatchNorm's statistics, which a forward moves without autograd's knowing of it."""
    for node in joint.nodes:
        if node.op == "call_function" and is_backward(node):
            read = [n for n in node.all_input_nodes if n in learning or (is_batch_norm(node) and n.op == "placeholder")]
            node.meta[LATE] = {n.name for n in read if not n.name.startswith("tangents")}


def target_name(target: Any) -> str:
    if target is operator.getitem:
        return "getitem"
    if isinstance(target, compat.OpOverload):
        return str(target)
    return getattr(target, "__name__", str(target))


def is_batch_norm(node: torch.fx.Node) -> bool:
    return "batch_norm" in target_name(node.target)


def is_of_batch_norm(node: torch.fx.Node) -> bool:
    """Whether a value is one of the results of a BatchNorm."""
    return node.target is operator.getitem and is_batch_norm(node.args[0])


def is_random(target: Any) -> bool:
    return isinstance(target, compat.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def is_backward(node: torch.fx.Node) -> bool:
    """Whether AOTAutograd traced it in the backward. (In a whole step nothing tells.)"""
    return node.meta.get("partitioner_tag") == "is_backward"


def is_forward(node: torch.fx.Node) -> bool:
    """Whether AOTAutograd traced it in the forward."""
    return node.meta.get("partitioner_tag") == "is_forward"


def acts_in_backward(node: torch.fx.Node) -> bool:
    """A draw that a backward of the user's makes (an `autograd.Function`), or a check of a gradient's formula: it has its turn
    when the backward runs."""
    return (is_random(node.target) or has_effect(node.target)) and is_backward(node)


@functools.cache
def _effects(target: Any) -> tuple[bool, list[tuple[int, str]]]:
    """By the operator's schema: whether it writes over an argument, and the arguments that a result may be a view of
    (`Tensor(a) self -> Tensor(a)`), by position and name."""
    if not isinstance(target, compat.OpOverload):
        return False, []
    schema = compat.schema_of(target)
    gives_views = any(result.alias_info is not None for result in schema.returns)
    viewed = [(i, arg.name) for i, arg in enumerate(schema.arguments) if arg.alias_info is not None]
    return schema.is_mutable, viewed if gives_views else []


def has_effect(target: Any) -> bool:
    """Whether it keeps its place among the draws: all that it does is something beside its results (a check that raises, an
    operation of the user's that logs), it was registered as one that does something, or other processes do it at the same
    time (run/average.py)."""
    if isinstance(target, compat.OpOverload) and (target.namespace == STARTED or compat.has_registered_effect(target)):
        return True
    return isinstance(target, compat.OpOverload) and not compat.schema_of(target).returns and not _effects(target)[0]


def aliases(node: torch.fx.Node) -> list[str]:
    """The nodes that a result of this one may be a view of."""
    arguments = [node.args[i] if i < len(node.args) else node.kwargs.get(name) for i, name in _effects(node.target)[1]]
    return [arg.name for given in arguments for arg in _flat(given) if isinstance(arg, torch.fx.Node)]


def in_plan(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as a plan has it, which has no type for some: a complex number is a pair of reals, and uint64 (the state of a
    fused attention's generator, handed on, never computed with) is int64."""
    if tensor.dtype in _PAIRS:
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.view(torch.int64) if tensor.dtype is torch.uint64 else tensor


def value(val: Any, node: str) -> Any:
    """`V` of the wire format."""
    if isinstance(val, torch.Tensor):
        val = in_plan(val)
        sizes = (*val.shape, *val.stride())
        if not all(type(size) is int for size in sizes):
            raise InternalError(f"{node} has a symbolic shape {tuple(val.shape)}")
        offset = {"offset": val.storage_offset()} if val.storage_offset() else {}
        return {"dtype": dtype_name(val.dtype), "shape": list(val.shape), "stride": list(val.stride()), **offset}
    if isinstance(val, (list, tuple)):
        return [value(item, node) for item in val]
    return None


def dtype_name(dtype: torch.dtype) -> str:
    return DTYPE_NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def _is_dense(val: Any) -> bool:
    return not isinstance(val, torch.Tensor) or val.layout is not torch.strided or val.is_contiguous()


def argument(arg: Any, to_dense: bool = False, draws: bool = False) -> Any:
    """`to_dense`: inputs lie in other ways than row-major, and the program may have made them so (`x.contiguous()`). A plan takes
    a copy for what it is a copy of, and hands the framework that, where kernels read operands by their memory. `draws`: for an
    operation that draws numbers, in the order in which its operand's elements lie in memory."""
    if isinstance(arg, torch.fx.Node):
        val = arg.meta.get("val")
        if type(val) in (int, float, bool):  # a number that an operation gave: known, as all shapes are
            return argument(val)
        if isinstance(val, torch.Tensor) and _is_foreign(val.dtype):
            return {"n": arg.name, "view": dtype_name(val.dtype)}
        if draws and isinstance(val, torch.Tensor) and not _is_dense(val) and can_lie(val.shape, val.stride()):
            return {"n": arg.name, "view": list(val.stride())}
        made_dense = to_dense and arg.op != "placeholder" and isinstance(val, torch.Tensor) and _is_dense(val)
        return {"n": arg.name, "view": _DENSE} if made_dense else {"n": arg.name}
    if arg is None or isinstance(arg, (bool, str)):
        return arg
    if isinstance(arg, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise InternalError(f"symbolic size {arg} in a static graph")
    if isinstance(arg, int):
        return arg
    if isinstance(arg, float):
        return arg if math.isfinite(arg) else {"float": "nan" if math.isnan(arg) else "inf" if arg > 0 else "-inf"}
    if isinstance(arg, complex):
        return {"complex": [argument(arg.real), argument(arg.imag)]}
    if isinstance(arg, torch.dtype):
        return {"dtype": dtype_name(arg)}
    if isinstance(arg, (list, tuple)):
        return [argument(item, to_dense, draws) for item in arg]
    return {"other": str(arg)}


def _refuse_arithmetic(node: torch.fx.Node) -> None:
    """uint64 has no arithmetic here: only what runs in the framework may take or give it."""
    from trainc import _core

    values = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
    if any(isinstance(v, torch.Tensor) and v.dtype is torch.uint64 for v in _flat(values)):
        if node.target is not operator.getitem and target_name(node.target) in _core.supported_operations():
            raise InternalError(f"{origin(node)} ({target_name(node.target)}): dtype uint64 is not compiled")


def is_the_frameworks(node: torch.fx.Node) -> bool:
    """Whether the framework runs it, whatever rows there are: it takes or gives complex numbers. (Who makes a GPU's plans without
    one puts another rule here: what a GPU fuses.)"""
    values = _flat([node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)])
    return node.target is not operator.getitem and any(isinstance(v, torch.Tensor) and v.dtype in _PAIRS for v in values)


def result_types(graph: torch.fx.Graph) -> tuple[str | None, ...]:
    """`StepGraph.types`: a plan carries uint64 as i64 and complex numbers as pairs."""
    results = _flat(next(iter(graph.find_nodes(op="output"))).args[0])
    values = [out.meta.get("val") if isinstance(out, torch.fx.Node) else None for out in results]
    types = tuple([dtype_name(val.dtype) if isinstance(val, torch.Tensor) and _is_foreign(val.dtype) else None for val in values])
    return types if any(types) else ()


def _is_foreign(dtype: torch.dtype) -> bool:
    """Whether a plan has no type for it, and carries it as another."""
    return dtype is torch.uint64 or dtype in _PAIRS


def _refuse_higher_order(node: torch.fx.Node) -> None:
    """Operations of operations: `with_effects` (a print) orders its calls by tokens, which no plan has."""
    if isinstance(node.target, compat.HigherOrderOperator):
        inner = [arg for arg in node.args if isinstance(arg, (compat.OpOverload, compat.HigherOrderOperator))]
        what = f"{target_name(inner[0])}, which has effects beside its results," if inner else node.target.name()
        raise InternalError(f"{origin(node)}: {what} is not compiled")


_UNINITIALISED = frozenset(
    {torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default, torch.ops.aten.new_empty.default,
     torch.ops.aten.empty_strided.default, torch.ops.aten.new_empty_strided.default}
)  # fmt: skip


def _filled(node: torch.fx.Node) -> float | int | None:
    """What memory that nobody has written holds where the program asks for that: NaN, or the largest number. (A plan has zeros
    there.)"""
    if node.target not in _UNINITIALISED or not torch.are_deterministic_algorithms_enabled():
        return None
    if not deterministic.fill_uninitialized_memory:
        return None
    made = node.meta["val"]
    if made.is_floating_point() or made.is_complex():
        return math.nan
    return True if made.dtype is torch.bool else torch.iinfo(made.dtype).max


def _numbers(node: torch.fx.Node) -> tuple[tuple, dict]:
    """The arguments of a call, as this PyTorch takes them."""
    if compat.CLAMP_SKIPS_NAN and node.target is torch.ops.aten.clamp.default:
        given = dict(zip(("self", "min", "max"), node.args, strict=False)) | node.kwargs
        low, high = given.get("min"), given.get("max")
        if high is None and isinstance(low, float) and math.isnan(low):
            return (given["self"], -math.inf), {}
        if low is None and isinstance(high, float) and math.isnan(high):
            return (given["self"], None, math.inf), {}
    return node.args, node.kwargs


def _renamed(arguments: Any, late: Collection[str]) -> Any:
    """`arguments` with other names for these inputs."""
    if isinstance(arguments, list):
        return [_renamed(argument, late) for argument in arguments]
    if not isinstance(arguments, dict):
        return arguments
    if arguments.get("n") in late:
        return arguments | {"n": arguments["n"] + LATE_NAME}
    return {key: _renamed(argument, late) for key, argument in arguments.items()}


def late_names(told: dict) -> set[str]:
    """The inputs that an operation of the text reads late."""
    return set(re.findall(f'"n": "([^"]*){LATE_NAME}"', json.dumps([told["args"], told["kwargs"]])))


def node_json(node: torch.fx.Node, to_dense: bool = False, joint: bool = True) -> dict:
    if node.op == "placeholder":
        said = {"begins": True} if node.meta.get("begins") else {}
        said |= {"late": True} if joint and any(node.name in user.meta.get(LATE, ()) for user in node.users) else {}
        return {"op": "placeholder", "name": node.name, "val": value(node.meta.get("val"), node.name), **said}
    if node.op == "output":
        return {"op": "output", "args": [argument(arg) for arg in _flat(node.args[0])]}
    _refuse_higher_order(node)
    _refuse_arithmetic(node)
    args, kwargs = _numbers(node)
    draws, target, late = is_random(node.target), target_name(node.target), node.meta.get(LATE, ()) if joint else ()
    if (number := _filled(node)) is not None:
        target, args, kwargs = "aten.full.default", (list(node.meta["val"].shape), number), {"dtype": node.meta["val"].dtype}
    return {
        "op": "call", "name": node.name, "target": target,
        "args": _renamed([argument(arg, to_dense, draws) for arg in args], late),
        "kwargs": _renamed({key: argument(arg, to_dense, draws) for key, arg in kwargs.items()}, late),
        "val": value(node.meta.get("val"), node.name), "origin": origin(node), "random": draws,
        "recompute": bool(node.meta.get(RECOMPUTE) or node.meta.get("recompute")),
        "aliases": aliases(node), "writes": _effects(node.target)[0],
    } | ({"late": True} if acts_in_backward(node) else {}) | ({"effect": True} if has_effect(node.target) else {}) | (
        {"framework": True} if is_the_frameworks(node) else {}
    )  # fmt: skip


def _flat(args: Any) -> list[Any]:
    # by the type, for isinstance() would ask each tensor of a trace for its `__class__`, too (capture/disguise.py)
    if not issubclass(type(args), (list, tuple)):
        return [args]
    return [leaf for arg in args for leaf in _flat(arg)]


def graph_text(graph: torch.fx.Graph, name: str, device: Host = HOST, joint: bool = True) -> GraphText:
    """A graph as text. Placeholders come first; there are no get_attr nodes (capture/constants.py). `joint`: where it has a
    backward, that runs later than its forward."""
    for node in graph.nodes:
        if node.op not in ("placeholder", "call_function", "output"):
            raise InternalError(f"{origin(node)} ({node.op} {node.target}) is not an operation")
    to_dense = not all(_is_dense(node.meta.get("val")) for node in graph.find_nodes(op="placeholder"))
    nodes = [node_json(node, to_dense, joint) for node in graph.nodes]
    _refuse_results_elsewhere(graph, device)
    for node, text in zip(graph.nodes, nodes, strict=True):
        if device.deals_masks and node.target is torch.ops.aten.native_dropout.default:
            text["philox"] = device.deal(node.args[0].meta["val"])
    numbers: dict[str, str] = {}
    for node in nodes:
        if node.get("origin"):
            node["origin"] = numbers.setdefault(node["origin"], f"@{len(numbers)}")
    told = {"name": name, "nodes": nodes} | ({"generator": "philox"} if device.deals_masks else {})
    if (default := torch.get_default_dtype()) is not torch.float32:
        told["default"] = dtype_name(default)
    return GraphText(json.dumps(told), list(numbers))


def same_graph(a: torch.fx.Graph, b: torch.fx.Graph, device: Host) -> bool:
    """Whether two graphs compute the same in the same way."""
    return graph_text(a, "", device).canonical == graph_text(b, "", device).canonical


def _refuse_results_elsewhere(graph: torch.fx.Graph, device: Host) -> None:
    """`loss.cpu()` in a forward on a GPU: a plan's results lie where it runs. (With sizes put in, `val` is on "meta".)"""
    for out in _flat(next(iter(graph.find_nodes(op="output"))).args[0]):
        value = out.meta.get("val") if isinstance(out, torch.fx.Node) else None
        if isinstance(value, torch.Tensor) and (where := out.meta.get("device", value.device)).type != device.torch.type:
            raise InternalError(f"{origin(out)}: a result is on {where}, the model on {device.torch}")


def graph_json(graph: torch.fx.Graph, name: str, device: Host = HOST) -> str:
    return graph_text(graph, name, device).text()


def _viewed(given: torch.Tensor, how: str | list[int]) -> torch.Tensor:
    if how == _DENSE:
        return given.contiguous()
    if isinstance(how, list):
        return laid(given, how)
    dtype = getattr(torch, how)
    return torch.view_as_complex(given) if dtype in _PAIRS else given.view(dtype)


def parse_argument(arg: Any, inputs: list[Any]) -> Any:
    """The Python value of an argument that came back from the compiler, {"$": i} being inputs[i]."""
    if isinstance(arg, list):
        return [parse_argument(item, inputs) for item in arg]
    if not isinstance(arg, dict):
        return arg
    if "$" in arg:
        given = inputs[arg["$"]]
        if "strided" in arg:
            return given.as_strided(*arg["strided"])
        return _viewed(given, arg["view"]) if "view" in arg else given
    if "dtype" in arg:
        return DTYPES.get(arg["dtype"]) or getattr(torch, arg["dtype"])
    if "complex" in arg:
        return complex(*parse_argument(arg["complex"], inputs))
    if "float" in arg:
        return float(arg["float"])
    text = arg["other"]
    if text.startswith("torch."):
        return getattr(torch, text.removeprefix("torch."))
    return torch.device(text)
