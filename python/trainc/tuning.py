"""tune="max": contractions are cut up in the way that is measured to be fastest, on this machine and its threads.

The compiler says which ways there are (another register tile, more tasks or fewer, other blocks of rows) and measures them; who
wins is decided here, and kept on disk with the plans (cache.py), so that a program is measured once. All ways sum in the same
order: results are bit for bit those of tune="fast".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from trainc import cache
from trainc.errors import UserError

TUNES = ("fast", "max")
CLOSE = 1.10  # what is so many times slower than the best is not measured again
GAIN = 0.98  # of the default's time: what gains less is noise


def check(tune: Any) -> None:
    if tune not in TUNES:
        raise UserError(f'tune={tune!r} is not known; tune="fast" never measures, tune="max" does')


def tuner_of(tune: str) -> Callable[[str, int, Callable[[int], float]], int] | None:
    """What the compiler asks which way to make a kernel; None where it is not to measure."""
    return choose if tune == "max" else None


def choose(text: str, variants: int, measure: Callable[[int], float]) -> int:
    """The fastest of `variants` ways to make the kernel `text`: the stored answer, or that of a race."""
    import torch

    from trainc.device import HOST

    winner, _ = cache.through(
        cache.key("tuning", HOST, text, variants, torch.get_num_threads()),
        lambda about, _: (about["variant"], about["seconds"]),
        lambda: race(variants, measure),
        lambda found: ({"variant": found[0], "seconds": found[1]}, b""),
    )
    return winner[0]


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
