"""What a piece of code can reach, read off it without running it."""

from __future__ import annotations

import ast
import dataclasses
import dis
import inspect
import itertools
import linecache
import re
import textwrap
import types
from collections.abc import Iterator
from typing import Any

from trainc.torch.numbers.operands import syntax

_DYNAMIC = frozenset(
    {"vars", "__dict__", "attrgetter", "methodcaller", "asdict", "astuple", "fields", "getmembers", "__getattribute__", "dir",
     "__slots__", "locals"}
)  # fmt: skip
_FORWARDING = frozenset({"__getattr__", "__getattribute__", "__setattr__"})  # their name is one that their caller uses
_BY_NAME = frozenset({"getattr", "hasattr", "setattr", "delattr"})


@dataclasses.dataclass
class Code:
    """What a piece of code can reach, read off it once."""

    code: types.CodeType  # kept, so that no other comes to lie at its address
    names: set[str]  # for variables and attributes: the names and the strings in it
    globals: list[str]
    imports: bool
    any_attribute: bool  # may read attributes that it does not name: vars(x), getattr(x, a variable)
    of_a_global: bool  # the same, of what may be a global that it names: not of its parameters alone
    any_global: bool
    tensor_attributes: list[str]  # that it reads or sets of what may be a tensor, and that the tensors of a trace do not have
    sets_data: bool
    identity: bool  # compares by `is` what is no constant


_codes: dict[int, Code] = {}


def about(code: types.CodeType) -> Code:
    if (found := _codes.get(id(code))) is None:
        every = [code, *_inner(code)]
        names = names_of(code)
        instructions = [i for each in every for i in dis.get_instructions(each)]
        variables = sorted({i.argval for i in instructions if _IS_GLOBAL.search(i.opname)})
        imports = any(i.opname == "IMPORT_NAME" for i in instructions)
        any_attribute, of_a_global = _reads_any_attribute(code, names) if code.co_name not in _FORWARDING else (False, False)
        any_global = not (_ANY_GLOBAL | _BY_ATTRIBUTE).isdisjoint(names) and any(map(_uses_any_global, every))
        tensor_attributes = list(dict.fromkeys(itertools.chain.from_iterable(map(_tensor_attributes, every))))
        sets_data = "swap_tensors" in names or any(map(_sets_data, every))
        found = _codes[id(code)] = Code(
            code, names, variables, imports, any_attribute, of_a_global, any_global, tensor_attributes, sets_data,
            syntax(code).compares,
        )  # fmt: skip
    return found


def names_of(code: types.CodeType) -> set[str]:
    """The names and the strings in it: `about(code).names`, for who asks for nothing else."""
    names: set[str] = set()
    for each in (code, *_inner(code)):
        names.update(each.co_names, *(text.split(".") for text in _strings(each.co_consts) if len(text) < 200))
    return names


def _sets_data(code: types.CodeType) -> bool:
    """Whether code has `x.data = y`, or names it for setattr(). (An attribute of that name of any other object counts, too.)"""
    if "setattr" in code.co_names and "data" in _strings(code.co_consts):
        return True
    return "data" in code.co_names and any(i.opname == "STORE_ATTR" and i.argval == "data" for i in dis.get_instructions(code))


_ANY_GLOBAL = frozenset({"globals", "eval", "exec", "__import__"})
_BY_ATTRIBUTE = frozenset({"__globals__", "f_globals", "import_module"})  # what gives any global, of whatever it is asked
# LOAD_GLOBAL, STORE_GLOBAL, LOAD_NAME, LOAD_FROM_DICT_OR_GLOBALS, ...: of `s.a`, `a` is no variable, though the program may
# have one of that name.
_IS_GLOBAL = re.compile("GLOBAL|_NAME$")
_VARIABLE = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "IMPORT_FROM"})


def _uses_any_global(code: types.CodeType) -> bool:
    """Whether code names one of these functions, as a variable or as one of `builtins`: a method of that name is another."""
    if not _BY_ATTRIBUTE.isdisjoint(code.co_names):
        return True
    of_builtins = not {"builtins", "__builtins__"}.isdisjoint(code.co_names)
    return any(i.argval in _ANY_GLOBAL and (of_builtins or i.opname in _VARIABLE) for i in dis.get_instructions(code))


def _inner(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _inner(constant)


_HIDDEN = frozenset(
    {"grad", "grad_fn", "is_leaf", "_base", "_version", "retains_grad", "output_nr", "_backward_hooks",
     "_post_accumulate_grad_hooks"}
)  # fmt: skip
_HIDDEN_METHODS = frozenset({"is_shared", "_typed_storage"})  # written in Python, so that no call of C's tells of them


def _tensor_attributes(code: types.CodeType) -> Iterator[str]:
    """Where code has `x.grad` (and not `torch.autograd.grad(...)`, nor `self.grad`), or names it for getattr()."""
    if not _HIDDEN.isdisjoint(code.co_names):
        owner = None
        for each in dis.get_instructions(code):
            if each.opname in ("LOAD_ATTR", "STORE_ATTR", "DELETE_ATTR") and each.argval in _HIDDEN:
                if "self" not in each.argrepr and owner != "self":
                    yield each.argval
            owner = each.argval
    yield from _HIDDEN_METHODS.intersection(code.co_names)
    if not _BY_NAME.isdisjoint(code.co_names):
        yield from _HIDDEN.intersection(_strings(code.co_consts))


def _strings(constants: Any) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from _strings(constant)


def _reads_any_attribute(code: types.CodeType, names: set[str]) -> tuple[bool, bool]:
    """Whether code may read attributes that it does not name: vars(x), getattr(x, a variable); and whether x may be a global."""
    if not _DYNAMIC.isdisjoint(names):
        return True, True
    if _BY_NAME.isdisjoint(names):
        return False, False
    try:
        tree = ast.parse(textwrap.dedent(_source(code)))
    except (OSError, SyntaxError, TypeError, ValueError, IndentationError):
        return True, True
    own = _parameters(tree)
    uses = named = of_own = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _BY_NAME:
            uses += 1
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BY_NAME and len(node.args) > 1:
            constant = isinstance(node.args[1], ast.Constant)
            named += constant
            of_own += not constant and isinstance(node.args[0], ast.Name) and node.args[0].id in own
    return uses != named, uses != named + of_own


_BEGINS = re.compile(r"\s*(async\s+)?def\s|\s*@|.*(?<!\w)lambda[:\s]")


def _source(code: types.CodeType) -> str:
    """`inspect.getsource(code)`, which asks every module whether the code is its own, for a file's encoding and loader: that is
    most of its time, and the lines of a file need neither. Only what does not begin where its code says takes that way."""
    linecache.checkcache(code.co_filename)  # a file may be written and its module loaded again
    lines = linecache.getlines(code.co_filename)
    first = code.co_firstlineno - 1
    if first < len(lines) and _BEGINS.match(lines[first]):
        return "".join(inspect.getblock(lines[first:]))
    return inspect.getsource(code)


def _parameters(tree: ast.Module) -> set[str]:
    """The parameters of a function that are what its caller gave, wherever they are named in it: set nowhere, and of no function
    within it."""
    function = tree.body[0]
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return set()
    given = [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]
    own = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    written = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    # names without a node of their own: of imports, exceptions, patterns, inner functions
    named = [node for node in ast.walk(tree) if isinstance(getattr(node, "name", None), str)]
    written |= {name for node in named for name in (node.name, getattr(node, "asname", None))}
    return {name for name in own - written if given.count(name) == 1}


__all__ = ["Code", "about", "names_of"]
