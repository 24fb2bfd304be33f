"""Plans that one rank has compiled, given to the others through the store by which their process group met: ranks of several
machines compile each plan once, where they have no directory in common. (Ranks of one machine have its cache: base/cache.py.)

Nobody waits long for a rank that is gone: for one of this machine until its process is, for any other as long as for the cache's
lock; then each compiles itself, which is harmless. A store is as trusted as its group: PyTorch unpickles what it finds there.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import time
from typing import Any

import torch

from trainc.base import cache
from trainc.torch import compat
from trainc.torch.doors.agreement import came

MOST = 32 << 20  # bytes: the first rank's process keeps what is given until it ends


class OfGroup:
    """The ranks of the default process group: cache.Peers."""

    def __init__(self, group: Any):
        self._store = torch.distributed.PrefixStore("trainc/plans", compat.group_store(group))
        self._size = torch.distributed.get_world_size(group)
        self._bound = min(cache.LOCK_SECONDS, compat.group_timeout(group).total_seconds() / 2)

    def given(self, name: str) -> bytes | None:
        if self._store.add(f"{name}/claims", 1) == 1:
            self._store.set(f"{name}/by", json.dumps([socket.gethostname(), os.getpid()]))
            return None
        until = time.monotonic() + self._bound
        while not came(self._store, f"{name}/is", time.monotonic(), self._size):
            if time.monotonic() > until or self._is_gone(name):
                return None
        text = self._store.get(f"{name}/is")
        return base64.b85decode(text) if text else None

    def give(self, name: str, content: bytes | None) -> None:
        with contextlib.suppress(torch.distributed.DistError, RuntimeError):  # the group is gone
            fits = content is not None and len(content) <= MOST
            self._store.set(f"{name}/is", base64.b85encode(content).decode() if fits else "")

    def _is_gone(self, name: str) -> bool:
        """Whether who compiles it was a process of this machine, and has ended."""
        if not self._store.check([f"{name}/by"]):
            return False
        host, process = json.loads(self._store.get(f"{name}/by"))
        return host == socket.gethostname() and process != os.getpid() and not _runs(process)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def peers() -> OfGroup | None:
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    group = torch.distributed.group.WORLD
    if torch.distributed.get_world_size(group) < 2:
        return None
    try:
        return OfGroup(group)
    except (AttributeError, KeyError, RuntimeError, TypeError):  # a backend of somebody else's, without a timeout or a store
        return None


__all__ = ["OfGroup", "peers"]
