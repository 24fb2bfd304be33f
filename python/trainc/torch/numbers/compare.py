"""Whether a trace with numbers is the one that there would be without them: the graph, and what the call gives back."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trainc.torch.numbers.program import Program
from trainc.torch.numbers.questions import question
from trainc.torch.numbers.slots import Constant, Slot


class Print:
    """A trace that is known to be right, by its fingerprint, for these inputs and these numbers."""

    def __init__(self, text: str, inputs: Sequence[torch.Tensor], slots: Sequence[Slot]):
        self.text = text
        self.inputs = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in inputs]
        self.values = {slot: slot.get() for slot in slots}

    def tells(self, slots: Sequence[Slot]) -> bool:
        return all(type(self.values.get(slot)) is float for slot in slots)


def expect_prints(prints: Sequence[Print], slots: Sequence[Slot]) -> None:
    if not any(known.tells(slots) for known in prints):
        raise Constant("there is no trace of another value to compare with", slots, again=True)


def compare(
    program: Program, prints: Sequence[Print], result: Any, at: Callable[[Print, list[float]], torch.fx.GraphModule | None]
) -> None:
    """Raises where the trace is not, for another value of a number, what a trace without numbers was: the program does other
    things with what is no float. `result`: the structure of what the call gives back; `at`: the traced graph with constants,
    for a print and the numbers' values then."""
    program.check_constants()
    if (asked := question(program.reads, program.operands)) is not None:
        raise Constant(f"{asked}, which tells what stands for a number from the number", program.slots)
    expect_prints(prints, program.slots)
    compared: set[int] = set()
    for known in prints:
        given = [known.values.get(slot) for slot in program.slots]
        if (values := program.run(given)) is None or (gm := at(known, values)) is None:
            continue
        if fingerprint(gm.graph, result, program.vector) != known.text:
            raise Constant("the program does other things with what stands for a number", program.slots)
        compared |= {i for i, value in enumerate(given) if struct.pack("d", value) != struct.pack("d", program.values[i])}
    missing = [slot for i, slot in enumerate(program.slots) if i not in compared]
    if missing:
        raise Constant("no trace of another value takes the same branches", missing, again=True)


def fingerprint(graph: torch.fx.Graph, result: Any = (), without: int = -1) -> str:
    """What tells a graph, and the structure of the call's result, from others; `without`: the placeholder that is left out of it,
    and with it its gradient, which there is none of."""
    places: dict[torch.fx.Node, int] = {}

    def text(arg: Any) -> str:
        if isinstance(arg, torch.fx.Node):
            return f"%{places[arg]}"
        if isinstance(arg, (list, tuple)):
            return f"({','.join(map(text, arg))})"
        if isinstance(arg, dict):
            return f"({','.join(f'{text(key)}={text(item)}' for key, item in arg.items())})"
        return f"{type(arg).__name__} {arg.hex() if type(arg) is float else repr(arg)}"

    found = hashlib.blake2b(text(result).encode())
    placeholders = list(graph.find_nodes(op="placeholder"))
    primals = sum(not node.name.startswith("tangents") for node in placeholders)
    left_out = placeholders[without] if without >= 0 else None
    for node in graph.nodes:
        if node is left_out:
            continue
        places[node] = len(places)
        target, args = node.target if node.op == "call_function" else node.op, node.args
        if node.op == "output" and left_out is not None:
            outputs = list(args[0])
            gradient = len(outputs) - primals + without
            if gradient >= 0 and outputs[gradient] is None:
                del outputs[gradient]
            args = (tuple(outputs),)
        found.update(f"{target}{text(args)}{text(node.kwargs)}{text(_types(node.meta.get('val')))};".encode())
    return found.hexdigest()


def _types(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.stride()
    return tuple(map(_types, value)) if isinstance(value, (list, tuple)) else type(value).__name__


__all__ = ["Print", "compare", "expect_prints", "fingerprint"]
