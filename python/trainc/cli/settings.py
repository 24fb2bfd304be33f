"""Variables of the environment: a name that is misspelt, or a word that nothing knows, would be ignored without a word."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

# Each that trainc reads; the words that it may list, where these are few.
VARIABLES: dict[str, tuple[str, ...]] = {
    "TRAINC_CACHE": (), "TRAINC_CACHE_DIR": (), "TRAINC_CACHE_SIZE": (), "TRAINC_CPU": (), "TRAINC_CUBLASLT": (),
    "TRAINC_DEBUG": ("poison",), "TRAINC_DEVICE": (), "TRAINC_DISABLE_PASSES": (),
    "TRAINC_DUMP": ("graph", "loop", "asm", "plan"), "TRAINC_DUMP_DIR": (), "TRAINC_ENGINE": ("core", "interpreter"),
    "TRAINC_FLOAT32_IN_PARTS": (), "TRAINC_FRAMEWORK_CALLS": (), "TRAINC_JAX": (), "TRAINC_LIBCUDA": (),
    "TRAINC_LOG": ("info",), "TRAINC_NVRTC": (), "TRAINC_REPORTS_DIR": (),
}  # fmt: skip


def mistakes(environment: Mapping[str, str]) -> list[str]:
    """One line each, with what to do."""
    found = []
    for name, value in sorted(environment.items()):
        if not name.startswith("TRAINC_") or not value:
            continue
        if name not in VARIABLES:
            near = difflib.get_close_matches(name, VARIABLES, 1, 0.85)
            found.append(f"{name}={value} is read by nothing: " + (f"did you mean {near[0]}?" if near else "unset it"))
            continue
        known = VARIABLES[name]
        for word in filter(None, value.split(",") if known else ()):  # with their blanks, as they are read
            if word not in known:
                found.append(f"{name}={value}: {word!r} is none of {', '.join(known)}, and does nothing")
    return found


__all__ = ["VARIABLES", "mistakes"]
