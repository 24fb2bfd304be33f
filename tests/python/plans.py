"""Graphs in the wire format as plans that run on the CPU, for tests of single operations."""

from trainc import _core
from trainc.base.options import CompileOptions
from trainc.torch.device import HOST
from trainc.torch.run.executable import CoreExecutable


def compiled_text(text: str, name: str) -> CoreExecutable:
    return CoreExecutable(_core.compile(text, name, CompileOptions.of(HOST).for_compiler()))
