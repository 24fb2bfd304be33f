"""Compiled calls as they are under DistributedDataParallel, in a process that has none: what a step would do on more ranks can so
be measured on one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from trainc.base.patches import patched
from trainc.torch.capture import distributed
from trainc.torch.joint import stages


class _Wrapper:
    """As much of DistributedDataParallel as a compiled call looks at."""

    def __init__(self, bucket: int):
        self.bucket_bytes_cap = bucket


@contextlib.contextmanager
def as_replicated(bucket: int) -> Iterator[None]:
    """Backwards hand their gradients out in stages, whatever hooks parameters have: the caller's own look and change nothing.
    `bucket`: bytes that would be reduced together."""
    wrapper = _Wrapper(bucket)
    reducing = distributed.reducing
    with (
        patched(distributed, "reducing", lambda: reducing() or wrapper),
        patched(stages, "may_be_staged", lambda *_: True),
    ):
        yield


__all__ = ["as_replicated"]
