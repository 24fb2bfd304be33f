"""What a plan depends on beside its graph, as one value: made once for a compile, given to the compiler, part of the plan's key
in the cache."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os

from trainc.base import config
from trainc.base.arithmetic import flushes_denormals
from trainc.base.device import Device
from trainc.base.errors import UserError

MOST = 2**63 - 1
# Fields that C++ (src/compiler/options.h) has no use for: what compiles, and what the measurements of tune="max" depend on.
_NOT_THE_COMPILERS = frozenset(
    {"build", "code_generator", "framework", "facts", "tune", "threads", "framework_calls", "framework_error"}
)


@dataclasses.dataclass(frozen=True)
class CompileOptions:
    """What decides how a graph becomes a plan, beside what is asked of that graph (a limit of memory, deferred outputs: parts of
    the key of their own, in plans.py). Whoever compiles reads it here, and nowhere else: no configuration, no environment, no
    machine. Of the thread's own state arithmetic depends on its floating-point environment alone, which the compiler sets as
    `flushes_denormals` says. A new switch is a new field: so it is in the key of every plan."""

    device: str  # that kernels are for: "cpu", "interpret", "sm_90a", ...
    facts: tuple  # what else is to be known of that device
    cpu: str  # level of its instructions: "avx512"
    l1d: int  # bytes that kernels are blocked for
    l2: int
    l3: int
    cores: int  # that work is cut for
    vendor_product_flops: int
    tf32: bool
    float32_in_parts: bool
    loss_chunk_rows: int
    loss_chunk_bytes: int
    skip_hidden_flops: int
    skip_padding: bool
    workers: int  # threads that a plan with a budget of memory has scratch memory for; 1: it has none
    disabled_passes: tuple[str, ...]
    flushes_denormals: bool  # whether denormal numbers count as zero, as operands and as results
    generator: str  # of dropout's masks on the host
    tune: str
    threads: int  # that tune="max" measures with; 0: it does not
    framework_calls: bool  # whether it may take PyTorch's operators
    framework_error: float
    build: str  # of the compiler
    code_generator: str  # the version of what makes code and is no part of the build: NVRTC
    framework: str  # and its version

    @staticmethod
    def of(where: Device, tune: str = "fast", limited: bool = False) -> CompileOptions:
        """For plans that run on `where`. `limited`: memory= is given, which no operator of PyTorch's knows of."""
        from trainc import _core

        target = where.target()
        kind = _core.target(target["device"])
        l1d, l2, l3, cores = _core.cache_sizes()
        flops = target.get("vendor_product_flops", 0)
        measures = tune == "max" and _core.measures(kind)
        return CompileOptions(
            device=kind,
            facts=(*where.facts(), *(where.facts_of_measurements() if measures else ())),
            cpu=_core.cpu_level(),
            l1d=l1d,
            l2=l2,
            l3=l3,
            cores=cores,
            vendor_product_flops=flops if flops and _core.multiplies(target["device"]) else 0,
            tf32=target.get("tf32", False),
            float32_in_parts=config.float32_in_parts,
            loss_chunk_rows=config.loss_chunk_rows,
            loss_chunk_bytes=MOST if config.loss_chunk_bytes is None else config.loss_chunk_bytes,
            skip_hidden_flops=config.skip_hidden_flops if config.skip_hidden else MOST,
            skip_padding=config.skip_padding and config.skip_hidden,
            workers=_core.thread_count() if limited else 1,
            disabled_passes=_disabled_passes(_core.optional_passes()),
            flushes_denormals=flushes_denormals(),
            generator=_core.mask_generator(),
            tune=tune,
            threads=where.threads() if measures else 0,
            framework_calls=measures and config.framework_calls and where.calls_operators and not limited,
            framework_error=config.framework_error if measures else 0.0,
            build=_build(),
            code_generator=_core.code_generator_version(kind),
            framework=where.framework,
        )

    def text(self) -> str:
        """All of it, for keys."""
        return json.dumps(dataclasses.asdict(self))

    def for_compiler(self) -> str:
        """As C++ reads it."""
        return json.dumps({name: value for name, value in dataclasses.asdict(self).items() if name not in _NOT_THE_COMPILERS})

    def of_measurements(self) -> CompileOptions:
        """The same for whatever is made of what is measured."""
        return dataclasses.replace(self, framework_calls=False, framework_error=0.0)


def _disabled_passes(known: list[str]) -> tuple[str, ...]:
    words = (word.strip() for word in os.environ.get("TRAINC_DISABLE_PASSES", "").split(","))
    disabled = tuple(filter(None, words))
    for name in disabled:
        if name not in known:
            raise UserError(f"TRAINC_DISABLE_PASSES: there is no pass {name!r}; there are {', '.join(known)}")
    return disabled


@functools.cache
def _build() -> str:
    from trainc import _core

    return _core.build_id() or _hash_of_file(_core.__file__)


def _hash_of_file(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


__all__ = ["CompileOptions"]
