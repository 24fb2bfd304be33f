"""What stands in the way on this machine, and what to do about it (`trainc info`)."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainc.base.memory import readable
from trainc.cli.settings import mistakes

BUSY = 0.3  # CPUs of others that are worth a word


class Machine:
    """`root`: where /proc and /sys are found."""

    def __init__(self, root: Path = Path("/"), environment: Mapping[str, str] = os.environ):
        self.root, self.environment = root, environment

    # -- what there is ------------------------------------------------------------------------------------------------

    def _text(self, path: str) -> str:
        try:
            return (self.root / path.lstrip("/")).read_text().strip()
        except OSError:
            return ""

    def _of_groups(self, controller: str, first: str, second: str) -> Iterator[tuple[str, str]]:
        """(folder, text) of the files that limit this process, from its own control group up: `first` is the file's name in
        version 1 of control groups, `second` in version 2."""
        for line in self._text("/proc/self/cgroup").splitlines():
            number, controllers, group = line.split(":", 2)
            if number == "0":
                home, name = Path("/sys/fs/cgroup"), second
            elif controller in controllers.split(","):
                home, name = Path("/sys/fs/cgroup") / controller, first
            else:
                continue
            own = home / group.lstrip("/")
            for folder in [own, *own.parents]:
                if text := self._text(str(folder / name)):
                    yield str(folder), text
                if folder == home:
                    break

    def cpus(self) -> float:
        """How many CPUs this process may use at a time."""
        own = float(len(os.sched_getaffinity(0)))
        for folder, text in self._of_groups("cpu", "cpu.cfs_quota_us", "cpu.max"):
            quota, _, period = text.partition(" ")
            period = period or self._text(f"{folder}/cpu.cfs_period_us")
            if quota.isdigit() and period.isdigit():
                own = min(own, int(quota) / int(period))
        return own

    def memory_limit(self) -> int | None:
        """Bytes that a control group allows, where that is less than the machine has."""
        limits = [text for _, text in self._of_groups("memory", "memory.limit_in_bytes", "memory.max")]
        least = min((int(text) for text in limits if text.isdigit()), default=None)
        return least if least is not None and least < self._meminfo("MemTotal") else None

    def available_memory(self) -> int:
        """Bytes that the machine, and each control group, still gives to this process."""
        free = self._meminfo("MemAvailable")
        used = dict(self._of_groups("memory", "memory.usage_in_bytes", "memory.current"))
        for folder, text in self._of_groups("memory", "memory.limit_in_bytes", "memory.max"):
            if text.isdigit() and folder in used:
                free = min(free, int(text) - int(used[folder]))
        return max(free, 0)

    def _meminfo(self, name: str) -> int:
        return int(re.search(rf"{name}:\s+(\d+) kB", self._text("/proc/meminfo"))[1]) * 1024

    def busy(self, before: float = 0.0) -> float:
        """Seconds that all CPUs have been busy for others than this process and its children, less `before`."""
        words = self._text("/proc/stat").split("\n", 1)[0].split()[1:]
        user, nice, system, _, _, irq, softirq, steal = map(int, words[:8])
        used = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        own = sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
        return used - own - before

    # -- what stands in the way ---------------------------------------------------------------------------------------

    def obstacles(self, threads: int | None, level: str, quickest: str, best: str) -> list[str]:
        """One line each: what it is, whether it matters, what to do. `threads`: PyTorch's, None without it. Of the levels
        of the CPU: what code is made for, the machine's quickest, and its best."""
        found, cpus = [], self.cpus()
        there = os.cpu_count() or 1
        if threads is not None and threads > cpus:
            found.append(
                f"{threads} threads share {cpus:g} CPU{'s' * (cpus != 1)}, and wait for each other: "
                f"set OMP_NUM_THREADS={max(int(cpus), 1)}"
            )
        elif threads is not None and threads < cpus / 2:
            found.append(
                f"{threads} thread{'s' * (threads != 1)} for {cpus:g} CPUs: set OMP_NUM_THREADS={int(cpus)} "
                "(torchrun sets 1 where nothing is set)"
            )
        if cpus < there:
            found.append(f"this process may use {cpus:g} of {there} CPUs (control group, taskset): ask for more, or expect less")
        if (limit := self.memory_limit()) is not None:
            found.append(
                f"the control group ends a process above {readable(limit)}: trainc.compile(..., memory=\"{limit // 10**6}MB\") "
                "keeps training below it"
            )
        before = self.busy()
        time.sleep(0.3)
        others = self.busy(before) / 0.3
        if others > BUSY:
            found.append(f"other processes keep about {others:.1f} of {there} CPUs busy: end them, or do not trust times")
        if "[never]" in self._text("/sys/kernel/mm/transparent_hugepage/enabled"):
            found.append(
                "transparent huge pages are off: large tensors cost more. "
                "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
            )
        if level != quickest:
            found.append(f"TRAINC_CPU={level} is not this CPU's quickest level ({quickest}): unset it")
        elif quickest != best:
            found.append(
                f"this CPU's tiles (AMX) are hidden, by a hypervisor or a kernel, and {best} is slow on it: "
                "bfloat16 is no faster than float32 here (a machine that shows amx in /proc/cpuinfo helps)"
            )
        elif best == "avx2":
            found.append("this CPU has no AVX-512: a step takes about twice as long as where it has (another machine helps)")
        for name, what in (("TRAINC_DEBUG", "checks memory at each step"), ("TRAINC_DUMP", "writes files at each compile")):
            if self.environment.get(name):
                found.append(f"{name}={self.environment[name]} {what}: unset it to train")
        if self.environment.get("TRAINC_CACHE") == "0":
            found.append("TRAINC_CACHE=0: each start compiles again; unset it")
        return [*found, *mistakes(self.environment)]


__all__ = ["Machine"]
