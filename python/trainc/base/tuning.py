"""tune="max": contractions are made in the way that is measured to be fastest, on this machine and its threads, or on its GPU.

The compiler says which ways there are and measures them; who wins is decided here, and kept on disk with the plans (cache.py),
so that a program is measured once. How a kernel is cut up (another register tile, more tasks or fewer, other blocks of rows)
changes no bit of its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from trainc.base import cache
from trainc.base.errors import UserError
from trainc.base.options import CompileOptions

TUNES = ("fast", "max")
CLOSE = 1.10  # what is so many times slower than the best is not measured again
GAIN = 0.98  # of the default's time: what gains less is noise


def check(tune: Any) -> None:
    if tune not in TUNES:
        raise UserError(f'tune={tune!r} is not known; tune="fast" never measures, tune="max" does')


class Tuner:
    """What the compiler asks, for plans by these options."""

    def __init__(self, options: CompileOptions):
        self.options = options

    @classmethod
    def of(cls, options: CompileOptions) -> Tuner | None:
        """None where the compiler is not to measure."""
        return cls(options) if options.threads else None

    def variant(self, text: str, variants: int, measure: Callable[[int], float]) -> int:
        """The fastest of `variants` ways to make the kernel `text`: the stored answer, or that of a race."""
        winner, _ = cache.through(
            cache.key("tuning", self.options.of_measurements(), text, variants),
            lambda about, _: (about["variant"], about["seconds"]),
            lambda: race(variants, measure),
            lambda found: ({"variant": found[0], "seconds": found[1]}, b""),
        )
        return winner[0]

    def way(self, text: str, ways: list[str], measure: Callable[[int], float]) -> str:
        """The fastest of these ways to compute what `text` says (the library's algorithms, its own choice first, and a kernel):
        the stored answer, or that of a race. "" where nothing could be measured, which is not stored. Ways add up in different
        orders: what is computed again in a process is so by the same one, whether there is a cache or not."""
        known = (self.options.of_measurements(), text)
        if _ways.get(known) not in ways:
            _ways[known] = self._way(text, ways, measure)
        return _ways[known]

    def _way(self, text: str, ways: list[str], measure: Callable[[int], float]) -> str:
        try:
            winner, _ = cache.through(
                cache.key("way", self.options.of_measurements(), text),
                lambda about, _: (_known(about["way"], ways), about["seconds"]),
                lambda: _fastest(ways, measure),
                lambda found: ({"way": found[0], "seconds": found[1]}, b""),
            )
        except _UnmeasuredError:
            return ""
        return winner[0]

    def framework(self, text: str, call: str, plans: dict[str, Callable[[], Any]]) -> str:
        """Whether an operator of the framework's takes a contraction's place: a line for the plan's notes, or "" where it does
        not."""
        return ""


_ways: dict[tuple[CompileOptions, str], str] = {}  # as they were chosen in this process


class _UnmeasuredError(Exception):
    pass


def _known(way: str, ways: list[str]) -> str:
    if way not in ways:
        raise ValueError(f"the library no longer has the algorithm {way}")
    return way


def _fastest(ways: list[str], measure: Callable[[int], float]) -> tuple[str, dict[str, float]]:
    winner, seconds = race(len(ways), measure)
    if "0" not in seconds:  # what the others would be compared to
        raise _UnmeasuredError
    return ways[winner], {ways[int(v)]: t for v, t in seconds.items()}


def race(variants: int, measure: Callable[[int], float]) -> tuple[int, dict[str, float]]:
    """(the winner, seconds of all). The default, variant 0, wins unless another is faster by more than noise; those near
    the best run twice, after all have run once: a machine that is busy for a while is so for more than one of them."""
    seconds = {v: measure(v) for v in range(variants)}
    near = min(seconds.values()) * CLOSE
    for v in seconds:
        if v == 0 or seconds[v] <= near:
            seconds[v] = min(seconds[v], measure(v))
    best = min(seconds, key=seconds.__getitem__)
    told = {str(v): t for v, t in seconds.items() if math.isfinite(t)}
    return (best if seconds[best] < GAIN * seconds[0] else 0), told


__all__ = ["Tuner", "check", "race"]
