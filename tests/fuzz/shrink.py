"""The smallest program that still fails in the same way: statements are left out, the loop is made plainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from program import Program

PLAIN = {
    "rows": [3, 3],
    "accumulate": 1,
    "clip": None,
    "set_to_none": True,
    "scheduler": False,
    "evaluate": False,
    "autocast": False,
}


def smaller(program: Program) -> Iterator[Program]:
    for i in reversed(range(len(program.forward))):
        yield dataclasses.replace(program, forward=program.forward[:i] + program.forward[i + 1 :])
    for i in range(len(program.outputs)):
        yield dataclasses.replace(program, outputs=program.outputs[:i] + program.outputs[i + 1 :])
    for i in range(len(program.init)):
        yield dataclasses.replace(program, init=program.init[:i] + program.init[i + 1 :])
    for key, value in PLAIN.items():
        if program.loop[key] != value:
            yield dataclasses.replace(program, loop={**program.loop, key: value})


def shrunk(program: Program, fails: Callable[[Program], bool], most: int = 300) -> Program:
    """`fails`: whether a program fails as this one does."""
    tried = 0
    while True:
        for candidate in smaller(program):
            tried += 1
            if tried > most:
                return program
            if fails(candidate):
                program = candidate
                break
        else:
            return program


__all__ = ["shrunk"]
