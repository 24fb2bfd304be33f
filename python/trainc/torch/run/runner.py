"""What makes captured steps run: the compiler, or PyTorch, operation by operation. What each must give is said here; so is where
a failure of ours falls back from the one to the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch

from trainc.base import config, messages
from trainc.base.errors import UserError
from trainc.base.memory import Limit
from trainc.base.records import Compilation
from trainc.base.shared_kernels import SharedKernels
from trainc.base.step_graph import StepGraph, Updates
from trainc.torch.device import Host
from trainc.torch.run.core import Core
from trainc.torch.run.interpreter import Interpreter

T = TypeVar("T")
Tensor = torch.Tensor


class Executable(Protocol):
    """One graph that runs: CoreExecutable, InterpretedExecutable."""

    aliases: Mapping[int, int]
    """The results that are an input itself, with that one."""

    def __call__(self, inputs: Sequence[Tensor | None], saved: Tensor | None = None) -> list[Tensor | None]:
        """Fresh tensors (None for what is not made). `saved`: the arena, which a forward fills and a backward reads."""

    def share_memory(self, other: Executable) -> None:
        """The two are of one graph for two sizes of its inputs, and their results use the same memory."""

    def report(self) -> dict:
        """What `trainc.explain` tells of it."""


class Joint(Protocol):
    """Forward and backward of one graph: base.plans.JointPlans, InterpretedJoint."""

    forward: Executable
    saved_inputs: list[int]
    """Inputs that the backward is given beside the arena."""
    saved_bytes: int
    """Of the arena."""
    deferred_outputs: list[int]
    """Those that `forward` leaves out."""
    fuses: bool
    """Whether there is a `backward_step`."""

    def footprint(self) -> dict[str, int] | None:
        """Bytes {saved, temporary, results}, and {again_flops}; None where that is not known."""

    def deferred(self) -> Executable:
        """What makes the deferred outputs, of no inputs and the arena."""

    def backward(self, defined: tuple[bool, ...], overwrites: bool, unmade: list[int]) -> Executable:
        """For the tangents that are `defined`. `overwrites`: it may write over the arena; gradients `unmade` are None."""

    def backward_step(self, defined: tuple[bool, ...], overwrites: bool, unmade: list[int], updates: Updates) -> Executable:
        """The backward together with these updates."""


class Step(Protocol):
    """A whole step: CoreStep, InterpretedStep."""

    def __call__(
        self, inputs: Sequence[Tensor], states: list[list[Tensor]], scalars: list[list[float]]
    ) -> list[Tensor | None]:
        """The graph's outputs; parameters and `states` (of each update) are updated in place. `scalars`: of each launch."""

    def share_memory(self, other: Step) -> None:
        """As an Executable's."""

    def report(self) -> dict:
        """As an Executable's."""

    def footprint(self) -> dict[str, int] | None:
        """As a Joint's."""


class Runner(Protocol):
    """Core, Interpreter."""

    name: str
    device: Host

    def inference(self, step: StepGraph, shared: SharedKernels | None = None) -> Executable:
        """`shared`: the kernels that it has in common with other sizes."""

    def joint(
        self, step: StepGraph, shared: SharedKernels | None = None, limit: Limit | None = None, defer_small: bool = False,
        kept: list[int] | None = None,
    ) -> Joint:  # fmt: skip
        """`limit`: of memory. `defer_small`: whether small outputs may be deferred, too. `kept`: the inputs that the backward can
        be given beside the arena; None: any."""

    def whole(self, step: StepGraph, shared: SharedKernels | None = None, limit: Limit | None = None) -> Step:
        """A step of the kind "step"."""


RUNNERS: dict[str, Callable[[Host, str], Runner]] = {"core": Core, "interpreter": Interpreter}


class Runners:
    """Who runs what is made for one signature: the compiler, or what TRAINC_ENGINE names; from its first failure on PyTorch."""

    def __init__(self, device: Host, tune: str = "fast"):
        self.device = device
        if (name := config.engine_name()) not in RUNNERS:
            raise UserError(f"TRAINC_ENGINE={name!r}: there are {' and '.join(RUNNERS)}")
        self.now: Runner = RUNNERS[name](device, tune)

    def make(self, record: Compilation, build: Callable[[Runner], T]) -> T:
        """`build` with the runner of now; where that fails by a fault of ours, with PyTorch."""
        record.engine = self.now.name

        def in_pytorch(error: Exception) -> T:
            if self.now.name == "interpreter":
                raise error
            self.fall_back(record, error)
            return build(self.now)

        return attempt(record, lambda: build(self.now), in_pytorch)

    def fall_back(self, record: Compilation, error: Exception) -> None:
        """PyTorch runs what is made from now on, because of `error`, which is said once; raised where fallback is off."""
        messages.fell_back(record.name, error)
        self.now = Interpreter(self.device)
        record.engine, record.reason = self.now.name, str(error)


def attempt(record: Compilation, build: Callable[[], T], otherwise: Callable[[Exception], T]) -> T:
    """`build()`; `otherwise(error)` where it fails by a fault of ours, which a UserError is not. The time counts as compiling."""
    with record.compiling():
        try:
            return build()
        except UserError:
            raise
        except Exception as error:
            return otherwise(error)


__all__ = ["Executable", "Joint", "Runner", "Runners", "Step", "attempt"]
