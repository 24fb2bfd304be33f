"""`make gpu-kit`: what a machine with a GPU, Python and PyTorch needs, and has no network to get it from, in out/gpu-kit: the
module for Python 3.12 without LLVM, the sources to build it from there, headers, tests, benchmarks, and text as tokens.
`kit/run.py` in it is the one command to run (docs/cuda.md, "The kit")."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "kit"
MOST = 64 << 20  # bytes, with all that travels beside
SOURCES = ("src/", "python/trainc/", "kit/", "bench/", "examples/finetune_gpt2.py", "CMakeLists.txt", "pyproject.toml")
HELPERS = re.compile(r"tests/python/(?!conftest)\w+\.py")  # what tests share; the tests themselves stay
TOKENS, VOCABULARIES = 1 << 20, (50257, 32000)


def run(*command: object, **more: object) -> str:
    return subprocess.run(list(map(str, command)), check=True, text=True, stdout=subprocess.PIPE, **more).stdout


def copy_sources(out: Path) -> None:
    files = run("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in files:
        if name.startswith(SOURCES) or HELPERS.fullmatch(name):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, out / name)


def copy_headers(prefix: Path, out: Path) -> None:
    """Debian's fmt and nlohmann-json; both are used as headers alone."""
    for name in ("fmt", "nlohmann"):
        shutil.copytree(prefix / name, out / "include" / name, dirs_exist_ok=True)


def python_of(version: str, given: str | None) -> Path | None:
    found = given or shutil.which(f"python{version}")
    if not found:
        return None
    venv = BUILD / f"venv-{version}"
    python = venv / "bin" / "python"
    if not python.exists():
        run(found, "-m", "venv", venv)
    if subprocess.run([python, "-c", "import nanobind"], capture_output=True).returncode:
        wanted = next(line for line in (ROOT / "requirements.txt").read_text().splitlines() if line.startswith("nanobind=="))
        run(python, "-m", "pip", "install", "--quiet", wanted)
    return python


def build_module(python: Path, jobs: int, out: Path) -> Path:
    folder = BUILD / "module"
    run(
        shutil.which("cmake"), "-S", out, "-B", folder, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}",
        "-DCMAKE_BUILD_TYPE=Release", "-DTRAINC_LLVM=OFF", "-DTRAINC_TESTS=OFF", "-DTRAINC_STATIC_RUNTIME=ON",
        f"-DTRAINC_HEADERS={out / 'include'}", f"-DPython_EXECUTABLE={python}",
    )  # fmt: skip
    run(shutil.which("cmake"), "--build", folder, "--target", "_core", "-j", jobs)
    return next(folder.glob("_core*.so"))


def needs(module: Path) -> dict:
    """The libraries that a module loads, and the newest glibc that it asks for."""
    libraries = re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", module))
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", run("objdump", "-T", module))}
    return {"libraries": libraries, "glibc": ".".join(map(str, max(versions, default=())))}


def write_tokens(out: Path) -> None:
    """Python's own source, as bench/cases.py tokenizes it."""
    sys.path.insert(0, str(ROOT / "bench"))
    import cases
    import numpy as np

    (out / "tokens").mkdir(exist_ok=True)
    for vocabulary in VOCABULARIES:
        np.asarray(cases.tokens_of(vocabulary)[:TOKENS], dtype="<i4").tofile(out / "tokens" / f"{vocabulary}.i32")


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gpu-kit ARGS=...", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "gpu-kit")
    parser.add_argument("--python", help="a Python 3.12 with its headers (default: python3.12, where there is one)")
    parser.add_argument("--no-module", action="store_true", help="sources alone: it is built where it runs")
    parser.add_argument("--no-tokens", action="store_true", help="no text: nothing can be measured with it")
    parser.add_argument("--headers", type=Path, default=Path("/usr/include"), help="where fmt/ and nlohmann/ lie")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    out = args.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    copy_sources(out)
    copy_headers(args.headers, out)
    facts: dict = {"commit": run("git", "-C", ROOT, "rev-parse", "HEAD").strip(), "module": None}
    python = None if args.no_module else python_of("3.12", args.python)
    if python:
        module = build_module(python, args.jobs, out)
        run("strip", "--strip-unneeded", module)
        shutil.copy(module, out / "python" / "trainc")
        facts["module"] = {"file": module.name, **needs(module)}
        if any("stdc++" in name or "libgcc" in name for name in facts["module"]["libraries"]):
            raise SystemExit(f"the module needs {facts['module']['libraries']}: it would not load everywhere")
    else:
        print("gpu-kit: no Python 3.12 (--python names one): the module is built where the kit runs", file=sys.stderr)
    if not args.no_tokens:
        write_tokens(out)
    facts["bytes"] = size_of(out)
    (out / "MANIFEST.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts, indent=1))
    if facts["bytes"] > MOST:
        raise SystemExit(f"gpu-kit: {facts['bytes'] >> 20} MiB, more than {MOST >> 20}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
