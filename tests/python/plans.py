"""Graphs in the wire format as plans that run on the CPU, for tests of single operations."""

from trainc import _core
from trainc.device import HOST
from trainc.engine import CoreExecutable
from trainc.options import CompileOptions


def compiled_text(text: str, name: str) -> CoreExecutable:
    return CoreExecutable(_core.compile(text, name, CompileOptions.of(HOST).for_compiler()))
