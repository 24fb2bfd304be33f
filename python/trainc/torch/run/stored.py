"""Plans that are found in the cache, or compiled and put there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainc.base import cache
from trainc.torch.device import Host
from trainc.torch.graph import wire
from trainc.torch.run.executable import CoreExecutable


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
