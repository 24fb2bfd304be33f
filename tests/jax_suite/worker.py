"""A process that runs tests of JAX's own, each through us, and where it fails without us (tests/workers.py)."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import sys
import time
import unittest
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("TRAINC_CACHE", "0")
HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent)]
from workers import requests  # noqa: E402

KEPT = 100  # tests after which JAX forgets what it has compiled


def tests_of(file: str) -> list[unittest.TestCase]:
    """In the order of JAX's own loader, which draws the cases by their names."""
    import jax._src.test_util as jtu

    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # classes are found again by their module
    sys.path.insert(0, str(Path(file).parents[1]))
    spec.loader.exec_module(module)
    found: list[unittest.TestCase] = []

    def take(suite: Any) -> None:
        for test in suite:
            found.append(test) if isinstance(test, unittest.TestCase) else take(test)

    take(jtu.JaxTestLoader().loadTestsFromModule(module))
    return found


def name_of(test: unittest.TestCase) -> str:
    return f"{type(test).__name__}.{test._testMethodName}"


def outcome(test: unittest.TestCase) -> tuple[str, str]:
    """("passed" | "skipped" | "failed", why)."""
    result = unittest.TestResult()
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="trainc|jax_suite", message="trainc: ")
        warnings.filterwarnings("ignore", message="trainc: ")
        test.run(result)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    bad = result.failures + result.errors
    return ("failed", bad[0][1]) if bad else ("passed", "")


def judge(test: unittest.TestCase, through: Any) -> dict:
    with through.on() as seen:
        how, why = outcome(test)
    reasons = [record.reason for record in seen.records if record.route in ("eager", "split")]
    counts = {"compiled": len(seen.records) - len(reasons), "fell": len(reasons)}
    verdict = {"door": "jit", **counts, "reasons": reasons}
    if how == "skipped":
        return {**verdict, "class": "skipped", "reason": why[:200]}
    if how == "failed":
        plainly, told = outcome(type(test)(test._testMethodName))
        if plainly == "failed":
            return {**verdict, "class": "fails plainly", "reason": _last(told)}
        kind = "looks inside" if seen.looked_inside else "wrong"
        return {**verdict, "class": kind, "reason": _last(why), "told": why[-6000:]}
    kind = "fell back" if reasons else "compiled" if seen.records else "no jit"
    return {**verdict, "class": kind, "reason": reasons[0] if reasons else ""}


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip() and not line.startswith(" ")]
    return lines[-1][:300] if lines else ""


def main() -> None:
    asked = requests()
    import absl.flags
    import jax
    import through as door
    from texts import Text

    absl.flags.FLAGS(["jax_suite"], known_only=True)
    logging.disable(logging.WARNING)
    loaded: dict[str, list[unittest.TestCase]] = {}
    texts: dict[str, Text] = {}
    through = None
    for (file, part, parts, patterns, skip), answer in asked:
        if file not in loaded:
            loaded[file], texts[file] = tests_of(file), Text(file)
        through = through or door.Through()
        tests, done = loaded[file], set(skip)
        for number, test in enumerate(tests[part::parts]):
            case = f"{Path(file).stem}/{name_of(test)}"
            if case in done or (patterns and not any(p in case for p in patterns)):
                continue
            if not texts[file].jits(test._testMethodName):
                answer({"case": case, "door": "jit", "class": "no jit", "reason": "by its text"})
                continue
            answer({"begin": case})
            start = time.monotonic()
            verdict = judge(test, through)
            answer({"case": case, **verdict, "seconds": round(time.monotonic() - start, 1)})
            if number % KEPT == KEPT - 1:
                jax.clear_caches()


if __name__ == "__main__":
    main()
