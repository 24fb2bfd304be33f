"""What torch.profiler shows of a plan: a span for it, and within that one for each step, with its line of the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from trainc.torch import compat


@contextlib.contextmanager
def spans(plan: str, names: Sequence[str]) -> Iterator[Callable[[int], None]]:
    """Where a profiler is there. Gives what is called with a step's number when that begins; `names`: of all steps."""
    step = contextlib.ExitStack()  # the span that is open

    def begin(number: int) -> None:
        step.close()
        step.enter_context(compat.span(names[number]))

    with compat.span(plan), step:
        yield begin


def step_name(step: dict) -> str:
    """Of a step of a plan's report."""
    line = next(filter(None, step.get("origins", [])), "")
    return f"{step['name']} ({line})" if line else step["name"]


__all__ = ["spans", "step_name"]
