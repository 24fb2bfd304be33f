"""A process that runs tests of JAX's own, each through us, and where it fails without us (tests/workers.py)."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import time
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("TRAINC_CACHE", "0")
HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent)]
from suites import last_line, name_of, outcome, tests_of  # noqa: E402
from workers import requests  # noqa: E402

KEPT = 100  # tests after which JAX forgets what it has compiled


def load(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # classes are found again by their module
    sys.path.insert(0, str(Path(file).parents[1]))
    spec.loader.exec_module(module)
    return module


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
            return {**verdict, "class": "fails plainly", "reason": last_line(told)}
        kind = "looks inside" if seen.looked_inside else "wrong"
        return {**verdict, "class": kind, "reason": last_line(why), "told": why[-6000:]}
    routes = {record.route for record in seen.records}
    kind = "fell back" if "eager" in routes else "in parts" if reasons else "compiled" if seen.records else "no jit"
    return {**verdict, "class": kind, "reason": reasons[0] if reasons else ""}


def main() -> None:
    asked = requests()
    import absl.flags
    import jax
    import jax._src.test_util as jtu
    import through as door
    from texts import Text

    absl.flags.FLAGS(["jax_suite"], known_only=True)
    logging.disable(logging.WARNING)
    loaded: dict[str, list[unittest.TestCase]] = {}
    texts: dict[str, Text] = {}
    through = None
    for (file, part, parts, patterns, skip), answer in asked:
        if file not in loaded:
            # in the order of JAX's own loader, which draws the cases by their names
            loaded[file], texts[file] = tests_of(load(file), jtu.JaxTestLoader()), Text(file)
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
