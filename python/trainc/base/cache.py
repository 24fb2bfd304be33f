"""Compiled plans on disk: a program that starts again finds its plans, and compiles nothing.

An entry is one file (cache_files.py), named by the SHA-256 of all that the plan depends on (`key`): the captured graph,
the machine, the build of the compiler. It holds that key, a description in JSON and the plan's bytes, behind a SHA-256
over the three; whatever does not match is no entry: it is removed, said once, and compiled again. A whole one that cannot
be loaded (no memory, no descriptors left) stays; what is compiled instead is written over it. Entries are written beside
and renamed, so that none is ever seen half written, and the least recently used go when the directory is full.

A cache of machine code is code: the directory and every entry must be the user's own, and nobody else may write there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from trainc.base import cache_files, config, messages
from trainc.base.cache_files import ENTRY, LOCK
from trainc.base.options import CompileOptions

T = TypeVar("T")
About = dict[str, Any]

STALE_SECONDS = 3600  # an unfinished file of that age was left by a process that was killed
LOCK_SECONDS = 120  # waited for another process that compiles the same plan; then both do


# ---- the key --------------------------------------------------------------------------------------------------------


def key(kind: str, options: CompileOptions, *parts: Any) -> str | None:
    """The name of what is compiled or measured, of this `kind`, by these options and of these strings and JSON values; None where
    nothing is cached: the cache is off, or TRAINC_DUMP wants to see the compiler at work."""
    if not config.cache or os.environ.get("TRAINC_DUMP") or directory() is None:
        return None
    digest = hashlib.sha256(cache_files.MAGIC)
    for part in (kind, options.text(), *parts):
        text = (part if isinstance(part, str) else json.dumps(part)).encode()
        digest.update(b"%d:" % len(text))
        digest.update(text)
    return digest.hexdigest()


# ---- the directory --------------------------------------------------------------------------------------------------


def path() -> str:
    """Where plans are kept: trainc.config.cache_dir, TRAINC_CACHE_DIR, or `trainc` in the user's directory for caches."""
    named = config.cache_dir or os.environ.get("TRAINC_CACHE_DIR")
    if named:
        return os.path.abspath(named)
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "trainc")


def directory() -> str | None:
    """`path()`, made where it is not there; None, and said once, where it cannot be used."""
    where = path()
    reason = _unusable(where)
    if reason is None:
        return where
    messages.warn_once(
        f"cache {where}",
        f"the cache {where}: {reason}; nothing is cached, and each start compiles again. Name a directory that only you can "
        "write in TRAINC_CACHE_DIR, or set TRAINC_CACHE=0.",
    )
    return None


def _unusable(where: str) -> str | None:
    try:
        os.makedirs(where, mode=0o700, exist_ok=True)
        status = os.stat(where)
    except OSError as error:
        return error.strerror or str(error)
    if status.st_uid != os.geteuid():
        return "it belongs to another user, who could put machine code into it"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to it, and could put machine code into it (chmod go-w {where})"
    if not os.access(where, os.R_OK | os.W_OK | os.X_OK):
        return "it cannot be written"
    return None


# ---- other processes of the same job --------------------------------------------------------------------------------


class Peers(Protocol):
    """Processes that may have no directory in common, and want the same plans."""

    def given(self, name: str) -> bytes | None:
        """The entry as another made it, waited for while one does; None where this one is to make it, and to `give` it."""

    def give(self, name: str, content: bytes | None) -> None:
        """None where it could not be made."""


peers: Callable[[], Peers | None] = lambda: None  # noqa: E731 (a framework's half sets it)


# ---- entries --------------------------------------------------------------------------------------------------------


def through(
    name: str | None,
    load: Callable[[About, bytes], T],
    compile: Callable[[], T],
    pack: Callable[[T], tuple[About, bytes]],
) -> tuple[T, str]:
    """`load` of the entry `name`; where there is none, `compile()`, of which `pack` is stored. Processes that want the same
    plan at the same time wait for the first. With it, the SHA-256 of the plan's bytes; "" where `name` is None."""
    if name is None:
        return compile(), ""
    found = _loaded(name, load)
    if found is not None:
        return found
    with _alone(name):
        found = _loaded(name, load)  # another process may have been first
        if found is not None:
            return found
        others = peers()
        if others is not None and (found := _from_peers(others, name, load)) is not None:
            return found
        content = None
        try:
            value = compile()
            about, blob = pack(value)
            content = _packed(name, about, blob)
        finally:
            if others is not None:
                others.give(name, content)
        _write(name, content)
        return value, hashlib.sha256(blob).hexdigest()


def _from_peers(others: Peers, name: str, load: Callable[[About, bytes], T]) -> tuple[T, str] | None:
    try:
        content = others.given(name)
        if content is None:
            return None
        about, blob = _unpacked(name, content)
        value = load(about, blob)
    except Exception as error:  # as of an entry on disk; or the others cannot be asked any more
        messages.warn_once("damaged plan", f"a plan that another rank has compiled is not used ({error}); it is compiled again")
        return None
    _write(name, content)
    return value, hashlib.sha256(blob).hexdigest()


def _entry(name: str) -> str:
    return os.path.join(path(), name + ENTRY)


def _loaded(name: str, load: Callable[[About, bytes], T]) -> tuple[T, str] | None:
    where = _entry(name)
    if (seen := cache_files.identity(where)) is None:
        return None
    try:
        about, blob = _unpacked(name, cache_files.read(where))
        value = load(about, blob)
    except FileNotFoundError:
        return None
    except Exception as error:  # of whatever kind: what cannot be loaded is no entry, and the plan is compiled
        _refuse(where, seen, error)
        return None
    cache_files.touch(where)
    return value, hashlib.sha256(blob).hexdigest()


def _packed(name: str, about: About, blob: bytes) -> bytes:
    described = json.dumps(about).encode()
    return b"".join((bytes.fromhex(name), len(described).to_bytes(8, "little"), described, blob))


def _unpacked(name: str, content: bytes) -> tuple[About, bytes]:
    if content[:32] != bytes.fromhex(name):
        raise cache_files.DamagedError("it is the entry of another plan")
    end = 40 + int.from_bytes(content[32:40], "little")
    return json.loads(content[40:end]), content[end:]


def _refuse(where: str, seen: tuple[int, ...] | None, error: Exception) -> None:
    """`seen`: the identity of the file that is refused."""
    reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
    if not isinstance(error, (cache_files.DamagedError, cache_files.ForeignError)):  # it may be as good as ever
        what, outcome = "loading", "its plan is compiled again, and written over it"
    elif cache_files.remove(where, seen):
        what, outcome = "removed", "it is removed, and compiled again"
    elif cache_files.identity(where) != seen:
        return  # another process has just written a whole one: it is found under the lock
    else:
        what, outcome = "left", "it is left as it is, and its plan is compiled at every start: remove it"
    messages.warn_once(f"cache entry {what}", f"an entry of the cache is not used ({where}: {reason}); {outcome}")


def _store(name: str, about: About, blob: bytes) -> None:
    _write(name, _packed(name, about, blob))


def _write(name: str, content: bytes) -> None:
    where = directory()  # made again, if it was removed while this plan was compiled
    if where is None:
        return
    try:
        if _make_room(where, cache_files.HEADER + len(content)):
            cache_files.write(_entry(name), content)
    except cache_files.ForeignError:
        pass  # something else lies in its place: `_loaded` has said so
    except OSError as error:
        messages.warn_once(
            f"cache {where}", f"a plan cannot be stored in {where}: {error.strerror or error}; it is used all the same"
        )


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """Waits while another process compiles the same plan. A process that dies lets go of its lock."""
    where = os.path.join(path(), name + LOCK)
    until = time.monotonic() + LOCK_SECONDS
    number = None
    try:
        while number is None and time.monotonic() < until:
            number = cache_files.lock(where)
            if number is None:
                time.sleep(0.02)
    except OSError:
        pass  # no lock is to be had: compiled twice, harmlessly
    try:
        yield
    finally:
        if number is not None:
            cache_files.unlock(where, number)


# ---- its size -------------------------------------------------------------------------------------------------------


def _make_room(where: str, size: int) -> bool:
    """Removes the least recently used entries until `size` more bytes fit, and what killed processes left; False where they never
    fit."""
    limit = config.cache_bytes()
    if size > limit:
        return False
    files = cache_files.listed(where)
    total = sum(file.bytes for file in files)
    if total + size > limit:  # what only has a name of the cache's does not count; that is looked up where it matters alone
        files = [file for file in files if cache_files.is_own(file.path)]
        total = sum(file.bytes for file in files)
    for file in files:
        stale = file.kind != ENTRY and file.used < time.time() - STALE_SECONDS
        if (stale or (total + size > limit and file.kind == ENTRY)) and cache_files.remove(file.path):
            total -= file.bytes
    return True


def info() -> str:
    """Where the cache is, and how full: what `trainc cache info` prints."""
    where = path()
    files = [file for file in cache_files.listed(where) if file.kind == ENTRY and cache_files.is_own(file.path)]
    reason = _unusable(where) if os.path.lexists(where) else None
    state = "off (TRAINC_CACHE=0)" if not config.cache else f"not used: {reason}" if reason else "on"
    used, limit = sum(file.bytes for file in files), config.cache_bytes()
    rows = [("directory", where), ("state", state), ("plans", str(len(files)))]
    rows.append(("size", f"{used / 1e6:.1f} MB of at most {limit / 1e6:.0f} MB (TRAINC_CACHE_SIZE)"))
    if files:
        rows.append(("last used", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(files[-1].used))))
    return "\n".join(f"{name:<12}{value}" for name, value in rows)


def clear() -> tuple[int, int]:
    """Removes every plan; (plans, bytes) that were there. Programs that run keep the plans they have, and files that are not the
    cache's own stay."""
    removed = [file for file in cache_files.listed(path()) if cache_files.remove(file.path)]
    return sum(file.kind == ENTRY for file in removed), sum(file.bytes for file in removed)


__all__ = ["clear", "directory", "info", "key", "path", "through"]
