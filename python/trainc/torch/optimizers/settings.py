"""What a group's settings decide, found once for the same settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_PLAIN = (int, float, bool, str, type(None))
MOST = 256  # groups remembered


class Remembered:
    """A function of a group, but for its parameters. Its answer is remembered while all settings equal those that it was given
    for, where none of these can change in place (a tensor, a list). `besides`: what else the function is given, which must not
    matter then."""

    def __init__(self, of: Callable[..., Any]):
        self._of = of
        self._known: dict[int, tuple[dict, Any]] = {}  # by group; another one in its place has other settings, or the same answer

    def __call__(self, group: dict, *besides: Any) -> Any:
        settings, known = {**group, "params": None}, self._known.get(id(group))
        if known is not None and _are_equal(known[0], settings):
            return known[1]
        answer = self._of(group, *besides)
        if all(map(_is_plain, settings.values())):
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[id(group)] = settings, answer
        return answer


def _are_equal(some: dict, others: dict) -> bool:
    return some.keys() == others.keys() and all(_is_same(value, others[key]) for key, value in some.items())


def _is_same(one: Any, other: Any) -> bool:
    """By type, too: a tensor may equal a number."""
    if type(one) is not type(other):
        return False
    return len(one) == len(other) and all(map(_is_same, one, other)) if type(one) is tuple else one == other


def _is_plain(setting: Any) -> bool:
    return type(setting) in _PLAIN or type(setting) is tuple and all(map(_is_plain, setting))


__all__ = ["Remembered"]
