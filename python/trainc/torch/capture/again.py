"""The program of a module's call, done by PyTorch once more, of tensors in the place of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from trainc.torch import compat
from trainc.torch.capture import turns
from trainc.torch.capture.structure import unflatten
from trainc.torch.guards.state import ModuleState, Snapshot

_threads: list[int] = []  # that do one again


def is_running() -> bool:
    """Whether this thread does a program again: modules that were compiled by themselves run in PyTorch, too. Every call asks."""
    return bool(_threads) and threading.get_ident() in _threads


@contextlib.contextmanager
def running() -> Iterator[None]:
    thread = threading.get_ident()
    _threads.append(thread)
    try:
        yield
    finally:
        _threads.remove(thread)


def result_of(state: ModuleState, structure: tuple, inputs: Sequence[torch.Tensor]) -> tuple[Any, str | None]:
    """What the call gives of `inputs` (the module's tensors, then those of its arguments, whose `structure` this is); what it
    changed of the modules' Python state, which is put back, in the user's terms."""
    count, changed = len(state.tensors()), None
    snapshot = Snapshot(state.root)
    try:
        with running(), turns.alone(state.root), state.swapped(list(inputs[:count])):
            args, kwargs = unflatten(structure, list(inputs[count:]))
            result = compat.uncompiled_call(state.root)(*args, **kwargs)
    finally:
        changed = snapshot.restore_attributes()
    return result, changed


__all__ = ["is_running", "result_of", "running"]
