"""Whether a number is what `is`, `type()` or `id()` is asked of, in code that has one of these.

Most code that has them asks them of other things. So while a trace with numbers runs, these functions run opcode by opcode
(sys.settrace): a number that is an operand lies on the stack before the instruction and not after it, and has one reference less.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trainc.torch.trust import is_trusted_code

DIRECT = frozenset({"type", "id"}) if sys.version_info >= (3, 11) else frozenset()  # before that, code does not say what it calls
_IS, _CALLS = dis.opmap["IS_OP"], {dis.opmap[name] for name in ("CALL", "CALL_KW") if name in dis.opmap}


class Syntax:
    """What a piece of code, and what is defined in it, has."""

    def __init__(self, code: types.CodeType):
        self.code = code
        self.named: set[str] = set()  # variables that may be builtins, but for those of DIRECT that it only calls
        self.called: set[str] = set()  # those
        self.compares = False  # by `is`, with something that is no constant
        instructions = list(dis.get_instructions(code))
        for i, each in enumerate(instructions):
            if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                direct = each.argval in DIRECT and each.opname == "LOAD_GLOBAL" and each.arg & 1
                (self.called if direct and _plain_call(instructions[i + 1 :]) else self.named).add(each.argval)
            self.compares |= each.opname == "IS_OP" and (i == 0 or instructions[i - 1].opname != "LOAD_CONST")
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                of_inner = syntax(inner)
                self.named |= of_inner.named
                self.called |= of_inner.called
                self.compares |= of_inner.compares


def _plain_call(following: list[dis.Instruction]) -> bool:
    """Whether what was just loaded is called with operands that lie on the stack: not `f(*operands)`, which lie in a tuple."""
    depth = 2  # what is called, and NULL
    for each in following:
        if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            return False
        depth += dis.stack_effect(each.opcode, each.arg)
        if depth < 2:
            return each.opcode in _CALLS
    return False


_known: dict[int, Syntax] = {}


def syntax(code: types.CodeType) -> Syntax:
    found = _known.get(id(code))
    if found is None:
        found = _known[id(code)] = Syntax(code)
    return found


class Operands:
    """While active: notes in `asked` where a number of `numbers()` is an operand. `watched`: whether it could look at all."""

    def __init__(self, numbers: Callable[[], Sequence[Any]]):
        self._numbers = numbers
        self.watched, self.asked = True, ""
        self._codes: dict[int, tuple[types.CodeType, bool]] = {}
        self._here = self._enter  # one object, to be known again

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        if sys.gettrace() is not None or not _works():  # of a debugger, or of who measures coverage
            self.watched = False
            yield
            return
        sys.settrace(self._here)
        try:
            yield
        finally:
            self.watched &= sys.gettrace() is self._here
            sys.settrace(None)

    def _enter(self, frame: Any, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        known = self._codes.get(id(code))
        if known is None:
            looks = not is_trusted_code(code, frame.f_globals)
            found = syntax(code) if looks else None
            known = self._codes[id(code)] = code, found is not None and (found.compares or bool(found.called))
        if not known[1]:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._within(code)

    def _within(self, code: types.CodeType) -> Callable[..., Any]:
        """Looks at one run of a function."""
        opcodes, numbers, counts = code.co_code, [], []

        def look(frame: Any, event: str, _arg: Any) -> Any:
            nonlocal numbers, counts
            if counts and any(now < before for now, before in zip(map(sys.getrefcount, numbers), counts, strict=True)):
                self.asked = self.asked or f"{code.co_name} asks for the type or the identity of a number"
            numbers, counts = [], []
            opcode = opcodes[frame.f_lasti] if event == "opcode" else -1
            if opcode == _IS or opcode in _CALLS:
                numbers = self._numbers()
                counts = list(map(sys.getrefcount, numbers))
            return look

        return look


@functools.cache
def _works() -> bool:
    """Whether this Python's instructions hold references to their operands, and are all seen."""
    for question in ("a is a.__class__", "type(a)"):
        variables: dict[str, Any] = {"__name__": "question"}
        exec(compile(f"def ask(a):\n  return {question}", "<question>", "exec"), variables)
        operand = object()
        operands = Operands(lambda known=operand: [known])
        sys.settrace(operands._here)
        try:
            variables["ask"](operand)
        finally:
            sys.settrace(None)
        if not operands.asked:
            return False
    return True


__all__ = ["DIRECT", "Operands", "syntax"]
