"""The two engines behind capture, with one interface.

`core` compiles (trainc._core); `interpreter` runs the graphs operation by operation in PyTorch: for tests of capture alone,
and in the place of `core` where it raises InternalError. Both give

    compile(gm, name, family=None)           -> Executable
    joint(gm, primals, forward_outputs, name, family=None, limit=None, defer_small=False, updates=None, kept=None)
                                             -> Joint: .forward, .saved_inputs, .saved_bytes;
        .footprint(): bytes {saved, temporary, results} and {again_flops}, or None where it is not known;
        .backward(defined, consumes, unmade): `consumes` allows a run to overwrite `saved`; gradients `unmade` are given as None;
        .backward_step(defined, consumes, unmade, updates) (core alone): with `updates` (updates.py) of the parameters in it;
        .deferred_outputs: those that .forward leaves out, .deferred() -> Executable([], saved) that makes them
    Executable(inputs, saved=None)           -> list of fresh tensors (or None, or an input itself: .aliases); .report() -> dict;
        .share_memory(other): the two are of one graph with two sizes of its inputs, and their results use the same memory

`kept` (interpreter alone): the primals that the backward can be given beside the arena; None: any.
`family`: what the plans of one graph for different sizes have in common. `updates`: .backward_step with these is what is expected
to be run, and the footprint is of it.
"""

from __future__ import annotations

import json
import math
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import flop_counter

from trainc import cache, library, memory, messages, tuning, wire
from trainc.device import HOST, Host, refuse_freed
from trainc.errors import InternalError, UserError
from trainc.options import CompileOptions
from trainc.pool import Results
from trainc.sizes import Symbols, Template
from trainc.state import Alike
from trainc.updates import PlanUpdates

Tensors = Sequence[torch.Tensor | None]


# ---- core -----------------------------------------------------------------------------------------------------------


def tensor_at(pointer: int, dtype: str, shape: Sequence[int], stride: Sequence[int], device: Host) -> torch.Tensor:
    """A tensor over memory that somebody else owns."""
    torch_dtype = wire.DTYPES[dtype]
    if 0 in shape:
        return device.empty(shape, stride, torch_dtype)
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    storage = torch._C._construct_storage_from_data_pointer(pointer, device.torch, span * torch_dtype.itemsize)
    return torch.empty(0, dtype=torch_dtype, device=device.torch).set_(storage, 0, shape, stride)


class CoreExecutable:
    def __init__(self, plan: Any, from_cache: bool = False, device: Host = HOST):
        self.plan, self.from_cache, self.device = plan, from_cache, device
        self._inputs = len(plan.input_info)
        self._read = {
            i: (wire.DTYPES[info[0]], tuple(info[1]), tuple(info[2]))
            for i, info in enumerate(plan.input_info)
            if info is not None
        }
        updated = set(plan.updated_inputs)
        self._updated = [(place, i) for place, i in enumerate(self._read) if i in updated]
        self._fits: Alike | None = None  # the types of the first inputs of which none was copied
        self._outputs = [
            None if info is None else info[3] if info[3] >= 0 else Results(wire.DTYPES[info[0]], info[1], info[2], device)
            for info in plan.output_info
        ]
        self.aliases = [i for i, out in enumerate(self._outputs) if type(out) is int]
        self._externs = {step: ExternCall(info, device) for step, info in plan.extern_info.items()}

    def __call__(self, inputs: Tensors, saved: torch.Tensor | None = None) -> list[torch.Tensor | None]:
        read, pointers = [inputs[i] for i in self._read], [0] * self._inputs
        updated: list[tuple[int, int]] = []
        if self._fits is None or not self._fits(read):
            read, updated = self._as_compiled(read), self._updated
        for i, tensor in zip(self._read, read, strict=True):
            if tensor is not None:
                pointers[i] = tensor.data_ptr()
        outputs = [inputs[out] if type(out) is int else out and out.new() for out in self._outputs]
        temporaries = self.device.temporaries(self.plan.temp_bytes)
        try:
            self.plan.run(
                pointers,
                [out.data_ptr() if isinstance(kind, Results) else 0 for out, kind in zip(outputs, self._outputs, strict=True)],
                0 if saved is None else saved.data_ptr(),
                self.device.generator(),
                self._extern,
                0 if temporaries is None else temporaries.data_ptr(),
                self.device.stream(),
            )
        except InternalError:
            refuse_freed(read)
            raise
        for place, i in updated:
            if read[place] is not inputs[i]:  # optimizer state of other strides, say: its copy was updated
                with torch.no_grad():
                    inputs[i].copy_(read[place])
        return outputs

    def _as_compiled(self, given: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """What the plan reads, as it was compiled for."""
        pairs = zip(given, self._read.values(), strict=True)
        read = [None if tensor is None else as_compiled(tensor, *expected, self.device) for tensor, expected in pairs]
        if self._fits is None and read and all(t is not None and t is g for t, g in zip(read, given, strict=True)):
            self._fits = Alike(read)
        return read

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


def as_compiled(
    tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], device: Host
) -> torch.Tensor:
    """`tensor` in the layout and on the device that were compiled for; a copy where it has another (an expanded tangent, a number
    on the CPU among tensors on a GPU)."""
    here = tensor.device == device.torch
    if tensor.stride() == stride and tensor.dtype == dtype and tensor.shape == shape and here and not tensor.is_neg():
        return tensor
    if tensor.dim() == 0 and not shape and tensor.dtype.is_floating_point and dtype.is_floating_point and here:
        return tensor.to(dtype)  # a number: Dynamo traces random.random() as f32 and gives it as f64
    if tensor.dtype != dtype or tensor.shape != shape:
        raise RuntimeError(f"trainc: compiled for {dtype}{list(shape)}, called with {tensor.dtype}{list(tensor.shape)}")
    return device.empty(shape, stride, dtype).copy_(tensor, non_blocking=True)


class ExternCall:
    """An operation that PyTorch runs inside a plan."""

    def __init__(self, info: dict, device: Host):
        self.info, self.device = info, device
        self._results = info["results"]
        arguments = info["arguments"]
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        self._args, self._kwargs = arguments.get("args", []), arguments.get("kwargs", {})
        self._of_library = info["target"] in library.OPERATIONS
        if self._of_library:
            self._op = library.OPERATIONS[info["target"]]
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
        owned = []
        for i, wanted in enumerate(self._results):
            if wanted is None or results[i] is None:
                owned.append((0, None))
                continue
            given = results[i].view(torch.int64) if results[i].dtype is torch.uint64 else results[i]
            result = as_compiled(given, wire.DTYPES[wanted[0]], tuple(wanted[1]), tuple(wanted[2]), self.device)
            # The plan reads through the pointer, and the inputs' memory is its own. For results that are views by their schema it
            # keeps that memory; any other that came back as a view it copies (src/runtime/places.h).
            owned.append((result.data_ptr(), (result, inputs)))
        return owned

    @torch.no_grad()
    def compute(self, inputs: list[torch.Tensor]) -> Any:
        """What the operation gives, of tensors for the plan's memory."""
        args = wire.parse_argument(self._args, inputs)
        kwargs = {key: wire.parse_argument(arg, inputs) for key, arg in self._kwargs.items()}
        with torch._C._DisableAutocast():  # dtypes are the plan's, whatever the user's autocast says
            return self._op(*args, **kwargs)

    def flops(self) -> int:
        """Floating-point operations of one call, by PyTorch's own table (torch.utils.flop_counter); 0 for what is not in it."""
        if self._of_library:
            shapes = [shape for _, shape, _ in self.info["inputs"]]
            return library.flops(self.info["target"], shapes, self._results[0][1], self._kwargs)
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


def stored_plan(
    key: str | None, graph: wire.GraphText, device: Host, compile: Callable[[], Any], about: Callable[[], dict] = dict
) -> tuple[CoreExecutable, dict, str]:
    """The plan `compile()` or the stored one, with what `about()` says of it and the hash of its bytes. A stored plan names the
    lines of the program that stored it; they become those of this one."""
    from trainc import _core

    def compiled() -> tuple[CoreExecutable, dict]:
        return CoreExecutable(compile(), device=device), about()

    def packed(made: tuple[CoreExecutable, dict]) -> tuple[dict, bytes]:
        plan = made[0].plan
        return {**made[1], "origins": graph.origins, "compile": plan.compile_record}, plan.save()

    def load(entry: dict, plan: bytes) -> tuple[CoreExecutable, dict]:
        moved = dict(zip(entry["origins"], graph.origins, strict=True))
        loaded = _core.load_plan(plan, moved, entry["compile"], device.target()["device"])
        return CoreExecutable(loaded, True, device), entry

    (executable, entry), digest = cache.through(key, load, compiled, packed)
    return executable, entry, digest


class Family:
    """What the plans of one graph for different sizes have in common: kernels that are given the numbers in which they differ.
    `samples()` gives the graph for a few other sizes, which show what these numbers are."""

    @staticmethod
    def of(symbols: Symbols | None, template: Callable[[], Template], device: Host) -> Family | None:
        """Of the graph that `template()` gives for values of `symbols`. None without any, and on a GPU: kernels are shared on the
        CPU alone."""
        if symbols is None or device.target()["device"] != "cpu":
            return None
        return Family(lambda: [template().at(bound) for bound in symbols.others()])

    def __init__(self, samples: Callable[[], list[torch.fx.GraphModule]]):
        self._samples = samples
        self._made: list[Any] | None = None
        self._learned: set[Any] = set()
        self._shared: Any = None

    def learned(self, part: Any, make: Callable[[torch.fx.GraphModule], Any], learn: Callable[[Any, Any], Any]) -> Any:
        """The shared kernels, once they know what of `part` of a plan depends on sizes: `make` a sample, then `learn` of it."""
        from trainc import _core

        if self._shared is None:
            self._shared = _core.SharedKernels()
        if part not in self._learned:
            self._learned.add(part)
            if self._made is None:
                self._made = [make(gm) for gm in self._samples()]
            for made in self._made:
                learn(made, self._shared)
        return self._shared


# Of a joint graph: primals, forward outputs, name; and the bytes from which on outputs are deferred, if not the usual ones.
Shape = tuple


class CoreJoint:
    def __init__(
        self,
        graph: wire.GraphText,
        shape: Shape,
        device: Host,
        tune: str,
        family: Family | None = None,
        limit: memory.Limit | None = None,
        updates: PlanUpdates | None = None,
    ):
        self._graph, self._shape, self.name, self.device = graph, shape, shape[2], device
        self._options = CompileOptions.of(device, tune, limit is not None)  # both halves by the same
        self._family, self._limit = family, limit
        self._joint: Any = None  # made when a part must be compiled
        self._footprint: dict[str, int] | None = None
        self._told = updates.told(self.name) if updates else []
        key = self._key("forward", *key_of(limit), *(self._told if limit else []))
        with messages.progress(self.name) as progress:
            self.forward, self._facts, self._digest = stored_plan(
                key, self._graph, device, lambda: self._compile("forward", (), progress), lambda: facts_of(self._joint)
            )
        self.saved_inputs: list[int] = self._facts["saved_inputs"]
        self.saved_bytes: int = self._facts["saved_bytes"]
        self.deferred_outputs: list[int] = self._facts["deferred_outputs"]

    def footprint(self) -> dict[str, int]:
        if self._footprint is None:
            self._footprint = self._cut().footprint(*self._told)
        return self._footprint

    def is_of(self, graph: wire.GraphText, shape: Shape, limit: memory.Limit | None, updates: PlanUpdates | None) -> bool:
        same = self._shape == shape and self._graph.canonical == graph.canonical and self._graph.origins == graph.origins
        told = updates.told(self.name) if updates else []
        return same and key_of(self._limit) == key_of(limit) and self._told == told

    def deferred(self) -> CoreExecutable:
        return self._part("deferred", "deferred outputs")

    def backward(self, defined: tuple[bool, ...], consumes: bool, unmade: list[int]) -> CoreExecutable:
        return self._part("backward", "backward", defined, consumes, unmade)

    def backward_step(self, defined: tuple[bool, ...], consumes: bool, unmade: list[int], updates: PlanUpdates) -> CoreExecutable:
        return self._part("backward_step", "backward and optimizer", defined, consumes, unmade, *updates.told(self.name))

    def _part(self, kind: str, what: str, *arguments: Any) -> CoreExecutable:
        """A plan that reads the forward's arena. Its key holds the forward plan's hash: they always agree on what lies where."""
        key = self._key(kind, self._digest, *arguments) if self._digest else None
        with messages.progress(f"{self.name}, {what}") as progress:
            return stored_plan(key, self._graph, self.device, lambda: self._compile(kind, arguments, progress))[0]

    def _key(self, kind: str, *parts: Any) -> str | None:
        return cache.key(kind_of(kind, self._family), self._options, self._graph.canonical, *self._shape, *parts)

    def _compile(self, kind: str, arguments: tuple, progress: Any) -> Any:
        def sample(gm: torch.fx.GraphModule) -> Any:
            return self._core_joint(wire.GraphText(gm.graph, self.name, self.device))

        def learn(joint: Any, shared: Any) -> None:
            getattr(joint, f"learn_{kind}")(*arguments, shared)

        shared = self._family and self._family.learned((kind, repr(arguments)), sample, learn)
        return getattr(self._cut(), kind)(*arguments, progress, shared)

    def _cut(self) -> Any:
        if self._joint is None:
            joint = self._core_joint(self._graph)
            if hasattr(self, "_facts"):
                joint.cut(self._facts["price"])
            elif self._limit is not None:
                room = self._limit.room(lambda: sum_of(joint.footprint(*self._told)))
                self._limit.check(joint.fit(room, *self._told), room)
            if hasattr(self, "_facts") and any(self._facts[fact] != value for fact, value in facts_of(joint).items()):
                raise InternalError(f"{self.name}: the stored forward keeps other values than the cut of its graph")
            self._joint = joint
        return self._joint

    def _core_joint(self, graph: wire.GraphText) -> Any:
        return joint_graph(graph, self._shape, self._options, self.device)


def facts_of(joint: Any) -> dict:
    """What Python must know of a cut, stored with its forward plan."""
    return {
        "saved_inputs": list(joint.saved_inputs), "saved_bytes": joint.saved_bytes,
        "deferred_outputs": list(joint.deferred_outputs), "price": joint.price,
    }  # fmt: skip


def joint_graph(graph: wire.GraphText, shape: Shape, options: CompileOptions, device: Host) -> Any:
    """The compiler's joint graph, whose plans are to run on `device`."""
    from trainc import _core

    primals, forward_outputs, name, *defer_from = shape
    runs_on = {"device": device.target()["device"], "tuner": tuning.tuner_of(options)}
    return _core.JointGraph(graph.text(), primals, forward_outputs, name, options.for_compiler(), *defer_from, **runs_on)


def kind_of(kind: str, family: Family | None) -> str:
    """The first part of a plan's key."""
    return kind if family is None else f"{kind}, shared kernels"


def key_of(limit: memory.Limit | None) -> list:
    """A limit as a part of a plan's key."""
    return [] if limit is None else [limit.key]


def sum_of(footprint: dict[str, int]) -> int:
    return footprint["saved"] + footprint["temporary"] + footprint["results"]


class Core:
    """One for each first call of a signature."""

    name = "core"

    def __init__(self, device: Host = HOST, tune: str = "fast"):
        self.device, self._tune = device, tune
        self._latest: weakref.ref[CoreJoint] | None = None

    def compile(self, gm: torch.fx.GraphModule, name: str, family: Family | None = None) -> CoreExecutable:
        from trainc import _core

        graph = wire.GraphText(gm.graph, name, self.device)
        options = CompileOptions.of(self.device, self._tune)
        key = cache.key(kind_of("inference", family), options, graph.canonical, name)

        def compile() -> Any:
            def learn(text: str, shared: Any) -> None:
                _core.learn(text, name, options.for_compiler(), shared)

            shared = family and family.learned("inference", lambda gm: wire.graph_json(gm.graph, name, self.device), learn)
            runs_on = {"device": self.device.target()["device"], "tuner": tuning.tuner_of(options)}
            return _core.compile(graph.text(), name, options.for_compiler(), progress, shared, **runs_on)

        with messages.progress(name) as progress:
            return stored_plan(key, graph, self.device, compile)[0]

    def joint(
        self,
        gm: torch.fx.GraphModule,
        primals: int,
        forward_outputs: int,
        name: str,
        family: Family | None = None,
        limit: memory.Limit | None = None,
        defer_small: bool = False,
        updates: PlanUpdates | None = None,
        _kept: list[int] | None = None,
    ) -> CoreJoint:
        graph = wire.GraphText(gm.graph, name, self.device)
        shape = (primals, forward_outputs, name, *([0] if defer_small else []))
        latest = self._latest and self._latest()
        # A model that sets defaults in its first call is traced twice in it: mostly the same graph (CompiledCall._settle).
        if latest is None or not latest.is_of(graph, shape, limit, updates):
            latest = CoreJoint(graph, shape, self.device, self._tune, family, limit, updates)
            self._latest = weakref.ref(latest)
        return latest


# ---- interpreter ----------------------------------------------------------------------------------------------------


class InterpretedExecutable:
    aliases: Sequence[int] = ()  # PyTorch copies where the program does

    def __init__(self, gm: torch.fx.GraphModule, name: str):
        self.gm, self.name = gm, name
        self.seconds = 0.0
        self._outputs = list(next(iter(gm.graph.find_nodes(op="output"))).args[0])

    def __call__(self, inputs: Tensors, saved: torch.Tensor | None = None) -> list[torch.Tensor | None]:
        start = time.perf_counter()
        with torch.no_grad(), torch._C._DisableAutocast():  # the graph has the casts
            results = list(torch.fx.Interpreter(self.gm).run(*inputs))
        self.seconds = time.perf_counter() - start
        return results

    def share_memory(self, other: InterpretedExecutable) -> None:
        """Its results are PyTorch's own."""

    def report(self) -> dict:
        calls = [node for node in self.gm.graph.nodes if node.op == "call_function"]
        steps = [{"name": wire.target_name(n.target), "kind": "extern", "origins": [wire.origin(n)]} for n in calls]
        return {"name": self.name, "cpu": "", "temp_bytes": 0, "saved_bytes": 0, "steps": steps, "notes": ["interpreted"]}


def as_its_own(result: torch.Tensor | None) -> torch.Tensor | None:
    """What an operation made as a view of memory that nobody else has, so that it can be written as any other result."""
    return torch.ops.aten._unsafe_view(result, result.shape) if result is not None and result._is_view() else result


class InterpretedForward(InterpretedExecutable):
    """Packs the values that the backward reads into the arena."""

    def __init__(self, gm: torch.fx.GraphModule, name: str, outputs: int, slots: list[tuple[int, int, Any] | None]):
        super().__init__(gm, name)
        self._user_outputs, self._slots = outputs, slots

    def __call__(self, inputs: Tensors, saved: torch.Tensor | None = None) -> list[torch.Tensor | None]:
        results = super().__call__(inputs)
        for result, slot in zip(results[self._user_outputs :], self._slots, strict=True):
            if slot is not None:
                view_in(saved, slot).copy_(result)
        theirs = set(map(id, inputs))
        return [result if id(result) in theirs else as_its_own(result) for result in results[: self._user_outputs]]


class InterpretedBackward(InterpretedExecutable):
    def __init__(self, gm: torch.fx.GraphModule, name: str, joint: InterpretedJoint):
        super().__init__(gm, name)
        self._joint = joint

    def __call__(self, inputs: Tensors, saved: torch.Tensor | None = None) -> list[torch.Tensor | None]:
        count = len(self._joint.saved_inputs)
        primals, tangents = iter(inputs[:count]), inputs[count:]
        values = [next(primals) if slot is None else view_in(saved, slot) for slot in self._joint.slots]
        zeros = [
            torch.zeros(meta.shape, dtype=meta.dtype, device=self._joint.device.torch) if tangent is None else tangent
            for tangent, meta in zip(tangents, self._joint.tangents, strict=True)
        ]
        results = super().__call__([*values, *zeros])
        # a gradient that is a saved value or a tangent as it is would share memory with it
        shared = {t.untyped_storage().data_ptr() for t in (*values, *inputs) if t is not None}
        return [r if r is None or r.untyped_storage().data_ptr() not in shared else r.clone() for r in results]


def view_in(arena: torch.Tensor, slot: tuple[int, int, Any]) -> torch.Tensor:
    offset, size, meta = slot
    return arena[offset : offset + size].view(meta.dtype).as_strided(meta.shape, meta.stride())


class InterpretedJoint:
    """The plainest cut: what needs no tangent is forward. What is saved lies in the arena, as it does with the compiler;
    views are made again in the backward, so that a weight is saved as itself and autograd sees when it changes."""

    def __init__(
        self, gm: torch.fx.GraphModule, primals: int, forward_outputs: int, name: str, device: Host, kept: list[int] | None
    ):
        self.name, self.device = name, device
        nodes = list(gm.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        self.tangents = [node.meta["val"] for node in inputs[primals:]]
        outputs = list(nodes[-1].args[0])
        backward = set(inputs[primals:])
        for node in nodes:
            if node.op == "call_function" and not backward.isdisjoint(node.all_input_nodes):
                backward.add(node)
        saved, again = _crossing(nodes, outputs[forward_outputs:], backward)

        places = {node: i for i, node in enumerate(inputs) if kept is None or i in kept}
        saved.sort(key=lambda node: (node not in places, places.get(node, 0)))
        self.saved_inputs = [places[node] for node in saved if node in places]
        self.slots: list[tuple[int, int, Any] | None] = [None] * len(self.saved_inputs)
        offset = 0
        for node in saved[len(self.slots) :]:
            size = _span(node.meta["val"]) * node.meta["val"].dtype.itemsize
            self.slots.append((offset, size, node.meta["val"]))
            offset += (size + 63) // 64 * 64
        self.saved_bytes = offset
        self.deferred_outputs: list[int] = []

        forward = [n for n in nodes if n.op == "call_function" and n not in backward]
        fw = _graph(inputs[:primals], forward, [*outputs[:forward_outputs], *saved])
        bw = _graph([*saved, *inputs[primals:]], [n for n in nodes if n in again or n in backward], outputs[forward_outputs:])
        self.forward = InterpretedForward(fw, name, forward_outputs, self.slots)
        self._backward = InterpretedBackward(bw, f"{name}, backward", self)

    def footprint(self) -> None:
        return None

    def backward(self, defined: tuple[bool, ...], consumes: bool, unmade: list[int]) -> InterpretedBackward:
        return self._backward


Nodes = list[torch.fx.Node]


def _crossing(nodes: Nodes, gradients: list[Any], backward: set[torch.fx.Node]) -> tuple[Nodes, set[torch.fx.Node]]:
    """(the forward values that the backward reads, the views of such values that it makes again)."""
    wanted = {n for n in gradients if isinstance(n, torch.fx.Node)}
    saved, again = [], set()
    for node in reversed(nodes):
        if node in backward:
            wanted.update(node.all_input_nodes)
        elif node in wanted and node.op != "output":
            is_tensor = isinstance(node.meta["val"], torch.Tensor)
            if is_tensor and getattr(node.target, "is_view", False) and len(node.all_input_nodes) == 1:
                again.add(node)
                wanted.update(node.all_input_nodes)
            else:
                saved.append(node)
    return saved, again


def _graph(inputs: Nodes, calls: Nodes, outputs: list[Any]) -> torch.fx.GraphModule:
    graph, copies = torch.fx.Graph(), {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
    for node in calls:
        if node not in copies and node.op == "call_function":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[out] if isinstance(out, torch.fx.Node) else out for out in outputs))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _span(tensor: torch.Tensor) -> int:
    """Elements from the first to the last, gaps included."""
    if 0 in tensor.shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


class Interpreter:
    name = "interpreter"

    def __init__(self, device: Host = HOST, tune: str = "fast"):
        self.device = device  # there is nothing to tune

    def compile(self, gm: torch.fx.GraphModule, name: str, family: Any = None) -> InterpretedExecutable:
        return InterpretedExecutable(gm, name)

    def joint(
        self,
        gm: torch.fx.GraphModule,
        primals: int,
        forward_outputs: int,
        name: str,
        _family: Any = None,
        _limit: Any = None,
        _defer_small: bool = False,
        _updates: Any = None,
        kept: list[int] | None = None,
    ) -> InterpretedJoint:
        """A limit is not met: PyTorch keeps what it keeps. Nothing is deferred."""
        return InterpretedJoint(gm, primals, forward_outputs, name, self.device, kept)


ENGINES = {"core": Core, "interpreter": Interpreter}
