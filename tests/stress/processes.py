"""Processes that are killed, start together, have no room, or lose the directory: each still gets its plans."""

import os
import resource
import shutil
import signal
import subprocess
import time

from client import cache, cache_files, check_directory, config, ended, name_of, started, use, want


def writer(where, random) -> None:
    """Writes entries until it is killed."""
    use(where)
    while True:
        signal.alarm(60)
        i = random.randrange(5)
        want(i, 100_000)
        if random.random() < 0.7:
            cache_files.remove(cache._entry(name_of(i)))


def kills(count, random, where) -> str:
    where.chmod(0o700)
    unfinished = locks = 0
    for i in range(count):
        random.seed(random.random())
        number = started(writer, where, random)
        time.sleep(random.random() * 0.01 * (1 + i % 5))
        os.kill(number, signal.SIGKILL)
        ended(number, signal.SIGKILL)
        _, left = check_directory(where)
        unfinished += left
        locks += sum(name.endswith(cache_files.LOCK) for name in os.listdir(where))
        for name in os.listdir(where):
            if not name.endswith(cache_files.ENTRY):
                os.utime(where / name, (0, 0))
        use(where)
        cache._make_room(str(where), 0)  # sweeps what was left long ago
        assert check_directory(where)[1] == 0 and not any(name.endswith(cache_files.LOCK) for name in os.listdir(where))
    return f"{count} writers killed, {unfinished} in a file, {locks} with a lock: every entry is whole, what was left is swept"


def client(where, ready, compiled, random) -> None:
    use(where)
    os.read(ready, 1)
    for i in random.sample(range(3), 3):

        def compile(i=i):
            number = os.open(compiled, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(number, b"%d" % i)
            os.close(number)
            time.sleep(0.002)

        want(i, 5000, compile)


def starts(count, random, where, together=8) -> str:
    rounds, killed, compilations = max(1, count // together), 0, 0
    for r in range(rounds):
        directory, compiled = where / f"cache {r}", where / f"compiled {r}"
        ready, go = os.pipe()
        numbers = []
        for _ in range(together):
            random.seed(random.random())
            numbers.append(started(client, directory, ready, compiled, random))
        os.close(ready)
        os.write(go, b"x" * together)
        os.close(go)
        victim = random.choice(numbers) if r % 2 else None
        if victim:
            time.sleep(random.random() * 0.02)
            os.kill(victim, signal.SIGKILL)
        dead = sum(ended(number, signal.SIGKILL) != 0 for number in numbers)
        killed += dead
        often = compiled.read_bytes() if compiled.exists() else b""
        compilations += len(often)
        for i in range(3):
            times = often.count(b"%d" % i)
            assert 1 <= times <= 1 + dead, f"plan {i} was compiled {times} times; {dead} processes were killed"
        entries, _ = check_directory(directory)
        assert entries == 3
        shutil.rmtree(directory)
    return f"{rounds * together} processes, {together} at once ({killed} killed): {3 * rounds} plans, {compilations} compilations"


def without_room(where, limit, random) -> None:
    use(where)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for _ in range(4):
        want(random.randrange(8), random.choice([100, 3000, 20_000]))


def full(count, random, where) -> str:
    """No file may be larger than some bytes: writing fails in the middle of one."""
    stored = 0
    for i in range(count):
        directory = where / f"cache {i}"
        random.seed(random.random())
        ended(started(without_room, directory, random.randrange(30_000), random))
        entries, unfinished = check_directory(directory)
        assert unfinished == 0
        stored += entries
        shutil.rmtree(directory)
    return f"{count} processes whose files could not grow beyond a limit: all went on, {stored} whole entries, nothing unfinished"


def until_full(where, random) -> None:
    use(where)
    for _ in range(40):
        want(random.randrange(40), random.choice([100, 3000, 20_000]))


def tmpfs(count, random, where) -> str:
    """A file system of 64 kB, full after some entries."""
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(where)], capture_output=True
    ).returncode:
        return "not tried: no file system may be mounted here"
    try:
        rounds, stored = max(1, count // 40), 0
        for i in range(rounds):
            random.seed(random.random())
            config.cache_size = "1GB"
            ended(started(until_full, where / str(i), random))
            entries, unfinished = check_directory(where / str(i))
            assert unfinished == 0 and entries < 40
            stored += entries
            shutil.rmtree(where / str(i))
    finally:
        subprocess.run(["umount", str(where)], check=True)
    return f"{rounds * 40} plans wanted on full disks: all were had, {stored} whole entries, nothing unfinished"


def steadily(where, random, until) -> None:
    use(where)
    while not until.exists():
        signal.alarm(60)
        want(random.randrange(6), 5000)


def removed(count, random, where) -> str:
    """Somebody removes the directory, or moves it away, while programs use it."""
    directory, until = where / "cache", where / "until"
    numbers = []
    for _ in range(2):
        random.seed(random.random())
        numbers.append(started(steadily, directory, random, until))
    gone = 0
    while gone < count:
        time.sleep(random.random() * 0.004)
        if not directory.exists():
            continue
        aside = where / f"aside {gone}"
        try:
            if random.random() < 0.5:
                directory.rename(aside)
            shutil.rmtree(aside if aside.exists() else directory)
            gone += 1
        except OSError:
            pass  # something was written into it meanwhile
        for number in numbers:
            assert os.waitpid(number, os.WNOHANG)[0] == 0, "a program that lost its cache died"
    until.touch()
    for number in numbers:
        ended(number)
    return f"{gone} times the directory was gone under two programs: both went on"
