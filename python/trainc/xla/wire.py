"""A StableHLO module -> the JSON text that src/frontend/stablehlo/import.h reads."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from trainc.base.errors import InternalError
from trainc.base.step_graph import GraphText
from trainc.xla import attributes
from trainc.xla.origins import Origins

WRITTEN = 64  # elements of a constant at most; a larger one is an input of the plan: no text, and no part of the plan's key

Json = dict[str, Any]
Constants = dict[attributes.Elements, ir.Type]  # that become inputs, in order; equal ones are one


def written(module: ir.Module, name: str, donated: list[bool]) -> tuple[GraphText, list[np.ndarray]]:
    """The text of a module for one device whose function "main" takes len(donated) arguments. Behind these it takes its large
    constants, which are given, too."""
    with module.context:
        walk = _Walk(module)
        functions = {f.name.value: walk.function(f) for f in walk.functions.values()}
        constants = [attributes.elements(a) for a in walk.lifted["main"]]
    arguments = functions["main"]["args"]
    if len(arguments) != len(donated) + len(constants):
        raise InternalError(f"{name}: {len(arguments)} arguments are lowered, {len(donated)} given")
    for argument, gone in zip(arguments, donated, strict=False):
        argument |= {"donated": True} if gone else {}
    text = json.dumps({"front": "stablehlo", "name": name, "functions": functions})
    return GraphText(text, walk.origins.lines), constants


class _Walk:
    def __init__(self, module: ir.Module):
        self.origins = Origins()
        self.functions = {f.name.value: f for f in module.body if f.operation.name == "func.func"}
        self.lifted: dict[str, Constants] = {}
        for function in self.functions:
            self._lift(function)
        self._count = 0
        self._names: dict[ir.Value, str] = {}
        self._constants: dict[attributes.Elements, str] = {}  # lifted ones of the function that is being written

    def function(self, function: ir.Operation) -> Json:
        block = function.regions[0].blocks[0]
        arguments = [self._named(a) for a in block.arguments]
        lifted = [{"name": self._fresh(), **attributes.type_of(t)} for t in self.lifted[function.name.value].values()]
        self._constants = {a: v["name"] for a, v in zip(self.lifted[function.name.value], lifted, strict=True)}
        return {"args": arguments + lifted, **self._body(block)}

    # ---- large constants -------------------------------------------------------------------------------------------

    def _lift(self, name: str) -> Constants:
        """The large constants of a function and of those that it calls."""
        if name not in self.lifted:
            found: Constants = {}
            for operation in _operations(self.functions[name].regions):
                if operation.name == "stablehlo.constant":
                    value = attributes.value_of(operation)
                    if attributes.distinct_elements(value) > WRITTEN:
                        found[value] = operation.results[0].type
                elif operation.name == "func.call":
                    found |= self._lift(operation.attributes["callee"].value)
            self.lifted[name] = found
        return self.lifted[name]

    # ---- operations ------------------------------------------------------------------------------------------------

    def _body(self, block: ir.Block) -> Json:
        nodes: list[Json] = []
        returns: list[str] = []
        for view in block.operations:
            operation = view.operation
            if operation.name in ("func.return", "stablehlo.return"):
                returns = [self._names[v] for v in operation.operands]
            elif _is_placement(operation):
                self._names[operation.results[0]] = self._names[operation.operands[0]]
            elif operation.name == "stablehlo.constant" and attributes.value_of(operation) in self._constants:
                self._names[operation.results[0]] = self._constants[attributes.value_of(operation)]
            else:
                nodes.append(self._node(operation))
        return {"body": nodes, "returns": returns}

    def _node(self, operation: ir.Operation) -> Json:
        operands = [self._names[v] for v in operation.operands]
        if operation.name == "func.call":
            operands += [self._constants[a] for a in self.lifted[operation.attributes["callee"].value]]
        constant = operation.name == "stablehlo.constant"
        return {
            "op": operation.name,
            "operands": operands,
            "results": [self._named(v) for v in operation.results],
            "attrs": {"value": attributes.constant(attributes.value_of(operation))}
            if constant
            else attributes.attributes_of(operation),
            "regions": [self._region(r) for r in operation.regions],
            "origin": f"@{self.origins.number(operation.location)}",
        }

    def _region(self, region: ir.Region) -> Json:
        blocks = list(region.blocks)
        if not blocks:
            return {"args": [], "body": [], "returns": []}
        return {"args": [self._named(a) for a in blocks[0].arguments], **self._body(blocks[0])}

    def _named(self, value: ir.Value) -> Json:
        self._names[value] = self._fresh()
        return {"name": self._names[value], **attributes.type_of(value.type)}

    def _fresh(self) -> str:
        self._count += 1
        return f"%{self._count - 1}"


def _operations(regions: Any) -> Any:
    for region in regions:
        for block in region:
            for view in block.operations:
                yield view.operation
                yield from _operations(view.operation.regions)


def _is_placement(operation: ir.Operation) -> bool:
    """Whether it only says on which devices a value lies: there is one."""
    if operation.name == "stablehlo.custom_call":
        return operation.attributes["call_target_name"].value == "Sharding"
    return operation.name == "sdy.sharding_constraint"


__all__ = ["WRITTEN", "written"]
