"""Tensors that a traced graph holds: numbers are written into it, all others become its inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch

from trainc.base.errors import NotCompiled
from trainc.torch import compat
from trainc.torch.compat import disable_current_modes
from trainc.torch.graph import wire


def lift_constants(
    gm: torch.fx.GraphModule, before: torch.fx.Node | None, is_users: Callable[[torch.Tensor], bool] = lambda _: False
) -> list[torch.Tensor]:
    """Turns tensors that the graph holds (`torch.tensor(0.5)` in a forward) into inputs after the primals; returns them.
    `is_users`: whether a tensor is one of the program's own, which may hold another number later."""
    graph, constants = gm.graph, []
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        tensor = getattr(gm, node.target)
        if not isinstance(tensor, torch.Tensor):
            raise NotCompiled(_refused(node, tensor))
        written = tensor.dim() == 0 and tensor.dtype in wire.DTYPE_NAMES and not is_users(tensor)
        if written:  # a number that Python wrote: part of the code, not an input
            with disable_current_modes():  # AOTAutograd's fakes have no values
                value = tensor.item()
            with graph.inserting_before(node):
                number = graph.call_function(torch.ops.aten.full.default, ([], value), {"dtype": tensor.dtype})
            number.meta.update(node.meta, val=_fake_like(graph, tensor))
            node.replace_all_uses_with(number)
            graph.erase_node(node)
            continue
        first_call = next(n for n in graph.nodes if n.op != "placeholder")
        with graph.inserting_before(before or first_call):
            lifted = graph.placeholder(f"constant_{len(constants)}")
        lifted.meta["val"] = _fake_like(graph, tensor)
        node.replace_all_uses_with(lifted)
        graph.erase_node(node)
        constants.append(tensor)
    return constants


def _refused(node: torch.fx.Node, value: object) -> str:
    reader = next(iter(node.users), node)
    where = f"{wire.origin(reader) or reader.name} ({wire.target_name(reader.target)})"
    if isinstance(value, torch.Generator):
        return f"{where} draws from a torch.Generator of the program's own (generator=); a plan draws from PyTorch's default one"
    return f"{where} reads a {type(value).__name__}, which no plan can"


def _fake_like(graph: torch.fx.Graph, tensor: torch.Tensor) -> torch.Tensor:
    with fake_mode_of(list(graph.find_nodes(op="placeholder"))):
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def fake_mode_of(nodes: Sequence[torch.fx.Node]) -> contextlib.AbstractContextManager:
    values = (node.meta.get("val") for node in nodes)
    fakes = (value for value in values if isinstance(value, compat.FakeTensor))
    fake = next(fakes, None)
    return fake.fake_mode if fake is not None else compat.FakeTensorMode()


__all__ = ["fake_mode_of", "lift_constants"]
