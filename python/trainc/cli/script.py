"""Runs a program as `python PROGRAM ...` does: its `__main__`, arguments, path, exit code and signals are those that it has
without trainc, and a traceback shows its frames and not ours."""

from __future__ import annotations

import dataclasses
import functools
import importlib.machinery
import io
import os
import runpy
import sys
import types
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from trainc.base import PACKAGE
from trainc.base.errors import UserError


@dataclasses.dataclass
class Program:
    """What follows the options of `trainc run`, as Python's own command line has it: FILE, `-` (from stdin), `-m MODULE` or
    `-c CODE`, and the program's own arguments."""

    kind: str  # "file" | "stdin" | "module" | "code"
    name: str  # path, "-", module's name, code
    words: list[str]

    @staticmethod
    def escaped(words: list[str]) -> list[str]:
        """For argparse, which would take a "--" for its own."""
        return ["\0--" if word == "--" else word for word in words]

    @classmethod
    def of(cls, module: list[str] | None, code: list[str] | None, words: list[str]) -> Program:
        """`module`, `code`: what stands behind -m and behind -c. All of it `escaped`."""
        module, code, words = ([w.lstrip("\0") for w in given or ()] for given in (module, code, words))
        for kind, given in (("module", module), ("code", code)):
            if given:
                return cls(kind, given[0], given[1:])
        if not words:
            raise UserError("which script? FILE, -m MODULE, -c CODE, or - for what stdin gives")
        return cls("stdin" if words[0] == "-" else "file", words[0], words[1:])

    def __str__(self) -> str:
        return {"code": "-c", "module": f"-m {self.name}"}.get(self.kind, self.name)

    def line(self) -> list[str]:
        """The words that Python's command line has for it."""
        option = {"module": ["-m"], "code": ["-c"]}.get(self.kind, [])
        return [*option, self.name, *self.words]


def run(program: Program, around: AbstractContextManager) -> None:
    """Runs `program` within `around`. Whatever it raises is Python's to end the process with; ours is only what is shown."""
    try:
        with around:
            _execute(program)
    except SystemExit:
        raise
    except BaseException as error:
        if isinstance(error, ImportError) and users(error, error.__traceback__) is None:  # runpy's own: there is no such program
            print(f"{sys.executable}: {error}", file=sys.stderr)
            raise SystemExit(1) from None
        sys.excepthook = functools.partial(_show, sys.excepthook)
        raise


def _execute(program: Program) -> None:
    if program.kind == "file" and not os.path.exists(program.name):
        print(f"trainc: can't open file {os.path.abspath(program.name)!r}: no such file", file=sys.stderr)
        raise SystemExit(2)
    sys.argv = ["-c" if program.kind == "code" else program.name, *program.words]
    _set_first_path(program)
    if program.kind == "module":
        runpy.run_module(program.name, run_name="__main__", alter_sys=True)
    elif program.kind == "file" and not _is_source(program.name):
        # A folder, an archive, byte code: argv[0] is its full path then, as runpy has it.
        runpy.run_path(_full_path(program), run_name="__main__")
    else:
        source, name = _source(program)
        exec(compile(source, name, "exec", dont_inherit=True), vars(_main_module(program)))


def _source(program: Program) -> tuple[bytes | str, str]:
    """The program's text, and the name by which tracebacks call it."""
    if program.kind == "file":
        path = _full_path(program)
        with io.open_code(path) as file:
            return file.read(), path
    return (sys.stdin.buffer.read(), "<stdin>") if program.kind == "stdin" else (program.name, "<string>")


def _main_module(program: Program) -> types.ModuleType:
    """The program's `__main__`, which stays when it has ended: threads and exit handlers use it still."""
    main = types.ModuleType("__main__")
    variables: dict[str, Any] = {"__builtins__": sys.modules["builtins"], "__loader__": importlib.machinery.BuiltinImporter}
    if program.kind != "code":
        variables |= {"__file__": _full_path(program) if program.kind == "file" else "<stdin>", "__cached__": None}
    if program.kind == "file":
        variables["__loader__"] = importlib.machinery.SourceFileLoader("__main__", _full_path(program))
    vars(main).update(variables)
    sys.modules["__main__"] = main
    return main


def _full_path(program: Program) -> str:
    return os.path.join(os.getcwd(), program.name)


def _is_source(path: str) -> bool:
    return os.path.isfile(path) and not path.endswith(".pyc") and not zipfile.is_zipfile(path)


def _set_first_path(program: Program) -> None:
    """sys.path[0] is trainc's own until now."""
    if sys.flags.safe_path if hasattr(sys.flags, "safe_path") else sys.flags.isolated:
        return
    if program.kind == "file":
        if not _is_source(program.name) and not program.name.endswith(".pyc"):
            del sys.path[0]  # run_path puts the folder or the archive there
            return
        first = os.path.dirname(os.path.realpath(program.name))
    else:
        first = os.getcwd() if program.kind == "module" else ""
    sys.path[0] = first


# ---- what a traceback shows ---------------------------------------------------------------------------------------------


def _show(hook: Callable[..., Any], kind: type, error: BaseException, traceback: types.TracebackType | None) -> None:
    """`hook`, what the program has as sys.excepthook, with the program's own frames."""
    seen: set[int] = set()
    chain = [error]
    while chain:
        one = chain.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = users(one, one.__traceback__)
        chain += [other for other in (one.__cause__, one.__context__) if other is not None]
    hook(kind, error, error.__traceback__)


def users(error: BaseException, traceback: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without what started the program, and without trainc's frames. Where trainc itself has failed, its innermost
    frame stays."""
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    starts = [i for i, entry in enumerate(frames) if entry.tb_frame.f_code in (run.__code__, _execute.__code__)]
    if starts:
        del frames[: starts[-1] + 1]
        while frames and frames[0].tb_frame.f_code.co_filename in ("<frozen runpy>", runpy.__file__):
            del frames[0]
    if isinstance(error, UserError):  # what PyTorch and trainc did to find out is of no interest
        from trainc.torch.trust import is_trusted_file

        while frames and is_trusted_file(frames[-1].tb_frame.f_code.co_filename):
            frames.pop()
    ours = [entry.tb_frame.f_code.co_filename.startswith(PACKAGE) for entry in frames]
    if ours:
        ours[-1] = False
    shown = None
    for entry, hidden in zip(reversed(frames), reversed(ours), strict=True):
        if not hidden:
            shown = types.TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown


__all__ = ["Program", "run", "users"]
