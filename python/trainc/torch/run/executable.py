"""A compiled plan as Python runs it: tensors in, fresh tensors out, and the operations of it that PyTorch runs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import flop_counter

from trainc.base import timing
from trainc.base.errors import InternalError, NotCompiled, UserError
from trainc.base.step_graph import GraphText
from trainc.torch import compat
from trainc.torch.device import HOST, Host, refuse_freed
from trainc.torch.graph import wire
from trainc.torch.guards.state import TypeGuard
from trainc.torch.run import framework_calls
from trainc.torch.run.pool import Results
from trainc.torch.run.spans import spans, step_name
from trainc.torch.strided import is_apart, once, span

Tensors = Sequence[torch.Tensor | None]


def tensor_at(pointer: int, dtype: str, shape: Sequence[int], stride: Sequence[int], device: Host) -> torch.Tensor:
    """A tensor over memory that somebody else owns."""
    torch_dtype = wire.DTYPES[dtype]
    if 0 in shape:
        return device.empty(shape, stride, torch_dtype)
    storage = compat.storage_at(pointer, device.torch, span(shape, stride) * torch_dtype.itemsize)
    return torch.empty(0, dtype=torch_dtype, device=device.torch).set_(storage, 0, shape, stride)


class InParts:
    """A run that goes on where one of its outputs is asked for. It holds what it reads and has yet to give; who lets go of it
    before its end wants no more of it."""

    def __init__(self, run: Any, outputs: list[torch.Tensor | None], steps: list[int], read: Tensors, arena: Any):
        self._run, self._outputs, self._steps = run, outputs, steps
        self._arena, self._read = arena, [(t, t._version) for t in read if t is not None]
        self.steps = 0  # that have run

    def results(self, places: Sequence[int]) -> list[torch.Tensor | None]:
        """Each is given once: autograd takes over a gradient that nobody else holds."""
        if any(tensor._version != version for tensor, version in self._read):
            raise UserError("a tensor that the backward needs was changed in place while the backward ran")
        self.steps = max([self.steps, *(self._steps[i] for i in places)])
        self._run.until(self.steps)
        given = [self._outputs[i] for i in places]
        for i in places:
            self._outputs[i] = None
        return given


class CoreExecutable:
    def __init__(self, plan: Any, from_cache: bool = False, device: Host = HOST, types: Sequence[str | None] = ()):
        """`types`: of results, those that a plan has no type for (StepGraph.types)."""
        self.plan, self.from_cache, self.device = plan, from_cache, device
        self.graph: GraphText | None = None  # the captured step that it is, or is a part of: base/plans.py
        timing.add(self)
        self._inputs = len(plan.input_info)
        self._read = {
            i: (wire.DTYPES[info[0]], tuple(info[1]), tuple(info[2]))
            for i, info in enumerate(plan.input_info)
            if info is not None
        }
        updated = set(plan.updated_inputs)
        self._updated = [(place, i) for place, i in enumerate(self._read) if i in updated]
        self._fits: TypeGuard | None = None  # the types of the first inputs of which none was copied
        self._outputs = [
            None if info is None else info[3] if info[3] >= 0 else Results(*_as_program(*info[:3], kind), device)
            for info, kind in itertools.zip_longest(plan.output_info, types[: len(plan.output_info)])
        ]
        self.aliases = {i: out for i, out in enumerate(self._outputs) if type(out) is int}
        self._externs = {step: ExternCall(info, device) for step, info in plan.extern_info.items()}

    def __call__(self, inputs: Tensors, saved: torch.Tensor | None = None) -> list[torch.Tensor | None]:
        read, updated, outputs, pointers, results, arena = self._placed(inputs, saved)
        temporaries = self.device.temporaries(self.plan.temp_bytes)
        try:
            profiled = spans(self.plan.name, self._step_names) if compat.is_profiled() else contextlib.nullcontext()
            with profiled as on_step:
                self.plan.run(
                    pointers,
                    results,
                    arena,
                    self.device.generator(),
                    self._extern,
                    0 if temporaries is None else temporaries.data_ptr(),
                    self.device.stream(),
                    on_step,
                )
        except InternalError:
            refuse_freed(read)
            raise
        for place, i in updated:
            if read[place] is not inputs[i]:  # optimizer state of other strides, say: its copy was updated
                with torch.no_grad():
                    inputs[i].copy_(read[place])
        return outputs

    def in_parts(self, inputs: Tensors, saved: torch.Tensor | None = None) -> InParts | None:
        """A run that makes its outputs when they are asked for; None where this plan runs as a whole alone. (Who draws between
        two parts would change what is drawn in the second.)"""
        if self.device.type != "cpu" or self._updated or self.plan.may_draw or compat.is_profiled():
            return None
        read, _, outputs, pointers, results, arena = self._placed(inputs, saved)
        run = self.plan.start(pointers, results, arena, self._extern)
        return InParts(run, outputs, self._output_steps, read, saved)

    def _placed(self, inputs: Tensors, saved: torch.Tensor | None) -> tuple:
        """What the plan reads, as it was compiled for; which of it is updated; its outputs; pointers: inputs, results, arena."""
        read, pointers = [inputs[i] for i in self._read], [0] * self._inputs
        updated: list[tuple[int, int]] = []
        if self._fits is None or not self._fits(read):
            read, updated = self._as_compiled(read), self._updated
        for i, tensor in zip(self._read, read, strict=True):
            if tensor is not None:
                pointers[i] = tensor.data_ptr()
        outputs = [inputs[out] if type(out) is int else out and out.new() for out in self._outputs]
        results = [out.data_ptr() if isinstance(kind, Results) else 0 for out, kind in zip(outputs, self._outputs, strict=True)]
        return read, updated, outputs, pointers, results, 0 if saved is None else saved.data_ptr()

    def _as_compiled(self, given: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """What the plan reads, as it was compiled for."""
        pairs = zip(given, self._read.values(), strict=True)
        read = [None if tensor is None else as_compiled(tensor, *expected, self.device) for tensor, expected in pairs]
        if self._fits is None and read and all(t is not None and t is g for t, g in zip(read, given, strict=True)):
            self._fits = TypeGuard(read)
        return read

    @functools.cached_property
    def _output_steps(self) -> list[int]:
        return list(self.plan.output_steps)

    @functools.cached_property
    def _step_names(self) -> list[str]:
        return [step_name(step) for step in json.loads(self.plan.report())["steps"]]

    def _extern(self, step: int, pointers: list[int]) -> list[tuple[int, Any]]:
        return self._externs[step](pointers)

    def footprint(self) -> dict[str, int]:
        """Bytes of its own arena and its threads' scratch, and of what it gives."""
        from trainc import _core

        results = sum(out.bytes for out in self._outputs if isinstance(out, Results))
        return {"temporary": self.plan.temp_bytes + _core.thread_count() * self.plan.scratch_bytes, "results": results}

    def share_memory(self, other: CoreExecutable) -> None:
        for mine, theirs in zip(self._outputs, other._outputs, strict=True):
            if isinstance(mine, Results) and isinstance(theirs, Results):
                mine.pool = theirs.pool

    def report(self) -> dict:
        report = json.loads(self.plan.report())
        report["from_cache"] = self.from_cache
        for i, call in self._externs.items():
            report["steps"][i] |= {"flops": call.flops(), "bytes": call.bytes()}
        return report


class NoAddress(NotCompiled):
    """An input has no memory of its own: it stands for a tensor, or wraps others. Nothing has run yet."""


def _as_program(dtype: str, shape: Sequence[int], stride: Sequence[int], kind: str | None) -> tuple:
    """(dtype, shape, strides) of a result as the program has it, of a plan's, which may be the pairs of complex numbers."""
    if kind is None:
        return wire.DTYPES[dtype], shape, stride
    if (program := getattr(torch, kind)).is_complex:
        if stride[-1] != 1 or any(step % 2 for step in stride[:-1]):
            raise InternalError(f"pairs of {list(shape)} with strides {list(stride)} are no complex numbers")
        shape, stride = shape[:-1], [step // 2 for step in stride[:-1]]
    return program, shape, stride


def as_compiled(
    tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], device: Host
) -> torch.Tensor:
    """`tensor` in the layout and on the device that were compiled for; a copy where it has another (an expanded tangent, a number
    on the CPU among tensors on a GPU)."""
    if isinstance(tensor, compat.FakeTensor) or compat.is_traceable_wrapper_subclass(tensor):
        raise NoAddress(f"it is called with a {type(tensor).__name__}, and was compiled for ordinary tensors")
    tensor = wire.in_plan(tensor)
    here = tensor.device == device.torch
    if tensor.stride() == stride and tensor.dtype == dtype and tensor.shape == shape and here and not tensor.is_neg():
        return tensor
    if tensor.dim() == 0 and not shape and tensor.dtype.is_floating_point and dtype.is_floating_point and here:
        return tensor.to(dtype)  # a number: Dynamo traces random.random() as f32 and gives it as f64
    if tensor.dtype != dtype or tensor.shape != shape:
        raise RuntimeError(f"trainc: compiled for {dtype}{list(shape)}, called with {tensor.dtype}{list(tensor.shape)}")
    copy = device.empty(shape, stride, dtype)  # its elements may share memory: an expanded operand that autocast narrowed
    once(copy, stride).copy_(once(tensor, stride), non_blocking=True)
    if not is_apart(shape, stride) and not copy.equal(tensor) and not tensor.isnan().any():
        raise InternalError(f"elements of {list(shape)} with strides {list(stride)} share memory; they are called to differ")
    return copy


# Where a GPU's fused attention has drawn a mask, its backward reads the generator's seed and offset on the host: eager's
# forward left them there (PyTorch's Note [Seed and Offset Device]; FlashAttention's and cuDNN's lie on the GPU). A plan has
# all values where it runs.
_READ_ON_THE_HOST = ("aten._scaled_dot_product_efficient_attention_backward", "aten._efficient_attention_backward")


def _with_state_on_the_host(op: Any, args: list[Any]) -> list[Any]:
    if str(getattr(op, "overloadpacket", "")) not in _READ_ON_THE_HOST:
        return args
    given = {argument.name: arg for argument, arg in zip(compat.schema_of(op).arguments, args, strict=False)}
    if given["dropout_p"]:
        given |= {name: given[name].cpu() for name in ("philox_seed", "philox_offset")}
    return list(given.values())


class ExternCall:
    """An operation that PyTorch runs inside a plan."""

    def __init__(self, info: dict, device: Host):
        self.info, self.device = info, device
        self._results = info["results"]
        arguments = info["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        self._args, self._kwargs = arguments.get("args", []), arguments.get("kwargs", {})
        # of results that lie in another order than their axes': that order, in which the plan has them
        self._orders = {int(i): order for i, order in arguments.get("orders", {}).items()}
        self._of_framework = info["target"] in framework_calls.OPERATIONS
        if self._of_framework:
            self._op = framework_calls.OPERATIONS[info["target"]]
            return
        packet, overload = info["target"].removeprefix("aten.").rsplit(".", 1) if info["target"].startswith("aten.") else ("", "")
        self._op = getattr(getattr(torch.ops.aten, packet), overload) if packet else operation(info["target"])

    @torch.no_grad()
    def __call__(self, pointers: list[int]) -> list[tuple[int, Any]]:
        inputs = [tensor_at(p, *info, self.device) for p, info in zip(pointers, self.info["inputs"], strict=True)]
        writes = sum(tensor._version for tensor in inputs)
        results = self.compute(inputs)
        if sum(tensor._version for tensor in inputs) != writes:
            raise UserError(f"{self.info['target']} writes over an argument: its schema must say so (`Tensor(a!)`)")
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        for i, order in self._orders.items():
            results[i] = None if results[i] is None else results[i].permute(order)
        owned = []
        for i, wanted in enumerate(self._results):
            if wanted is None or results[i] is None:
                owned.append((0, None))
                continue
            result = as_compiled(results[i], wire.DTYPES[wanted[0]], tuple(wanted[1]), tuple(wanted[2]), self.device)
            # The plan reads through the pointer, and the inputs' memory is its own. For results that are views by their schema it
            # keeps that memory; any other that came back as a view it copies (src/runtime/call_buffers.h).
            owned.append((result.data_ptr(), (result, inputs)))
        return owned

    @torch.no_grad()
    def compute(self, inputs: list[torch.Tensor]) -> Any:
        """What the operation gives, of tensors for the plan's memory."""
        args = wire.parse_argument(self._args, inputs)
        kwargs = {key: wire.parse_argument(arg, inputs) for key, arg in self._kwargs.items()}
        args = _with_state_on_the_host(self._op, args)
        with compat.DisableAutocast():  # dtypes are the plan's, whatever the user's autocast says
            return self._op(*args, **kwargs)

    def flops(self) -> int:
        """Floating-point operations of one call, by PyTorch's own table (torch.utils.flop_counter); 0 for what is not in it."""
        if self._of_framework:
            shapes = [shape for _, shape, _ in self.info["inputs"]]
            return framework_calls.flops(self.info["target"], shapes, self._results[0][1], self._kwargs)
        count = flop_counter.flop_registry.get(self._op.overloadpacket)
        if count is None:
            return 0
        inputs = [torch.empty(shape, dtype=wire.DTYPES[dtype], device="meta") for dtype, shape, _ in self.info["inputs"]]
        args = wire.parse_argument(self._args, inputs)
        kwargs = {key: wire.parse_argument(arg, inputs) for key, arg in self._kwargs.items()}
        results = [r and torch.empty(r[1], dtype=wire.DTYPES[r[0]], device="meta") for r in self._results]
        return count(*args, **kwargs, out_val=results if len(results) > 1 else results[0])

    def bytes(self) -> int:
        """Bytes of the tensors that go in and come out."""
        tensors = [*self.info["inputs"], *(r for r in self._results if r is not None)]
        return sum(math.prod(shape) * wire.DTYPES[dtype].itemsize for dtype, shape, _ in tensors)


def operation(name: str) -> Any:
    namespace, packet, *overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload[0] if overload else "default")
