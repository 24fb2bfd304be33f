"""A process that runs tests of PyTorch's own, each through us, and where it fails through PyTorch (tests/workers.py)."""

from __future__ import annotations

import logging
import os
import sys
import time
import unittest
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("TRAINC_CACHE", "0")
HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent)]
from suites import last_line, name_of, outcome, tests_of  # noqa: E402
from workers import requests  # noqa: E402


def judge(test: unittest.TestCase, through: Any) -> dict:
    with through.on(ours=True) as seen:
        how, why = outcome(test)
    verdict = {"door": "backend", "graphs": seen.graphs, "reasons": seen.reasons}
    if how == "skipped":
        return {**verdict, "class": "skipped", "reason": why[:200]}
    if how == "failed":
        with through.on(ours=False):
            plainly, told = outcome(type(test)(test._testMethodName))
        if plainly != "passed":
            return {**verdict, "class": "fails plainly", "reason": last_line(told)}
        return {**verdict, "class": "wrong", "reason": last_line(why), "told": why[-6000:]}
    kind = "fell back" if seen.reasons else "compiled" if seen.graphs else "no graph"
    return {**verdict, "class": kind, "reason": seen.reasons[0] if seen.reasons else ""}


def main() -> None:
    asked = requests()
    import through as door
    import versions

    logging.disable(logging.WARNING)
    modules: dict[str, ModuleType] = {}
    loaded: dict[str, list[unittest.TestCase]] = {}
    through = door.Through(lambda: list(modules.values()))
    for (file, part, parts, patterns, skip), answer in asked:
        if file not in loaded:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    modules[file] = versions.load(file)
            except Exception as error:  # a file of another version
                loaded[file] = []
                reason = f"cannot be imported: {type(error).__name__}: {error}"
                answer({"case": Path(file).stem, "door": "backend", "class": "fails plainly", "reason": reason})
            else:
                door.on_cpu(modules[file])
                loaded[file] = tests_of(modules[file], unittest.TestLoader())
        done = set(skip)
        for test in loaded[file][part::parts]:
            case = f"{Path(file).stem}/{name_of(test)}"
            if case in done or (patterns and not any(p in case for p in patterns)):
                continue
            answer({"begin": case})
            start = time.monotonic()
            verdict = judge(test, through)
            answer({"case": case, **verdict, "seconds": round(time.monotonic() - start, 1)})


if __name__ == "__main__":
    main()
