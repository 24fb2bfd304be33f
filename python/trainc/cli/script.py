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
    if program.kind == "file" and program.name.endswith(".pyc"):
        runpy.run_path(_full_path(program), run_name="__main__")
        return
    code, variables = _found_by_import(program) if _is_imported(program) else _read(program)
    exec(code, vars(_main_module(variables)))


def _found_by_import(program: Program) -> tuple[types.CodeType, dict[str, Any]]:
    """The code of a module, or of `__main__` in a folder or an archive, which lies on sys.path; and what its `__main__` has."""
    found = runpy._get_module_details(program.name) if program.kind == "module" else runpy._get_main_module_details()
    _, spec, code = found
    if program.kind == "module":
        sys.argv[0] = spec.origin
    return code, {
        "__file__": spec.origin, "__cached__": spec.cached, "__loader__": spec.loader, "__package__": spec.parent,
        "__spec__": spec,
    }  # fmt: skip


def _read(program: Program) -> tuple[types.CodeType, dict[str, Any]]:
    variables: dict[str, Any] = {"__loader__": importlib.machinery.BuiltinImporter}
    if program.kind == "file":
        name = _full_path(program)
        try:
            with io.open_code(name) as file:
                source: bytes | str = file.read()
        except OSError as error:
            print(f"trainc: can't open file {name!r}: {error.strerror}", file=sys.stderr)
            raise SystemExit(2) from None
        variables["__loader__"] = importlib.machinery.SourceFileLoader("__main__", name)
    else:
        source, name = (sys.stdin.buffer.read(), "<stdin>") if program.kind == "stdin" else (program.name, "<string>")
    if program.kind != "code":
        variables |= {"__file__": name, "__cached__": None}
    return compile(source, name, "exec", dont_inherit=True), variables


def _main_module(variables: dict[str, Any]) -> types.ModuleType:
    """The program's `__main__`, which stays when it has ended: threads and exit handlers use it still."""
    main = types.ModuleType("__main__")
    vars(main).update({"__builtins__": sys.modules["builtins"], **variables})
    sys.modules["__main__"] = main
    return main


def _full_path(program: Program) -> str:
    return os.path.join(os.getcwd(), program.name)


def _is_imported(program: Program) -> bool:
    """Whether it is a module's, a folder's or an archive's. (A pipe, `<(...)`, can be read once: it is no archive.)"""
    path = program.name
    return program.kind == "module" or (
        program.kind == "file" and (os.path.isdir(path) or (os.path.isfile(path) and zipfile.is_zipfile(path)))
    )


def _set_first_path(program: Program) -> None:
    """sys.path[0] is trainc's own until now."""
    safe = sys.flags.safe_path if hasattr(sys.flags, "safe_path") else sys.flags.isolated
    if program.kind == "file" and _is_imported(program):
        sys.path[: 0 if safe else 1] = [_full_path(program)]
    elif not safe:
        folder = os.path.dirname(os.path.realpath(program.name)) if program.kind == "file" else ""
        sys.path[0] = os.getcwd() if program.kind == "module" else folder


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
    frame stays; a Ctrl-C is no failure."""
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    own = {function.__code__ for function in (run, _execute, _read, _found_by_import)}
    starts = [i for i, entry in enumerate(frames) if entry.tb_frame.f_code in own]
    if starts:
        del frames[: starts[-1] + 1]
        while frames and frames[0].tb_frame.f_code.co_filename in ("<frozen runpy>", runpy.__file__):
            del frames[0]
    if isinstance(error, UserError):  # what PyTorch and trainc did to find out is of no interest
        from trainc.torch.trust import is_trusted_file

        while frames and is_trusted_file(frames[-1].tb_frame.f_code.co_filename):
            frames.pop()
    ours = [entry.tb_frame.f_code.co_filename.startswith(PACKAGE) for entry in frames]
    if ours and not isinstance(error, KeyboardInterrupt):
        ours[-1] = False
    shown = None
    for entry, hidden in zip(reversed(frames), reversed(ours), strict=True):
        if not hidden:
            shown = types.TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown


__all__ = ["Program", "run", "users"]
