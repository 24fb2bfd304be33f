"""A captured step: what every front end gives to the compiler."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable
from typing import Any, Literal, Protocol

Kind = Literal["inference", "joint", "step"]


@dataclasses.dataclass(frozen=True)
class GraphText:
    """A graph as src/frontend reads it. `canonical` names each distinct origin by its number, "@3" for origins[3]: two programs
    that differ in file names and line numbers have the same one."""

    canonical: str
    origins: list[str]  # the user's lines, "model.py:41"

    def text(self) -> str:
        """With the origins themselves. (Inside a JSON string the quotes of the pattern would be escaped.)"""
        return re.sub(r'"origin": "@(\d+)"', lambda m: f'"origin": {json.dumps(self.origins[int(m[1])])}', self.canonical)


class Updates(Protocol):
    """The optimizers' updates of a graph's gradients. `states`: tensors of each update; `scalars`: numbers of each setting."""

    def arguments(self, name: str) -> list[Any]:
        """What the compiler wants to know, for the graph `name`: the formulas as (graph, inputs that its results replace), and of
        each update (formula, gradient, inputs of the plan; -1: the gradient)."""

    def inputs(self, states: list[Any], scalars: list[list[float]]) -> list[Any]:
        """What a plan with these updates is given for them, behind its other inputs."""

    def run(self, inputs: Any, gradients: Any, states: list[Any], scalars: list[list[float]]) -> None:
        """Makes the updates without a plan, of its other inputs and the gradients."""


class NotChunked(Exception):
    """No loss is made in chunks of rows, where that alone is wanted (`StepGraph.whole`)."""


@dataclasses.dataclass(frozen=True)
class StepGraph:
    """One captured step, or a part of one:

        "inference"  inputs -> outputs
        "joint"      inputs, tangents -> outputs, gradients: forward and backward, of which each gets plans of its own
        "step"       the same with one tangent, the number 1, and the `updates` of all gradients that there are: one plan

    Its graph takes the inputs, then the tangents, and gives the outputs of the forward, then the gradients.
    """

    kind: Kind
    name: str  # for messages and reports
    inputs: int
    tangents: int
    outputs: int
    read: Callable[[], GraphText]  # writes the graph as text; InternalError where that cannot be
    program: Any = None  # the same graph for the framework itself to run
    updates: Updates | None = None  # of a joint graph: those that are expected to run in one plan with its backward
    undefined: tuple[int, ...] = ()  # "joint": of inputs and tangents, those that no backward will have
    # "joint": the whole step, of which this one lacks a result; it is wanted only if its loss is made in chunks of rows
    whole: StepGraph | None = None
    types: tuple[str | None, ...] = ()  # of outputs and gradients that a plan has no type for: "complex64", there pairs
    given_away: tuple[tuple[int, int], ...] = ()  # "inference": an input, and an output that may take its memory

    @functools.cached_property
    def graph(self) -> GraphText:
        return self.read()

    def update_arguments(self) -> list[Any]:
        """What the compiler wants to know of the updates; empty without any."""
        return [] if self.updates is None else self.updates.arguments(self.name)

    def as_text(self) -> StepGraph:
        """The same for whoever keeps it: without the framework's own graph. (`whole` is written where it is compiled: rarely.)"""
        graph = self.graph
        return dataclasses.replace(self, read=lambda: graph, program=None)


__all__ = ["GraphText", "Kind", "NotChunked", "StepGraph", "Updates"]
