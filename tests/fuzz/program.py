"""A random program as text: a module whose forward is a list of statements, and the loop that trains it."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


@dataclasses.dataclass(frozen=True)
class Program:
    """`init`, `forward`: statements, each of one or several lines; the forward has `x` (float32 [rows, 6]) and `ids` (int64
    [rows, 4], below 7), and gives (loss, outputs). `loop`: what judge.train takes."""

    seed: int
    init: tuple[str, ...]
    forward: tuple[str, ...]
    outputs: tuple[str, ...]  # names of variables; the float ones make the loss
    loop: dict[str, Any]

    def source(self) -> str:
        """Of the module."""
        init = textwrap.indent("\n".join(self.init), " " * 8)
        forward = textwrap.indent("\n".join(self.forward), " " * 8)
        terms = " + ".join(f"loss_of({name})" for name in self.outputs) or "x.sum() * 0"
        given = ", ".join(self.outputs)
        return (
            f"{HEAD}\n\ndef loss_of(value):\n"
            "    return value.float().pow(2).mean() if value.is_floating_point() and value.numel() else 0.0\n\n\n"
            f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n{init}\n\n"
            f"    def forward(self, x, ids):\n{forward}\n        return {terms}, [{given}]\n"
        )

    def module(self) -> type:
        """The class Net, made from the text."""
        space: dict[str, Any] = {"__name__": f"program_{self.seed}"}
        exec(compile(self.source(), f"<program {self.seed}>", "exec"), space)
        return space["Net"]


def alone(program: Program, why: str, judge: str) -> str:
    """A file that runs alone, given trainc: the module, and this folder's judge."""
    judged = judge.replace("from __future__ import annotations\n", "")
    return (
        f'"""Program {program.seed}: {why}\n\nIt trains in PyTorch and through trainc, and says where they differ.\n"""\n\n'
        f"from __future__ import annotations\n\n{program.source()}\n\n{judged}\n\n"
        f"LOOP = {program.loop!r}\n\nif __name__ == '__main__':\n    print(compare(Net, LOOP) or 'no difference')\n"
    )


__all__ = ["Program", "alone"]
