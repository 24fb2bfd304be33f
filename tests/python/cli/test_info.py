"""`trainc info`: what stands in the way of a machine, each with what to do."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from trainc import cli
from trainc.cli.machine import Machine
from trainc.cli.settings import VARIABLES, mistakes

ROOT = Path(__file__).resolve().parents[3]

PLAIN = {
    "proc/self/cgroup": "0::/user.slice/run.scope\n",
    "proc/meminfo": "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n",
    "proc/stat": "cpu  100 0 100 5000 0 0 0 0 0 0\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 8 CPUs, whose files are PLAIN and `files`."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("time.sleep", lambda _: None)

    def make(files=(), **environment):
        for path, text in {**PLAIN, **dict(files)}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        found = Machine(tmp_path, environment)
        start = found.busy()
        monkeypatch.setattr(found, "busy", lambda before=0.0: start - before)
        return found

    return make


def test_nothing_is_in_the_way_of_a_good_machine(machine):
    found = machine()
    assert found.obstacles(8, "avx512", "avx512", "avx512") == [] and found.cpus() == 8 and found.memory_limit() is None
    assert found.available_memory() == 8_000_000 * 1024


V1 = {
    "proc/self/cgroup": "4:memory:/docker/a\n3:cpuset:/\n2:cpu,cpuacct:/docker/a\n",
    "sys/fs/cgroup/cpu/docker/a/cpu.cfs_quota_us": "150000\n", "sys/fs/cgroup/cpu/docker/a/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes": "2000000000\n",
    "sys/fs/cgroup/memory/docker/a/memory.usage_in_bytes": "500000000\n",
}  # fmt: skip
V2 = {
    "sys/fs/cgroup/user.slice/run.scope/cpu.max": "max 100000\n", "sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/user.slice/run.scope/memory.max": "2000000000\n",
    "sys/fs/cgroup/user.slice/run.scope/memory.current": "500000000\n", "sys/fs/cgroup/user.slice/memory.max": "max\n",
}  # fmt: skip


@pytest.mark.parametrize("files", [V1, V2])
def test_limits_of_control_groups_are_found(machine, files):
    found = machine(files)
    assert found.cpus() == 1.5 and found.memory_limit() == 2_000_000_000 and found.available_memory() == 1_500_000_000
    threads, cpus, memory = found.obstacles(8, "avx512", "avx512", "avx512")
    assert threads == "8 threads share 1.5 CPUs, and wait for each other: set OMP_NUM_THREADS=1"
    assert "1.5 of 8 CPUs" in cpus and 'memory="2000MB"' in memory


@pytest.mark.parametrize(
    "files, threads, level, environment, said",
    [
        ({}, 16, "amx", {}, "16 threads share 8 CPUs, and wait for each other: set OMP_NUM_THREADS=8"),
        ({}, 1, "amx", {}, "1 thread for 8 CPUs: set OMP_NUM_THREADS=8"),
        ({"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"}, 8, "amx", {}, "echo madvise"),
        ({}, 8, "avx2", {}, "TRAINC_CPU=avx2 is not this CPU's quickest level (amx)"),
        ({}, 8, "amx", {"TRAINC_DEBUG": "poison"}, "TRAINC_DEBUG=poison"),
        ({}, 8, "amx", {"TRAINC_DUMP": "graph"}, "TRAINC_DUMP=graph"),
        ({}, 8, "amx", {"TRAINC_CACHE": "0"}, "TRAINC_CACHE=0"),
    ],
)
def test_each_obstacle_is_said(machine, files, threads, level, environment, said):
    (found,) = machine(files, **environment).obstacles(threads, level, "amx", "amx")
    assert said in found


@pytest.mark.parametrize(
    "environment, said",
    [
        ({"TRAINC_CASHE": "0"}, "TRAINC_CASHE=0 is read by nothing: did you mean TRAINC_CACHE?"),
        ({"TRAINC_HOME": "/x", "HOME": "/y"}, "TRAINC_HOME=/x is read by nothing: unset it"),
        ({"TRAINC_LOG": "debug"}, "TRAINC_LOG=debug: 'debug' is none of info, and does nothing"),
        ({"TRAINC_DUMP": "asm, code"}, "TRAINC_DUMP=asm, code: ' code' is none of graph, loop, asm, plan, and does nothing"),
    ],
)
def test_variables_that_do_nothing_are_said(environment, said):
    assert mistakes(environment) == [said]
    assert mistakes({"TRAINC_DUMP": "graph,asm", "TRAINC_CACHE_DIR": "/x", "TRAINC_LOG": ""}) == []


def test_every_variable_that_is_read_is_known():
    """By the sources: each name in quotes."""
    files = [file for pattern in ("python/**/*.py", "python/*.pth", "src/**/*.cpp", "src/**/*.h") for file in ROOT.glob(pattern)]
    read = {name for file in files for name in re.findall(r'"(TRAINC_[A-Z0-9_]+)"', file.read_text())}
    assert read == set(VARIABLES)


def test_others_and_old_cpus_are_said(machine, monkeypatch):
    found = machine()
    monkeypatch.setattr(found, "busy", lambda before=None: 10.0 if before is None else 0.6)
    busy, old = found.obstacles(8, "avx2", "avx2", "avx2")
    assert "about 2.0 of 8 CPUs busy" in busy and "no AVX-512" in old


def test_hidden_tiles_are_said(machine):
    (hidden,) = machine().obstacles(8, "avx512", "avx512", "avx512_bf16")
    assert "tiles (AMX) are hidden" in hidden and "bfloat16 is no faster" in hidden
    (forced,) = machine().obstacles(8, "avx512_bf16", "avx512", "avx512_bf16")
    assert "TRAINC_CPU=avx512_bf16 is not this CPU's quickest level (avx512)" in forced


def test_the_command(capsys):
    cli.main(["info"])
    text = capsys.readouterr().out
    assert re.search(r"^CPU level +\w+", text, re.MULTILINE) and ("In the way:" in text or "Nothing stands in the way." in text)
