"""Which results have other histories than AOTAutograd would give them.

A result that lies in an argument, or in another result, AOTAutograd makes again from that, by the views that lead there, and its
history is that of these views. In the program it may be another one: no gradient goes through a view that was made under
`no_grad`, nor through what is made of such a view, though all of them say that they want one; an `autograd.Function` may give a
view, and has a gradient of its own; `as_strided` of a view drops what it reads beside the view, and a trace has it read the
memory that both lie in (capture/writes.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge

from trainc.torch import compat

Tensor = torch.Tensor


def otherwise(inputs: Sequence[Any], results: Sequence[Any]) -> set[int]:
    """Of a program's results while it is traced, by their places: those that are more than views of what they lie in."""
    given, found = _by_memory(inputs), set()
    for i, result in enumerate(results):
        if not _is_strided(result) or not result.requires_grad:
            continue
        argument = given.get(compat.storage_id(result))
        whole = compat.base_of(result) if argument is None and compat.is_view(result) else argument
        if whole is not None and whole is not result and not _by_views(result, whole, argument is not None):
            found.add(i)
    return found


def in_written(inputs: Sequence[Any], results: Sequence[Any]) -> set[int]:
    """The results that lie in an argument which the program has written."""
    given = _by_memory(t for t in inputs if isinstance(t, compat.FunctionalTensor) and compat.count_writes(t))
    return {i for i, result in enumerate(results) if _is_strided(result) and compat.storage_id(result) in given}


def edge_of(value: Any) -> tuple[Any, int] | None:
    """Where a tensor's gradient comes to, in autograd's graph; None where it has none, as a view that was made under `no_grad` of
    a tensor that wants one."""
    if not isinstance(value, Tensor) or not value.requires_grad or value.grad_fn is None and compat.is_view(value):
        return None
    return tuple(get_gradient_edge(value)[:2])


def written_unseen(inputs: Sequence[Any], before: Sequence[Any]) -> set[int]:
    """The arguments that want a gradient, were written, and have the history that they had `before`, by edge_of."""
    return {
        i for i, (tensor, then) in enumerate(zip(inputs, before, strict=True))
        if then is not None and compat.count_writes(tensor) and then == edge_of(tensor)
    }  # fmt: skip


def expanded(inputs: Sequence[Any]) -> set[int]:
    """The arguments that show a place of their memory more than once. A view of one that AOTAutograd makes again by its sizes and
    strides, as it does where sizes are symbols, has another gradient than the program's: PyTorch's for `as_strided` is the mean
    over the elements that share a place."""
    strides = [t.stride() if _is_strided(t) else () for t in inputs]
    return {i for i, steps in enumerate(strides) if any(isinstance(step, int) and step == 0 for step in steps)}


def _by_memory(tensors: Iterable[Any]) -> dict[int, Tensor]:
    return {compat.storage_id(tensor): tensor for tensor in tensors if _is_strided(tensor)}


def _is_strided(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def _by_views(result: Tensor, whole: Tensor, given: bool) -> bool:
    """Whether autograd's graph leads from the result through nothing but views to where the gradient of the whole comes to, which
    is an argument or was computed."""
    if not whole.requires_grad or result.grad_fn is None or not (given or whole.grad_fn):
        return False
    end, here = tuple(get_gradient_edge(whole)[:2]), tuple(get_gradient_edge(result)[:2])
    while here != end:
        node = here[0]
        if node is None or isinstance(node, BackwardCFunction) or len(node.next_functions) != 1:
            return False
        here = node.next_functions[0]
        if node.name().startswith("AsStrided") and here != end:
            return False
    return True


__all__ = ["edge_of", "expanded", "in_written", "otherwise", "written_unseen"]
