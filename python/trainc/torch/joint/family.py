"""Calls that differ in the sizes of their arguments alone, and the traces that serve them: of a model's call and of a whole step.

The first call is traced with its sizes, the second with symbols for what changed; further ones are not traced where a trace with
symbols holds for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from trainc.base.errors import NotCompiled, UserError
from trainc.base.records import Compilation
from trainc.torch import numbers
from trainc.torch.graph import sizes

Tensor = torch.Tensor
Entry = Callable[..., Any]
# (inputs, record) -> the entry for these sizes; None (or NotCompiled) where the trace does not hold for them
Serve = Callable[[list[Tensor], Compilation], Entry | None]

MAX_SYMBOLIC = 4  # traces with symbolic sizes of one family


def key_of(key: tuple) -> tuple:
    """A call's key without the sizes and strides of its arguments."""
    variant, (training, structure, types, *modes) = key
    return variant, training, structure, *modes, tuple([(len(shape), *rest) for shape, _, *rest in types])


@dataclasses.dataclass
class Family:
    shapes: list[list[torch.Size]] = dataclasses.field(default_factory=list)  # that were traced
    traces: list[Serve] = dataclasses.field(default_factory=list)  # those with symbols
    reason: str = ""  # why this model's sizes cannot be symbols
    # what its traces may have read; it serves calls while all of them hold
    guards: list[Callable[[], bool]] = dataclasses.field(default_factory=list)
    # of each argument, the dimensions that are known to change; None: seen at the second shape
    dims: list[set[int]] | None = None
    slots: list[numbers.Slot] = dataclasses.field(default_factory=list)  # numbers that are inputs of all its traces
    known: list[numbers.Slot] = dataclasses.field(default_factory=list)  # all numbers that were seen to change
    prints: list[numbers.Print] = dataclasses.field(default_factory=list)  # traces without numbers, to compare with

    def holds(self) -> bool:
        """Whether everything that its traces may have read is as it was."""
        return all([guards() for guards in self.guards])

    def other_numbers(self) -> list[tuple[Any, Any]] | None:
        """The numbers that the program would read now, and that were others when this was traced; None where it would read
        anything else that is not as it was."""
        found: list[tuple[Any, Any]] = []
        for guards in self.guards:
            if (inside := guards.other_numbers()) is None:
                return None
            found += inside
        return found

    def entry(
        self,
        record: Compilation,
        tensors: list[Tensor],
        arguments: list[Tensor],
        static: Callable[[], Entry],
        symbolic: Callable[[sizes.Symbols], Serve],
    ) -> Entry:
        """The entry for new sizes of `arguments`; `tensors` are the model's. `static()` traces them with these sizes,
        `symbolic(symbols)` with `symbols.inputs` in their place; what it gives serves these sizes, too."""
        for serve in self.traces:
            with contextlib.suppress(NotCompiled):  # the cut for these sizes does not fit
                if entry := serve([*tensors, *arguments], record):
                    record.trace = "sizes"
                    return entry
        entry = self._with_symbols(record, tensors, arguments, symbolic) if self.shapes or self.dims else None
        if entry is None and self.slots:
            entry = self._with_numbers(record, tensors, arguments, symbolic)
        if entry is None:
            entry, record.trace = static(), "static"
            if record.fingerprint:
                self.prints.append(numbers.Print(record.fingerprint, arguments, self.known))
        self.shapes.append([t.shape for t in arguments])
        return entry

    def forget(self, record: Compilation) -> None:
        """What was traced for this is not to be used: the program does more than was traced."""
        if record.trace == "symbolic":
            self.traces.pop()

    def _with_numbers(
        self,
        record: Compilation,
        tensors: list[Tensor],
        arguments: list[Tensor],
        symbolic: Callable[[sizes.Symbols], Serve],
    ) -> Entry:
        """The entry of a trace with numbers for these sizes. `numbers.Constant` where that fails."""
        if len(self.traces) >= MAX_SYMBOLIC:
            raise numbers.Constant(f"it depends on a number in more than {MAX_SYMBOLIC} ways", self.slots)
        numbers.expect_prints(self.prints, self.slots)
        try:
            return self._traced(record, tensors, arguments, [set() for _ in arguments], [], symbolic)
        except (UserError, numbers.Constant):
            raise
        except Exception as error:  # whatever a program makes of what stands for a number: the trace without them decides
            raise numbers.Constant(first_line(error), self.slots) from error

    def _traced(
        self,
        record: Compilation,
        tensors: list[Tensor],
        arguments: list[Tensor],
        dynamic: list[set[int]],
        moving: list[set[int]],
        symbolic: Callable[[sizes.Symbols], Serve],
    ) -> Entry:
        program = numbers.Program(self.slots) if self.slots else None
        symbols = sizes.Symbols(tensors, arguments, dynamic, program, self.prints)
        try:
            with sizes.answered_once():
                found = symbolic(symbols)
        finally:
            if program is not None:
                program.close()
        symbols.check(moving)

        def serve(inputs: list[Tensor], record: Compilation) -> Entry | None:
            if program is None:
                return found(inputs, record)
            entry = found(inputs, record) if program.input() is not None else None
            return None if entry is None else numbers.Numbered(entry, program)

        entry = serve([*tensors, *arguments], record)
        if entry is None:
            raise NotCompiled("the trace with symbols does not hold for the sizes that it was made with")
        self.traces.append(serve)
        if program is not None:
            self.prints.append(numbers.Print(program.text, arguments, self.known))
        record.trace = "symbolic"
        return entry

    def _with_symbols(
        self,
        record: Compilation,
        tensors: list[Tensor],
        arguments: list[Tensor],
        symbolic: Callable[[sizes.Symbols], Serve],
    ) -> Entry | None:
        """The entry of a trace with symbols for the sizes that changed, and for first dimensions; None where that fails."""
        if len(self.traces) >= MAX_SYMBOLIC and not self.reason:
            self.reason = f"its forward depends on the sizes in more than {MAX_SYMBOLIC} ways"
        moving = self._moving(arguments)
        # a size of 0 or 1 is another computation (broadcasting), and no symbol
        large = [{d for d, size in enumerate(t.shape) if size > 1} for t in arguments]
        moving = [dims & others for dims, others in zip(moving, large, strict=True)]
        dynamic = [dims | others & {0} for dims, others in zip(moving, large, strict=True)]
        if not self.reason and any(moving):
            try:
                return self._traced(record, tensors, arguments, dynamic, moving, symbolic)
            except UserError:
                raise
            except Exception as error:  # whatever a model or torch makes of symbols: the trace without them decides
                self.reason = first_line(error)
        record.trace_reason = self.reason
        return None

    def _moving(self, arguments: list[Tensor]) -> list[set[int]]:
        """The dimensions in which these arguments differ from those before."""
        if self.dims is not None:
            return self.dims
        return [
            {d for d, size in enumerate(t.shape) if any(shapes[i][d] != size for shapes in self.shapes)}
            for i, t in enumerate(arguments)
        ]


def first_line(error: BaseException | None) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


__all__ = ["Family", "first_line", "key_of"]
