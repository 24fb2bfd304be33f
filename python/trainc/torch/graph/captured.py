"""FX graphs as captured steps."""

from __future__ import annotations

from collections.abc import Callable

import torch

from trainc.base.shared_kernels import SharedKernels
from trainc.base.step_graph import Kind, StepGraph, Updates
from trainc.torch.device import Host
from trainc.torch.graph import wire
from trainc.torch.graph.sizes import Symbols, Template


def captured(
    kind: Kind, gm: torch.fx.GraphModule, name: str, device: Host, inputs: int = 0, outputs: int = 0,
    updates: Updates | None = None,
) -> StepGraph:  # fmt: skip
    """`gm`, of `inputs` and `outputs` of its forward, for plans on `device`."""
    tangents = len(list(gm.graph.find_nodes(op="placeholder"))) - inputs
    text, types = lambda: wire.graph_text(gm.graph, name, device, kind == "joint"), wire.result_types(gm.graph)
    return StepGraph(kind, name, inputs, tangents, outputs, text, gm, updates, types=types)


def shared_kernels(
    symbols: Symbols | None, template: Callable[[], Template], name: str, device: Host,
    changed: Callable[[torch.fx.GraphModule], torch.fx.GraphModule] = lambda gm: gm,
) -> SharedKernels | None:  # fmt: skip
    """Of the graph that `template()` gives for values of `symbols`, as it is `changed`. None without any, and for devices whose
    kernels are not shared."""
    from trainc import _core

    if symbols is None or not symbols.sizes or not _core.shares_kernels(_core.target(device.target()["device"])):
        return None
    return SharedKernels(
        lambda: [wire.graph_text(changed(template().at(bound)).graph, name, device) for bound in symbols.others()]
    )


__all__ = ["captured", "shared_kernels"]
