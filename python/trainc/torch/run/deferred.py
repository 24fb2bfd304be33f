"""Outputs beside the loss that nobody has read yet: computed when they are first read, never if they die before.

The forward plan leaves them out (src/schedule/cut.h says which); another plan makes them from the arena of the call alone, which
nobody else writes. So the value is the same whenever it is computed, whatever became of weights and inputs meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from trainc.torch import compat
from trainc.torch.compat import pytree


class Outputs:
    """The deferred outputs of one forward call."""

    def __init__(self, compute: Callable[[], Sequence[torch.Tensor]]):
        self._compute: Callable[[], Sequence[torch.Tensor]] | None = compute  # holds the arena; gone once it has run
        self._values: Sequence[torch.Tensor] = ()
        self._lock = threading.RLock()  # a signal handler may read what it interrupts: both compute the same

    @property
    def computed(self) -> bool:
        return self._compute is None

    def values(self) -> Sequence[torch.Tensor]:
        with self._lock:
            if (compute := self._compute) is not None:
                self._values = compute()
                self._compute = None
        return self._values


class Pending:
    """The calls whose deferred outputs somebody may still read."""

    def __init__(self) -> None:
        self._calls: list[weakref.ref[Outputs]] = []  # until they are computed

    def tensors(
        self, metas: Sequence[torch.Tensor], device: torch.device, compute: Callable[[], Sequence[torch.Tensor]]
    ) -> list[torch.Tensor]:
        """A tensor for each of `metas` (shape, strides, dtype); the first use of one of them calls `compute` for all."""
        outputs = Outputs(compute)
        self._calls.append(weakref.ref(outputs))
        return [DeferredTensor(meta, device, outputs, i) for i, meta in enumerate(metas)]

    def alive(self) -> bool:
        """Whether somebody holds an output that is not computed yet."""
        return any((outputs := call()) is not None and not outputs.computed for call in list(self._calls))

    def settle(self) -> None:
        """Computes what is alive, so that the arenas of earlier calls can be used again."""
        for call in list(self._calls):  # other threads add theirs, and see what is not computed yet
            if (outputs := call()) is not None:
                outputs.values()
            with contextlib.suppress(ValueError):
                self._calls.remove(call)


class DeferredTensor(torch.Tensor):
    """A tensor whose elements are computed when an operation first reads them. It has shape, strides, dtype and autograd history
    from the start; operations on it give ordinary tensors."""

    @staticmethod
    def __new__(cls, meta: torch.Tensor, device: torch.device, outputs: Outputs, index: int) -> DeferredTensor:
        self = compat.make_wrapper_subclass(
            cls, meta.shape, strides=meta.stride(), dtype=meta.dtype, device=device, requires_grad=False
        )
        self.outputs, self.index, self._zeros = outputs, index, None
        return self

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def value(self) -> torch.Tensor:
        """The elements, without autograd history."""
        return self._zeros if self._zeros is not None else self.outputs.values()[self.index]

    @property
    def known(self) -> bool:
        """Whether its elements are there."""
        return self._zeros is not None or self.outputs.computed

    def _zero(self) -> None:
        """Before an operation that sets all elements to zero: they need not be computed."""
        if not self.known:
            self._zeros = torch.zeros(self.shape, dtype=self.dtype, device=self.device)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Below autograd: what is recorded is recorded of the deferred tensor, what is computed is computed with its value.
        given = {}
        if func in ZEROES:
            pytree.tree_map_only(cls, cls._zero, args)

        def value(tensor: torch.Tensor) -> torch.Tensor:
            given[id(value_of := tensor.value())] = tensor
            return value_of

        args, kwargs = pytree.tree_map_only(cls, value, (args, kwargs or {}))
        results = func(*args, **kwargs)
        # what an operation in place gives back is the tensor that it was called on
        return pytree.tree_map_only(torch.Tensor, lambda result: given.get(id(result), result), results)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with compat.DisableTorchFunctionSubclass():  # results are ordinary tensors
            if getattr(func, "__name__", "") in READS_MEMORY:
                args, kwargs = pytree.tree_map_only(cls, plain, (args, kwargs or {}))
            return func(*args, **(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return plain(self).__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return plain(self).__repr__(tensor_contents=tensor_contents)


ZEROES = (torch.ops.aten.zero_.default, torch.ops.aten._foreach_zero_.default)

# What PyTorch answers from a tensor's memory without going through an operation.
READS_MEMORY = frozenset({
    "numpy", "__array__", "tolist", "data_ptr", "const_data_ptr", "mutable_data_ptr", "storage", "untyped_storage",
    "_typed_storage", "__dlpack__", "__dlpack_device__", "share_memory_", "is_shared", "__deepcopy__", "pin_memory", "set_",
    "__cuda_array_interface__",
})  # fmt: skip


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """An ordinary tensor over the same elements, with the same place in autograd's graph."""
    if not isinstance(tensor, DeferredTensor):
        return tensor
    if not tensor.requires_grad:
        return tensor.value()
    with torch.enable_grad():
        return _Read.apply(tensor)


class _Read(torch.autograd.Function):
    """The identity, whose result is no view of the deferred tensor: tracing would look for what it is a view of."""

    @staticmethod
    def forward(ctx: Any, tensor: DeferredTensor) -> torch.Tensor:
        value = tensor.value()
        alias = torch.empty(0, dtype=value.dtype, device=value.device)
        return alias.set_(value.untyped_storage(), value.storage_offset(), value.shape, value.stride())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@contextlib.contextmanager
def out_of_sight(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """While PyTorch makes stand-ins of tensors, which looks at their gradients: those that wait, or were consumed, are away."""
    hidden = [(t, t.grad) for t in tensors if t.is_leaf and type(t.grad) is DeferredTensor]
    for tensor, _ in hidden:
        tensor.grad = None
    try:
        yield
    finally:
        for tensor, gradient in hidden:
            tensor.grad = gradient


__all__ = ["DeferredTensor", "Pending", "out_of_sight", "plain"]
