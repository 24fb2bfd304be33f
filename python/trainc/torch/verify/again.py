"""The program itself run once more, in PyTorch, beside a compiled call: is what was traced still what it does?

Its forward runs over copies of what the call was given, with the call's random numbers. So nothing that it writes is the
program's: buffers, the generator and `.grad` are as one step leaves them. A program whose forward changes Python's state is not
captured (docs/capture.md, "What is watched"), so there is none that could change twice; attributes are put back all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainc.torch.capture import again
from trainc.torch.capture.structure import Flattener
from trainc.torch.device import Host
from trainc.torch.guards.state import ModuleState

Tensor = torch.Tensor

class Again:
    """`given`: copies of the model's tensors and the arguments' tensors; `args`, `kwargs`: of the call."""

    def __init__(self, state: ModuleState, given: Sequence[Tensor], args: tuple, kwargs: dict, device: Host, generator: Tensor):
        structure = Flattener().flatten((args, kwargs))
        self.inputs, versions = list(given), [t._version for t in given]
        with device.generator_at(generator):
            result, self.changed = again.result_of(state, structure, self.inputs)
            self.state = device.generator().get_state()
        flattener = Flattener(known=lambda _: False)
        flattener.flatten(result)
        self.outputs = flattener.tensors
        self.written = {i for i, (t, v) in enumerate(zip(self.inputs, versions, strict=True)) if t._version != v}

    def gradients(self, outputs: Sequence[int], tangents: Sequence[Tensor | None]) -> dict[int, Tensor | None]:
        """Of each input that wants one, for these tangents of `outputs`."""
        wanting = [i for i, t in enumerate(self.inputs) if t.requires_grad]
        pairs = [(self.outputs[i], tangent) for i, tangent in zip(outputs, tangents, strict=True) if tangent is not None]
        pairs = [(output, tangent) for output, tangent in pairs if output.requires_grad]
        if not pairs:
            return dict.fromkeys(wanting)
        with again.running():
            made = torch.autograd.grad(
                [output for output, _ in pairs], [self.inputs[i] for i in wanting], [tangent for _, tangent in pairs],
                allow_unused=True, retain_graph=True,
            )  # fmt: skip
        return dict(zip(wanting, made, strict=True))


__all__ = ["Again"]
