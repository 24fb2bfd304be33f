"""Kernels in Python that PyTorch's dispatcher takes while a program is traced, where those that it has are not eager's.

`one_hot` refuses a class that is out of range, but leaves its check out where it is traced (the numbers are not known there):
an operation of ours that the compiler knows stands before it, and checks when the plan runs. The shrinking activations are
written out in operations with other zeros, and another gradient at NaN: they stay whole, and are rows of the front end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from trainc.torch.compat import DispatchKey

_library = torch.library.Library("trainc", "FRAGMENT")
_library.define("classes(Tensor classes, int num_classes) -> Tensor")
_operator = torch.ops.aten.one_hot.default


def _checked(classes: torch.Tensor, num_classes: int) -> torch.Tensor:
    """A copy, after eager's check: where PyTorch runs a traced graph."""
    if classes.numel() and classes.min() < 0:
        raise RuntimeError("Class values must be non-negative.")
    if classes.numel() and classes.max() >= num_classes:
        raise RuntimeError("Class values must be smaller than num_classes.")
    return classes.clone()


_library.impl("classes", _checked, "CompositeExplicitAutograd")
_library.impl("classes", lambda classes, num_classes: torch.empty_like(classes), "Meta")


def _one_hot(classes: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    if num_classes > 0:
        classes = torch.ops.trainc.classes(classes, num_classes)
    return _operator._op_dk(DispatchKey.CompositeImplicitAutograd, classes, num_classes)


_WHOLE = (torch.ops.aten.hardshrink.default, torch.ops.aten.softshrink.default)


@contextlib.contextmanager
def as_eager() -> Iterator[None]:
    """For the time of a trace, under PyTorch's Python dispatcher."""
    operators = (_operator, *_WHOLE)
    before = [dict(operator.py_kernels) for operator in operators]
    _operator.py_kernels[DispatchKey.CompositeImplicitAutograd] = _one_hot
    for operator in _WHOLE:
        operator.py_kernels.pop(DispatchKey.Autograd, None)
    for operator in operators:
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, kernels in zip(operators, before, strict=True):
            operator.py_kernels.clear()
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()


__all__ = ["as_eager"]
