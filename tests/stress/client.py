"""What the stress tests do with the cache: a program that wants some plans, without PyTorch and without plans."""

import hashlib
import os
import signal
import warnings

warnings.simplefilter("ignore")

from trainc.base import cache, cache_files, config  # noqa: E402

HANGS = 60  # seconds after which a process is taken for hanging


def use(directory) -> None:
    config.cache, config.cache_dir = True, str(directory)


def name_of(i: int) -> str:
    return hashlib.sha256(b"plan %d" % i).hexdigest()


def plan_of(i: int, size: int = 2000) -> bytes:
    return hashlib.sha256(b"content %d" % i).digest() * (size // 32 + i % 7)


def want(i: int, size: int = 2000, compile=lambda: None) -> bool:
    """Plan i through the cache; whether it came from there. Whatever happens, it must be plan i."""
    stored = False

    def load(about, blob):
        nonlocal stored
        if about != {"number": i} or blob != plan_of(i, size):
            raise ValueError("it is something else")  # checksums fit, and still: as a plan that does not verify
        stored = True
        return blob

    def make():
        compile()
        return plan_of(i, size)

    cache.directory()  # as `cache.key` does
    value, digest = cache.through(name_of(i), load, make, lambda blob: ({"number": i}, blob))
    assert value == plan_of(i, size) and digest == hashlib.sha256(value).hexdigest()
    return stored


def check_directory(directory) -> tuple[int, int]:
    """(entries, unfinished files) of a directory in which every entry must be whole."""
    entries = [entry for entry in os.listdir(directory) if entry.endswith(cache_files.ENTRY)]
    for entry in entries:
        cache._unpacked(entry.removesuffix(cache_files.ENTRY), cache_files.read(os.path.join(directory, entry)))
    return len(entries), sum(name.endswith(cache_files.UNFINISHED) for name in os.listdir(directory))


def started(program, *args) -> int:
    """The number of a process that runs `program(*args)`."""
    number = os.fork()
    if number:
        return number
    status = 1
    try:
        signal.alarm(HANGS)
        program(*args)
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def ended(number: int, *allowed: int) -> int:
    """How a process ended: 0, or one of the `allowed` signals as a negative number."""
    status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    assert status != -signal.SIGALRM, f"a process hung for {HANGS} s"
    assert status == 0 or -status in allowed, f"a process ended with status {status}"
    return status
