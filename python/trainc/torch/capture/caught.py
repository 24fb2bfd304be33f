"""Errors that the program catches, of operations that raise them when they run.

A trace has no values, so an index out of range is found by the plan: eager's error comes from the call of the model, or of the
step, past a `try` of the program's within it, where eager goes on. Such a program is not compiled. (What an operation raises for
shapes and types it raises in the trace, as in eager.) The source tells which `try` a line lies in: in bytecode, a `with` and a
`finally` look much the same, and differently in each Python."""

from __future__ import annotations

import ast
import builtins
import contextlib
import dis
import functools
import linecache
import types
from collections.abc import Iterator
from typing import Any

import torch

from trainc.base.errors import NotCompiled
from trainc.torch import compat
from trainc.torch.graph import wire
from trainc.torch.guards.watch import suspended
from trainc.torch.trust import is_trusted_code

Kinds = tuple[type[BaseException], ...]

# What the importer's checks raise (src/support/failure.h), by the operation's name without its overload. Gradients are left out:
# they read the indices that were checked.
_CHECKED: dict[str, Kinds] = {
    **dict.fromkeys(
        ("aten.embedding", "aten.index_select", "aten.index", "aten._unsafe_index", "aten.index_put", "aten._unsafe_index_put",
         "aten._index_put_impl", "aten.index_copy", "aten.nll_loss_forward", "aten.nll_loss2d_forward"), (IndexError,),
    ),
    **dict.fromkeys(
        ("aten.gather", "aten.scatter", "aten.scatter_add", "aten.index_add", "aten.binary_cross_entropy", "trainc.classes"),
        (RuntimeError,),
    ),
}  # fmt: skip
_DIVISIONS = ("aten.div", "aten.floor_divide", "aten.fmod", "aten.remainder")  # of integers: by 0
# What PyTorch runs within a plan may raise any of these, but for operations to which all values are the same.
_RUN_BY_PYTORCH: Kinds = (RuntimeError, IndexError, torch.linalg.LinAlgError)
_TAKE_ANY_VALUE = (
    "aten._scaled_dot_product", "aten._flash_attention", "aten._efficient_attention", "aten.convolution", "aten._convolution",
    "aten.avg_pool", "aten.max_pool", "aten.upsample", "aten._upsample", "aten._adaptive", "aten.adaptive", "aten.sort",
    "aten.topk", "aten.cum", "aten.rand", "aten.native_dropout", "aten.einsum", "aten._fft", "aten.complex", "aten.view_as",
)  # fmt: skip


class Caught:
    """What one trace has found."""

    reason: str | None = None

    def look(self, node: torch.fx.Node, frames: list[types.FrameType]) -> None:
        """An operation is traced that `may_raise`; `frames`: what has led to it, from the innermost to what calls the program."""
        raised = may_raise(node)
        for frame in frames if self.reason is None else ():
            code = frame.f_code
            if not _has_handlers(code) or is_trusted_code(code, frame.f_globals):
                continue
            with suspended():
                caught = _caught_at(frame, raised)
            if caught is not None:
                where = f"{wire.short(code.co_filename)}:{frame.f_lineno}"
                name = wire.target_name(node.target).rsplit(".", 1)[0]
                self.reason = (
                    f"{where}: the program catches the {caught.__name__} that {name} may raise when it runs, which what is "
                    "compiled raises from the whole call"
                )
                return

    def check(self, advice: str = "") -> None:
        if self.reason is not None:
            raise NotCompiled(self.reason + advice, in_pytorch=True)


_now = Caught()


@contextlib.contextmanager
def looked_for() -> Iterator[None]:
    """For the time of a trace."""
    global _now
    before, _now = _now, Caught()
    try:
        yield
    finally:
        _now = before


def now() -> Caught:
    """Of the trace that is going on."""
    return _now


@functools.cache
def _compiled() -> frozenset[str]:
    try:
        from trainc import _core
    except ImportError:  # the package without its compiler
        return frozenset()
    return frozenset(_core.supported_operations())


def may_raise(node: torch.fx.Node) -> Kinds:
    """What an operation may raise for its operands' values."""
    target, args = node.target, node.args
    if not isinstance(target, compat.OpOverload):
        return ()
    name = wire.target_name(target)
    packet = name.rsplit(".", 1)[0]
    if packet in _CHECKED:
        return _CHECKED[packet]
    if packet in _DIVISIONS:
        values = [arg.meta.get("val") for arg in args if isinstance(arg, torch.fx.Node)]
        whole = not any(isinstance(val, torch.Tensor) and (val.is_floating_point() or val.is_complex()) for val in values)
        of_whole = packet != "aten.div" or name.endswith("_mode")
        return (RuntimeError,) if whole and of_whole and len(args) > 1 and isinstance(args[1], torch.fx.Node) else ()
    if name in _compiled() or target.is_view:
        return ()
    if target.namespace not in ("aten", "prims", "prim"):
        return (Exception,)  # the program's own, which may raise anything
    return () if name.startswith(_TAKE_ANY_VALUE) else _RUN_BY_PYTORCH


# ---- which `try` a running line lies in --------------------------------------------------------------------------------


@functools.lru_cache(1024)
def _has_handlers(code: types.CodeType) -> bool:
    """Whether anything is caught in a function, or looked at, as a `with` does."""
    table = getattr(code, "co_exceptiontable", None)  # Python 3.11
    return bool(table) if table is not None else any(i.opname.startswith("SETUP_") for i in dis.get_instructions(code))


def _caught_at(frame: types.FrameType, raised: Kinds) -> type[BaseException] | None:
    """Which of `raised` the frame's own code would catch where it is."""
    statements = _statements(frame.f_code.co_filename, frame.f_code)
    if statements is None:  # no source: then also elsewhere in the function
        return raised[0] if _excepts(frame.f_code) else None
    for statement in statements:
        body = statement.body
        if not body[0].lineno <= frame.f_lineno <= (body[-1].end_lineno or 0):
            continue
        catches = _suppresses if isinstance(statement, (ast.With, ast.AsyncWith)) else _catches
        found = next((kind for kind in raised if catches(statement, kind, frame)), None)
        if found is not None:
            return found
    return None


def _catches(statement: Any, raised: type[BaseException], frame: types.FrameType) -> bool:
    """Whether a `try` does not hand an error on."""
    if any(isinstance(node, (ast.Return, ast.Break, ast.Continue)) for last in statement.finalbody for node in ast.walk(last)):
        return True
    for handler in statement.handlers:
        kinds = [BaseException] if handler.type is None else _kinds(handler.type, frame)
        if any(_may_be(raised, kind) for kind in kinds):
            if not _raises_it(handler, raised, frame):
                return True
            if any(issubclass(raised, kind) for kind in kinds):
                return False
    return False


def _raises_it(handler: ast.ExceptHandler, raised: type[BaseException], frame: types.FrameType) -> bool:
    """Whether a handler raises the same error, or one of the same kind with words of its own."""
    first = handler.body[0]
    if not isinstance(first, ast.Raise):
        return False
    made = first.exc.func if isinstance(first.exc, ast.Call) else first.exc
    if made is None or isinstance(made, ast.Name) and made.id == handler.name:
        return True
    return _value(made, frame) is raised


def _may_be(raised: type[BaseException], kind: type[BaseException]) -> bool:
    return issubclass(raised, kind) or raised is Exception and issubclass(kind, Exception)


def _suppresses(statement: Any, raised: type[BaseException], frame: types.FrameType) -> bool:
    """Whether a `with` is one of `contextlib.suppress` that does not hand an error on."""
    calls = [item.context_expr for item in statement.items if isinstance(item.context_expr, ast.Call)]
    suppress = [call for call in calls if _value(call.func, frame) is contextlib.suppress]
    return any(_may_be(raised, kind) for call in suppress for arg in call.args for kind in _kinds(arg, frame))


def _kinds(expression: ast.expr, frame: types.FrameType) -> list[type[BaseException]]:
    """The classes that an `except` names; of an expression that would have to be run, all."""
    if isinstance(expression, ast.Tuple):
        return [kind for item in expression.elts for kind in _kinds(item, frame)]
    value = _value(expression, frame)
    kinds = value if isinstance(value, tuple) else (value,)
    known = all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)
    return list(kinds) if known else [BaseException]


def _value(expression: ast.expr, frame: types.FrameType) -> Any:
    if isinstance(expression, ast.Attribute):
        return getattr(_value(expression.value, frame), expression.attr, None)
    if not isinstance(expression, ast.Name):
        return None
    code, name = frame.f_code, expression.id
    if name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        return frame.f_locals.get(name)
    return frame.f_globals.get(name, getattr(builtins, name, None))


_TRIES = tuple(getattr(ast, name) for name in ("Try", "TryStar", "With", "AsyncWith") if hasattr(ast, name))
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@functools.lru_cache(1024)
def _statements(path: str, code: types.CodeType) -> list[Any] | None:
    """Each `try` and `with` of a function, as its source has it; None where that cannot be read."""
    tree = _tree(path)
    if tree is None or code.co_name.startswith("<"):  # lambdas and comprehensions have no statements
        return [] if code.co_name.startswith("<") else None

    def begins(node: Any) -> int:
        return min([node.lineno, *[each.lineno for each in node.decorator_list]])

    scopes = (node for node in ast.walk(tree) if isinstance(node, _SCOPES) and node.name == code.co_name)
    scope = next((node for node in scopes if begins(node) == code.co_firstlineno), None)
    return None if scope is None else list(_within(scope))


def _within(node: ast.AST) -> Iterator[Any]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _TRIES):
            yield child
        if not isinstance(child, _SCOPES):
            yield from _within(child)


@functools.lru_cache(16)
def _tree(path: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return None


@functools.lru_cache(1024)
def _excepts(code: types.CodeType) -> bool:
    """Whether a function has an `except`, by its bytecode."""
    names = [each.opname for each in dis.get_instructions(code)]
    bare = ("PUSH_EXC_INFO", "POP_TOP") in zip(names, names[1:], strict=False)
    return bare or not {"CHECK_EXC_MATCH", "CHECK_EG_MATCH", "JUMP_IF_NOT_EXC_MATCH"}.isdisjoint(names)


__all__ = ["Caught", "looked_for", "may_raise", "now"]
