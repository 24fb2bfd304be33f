"""Switches of the package: `trainc.config.fallback = False`. Read when something is compiled, not when trainc is imported."""

import os
import sys

# "core": compiled by trainc._core. "interpreter": the captured graphs run operation by operation in PyTorch (tests, fallback).
engine: str | None = os.environ.get("TRAINC_ENGINE") or None
# False turns every fallback (an internal error, a model that cannot be captured) into an error: for tests.
fallback: bool = True
# A progress bar on stderr while compiling. None: where stderr is a terminal.
progress: bool | None = None
# Signatures compiled per model; calls with further ones run in PyTorch.
max_signatures: int = 32


def engine_name() -> str:
    if engine is not None:
        return engine
    try:
        from trainc import _core
    except ImportError:
        return "interpreter"
    return "core" if hasattr(_core, "JointGraph") else "interpreter"


def show_progress() -> bool:
    return sys.stderr.isatty() if progress is None else progress


_cache_dir_checked = False


def check_cache_dir() -> str | None:
    """The directory for compiled plans, or None where it cannot be written: said once."""
    global _cache_dir_checked
    path = os.environ.get("TRAINC_CACHE_DIR")
    if not path:
        return None
    reason = None
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            reason = "it cannot be written"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason is None:
        return path
    if not _cache_dir_checked:
        from trainc.messages import warn

        warn(f"TRAINC_CACHE_DIR={path}: {reason}; nothing is cached. Name a directory that you can write.")
        _cache_dir_checked = True
    return None
