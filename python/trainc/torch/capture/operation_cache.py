"""Operations that a trace meets again: what they give is known, so they need not go through all of PyTorch's layers once more.

An operation on its way into a traced graph is functionalized, recorded, and run on fake tensors to see what it gives: 0.4 ms, of
which a model of N equal blocks pays N times over. Here the first of each kind goes that way and is watched. The next ones of that
kind, the same operation on tensors of the same types with the same numbers, get their node and the fake tensors that they give at
once. The model's Python runs in full for every block: nothing is taken for equal that is not seen to be.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import traceback as fx_traceback

from trainc.base import config
from trainc.base.garbage import uncollected
from trainc.base.patches import patched
from trainc.torch import compat
from trainc.torch.capture.dtypes import check_in_place
from trainc.torch.capture.layouts import DENSE, check_dense, check_results
from trainc.torch.compat import (
    FakeTensor,
    FakeTensorMode,
    FunctionalTensor,
    ProxyTensor,
    return_and_correct_aliasing,
    set_original_aten_op,
    use_lazy_graph_module,
)

Tensor = torch.Tensor
_FAKE, _PROXY = compat.DispatchModeKey.FAKE, compat.DispatchModeKey.PROXY
_KEY = compat.DispatchKey.Functionalize


@contextlib.contextmanager
def quick(cache: OperationCache | None = None) -> Iterator[None]:
    """For the time of a trace: operations that repeat take the short way (not with trainc.config.trace_in_full), the garbage
    collector rests, and no Python code is written for graphs that nobody runs as Python. `cache`: of an earlier trace, whose
    operations are known in this one, too."""
    watching = contextlib.nullcontext() if config.trace_in_full else recognised(cache or OperationCache())
    with uncollected(), use_lazy_graph_module(True), watching:
        yield


@contextlib.contextmanager
def recognised(cache: OperationCache) -> Iterator[None]:
    def functional(mode: Any, *args: Any, **kwargs: Any) -> Any:
        return cache.functional(mode, *args, **kwargs)

    def proxy(mode: Any, *args: Any, **kwargs: Any) -> Any:
        return cache.proxy(mode, *args, **kwargs)

    with (
        cache.in_use(),
        patched(*compat.FUNCTIONAL_DISPATCH, functional),
        patched(*compat.PROXY_DISPATCH, proxy),
    ):
        yield


# ---- kinds of operations ---------------------------------------------------------------------------------------------

FRESH, VIEW, OTHER = "fresh", "view", "other"


@functools.cache
def _kind(func: Any) -> str:
    """FRESH: gives new tensors and writes none, by its schema. VIEW: gives one view of its first argument."""
    if not isinstance(func, compat.OpOverload) or func.namespace != "aten" or func in FunctionalTensor.metadata_fns:
        return OTHER
    schema, tags = compat.schema_of(func), torch.Tag
    if {tags.data_dependent_output, tags.dynamic_output_shape, tags.inplace_view} & set(func.tags) or schema.is_mutable:
        return OTHER
    if func in (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default):  # numbers that Python writes as tensors
        return OTHER
    aliased = [argument.alias_info is not None for argument in schema.arguments]
    given = [result.alias_info is not None for result in schema.returns]
    if not any(aliased) and not any(given):
        return FRESH
    of_first = aliased[0] and not any(aliased[1:]) and str(schema.arguments[0].type) == "Tensor"
    one = given == [True] and str(schema.returns[0].type) == "Tensor"
    return VIEW if of_first and one and func.is_view and not compat.has_decomposition(func) else OTHER


# ---- what tells one call from another ----------------------------------------------------------------------------------


class _Unknown(Exception):
    """This call goes through PyTorch's layers: it has arguments of a kind that is not looked at here."""


_PLAIN = frozenset({int, bool, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})


def _described(value: Any, tensor: Callable[[Any], tuple]) -> Any:
    """`value`, an argument, to be compared by type and value; `tensor` describes a tensor. A symbolic size is not known."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind is tuple or kind is list or kind is torch.Size:
        return kind, tuple([_described(item, tensor) for item in value])
    if issubclass(kind, Tensor):
        return tensor(value)
    raise _Unknown


def _type_of(fake: Any) -> tuple:
    """All that an operation's result may depend on. (With a symbolic size in it it has no hash: TypeError.)"""
    if type(fake) is not FakeTensor:
        raise _Unknown
    keys = compat.dispatch_keys(fake).raw_repr()  # conjugated, negated, sparse, quantized, in inference mode
    return (
        fake.dtype, fake.shape, fake.stride(), fake.storage_offset(), fake.fake_device, keys, fake.requires_grad,
        fake.constant is None,
    )  # fmt: skip


def _key(func: Any, layer: str, args: tuple, kwargs: dict, type_of: Callable[[Any], tuple]) -> tuple:
    return (
        func, layer, _described(args, type_of), tuple([(name, _described(value, type_of)) for name, value in kwargs.items()]),
        torch.get_default_dtype(), compat.default_device(), torch.is_inference_mode_enabled(),
    )  # fmt: skip


def _mapped(value: Any, of: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return of(value)
    if type(value) is tuple or type(value) is list:
        return type(value)([_mapped(item, of) for item in value])
    return value


# ---- what is known of a call -------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Result:
    """What a call gives: the types of its tensors (None: no tensor), in a list or a tuple where there may be `many`; of a
    recorded call, what is noted on the nodes of these tensors."""

    many: type | None
    types: list[tuple | None]
    notes: list[Any]


@dataclasses.dataclass
class _Recorded:
    """A call on its way into the graph of `tracer`: its arguments as nodes there, and the last node before it."""

    tracer: Any
    func: Any
    args: tuple
    kwargs: dict
    last: torch.fx.Node

    @staticmethod
    def of(tracer: Any, func: Any, args: tuple, kwargs: dict, node: Callable[[Tensor], torch.fx.Node]) -> _Recorded:
        kwargs = {name: _mapped(value, node) for name, value in kwargs.items()}
        return _Recorded(tracer, func, _mapped(args, node), kwargs, compat.last_node(tracer.graph))

    def notes(self, many: bool, results: int) -> list[Any] | None:
        """What the call's nodes say, where they are the ones that `record` makes."""
        node, nodes = self.last.next, []
        while node.op != "root":
            nodes.append(node)
            node = node.next
        call, *items = nodes or [None]
        if call is None or call.op != "call_function" or call.target is not self.func:
            return None
        if (call.args, call.kwargs) != (self.args, self.kwargs):
            return None
        if [(item.target, item.args) for item in items] != [(operator.getitem, (call, i)) for i in range(results) if many]:
            return None
        return [node.meta.get("tensor_meta") for node in (items if many else [call])]

    def record(self, known: _Result, fakes: list[Any]) -> None:
        with set_original_aten_op(self.func):
            name = compat.name_of_target(self.tracer.graph, self.func.overloadpacket.__name__)
            node = self.tracer.create_node("call_function", self.func, self.args, self.kwargs, name)
            proxy = self.tracer.proxy(node)
            if known.many:
                node.meta["val"] = known.many(fakes)
            for i, fake in enumerate(fakes):
                own = proxy[i] if known.many else proxy
                if fake is not None:
                    own.node.meta["val"], own.node.meta["tensor_meta"] = fake, known.notes[i]
                    self.tracer.tensor_tracker[fake] = ProxyTensor(own, None)


_NEVER = object()  # a call that is not one fresh result, or not one node


class OperationCache:
    """What a trace has met: the results of calls by their keys, which say all that a result depends on. So a second trace may
    take it over: a first call traces its model twice where forward sets what later calls find."""

    def __init__(self) -> None:
        self._results: dict[tuple, Any] = {}
        self.known = self.seen = 0  # calls that were known, and that were watched

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """For the time of a trace, which has dispatchers of its own: others may stand in their places already (disguise.py), and
        hold what the trace is given."""
        self._functional = compat.FUNCTIONAL_DISPATCH.original()
        self._proxy = compat.PROXY_DISPATCH.original()
        try:
            yield
        finally:
            self._functional = self._proxy = None

    # -- the first layer, functionalization: with fresh results a known call needs none of them ------------------------

    def functional(self, mode: Any, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """In the place of FunctionalTensorMode.__torch_dispatch__."""
        kind, kwargs = OTHER if mode.export or mode.pre_dispatch else _kind(func), kwargs or {}
        if func in DENSE:
            check_dense(func, args, kwargs)
        if kind is OTHER:
            if isinstance(func, compat.OpOverload) and compat.schema_of(func).is_mutable:
                check_in_place(func, args, kwargs)
                check_results(func, args, kwargs)
            return self._functional(mode, func, types, args, kwargs)
        recording, fake_mode = compat.dispatch_mode(_PROXY), compat.dispatch_mode(_FAKE)
        tracer = recording and recording.tracer
        if kind is VIEW:
            return self._view(mode, func, types, args, kwargs, tracer)
        fakes: dict[int, FakeTensor] = {}
        nodes: dict[int, torch.fx.Node] = {}

        def type_of(tensor: Any) -> tuple:
            fakes[id(tensor)], nodes[id(tensor)] = fake, _ = _current(tensor, tracer)
            return _type_of(fake)

        try:
            key = _key(func, "recorded" if tracer else "functional", args, kwargs, type_of)
            known = self._results.get(key)
        except (_Unknown, TypeError):
            return self._functional(mode, func, types, args, kwargs)
        number = fakes and all(fake.constant is not None for fake in fakes.values())  # PyTorch computes with its value
        if known is _NEVER or number or fake_mode is None:
            return self._functional(mode, func, types, args, kwargs)
        recorded = _Recorded.of(tracer, func, args, kwargs, lambda t: nodes[id(t)]) if tracer else None
        if known is not None:
            made = self._made(known, fake_mode, recorded, None)
            given = [None if f is None else _wrapped(compat.to_functional_tensor(f), f.fake_device) for f in made]
            return known.many(given) if known.many else given[0]
        out = self._functional(mode, func, types, args, kwargs)
        results = out if isinstance(out, (tuple, list)) else [out]
        inner = [compat.from_functional_tensor(r.elem) if type(r) is FunctionalTensor else r for r in results]
        self._learn(key, type(out), inner, recorded, list(fakes.values()))
        return out

    def _learn(
        self, key: tuple, kind: type, fakes: list[Any], recorded: _Recorded | None, inputs: list[FakeTensor], base: Any = None
    ) -> None:
        """Keeps what a watched call gave, where that is what `_made` makes."""
        self.seen += 1
        many = kind if kind in (tuple, list) else None
        self._results[key] = _NEVER
        if not all(type(fake) is FakeTensor and fake.layout is torch.strided or many and fake is None for fake in fakes):
            return
        types = [None if fake is None else _type_of(fake) for fake in fakes]
        storages = {compat.storage_id(fake) for fake in inputs}
        for fake, kind in zip(fakes, types, strict=True):
            if fake is not None and compat.storage_id(fake) in storages:  # dropout that drops nothing gives its input
                return
            if fake is not None and _type_of(_fake(kind, fake.fake_mode, base)) != kind:
                return
        notes = recorded.notes(many is not None, len(fakes)) if recorded else []
        if notes is not None:
            self._results[key] = _Result(many, types, notes)

    def _made(self, known: _Result, fake_mode: FakeTensorMode, recorded: _Recorded | None, base: Any) -> list[Any]:
        self.known += 1
        fakes = [None if kind is None else _fake(kind, fake_mode, base) for kind in known.types]
        if recorded is not None:
            recorded.record(known, fakes)
        return fakes

    # -- views: functionalization must know them (somebody may write in place later), the layers below need not -------------

    def _view(self, mode: Any, func: Any, types: Any, args: tuple, kwargs: dict, tracer: Any) -> Any:
        """What FunctionalTensorMode does with a view, and no more."""
        source = args[0] if args else None
        if kwargs or any(issubclass(kind, Tensor) and kind is not FunctionalTensor for kind in types):
            return self._functional(mode, func, types, args, kwargs)
        try:
            fake, _ = _current(source, tracer)
        except _Unknown:
            return self._functional(mode, func, types, args, kwargs)
        include = compat.included_dispatch_keys() | compat.DispatchKeySet(_KEY)
        exclude = compat.excluded_dispatch_keys().remove(_KEY) - compat.EXTRA_KEYS
        with compat.ForceDispatchKeyGuard(include, exclude):
            before = compat.reapply_views(True)
            try:
                out = _wrapped(compat.run_kernel(func, _KEY, source.elem, *args[1:]), fake.fake_device)
            finally:
                compat.disable_functionalization()
                compat.reapply_views(before)
        return return_and_correct_aliasing(func, args, kwargs, out)

    def proxy(self, mode: Any, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """In the place of ProxyTorchDispatchMode.__torch_dispatch__, which meets views after functionalization."""
        source = args[0] if args else None
        if func is torch.ops.prim.device.default and type(source) is FakeTensor and not source.fake_mode.in_kernel_invocation:
            return source.fake_device  # asked at every turn
        if kwargs or mode.pre_dispatch or _kind(func) is not VIEW or type(source) is not FakeTensor:
            return self._proxy(mode, func, types, args, kwargs)
        tracked = mode.tracer.tensor_tracker.get(source)
        try:
            if tracked is None or tracked.constant is not None or source.constant is not None:
                raise _Unknown
            key = _key(func, "view", args, {}, _type_of)
            known = self._results.get(key)
        except (_Unknown, TypeError):
            return self._proxy(mode, func, types, args, kwargs)
        if known is _NEVER:
            return self._proxy(mode, func, types, args, kwargs)
        recorded = _Recorded.of(mode.tracer, func, args, {}, lambda _: tracked.proxy.node)
        if known is not None:
            return self._made(known, source.fake_mode, recorded, source)[0]
        out = self._proxy(mode, func, types, args, kwargs)
        self._learn(key, type(out), [out], recorded, [], source)
        return out


def _current(tensor: Any, tracer: Any) -> tuple[FakeTensor, torch.fx.Node | None]:
    """The fake tensor that a functional one stands for, after writes in place that it has not seen, and its node."""
    if type(tensor) is not FunctionalTensor:
        raise _Unknown
    fake = compat.from_functional_tensor(tensor.elem)
    if tracer is None:
        compat.sync_functional_tensor(tensor)
        return compat.from_functional_tensor(tensor.elem), None
    node = _node(fake, tracer)
    with fx_traceback.set_current_replay_node(node):  # as FunctionalTensorMode does, for the operations that it makes again
        compat.sync_functional_tensor(tensor)
    now = compat.from_functional_tensor(tensor.elem)
    return now, node if now is fake else _node(now, tracer)


def _node(fake: Tensor, tracer: Any) -> torch.fx.Node:
    tracked = tracer.tensor_tracker.get(fake)
    if tracked is None:
        raise _Unknown
    return tracked.proxy.node


def _fake(kind: tuple, mode: FakeTensorMode, base: Tensor | None) -> FakeTensor:
    """A fake tensor of this type, with memory of its own or that of `base`."""
    dtype, shape, stride, offset, device, *_ = kind
    with compat.DisableTorchDispatch():
        if base is None:
            tensor = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        else:
            tensor = torch.empty(0, dtype=dtype, device="meta").set_(base.untyped_storage(), offset, shape, stride)
    return FakeTensor(mode, tensor, device)


def _wrapped(elem: Tensor, device: torch.device) -> FunctionalTensor:
    """`FunctionalTensor(elem, mode)`, which would ask `elem` for its device, through all layers."""
    keys = compat.EXTRA_KEYS & compat.dispatch_keys(elem)
    out = compat.make_wrapper_subclass(
        FunctionalTensor, elem.shape, elem.stride(), elem.storage_offset(), None, elem.dtype, elem.layout, device, False,
        elem.requires_grad, None, False, False, keys,
    )  # fmt: skip
    compat.throw_on_mutable_data_ptr(out)
    out.elem = elem
    return out


__all__ = ["quick"]
