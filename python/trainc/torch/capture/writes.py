"""Writes in place, which a trace makes operations that give another tensor (functionalization), as eager does them.

A tensor lies after a write where it lay before, and dropout draws in that order; the operation that stands for the write lays its
result by its own rule (`scores.transpose(1, 2).masked_fill_(mask, 0)`). And a write to a view is undone to one to what it is a
view of, view by view, which is wrong of two: through `expand`, PyTorch adds what was changed (1e8 + (5 - 1e8) is not 5, and of
infinity NaN), once for each of the elements that share a place; through `unfold`, what lies between the windows becomes 0. Here
such a write goes to its places in the memory (`as_strided`). What would be written twice in one place is left to eager.

Of lists of tensors (`torch._foreach_mul_`), eager does one element after the other, and a later one may read what an earlier has
written: the same tensor twice, parts of one. A trace does them all of what was there before; such a call is made of as many. Nor
does a trace give a view the history that eager gives it where such a call writes it or what it is a view of, or where what it
is a view of is turned in place (`y.t_()`). And where a write reads what it has written (`y[:, 1:] = y[:, :-1]`), eager's numbers
are by the order of its loops: it does these itself."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from trainc.base.errors import NotCompiled
from trainc.base.patches import patched
from trainc.torch import compat
from trainc.torch.capture.layouts import said
from trainc.torch.compat import FunctionalTensor
from trainc.torch.strided import UNSAFE_VIEWS, geometry, is_apart, is_dense, is_static, share_a_place, span

_aten = torch.ops.aten
_SAME_EVERYWHERE = {_aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default}  # of what they write
_NOT_UNDONE = ("expand", "unfold", "as_strided")  # views; the last where it sees a place twice
_DRAWS = {  # of which what stands for them draws otherwise (bernoulli_ of a number is in traced_kernels.py)
    _aten.bernoulli_.Tensor, _aten.normal_.default, _aten.normal.float_float_out, _aten.normal.Tensor_float_out,
    _aten.normal.float_Tensor_out, _aten.normal.Tensor_Tensor_out,
}  # fmt: skip
# A range for each channel has no elements before the first call, which a trace believes of the results, too.
_MAKES_RANGES = ("aten._fused_moving_avg_obs_fq_helper", "aten.fused_moving_avg_obs_fake_quant")
# operation -> the place of the sizes; the strides are the next argument
_BY_STRIDES = {_aten.empty_strided.default: 0, _aten.new_empty_strided.default: 1}
Dispatch = Callable[..., Any]


@contextlib.contextmanager
def as_eager(reshaped: list[Any] | None = None) -> Iterator[Writes]:
    """For the time of a trace. `reshaped` is told of the operations that have given a tensor another shape in place."""
    writes = Writes(compat.FUNCTIONAL_DISPATCH.original(), [] if reshaped is None else reshaped)

    def functional(mode: Any, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = writes.functional(mode, func, types, args, kwargs or {})
        if torch.is_inference_mode_enabled():
            writes.made_in_inference((args, kwargs), result)
        return result

    with patched(*compat.FUNCTIONAL_DISPATCH, functional):
        yield writes


class Writes:
    def __init__(self, dispatch: Dispatch, reshaped: list[Any]):
        self._dispatch, self._reshaped = dispatch, reshaped
        # by storage: what was made to be the memory of tensors with gaps or shared places, which the program made of nothing
        self._memories: dict[int, FunctionalTensor] = {}
        # by storage: what was parted without the trace's knowing, each time into these
        self._partings: dict[int, list[list[FunctionalTensor]]] = {}
        # by storage: of such a part, what it is a part of, and all that were parted with it
        self._parted: dict[int, tuple[FunctionalTensor, list[FunctionalTensor]]] = {}
        self._stale: dict[int, FunctionalTensor] = {}  # by storage: what would have changed in eager
        self._in_place: list[Any] = []  # tensors that became views in place, and want a gradient
        self._views: defaultdict[int, list[weakref.ref]] = defaultdict(list)  # by storage
        self._inference: dict[int, FunctionalTensor] = {}  # by storage: what was made in inference mode; a view does not say so

    def functional(self, mode: Any, func: Any, types: Any, args: tuple, kwargs: dict) -> Any:
        """In the place of FunctionalTensorMode.__torch_dispatch__."""
        if not isinstance(func, compat.OpOverload):
            return self._dispatch(mode, func, types, args, kwargs)
        if func in _BY_STRIDES:
            return self._by_strides(mode, func, types, args, kwargs)
        if self._stale:
            self._refuse_stale((args, kwargs), f"{func} reads")
        if func is _aten.as_strided.default:
            args = self._of_memory(*args)
        if func in UNSAFE_VIEWS:
            return self._unsafe_views(args[0], self._dispatch(mode, func, types, args, kwargs))
        if torch.Tag.inplace_view in func.tags:
            self._reshape(func, args[0])
            return self._dispatch(mode, func, types, args, kwargs)
        if not compat.schema_of(func).is_mutable:
            result = self._dispatch(mode, func, types, args, kwargs)
            for view in compat.pytree.tree_leaves(result) if func.is_view and torch.is_grad_enabled() else ():
                if isinstance(view, FunctionalTensor):
                    self._views[compat.storage_id(view.elem)].append(weakref.ref(view))
            return result
        written, plain = _written(func, args, kwargs), []
        if len(written) > 1 and (turns := _one_by_one(func, args, kwargs)):
            if any(tensor.requires_grad for tensor in written):  # eager's gradient knows the last one alone
                raise NotCompiled(f"{func} writes memory twice that has a gradient", in_pytorch=True)
            for own_args, own_kwargs in turns:
                self.functional(mode, func, types, own_args, own_kwargs)
            return None
        if _of_lists(args) and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in written):
            raise NotCompiled(f"{func} writes what has a gradient", in_pytorch=True)
        if self._inference and not torch.is_inference_mode_enabled() and not _memories(written).isdisjoint(self._inference):
            raise NotCompiled(f"{func} writes a tensor that was made in inference mode, outside of it", in_pytorch=True)
        for tensor in written if self._partings else ():
            for other in self._written_with(compat.storage_id(tensor.elem)):
                self._stale[compat.storage_id(other.elem)] = other
        for tensor in written:
            if (other := self._plain(mode, func, tensor, (args, kwargs))) is not None:
                plain.append((tensor, other))
        if func in _DRAWS:
            _check_drawn(func, written)
        grows = _gets_other_sizes(func, args, kwargs)
        if plain:
            args, kwargs = _exchanged((args, kwargs), plain)
        shapes = [tensor.shape for tensor in written]
        result = self._dispatch(mode, func, types, args, kwargs)  # where eager refuses the call, this does
        if func not in _SAME_EVERYWHERE:
            _check_order(func, written, (args, kwargs))
        if any(shape.numel() == 0 for shape in shapes) and str(func.overloadpacket) in _MAKES_RANGES:
            raise NotCompiled(f"{func} makes its ranges in this call", in_pytorch=True)
        if grows:
            raise NotCompiled(f"{func} gives a tensor that it writes another size", in_pytorch=True)
        for tensor, shape in zip(written, shapes, strict=True):
            if tensor.shape == shape:  # `out=` an empty tensor makes it as large as the result, and lays it
                _lay_as_before(tensor)
        return _exchanged(result, [(other, tensor) for tensor, other in plain]) if plain else result

    def _reshape(self, func: Any, tensor: Any) -> None:
        self._reshaped.append(func)
        if func is _aten.resize_as_.default:  # a trace leaves a view as it is
            raise NotCompiled(f"{func}, which does nothing to a view in a trace", in_pytorch=True)
        if isinstance(tensor, FunctionalTensor) and tensor.requires_grad:  # whose history eager changes, or refuses to
            views = [view() for view in self._views.get(compat.storage_id(tensor.elem), ())]
            if any(view is not None and view is not tensor and view.requires_grad for view in views):
                raise NotCompiled(f"{func} turns a tensor in place that has views", in_pytorch=True)
            self._in_place.append(tensor)

    def made_in_inference(self, given: Any, results: Any) -> None:
        """Views of what was made elsewhere are ordinary tensors."""
        before = _memories(given)
        for tensor in compat.pytree.tree_leaves(results):
            if isinstance(tensor, FunctionalTensor) and (place := compat.storage_id(tensor.elem)) not in before:
                self._inference[place] = tensor

    def check_made(self, results: Sequence[Any]) -> None:
        """NotCompiled where a result is a tensor of inference mode, which a plan does not give."""
        if self._inference and not torch.is_inference_mode_enabled() and not _memories(results).isdisjoint(self._inference):
            raise NotCompiled("forward gives a tensor that it has made in inference mode", in_pytorch=True)

    def check_left(self, given: Sequence[Any], results: Sequence[Any], knows_parts: bool = True) -> None:
        """NotCompiled where what the program leaves behind has other values in a trace than in eager, or is a part of an argument
        that was written, whose new values a plan puts there when it is over. `knows_parts`: whether results are known to lie in
        what they were parted from (joint/outputs.py)."""
        if any(tensor is argument for tensor in self._in_place for argument in given):
            raise NotCompiled("an argument that wants a gradient becomes a view in place", in_pytorch=True)
        if not self._parted:
            return
        self._refuse_stale([*given, *results], "the program leaves")
        arguments = {compat.storage_id(tensor.elem): tensor for tensor in given if isinstance(tensor, FunctionalTensor)}
        wholes = [self._whole(tensor) for tensor in results if isinstance(tensor, FunctionalTensor)]
        for tensor in results:
            if not isinstance(tensor, FunctionalTensor) or compat.storage_id(tensor.elem) not in self._parted:
                continue
            whole = self._whole(tensor)
            argument = arguments.get(whole)
            written = argument is not None and compat.count_writes(argument) > 0
            if written or not knows_parts and (argument is not None or wholes.count(whole) > 1):
                raise NotCompiled("a result lies in other memory, of which it was parted by unsafe_split", in_pytorch=True)

    def _whole(self, tensor: FunctionalTensor) -> int:
        """The storage that it lies in, whatever a trace knows."""
        place = compat.storage_id(tensor.elem)
        while place in self._parted:
            place = compat.storage_id(self._parted[place][0].elem)
        return place

    def _refuse_stale(self, tree: Any, what: str) -> None:
        if not _memories(tree).isdisjoint(self._stale):
            raise NotCompiled(f"{what} memory that was written where it was parted by unsafe_split", in_pytorch=True)

    def _unsafe_views(self, source: FunctionalTensor, parts: list[FunctionalTensor]) -> list[FunctionalTensor]:
        """Of operations that give views, and whose schemas deny it (a recurrent cell writes its gates so): for a trace, the parts
        are tensors of their own. Where one is written, the whole is not as it is in eager, nor they where that is."""
        self._partings.setdefault(compat.storage_id(source.elem), []).append(parts)
        for part in parts:
            self._parted[compat.storage_id(part.elem)] = source, parts
        return parts

    def _written_with(self, place: int, beside: list[FunctionalTensor] | None = None) -> Iterator[FunctionalTensor]:
        """What else changes in eager where this memory is written: its parts, what it is a part of, other parts of that.
        `beside`: parts of it that do not, for what was written lies beside them."""
        for parts in self._partings.get(place, ()):
            if parts is not beside:
                yield from self._within(parts)
        if place in self._parted:
            whole, parts = self._parted[place]
            yield whole
            yield from self._written_with(compat.storage_id(whole.elem), parts)

    def _within(self, parts: list[FunctionalTensor]) -> Iterator[FunctionalTensor]:
        for part in parts:
            yield part
            for further in self._partings.get(compat.storage_id(part.elem), ()):
                yield from self._within(further)

    def _by_strides(self, mode: Any, func: Any, types: Any, args: tuple, kwargs: dict) -> Any:
        """`empty_strided`: with gaps or shared places it is a view of memory without."""
        at = _BY_STRIDES[func]
        sizes, strides = args[at], args[at + 1]
        if not is_static((*sizes, *strides)) or 0 in sizes or is_dense(sizes, strides):
            return self._dispatch(mode, func, types, args, kwargs)
        places = [span(sizes, strides)]
        memory = self._dispatch(mode, func, types, (*args[:at], places, [1], *args[at + 2 :]), kwargs)
        self._memories[compat.storage_id(memory.elem)] = memory
        return self._dispatch(mode, _aten.as_strided.default, (FunctionalTensor,), (memory, sizes, strides), {})

    def _of_memory(self, tensor: Any, sizes: Any, strides: Any, begin: Any = None) -> tuple:
        """`as_strided` of a view with gaps or shared places, as one of its memory, which has none."""
        if isinstance(tensor, FunctionalTensor) and is_static(lies := geometry(tensor)) and 0 not in tensor.shape:
            base = self._memory(tensor)
            if base is not None and not is_dense(tensor.shape, tensor.stride()):
                if begin is None and lies[-1] != base.storage_offset():
                    begin = lies[-1]
                return base, sizes, strides, begin  # a place that was given stays one: another call's memory may begin elsewhere
        return tensor, sizes, strides, begin

    def _memory(self, tensor: FunctionalTensor) -> FunctionalTensor | None:
        """What `tensor` is a view of: all of its memory, as numbers of the same type. None where the trace does not know it."""
        base = self._memories.get(compat.storage_id(tensor.elem))
        if base is None and compat.is_view(tensor):
            base = compat.base_of(tensor)
        known = compat.is_whole(base) and base is not tensor and base.dtype is tensor.dtype
        return base if known and is_static(geometry(base)) else None

    def _plain(self, mode: Any, func: Any, tensor: FunctionalTensor, call: tuple) -> FunctionalTensor | None:
        """The places of `tensor`, as a view of its memory by strides; None where it needs none."""
        views, static = compat.views_of(tensor), is_static(geometry(tensor))
        apart = not static or is_apart(tensor.shape, tensor.stride())
        if apart and views.isdisjoint(_NOT_UNDONE):
            return None
        sizes, strides, begin = list(tensor.shape), list(tensor.stride()), tensor.storage_offset()
        if not apart and func in _SAME_EVERYWHERE:
            sizes = [1 if stride == 0 else size for size, stride in zip(sizes, strides, strict=True)]
            apart = is_apart(sizes, strides)
        if not apart:
            if all(is_static(geometry(t)) for t in compat.pytree.tree_leaves(call) if isinstance(t, FunctionalTensor)):
                if (refusal := said(func, *call, together=True)) is not None:
                    raise RuntimeError(refusal)
            raise NotCompiled(f"{func} writes a tensor whose elements share memory", in_pytorch=True)
        base = self._memory(tensor) if static else None
        if base is None:
            raise NotCompiled(f"{func} writes a view whose memory the trace does not know", in_pytorch=True)
        place = None if begin == base.storage_offset() else begin
        return self._dispatch(mode, _aten.as_strided.default, (FunctionalTensor,), (base, sizes, strides, place), {})


def _check_drawn(func: Any, written: list[FunctionalTensor]) -> None:
    """NotCompiled where eager's kernel draws otherwise into a tensor that is not row-major than into a new one."""
    for tensor in written:
        if tensor.is_contiguous():
            continue
        gaps = not is_static(geometry(tensor)) or not is_dense(tensor.shape, tensor.stride())
        if gaps or func is not _aten.normal_.default:
            raise NotCompiled(f"{func} draws into a tensor that is not contiguous", in_pytorch=True)


def _of_lists(args: tuple) -> bool:
    return bool(args) and isinstance(args[0], (list, tuple))


def _check_order(func: Any, written: list[FunctionalTensor], given: Any) -> None:
    """NotCompiled where the call reads places that it writes, and not each for itself alone."""
    leaves = [leaf for leaf in compat.pytree.tree_leaves(given) if isinstance(leaf, FunctionalTensor)]
    for tensor in written:
        for other in leaves:
            if other is tensor or other.layout is not torch.strided:
                continue
            if compat.storage_id(other.elem) != compat.storage_id(tensor.elem):
                continue
            if other.dtype is tensor.dtype and geometry(other) == geometry(tensor):
                continue
            first, other_first = (t.storage_offset() * t.itemsize for t in (tensor, other))
            if share_a_place(tensor, other, other_first - first):
                raise NotCompiled(f"{func} reads what it writes, and eager's order of loops decides", in_pytorch=True)


def _gets_other_sizes(func: Any, args: tuple, kwargs: dict) -> bool:
    """Whether a result (`out=`) that has elements gets other sizes, as eager does with a warning: in a trace, what else looks at
    its memory would not know."""
    names = [argument.name for argument in compat.schema_of(func).arguments if argument.is_out]
    before = {name: kwargs[name].shape for name in names if isinstance(kwargs.get(name), FunctionalTensor)}
    before = {name: shape for name, shape in before.items() if 0 not in shape}
    if not before:
        return False
    given = [leaf for leaf in compat.pytree.tree_leaves((args, kwargs)) if isinstance(leaf, FunctionalTensor)]
    if not all(is_static(geometry(tensor)) for tensor in given):
        return False

    def meta(value: Any) -> Any:
        if not isinstance(value, FunctionalTensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    with compat.disable_current_modes(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args, kwargs = compat.pytree.tree_map(meta, (args, kwargs))
        try:
            func(*args, **kwargs)
        except Exception:  # what has no such kernel, or is refused: the trace will tell
            return False
    return any(kwargs[name].shape != shape for name, shape in before.items())


def _written(func: Any, args: tuple, kwargs: dict) -> list[FunctionalTensor]:
    found = []
    for i, argument in enumerate(compat.schema_of(func).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, FunctionalTensor) and tensor.layout is torch.strided:
                    found.append(tensor)
    return found


def _one_by_one(func: Any, args: tuple, kwargs: dict) -> list[tuple[tuple, dict]] | None:
    """The calls, of an element of each list, that a call with lists is in eager; None where they may be done at once: none reads
    or writes what another one writes."""
    arguments = compat.schema_of(func).arguments
    if not _of_lists(args) or arguments[0].alias_info is None or any(a.is_out for a in arguments):
        return None
    first = args[0]

    def of(value: Any, i: int) -> Any:
        return [value[i]] if isinstance(value, (list, tuple)) and len(value) == len(first) else value

    turns = [
        (tuple([of(value, i) for value in args]), {name: of(value, i) for name, value in kwargs.items()})
        for i in range(len(first))
    ]
    several = Counter(place for turn in turns for place in _memories(turn))
    written = {place for turn in turns for place in _memories(_written(func, *turn))}
    return turns if any(several[place] > 1 for place in written) else None


def _memories(tree: Any) -> set[int]:
    leaves = compat.pytree.tree_leaves(tree)
    return {compat.storage_id(value.elem) for value in leaves if isinstance(value, FunctionalTensor)}


def _exchanged(tree: Any, pairs: list[tuple[Any, Any]]) -> Any:
    def one(value: Any) -> Any:
        return next((new for old, new in pairs if old is value), value)

    return compat.pytree.tree_map(one, tree)


def _lay_as_before(tensor: FunctionalTensor) -> None:
    """What the program sees of a tensor (its wrapper) has the strides of before; what a write has put into it may have others."""
    compat.sync_functional_tensor(tensor)
    now = compat.from_functional_tensor(tensor.elem)
    if not any(size != 1 and a != b for size, a, b in zip(now.shape, now.stride(), tensor.stride(), strict=True)):
        return
    laid = _aten.copy.default(_aten.new_empty_strided.default(now, now.shape, tensor.stride()), now)
    tensor.replace_(laid)
    tensor.commit_update()
    tensor.sync()


__all__ = ["Writes", "as_eager"]
