"""A file that reproduces a difference by itself: `trainc bug-report FILE` runs it again.

It holds a graph as text, its inputs, the state of the generator, versions and options: numbers and strings alone, so reading one
runs nobody's code (`torch.load(weights_only=True)`). Written whole or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import re
import sys
import tempfile
from typing import Any

import torch

from trainc.base import config
from trainc.base.errors import UserError
from trainc.base.options import CompileOptions
from trainc.base.step_graph import GraphText
from trainc.torch.device import HOST
from trainc.torch.graph import wire
from trainc.torch.verify import update
from trainc.torch.verify.bounds import Distance
from trainc.torch.verify.case import Case, graph_of
from trainc.torch.verify.oracle import largest, parted
from trainc.torch.verify.program import Draws
from trainc.torch.verify.update import Update

FORMAT = "trainc bug report 1"


def write(case: Case | Update, what: str, distance: Distance | None) -> str | None:
    """Writes a report of `what`; its path, or None where there is no place for one."""
    content = {
        "format": FORMAT, "what": what, "about": about(case.device, case.tune),
        "found": None if distance is None else dataclasses.asdict(distance),
        **(_of_update(case) if isinstance(case, Update) else _of_case(case)),
    }  # fmt: skip
    for folder in (config.reports_dir or os.environ.get("TRAINC_REPORTS_DIR") or os.getcwd(), tempfile.gettempdir()):
        with contextlib.suppress(OSError, RuntimeError):  # torch.save's own error of a full disk is a RuntimeError
            return _write(folder, case.name, content)
    return None


def _of_case(case: Case) -> dict:
    text = wire.graph_text(case.graph.graph, case.name, case.device)
    return {
        "kind": case.kind, "name": case.name, "graph": text.canonical, "origins": text.origins, "outputs": case.outputs,
        "inputs": _plain(case.inputs), "tangents": _plain(case.tangents), "state": case.draws.state, "late": case.draws.late,
        "default": wire.dtype_name(torch.get_default_dtype()),
    }  # fmt: skip


def _of_update(case: Update) -> dict:
    return {"kind": "update", **{field.name: getattr(case, field.name) for field in dataclasses.fields(case)}}


def _plain(values: list[Any]) -> list[Any]:
    """Tensors on the CPU, each with memory of its own."""
    return [value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value for value in values]


def _write(folder: str, name: str, content: dict) -> str:
    """The file's name has a hash of what is in it: the same finding is the same file."""
    number, unfinished = tempfile.mkstemp(prefix=".trainc-bug-", suffix=".tmp", dir=folder)
    try:
        with open(number, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        path = os.path.join(folder, f"trainc-bug-{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}-{_digest(unfinished)[:8]}.pt")
        os.replace(unfinished, path)
        return path
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def _digest(path: str) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def about(device: Any = HOST, tune: str = "fast") -> dict[str, Any]:
    """Versions, the machine and the options of a compile."""
    from trainc import _core

    options = json.loads(CompileOptions.of(device, tune).text())
    return {
        "trainc": sys.modules["trainc"].__version__, "PyTorch": str(torch.__version__), "Python": platform.python_version(),
        "CPU": _core.cpu_model(), "CPU level": _core.cpu_level(), "threads": torch.get_num_threads(), "options": options,
    }  # fmt: skip


# ---- again ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Again:
    """A report that was run again."""

    differs: bool
    ratio: float  # the largest, over eager's own error
    text: str


def run(path: str) -> Again:
    """Compiles what is in a report, and compares it with PyTorch. UserError where it is none."""
    content = _read(path)
    case = _update_of(content) if content["kind"] == "update" else _case_of(content, path)
    found = case.distances()
    differing, ratio = parted(found), largest(found)
    told = [content["what"]]
    if differing:
        place, distance = differing
        told.append(f"still differs: {case.result_name(place)} is {_by(distance)}")
    else:
        told.append(f"agrees: its error is at most {ratio:.3g} times eager's")
    told += _elsewhere(content["about"], about(case.device, case.tune))
    return Again(differing is not None, ratio, "\n".join(told))


def _by(distance: Distance) -> str:
    return f"{distance.error:.2e} of its size from the truth, where {distance.allowed:.2e} is allowed"


def _read(path: str) -> dict:
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise UserError(f"trainc bug-report: {error}") from None
    except Exception:  # whatever torch.load and unpickling raise for what is none of their files
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"trainc bug-report: {path} is no report of this version of trainc")
    return content


def _case_of(content: dict, path: str) -> Case:
    from trainc.torch.capture import traced_kernels  # noqa: F401 (registers operations of ours)

    torch.set_default_dtype(wire.DTYPES[content["default"]])
    try:
        graph = graph_of(GraphText(content["graph"], content["origins"]))
    except AttributeError as error:
        raise UserError(f"trainc bug-report: {path} has an operation that is not known here ({error})") from None
    draws = Draws(content["state"], content["late"])
    tune = content["about"]["options"]["tune"]
    return Case(
        content["kind"], content["name"], graph, content["inputs"], content["tangents"], content["outputs"], draws, tune=tune
    )


def _update_of(content: dict) -> Update:
    return update.Update(**{field.name: content[field.name] for field in dataclasses.fields(Update)})


def _elsewhere(then: dict, now: dict) -> list[str]:
    """What is another here than where the report was written."""
    names = [name for name in ("trainc", "PyTorch", "CPU", "CPU level", "threads") if then[name] != now[name]]
    return [f"written with {name} {then[name]}; here it is {now[name]}" for name in names]


__all__ = ["Again", "about", "run", "write"]
