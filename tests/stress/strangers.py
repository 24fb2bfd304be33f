"""Directories in which other things lie than the cache's: none is read, removed or changed, and none makes a program wait."""

import os
import shutil
import socket

from client import cache, config, ended, name_of, started, use, want

from trainc.base import cache_files

ROOT = os.geteuid() == 0


def names(random):
    key = name_of(random.randrange(6))
    letters = "".join(random.choices("abcdefghijklmnopqrstuvwxyz0123456789_", k=8))
    nearly = [
        f"{key}.tmp",
        f"{key[:-1]}.plan",
        f"{key.upper()}.plan",
        f"{key}.plan.lock",
        f"{key}\n.plan",
        f"x{key}.plan",
    ]
    nearly += [f"{key}.{letters}x.tmp", f"tmp{letters}.tmp", f"{key}.lock.old"]
    other = ["yarn.lock", "poetry.lock", "my.plan", "a.tmp", ".lock", ".plan"]
    return random.choice(
        [f"{key}.plan", f"{key}.lock", f"{key}.{letters}.tmp", random.choice(nearly), random.choice(other)]
    )


def put(path, random, elsewhere) -> None:
    """Something that is not the cache's."""
    kinds = ["huge", "nearly", "fifo", "directory", "link", "dangling", "hard link", "socket", "device", "theirs"]
    how = random.choice(["file", "file", "file", *kinds])
    if how == "fifo":
        os.mkfifo(path)
    elif how == "directory":
        os.mkdir(path)
        (path / "inside").write_bytes(b"kept")
    elif how in ("link", "dangling"):
        path.symlink_to(elsewhere if how == "link" else elsewhere.with_name("nowhere"))
    elif how == "hard link":
        os.link(elsewhere.with_name("text"), path)
    elif how == "socket":
        with socket.socket(socket.AF_UNIX) as s:
            here = os.getcwd()
            os.chdir(path.parent)  # a socket's path has at most 107 characters
            try:
                s.bind(path.name)
            finally:
                os.chdir(here)
    elif how == "device" and ROOT:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, random.choice([3, 5, 8])))  # null, zero (without an end), random
    elif how == "theirs" and ROOT:
        path.write_bytes(elsewhere.read_bytes())  # a sound entry, of another user
        os.chown(path, 12345, 12345)
    else:
        path.write_bytes(b"trainc cache\n" if how == "nearly" else random.randbytes(random.randrange(1, 200)))
        if how == "huge":
            os.truncate(path, 1 << random.randrange(20, 43))


def state(path):
    """What must stay as it is."""
    status = os.lstat(path)
    content = path.read_bytes() if path.is_file() and not path.is_symlink() and status.st_size < 1 << 16 else None
    inside = [(p.name, p.read_bytes()) for p in path.iterdir()] if path.is_dir() and not path.is_symlink() else None
    return status.st_ino, status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns, content, inside


def one(directory, elsewhere, random) -> None:
    use(directory)
    config.cache_size = random.choice(["1GB", "20kB", "4kB"])
    for i in range(3):
        want(i)
    ours = set(os.listdir(directory))
    for _ in range(random.randrange(1, 8)):
        path = directory / names(random)
        if not os.path.lexists(path):
            put(path, random, elsewhere)
    strange = {path: state(path) for path in directory.iterdir() if path.name not in ours}
    for _ in range(8):
        action = random.randrange(5)
        if action < 3:
            want(random.randrange(6))
        elif action == 3:
            cache.clear()
        else:
            cache.info()
    for path, before in strange.items():
        assert os.path.lexists(path), f"{path.name!r} is gone"
        assert state(path) == before, f"{path.name!r} is not as it was"
    cache.clear()
    left = {path.name for path in directory.iterdir()} - {path.name for path in strange}
    assert not left, f"clear left {left}"


def many(count, random, where) -> None:
    (where / "text").write_text("a user's text")
    cache_files.write(str(where / f"{name_of(0)}.plan"), b"an entry that lies elsewhere")
    before = {path: state(path) for path in where.iterdir()}
    for i in range(count):
        directory = where / f"cache {i}"
        directory.mkdir(mode=0o700)
        one(directory, where / f"{name_of(0)}.plan", random)
        shutil.rmtree(directory)
    for path, was in before.items():
        assert state(path)[2:] == was[2:]


def strangers(count, random, where) -> str:
    for start in range(0, count, 100):  # a process for each hundred, so that one that hangs is found soon
        part = where / str(start)
        part.mkdir()
        random.seed(random.random())
        ended(started(many, min(100, count - start), random, part))
    return f"{count} directories with files that are not the cache's: all as they were, nothing hung"
