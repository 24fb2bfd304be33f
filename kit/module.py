"""Part a1: trainc's compiled module, as the kit brought it; where that cannot be imported here, it is built here."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def imported() -> str:
    """"", or why it cannot be."""
    code = "import trainc, trainc._core; print(trainc._core.version(), trainc._core.build_id())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr.strip()[-2000:]


def build() -> str:
    """Builds it from the sources beside; its log's end where that fails, else ""."""
    cmake = shutil.which("cmake")
    if not cmake or not importlib.util.find_spec("nanobind"):
        return "cmake and the Python package nanobind are needed to build it here"
    folder = ROOT / "build" / "here"
    configure = [
        cmake, "-S", str(ROOT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release", "-DTRAINC_LLVM=OFF", "-DTRAINC_TESTS=OFF",
        f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
    ]  # fmt: skip
    if (ROOT / "include").is_dir():
        configure.append(f"-DTRAINC_HEADERS={ROOT / 'include'}")
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    for command in (configure, [cmake, "--build", str(folder), "--target", "_core", "--parallel"]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return (done.stdout + done.stderr)[-3000:]
    for old in (ROOT / "python" / "trainc").glob("_core*.so"):
        old.unlink()
    for made in folder.glob("_core*.so"):
        shutil.copy(made, ROOT / "python" / "trainc")
    return ""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--answer", type=Path)
    answer = parser.parse_args().answer
    facts: dict = {"python": sys.version.split()[0], "suffix": sysconfig.get_config_var("EXT_SUFFIX"), "way": "brought along"}
    status, why = 0, imported()
    if why:
        start = time.monotonic()
        facts |= {"way": "built here", "not imported": why}
        why = build() or imported()
        facts["build_seconds"] = round(time.monotonic() - start, 1)
    if why:
        status, facts["error"] = 1, {"what": why.splitlines()[-1], "lines": why.splitlines()}
    facts["line"] = f"Python {facts['python']}, module {facts['way']}"
    print(json.dumps(facts, indent=1))
    if answer:
        answer.write_text(json.dumps(facts))
    return status


if __name__ == "__main__":
    sys.exit(main())
