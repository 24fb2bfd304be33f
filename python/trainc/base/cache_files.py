"""The files of the cache: which are its own, and reading, writing, locking and removing these.

The directory may be one in which other things lie, too (a home directory, a project). A file is the cache's own where
all of this holds: it has a name that the cache gives (an entry `<key>.plan`, one being written `<key>.<8 letters>.tmp`,
a lock `<key>.lock`; a key is 64 hexadecimal digits); it is a regular file, no link, of this user; and it begins as the
cache begins a file, also in other versions. One that ends before its beginning does is what a crash left, and a lock is
empty. Everything else is somebody's: it is never read beyond its first bytes, never written, never removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import tempfile
from typing import NamedTuple

VERSION = 2  # goes up when what follows it in a file changes
MAGIC = b"trainc cache %d\n" % VERSION
BEGINNING = re.compile(rb"trainc cache [0-9]+\n")
ENTRY, UNFINISHED, LOCK = ".plan", ".tmp", ".lock"
NAMES = re.compile(r"[0-9a-f]{64}(?:(\.plan)|\.[a-z0-9_]{8}(\.tmp)|(\.lock))")
HEADER = len(MAGIC) + 8 + 32  # magic, length and SHA-256 of what follows
# A FIFO does not make its reader wait, a link is not followed, a program that is started gets no descriptor of ours.
SAFELY = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY


class ForeignError(OSError):
    """What lies there is not the cache's."""

    def __init__(self, reason: str):
        super().__init__(errno.EPERM, reason)


class DamagedError(ValueError):
    """What lies there is no whole entry: its length, its version, its SHA-256 or its key says so."""


class File(NamedTuple):
    used: float  # when, in seconds
    bytes: int
    path: str
    kind: str  # ENTRY, UNFINISHED or LOCK


def listed(where: str) -> list[File]:
    """The files of this user that have a name of the cache's, the least recently used first. What is in them has not been looked
    at; `remove` does."""
    found = []
    with contextlib.suppress(OSError), os.scandir(where) as entries:
        for entry in entries:
            match = NAMES.fullmatch(entry.name)
            with contextlib.suppress(OSError):  # another process removed it
                if match and _is_plain(status := entry.stat(follow_symlinks=False)):
                    found.append(File(status.st_mtime, status.st_size, entry.path, match[match.lastindex or 0]))
    return sorted(found)


def _is_plain(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _opened(path: str, flags: int) -> tuple[int, os.stat_result]:
    """The descriptor and the status of a regular file of this user. What stands there is looked at before it is opened: opening a
    device may already do something."""
    with contextlib.suppress(FileNotFoundError):
        if not _is_plain(os.lstat(path)):
            raise ForeignError("it is another user's, or no file")
    number = os.open(path, flags | SAFELY, 0o600)
    status = os.fstat(number)
    if not _is_plain(status):
        os.close(number)
        raise ForeignError("it is another user's, or no file")
    return number, status


def _begins(header: bytes) -> bool:
    return BEGINNING.match(header) is not None or MAGIC.startswith(header[: len(MAGIC)])


def is_own(path: str) -> bool:
    """Whether the cache made this file."""
    match = NAMES.fullmatch(os.path.basename(path))
    if match is None:
        return False
    try:
        number, status = _opened(path, os.O_RDONLY)
    except OSError:
        return False
    with open(number, "rb", buffering=0) as file:
        return status.st_size == 0 if match[3] else _begins(file.read(len(MAGIC) + 8))


def identity(path: str) -> tuple[int, ...] | None:
    """What tells a file from another that comes into its place; None where there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def remove(path: str, seen: tuple[int, ...] | None = None) -> bool:
    """Removes a file of the cache's own, but no lock that a process holds. `seen`: its `identity`; one that another process has
    put in its place since stays. Whether it is gone."""
    try:
        if not os.path.lexists(path):
            return True
        if not is_own(path):
            return False
        if path.endswith(LOCK):
            number = lock(path)
            if number is None:
                return False
            unlock(path, number)
        elif seen is not None:
            return _set_aside(path, seen)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def _set_aside(path: str, seen: tuple[int, ...]) -> bool:
    """Between a look at a file and its removal another may come into its place. So it is renamed, looked at where nobody puts
    another, and put back if it is not the one that was `seen`."""
    if identity(path) != seen:
        return False
    where, name = os.path.split(path)
    aside = os.path.join(where, f"{name.removesuffix(ENTRY)}.{secrets.token_hex(4)}{UNFINISHED}")
    os.rename(path, aside)
    if identity(aside) != seen:
        try:
            os.link(aside, path)
        except FileExistsError:  # a third, as good as this one
            pass
        except OSError:  # a file system without links
            os.rename(aside, path)
            return False
        os.unlink(aside)
        return False
    os.unlink(aside)
    return True


# ---- entries ----------------------------------------------------------------------------------------------------------


def read(path: str) -> bytes:
    """What `write` was given. Raises FileNotFoundError, ForeignError, DamagedError, or another OSError. What is
    no entry, or not as long as an entry says of itself, is not read: it may be of any size."""
    number, status = _opened(path, os.O_RDONLY)
    with open(number, "rb", buffering=0) as file:
        header = file.read(HEADER)
        if not _begins(header):
            raise ForeignError("it is no entry of this cache")
        length, digest = header[len(MAGIC) : len(MAGIC) + 8], header[len(MAGIC) + 8 :]
        if not header.startswith(MAGIC) or int.from_bytes(length, "little") != status.st_size - HEADER:
            raise DamagedError("it is damaged, truncated, or of another version")
        content = bytearray(status.st_size - HEADER)
        read = 0
        while read < len(content) and (more := file.readinto(memoryview(content)[read:])):
            read += more
    if read < len(content) or hashlib.sha256(content).digest() != digest:
        raise DamagedError("it is damaged or truncated")
    return bytes(content)


def packed(content: bytes) -> bytes:
    return MAGIC + len(content).to_bytes(8, "little") + hashlib.sha256(content).digest() + content


def write(path: str, content: bytes) -> None:
    """An entry, whole or not at all. Raises OSError: no room, no rights, or something else stands in its place."""
    if os.path.lexists(path) and not is_own(path):
        raise ForeignError(f"{path} is in the way")
    where, name = os.path.split(path)
    number, unfinished = tempfile.mkstemp(prefix=name.removesuffix(ENTRY) + ".", suffix=UNFINISHED, dir=where)  # the user's alone
    try:
        with open(number, "wb") as file:
            file.write(packed(content))
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def touch(path: str) -> None:
    """It is the most recently used now."""
    with contextlib.suppress(OSError):
        os.utime(path, follow_symlinks=False)


# ---- locks ------------------------------------------------------------------------------------------------------------


def lock(path: str) -> int | None:
    """The descriptor of the lock file, locked; None while another process has it. Raises OSError where there can be no lock: a
    file system without any, or something else stands in its place."""
    number, status = _opened(path, os.O_RDWR | os.O_CREAT)
    try:
        if status.st_size > 0:
            raise ForeignError("it is no lock of this cache")
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if status.st_ino == os.lstat(path).st_ino:  # not one that its holder has just removed
            return number
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(number)
        raise
    os.close(number)
    return None


def unlock(path: str, number: int) -> None:
    """Gives a lock back; its file goes."""
    with contextlib.suppress(OSError):
        if os.fstat(number).st_ino == os.lstat(path).st_ino:  # the directory may have been removed, and made again by another
            os.unlink(path)
    os.close(number)
