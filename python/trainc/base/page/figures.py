"""What a report shows, as plain figures: of an Explanation, with nothing compiled or run again."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

from trainc.base.page.phases import Kernel, Phase, line_of, phases_of
from trainc.base.report import Explanation, scaled

COLOURS = 8  # lines of the model that have one of their own; the others share a grey


class Figures:
    """Of the signature that ran last with timing on; where none did, of the one compiled last."""

    def __init__(self, explanation: Explanation):
        self.explanation = explanation
        self.phases: list[Phase] = phases_of(explanation.compilations)
        self.kernels: list[Kernel] = [kernel for phase in self.phases for kernel in phase.kernels]
        self.seconds = sum(kernel.seconds for kernel in self.kernels)  # in the plans of a step
        self.peaks: dict | None = None  # of this machine, where they were measured
        self.gaps: list[float] = []  # seconds between two phases, in the order in which they ran
        self.one_step = self._in_order()
        self._from_zero()
        self.lines = self._heaviest_lines()

    def _in_order(self) -> bool:
        """Whether the timed plans' last runs are of one step: each began when the one before it was over."""
        timed = self._timed_phases()
        return all(a.end <= b.start for a, b in itertools.pairwise(timed))

    def _from_zero(self) -> None:
        """Times from the first kernel on. Runs that are of different steps are laid end to end."""
        timed = self._timed_phases()
        clock, end = 0.0, timed[0].start if timed else 0.0
        for phase in timed:
            gap = phase.start - end if self.one_step else 0.0
            if phase is not timed[0]:
                self.gaps.append(gap)
            end = phase.end
            clock += gap
            phase.move(clock - phase.start)
            clock = phase.end

    def _timed_phases(self) -> list[Phase]:
        return [phase for phase in self.phases if phase.seconds]

    def _heaviest_lines(self) -> list[str]:
        """The lines of the model that have colours: those of the most time and memory."""
        shares: dict[str, float] = {}
        seconds = self.seconds or 1.0
        bytes_ = sum(b.bytes for phase in self.phases for b in phase.blocks) or 1
        for kernel in self.kernels:
            shares[kernel.line] = shares.get(kernel.line, 0) + kernel.seconds / seconds
        for block in (b for phase in self.phases for b in phase.blocks):
            shares[block.line] = shares.get(block.line, 0) + block.bytes / bytes_
        named = [line for line in sorted(shares, key=lambda line: -shares[line]) if line]
        return named[:COLOURS]

    def measure(self, peaks: Callable[[], dict]) -> None:
        """`peaks`: {"flops", "bytes": a second, "from": how that is known} of this machine; asked where they are of use."""
        if self.timed:
            self.peaks = self._reached(peaks())

    def _reached(self, peaks: dict) -> dict:
        """What was given, or the fastest kernel where that is faster."""
        fastest = max((k.flops / k.seconds for k in self.kernels if k.seconds), default=0.0)
        if fastest <= peaks["flops"]:
            return peaks
        less = f"that product's {scaled(peaks['flops'], 'FLOP/s')} are less than the fastest kernel's, which stand for it"
        return {**peaks, "flops": fastest, "from": f"{peaks['from']}; {less}"}

    @property
    def wall(self) -> float:
        """From the first kernel of the step to the last, with what ran between the plans; 0 where that is not known."""
        ends = [phase.end for phase in self._timed_phases()]
        return max(ends) if ends and self.one_step else 0.0

    @property
    def threads(self) -> list[int]:
        """That ran kernels: who called first, the others by their numbers."""
        callers = dict.fromkeys(k.thread for k in self.kernels if k.seconds)
        others = {part.thread for k in self.kernels for part in k.parts} - set(callers)
        return [*callers, *sorted(others)]

    @property
    def timed(self) -> bool:
        """Whether every plan but the optimizer's, whose time is always known, was timed."""
        return any(kernel.seconds for kernel in self.kernels if kernel.phase != "optimizer") or (
            all(phase.name == "optimizer" for phase in self.phases) and self.seconds > 0
        )

    @property
    def compiled_seconds(self) -> float:
        return sum(kernel.seconds for kernel in self.kernels if kernel.kind != "extern")

    @property
    def idle(self) -> float:
        """The share of the plans' time in which a kernel runs and no thread works on it."""
        return sum(kernel.idle() * kernel.seconds for kernel in self.kernels) / self.seconds if self.seconds else 0.0

    def roof(self, kernel: Kernel) -> float:
        """The share of what the machine can do that it reaches: of the least time that its FLOPs and bytes need; 0 if unknown."""
        if not self.peaks or not kernel.seconds:
            return 0.0
        return max(kernel.flops / self.peaks["flops"], kernel.bytes / self.peaks["bytes"]) / kernel.seconds

    def as_dict(self) -> dict:
        """For programs."""
        memory = self.explanation.memory
        return {
            "title": self.explanation.title, "timed": self.timed, "seconds": self.seconds, "wall": self.wall, "peaks": self.peaks,
            "memory": None if memory is None else {**dataclasses.asdict(memory), "total": memory.total},
            "kernels": [{**dataclasses.asdict(k), "roof": self.roof(k)} for k in self.kernels],
        }  # fmt: skip


__all__ = ["COLOURS", "Figures", "line_of"]
