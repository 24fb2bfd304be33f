"""The traces of one attempt to compile a call: what they may have read is guarded from then on, what they changed is put back."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainc.base.errors import UserError
from trainc.torch.capture import generator
from trainc.torch.capture.disguise import Disguise
from trainc.torch.doors.variants import Variants
from trainc.torch.guards.guards import Elsewhere, Guards, Untagged
from trainc.torch.guards.reads import Reads
from trainc.torch.guards.state import Snapshot, TypeGuard
from trainc.torch.guards.watch import Watched
from trainc.torch.joint import compiler as joint
from trainc.torch.joint import family


@dataclasses.dataclass
class Trace:
    """What watches one trace: what the program reads, what its tensors pretend to be, which functions run."""

    reads: Reads
    disguise: Disguise
    watched: Watched


class Traces:
    """All traces that are made while one call is compiled. Made before the first of them: it takes a snapshot of `model`."""

    def __init__(self, model: torch.nn.Module, variants: Variants):
        self._name, self._state, self._variants = type(model).__name__, variants.state, variants
        self.snapshot, self._draws = Snapshot(model), generator.Draws()
        self._made: list[Trace] = []
        self._backwards: list[tuple[Reads, joint.Compiler]] = []

    def start(
        self, subject: str = "forward", root: Callable[..., Any] | None = None, stepped: Sequence[Any] = ()
    ) -> Trace:
        """`subject`: what the program is called in messages; `root`: a function that it begins with; `stepped`:
        optimizers that it steps."""
        reads, disguise = Reads(self._state, subject, stepped=stepped), Disguise()
        if root is not None:
            reads.root("", root)
        self._made.append(Trace(reads, disguise, Watched(disguise.beside(reads.enter), reads.read, reads.ask, reads.method)))
        return self._made[-1]

    def backward(self, trace: Trace, compiler: joint.Compiler) -> Watched:
        """Watches the program's own backward, where it has one: it runs at another time than forward, and may find other
        values."""
        reads = Reads(self._state, "a backward")
        self._backwards.append((reads, compiler))
        return Watched(trace.disguise.beside(reads.enter), reads.read, reads.ask, reads.method)

    @property
    def in_pytorch(self) -> bool:
        """Whether the program does what Dynamo would not do."""
        return any(trace.reads.in_pytorch for trace in self._made)

    @property
    def drawn(self) -> str | None:
        """That the program draws from a generator of Python's or NumPy's, in the user's terms; known once restored."""
        return next((each.drawn for each in (*[trace.reads for trace in self._made], self.snapshot) if each.drawn), None)

    def restore(self) -> str | None:
        """The program's Python state as it was before; what the traces had changed, in the user's terms."""
        changed = self.snapshot.restore(self._draws.may_be_others())
        for reads in (*[reads for reads, _ in self._backwards], *[trace.reads for trace in reversed(self._made)]):
            if other := reads.restore():
                changed = changed or other
                self.snapshot.state_changed, self.snapshot.only_set = True, False
        return changed

    def guard(self, serving: family.Family) -> list[torch.Tensor]:
        """From now on the family holds only while everything that its new trace, the last, may have read is as it is. Gives the
        tensors that the program may reach. NotCompiled where that cannot be told."""
        made: list[Any] = []
        if self._made:
            last = self._made[-1]
            made.append(Guards(last.reads, TypeGuard, serving.slots))
            current = functools.partial(getattr, self._variants, "tensors")
            if last.disguise.asked:
                made.append(Untagged(current, last.disguise.asked))
            if last.reads.elsewhere:
                made.append(Elsewhere(current, last.reads.elsewhere))
        for reads, compiler in self._backwards:
            made.append(Guards(reads, TypeGuard, serving.slots))
            compiler.before_backward = functools.partial(_check_backward, self._name, made[-1])
        serving.guards += made
        if self._made:
            self._variants.learn([*(trace.reads for trace in self._made), *(reads for reads, _ in self._backwards)])
        return [tensor for guards in made for tensor in guards.tensors]


def _check_backward(name: str, guards: Guards) -> None:
    """The values that the program's own backward (a Function's, a hook) reads were those of the trace when forward ran."""
    if not guards():
        raise UserError(
            f"{name}: {'; '.join(guards.differences()[:3])} between forward and backward, and a backward or a hook of yours "
            "reads it: the gradient was compiled for the value that forward found. Change it before forward, or after backward."
        )


__all__ = ["Trace", "Traces"]
