"""Activation checkpointing in a trace.

Under AOTAutograd a checkpoint's recomputation is lost (its saved-tensor hooks are off) or fails (reentrant). Its operations are
traced once and marked instead: the compiler keeps none of their results for the backward.

What PyTorch's second run does beyond computing the same values again has no place in such a trace, so the program runs in
PyTorch where there is any of it: a write to what stays (BatchNorm moves its running statistics twice in a step), and masks that
are drawn anew (`preserve_rng_state=False`). A reentrant checkpoint is an autograd function of its tensors, and gives what such
a function gives: nothing learns in it unless one of its arguments does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from trainc.base.errors import NotCompiled
from trainc.base.patches import patched
from trainc.torch import compat
from trainc.torch.compat import proxy_tensor, pytree
from trainc.torch.graph import wire

Tensor = torch.Tensor

_programs: list[Sequence[Tensor]] = []  # the tensors of the program that is traced; one at a time is


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Both kinds of checkpoint are replaced."""
    with patched(*compat.CHECKPOINT_GENERATOR, _without_reentry), patched(*compat.CHECKPOINT_FUNCTION, _Reentrant):
        yield


@contextlib.contextmanager
def of_program(tensors: Sequence[Tensor]) -> Iterator[None]:
    """A program runs whose inputs these are: a checkpoint may not write them."""
    _programs.append(tensors)
    try:
        yield
    finally:
        _programs.pop()


class _Region:
    """What is traced from now on until `end` is run again in the backward. `given`: the tensors among its arguments."""

    def __init__(self, preserves_rng: Any, given: Sequence[Any]):
        mode = proxy_tensor.get_proxy_mode()
        self._graph = None if mode is None else mode.tracer.graph
        self._before = None if self._graph is None else compat.last_node(self._graph)
        self._preserves_rng, self._again = preserves_rng, torch.is_grad_enabled()
        self._stays = [t for t in (*given, *(t for each in _programs for t in each)) if isinstance(t, compat.FunctionalTensor)]
        self._writes = list(map(compat.count_writes, self._stays))

    def end(self) -> None:
        """NotCompiled where it is no region that may be traced once."""
        if self._again and self._writes != list(map(compat.count_writes, self._stays)):
            what = "a checkpoint writes a tensor that stays (running statistics), and does it once more in the backward"
            raise NotCompiled(what, in_pytorch=True)
        if self._before is None:
            return
        node = self._before.next
        while node.op != "root":
            if node.op == "call_function":
                node.meta[wire.RECOMPUTE] = True
                if self._again and not self._preserves_rng and wire.is_random(node.target):
                    what = "a checkpoint draws other random numbers in the backward (preserve_rng_state=False)"
                    raise NotCompiled(what, in_pytorch=True)
            node = node.next


def _without_reentry(_function: Any, preserve_rng_state: Any = True, *given: Any, **keywords: Any) -> Iterator[None]:
    # Dynamo's operation says False to keep the generator's state out of the trace, and means that masks stay as they are.
    of_dynamo = getattr(_function, "__module__", None) == compat.DYNAMO_CHECKPOINT.__module__
    region = _Region(preserve_rng_state or of_dynamo, pytree.tree_leaves((given, keywords)))
    yield
    region.end()


class _Reentrant:
    @staticmethod
    def apply(function: Any, preserve_rng_state: bool, *given: Any) -> Any:
        compat.checkpointing.check_backward_validity(given)  # warns where nothing learns
        if not any(isinstance(each, Tensor) and each.requires_grad for each in given):
            with torch.no_grad():
                return function(*given)
        region = _Region(preserve_rng_state, pytree.tree_leaves(given))
        result = function(*given)
        region.end()
        if torch.is_grad_enabled():
            _check_learning(result)
        return result


def _check_learning(result: Any) -> None:
    """NotCompiled where PyTorch's tensors want a gradient otherwise: of a function's results, all do, and none within a list."""
    results = result if isinstance(result, tuple) else (result,)
    for each in results:
        tensors = [t for t in pytree.tree_leaves(each) if isinstance(t, Tensor)]
        floating = [t for t in tensors if t.is_floating_point() or t.is_complex()]
        if any(t.requires_grad != isinstance(each, Tensor) for t in floating):
            raise NotCompiled("a reentrant checkpoint gives tensors that want a gradient in it and none outside", in_pytorch=True)


__all__ = ["marked", "of_program"]
