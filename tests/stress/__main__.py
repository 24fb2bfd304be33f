"""Stress tests of the cache and of the plans in it: thousands of each kind of mishap, with counts (docs/cache.md, "Tests").

    python tests/stress --count 5000 --kinds kills full

Each kind is a function (count, random, directory) that says what it counted; an AssertionError, or a process that crashes or
hangs, is a finding, and its seed repeats it. Exit status 1 where there was one.
"""

import argparse
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

import damage
import processes
import strangers

KINDS = {
    "strangers": strangers.strangers,
    "damage": damage.entries,
    "plans": damage.plans,
    "kills": processes.kills,
    "starts": processes.starts,
    "full": processes.full,
    "tmpfs": processes.tmpfs,
    "removed": processes.removed,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/stress", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=3000, help="how many of each kind (default 3000)")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=f"of: {', '.join(KINDS)}"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (default 0)")
    args = parser.parse_args()
    failed = 0
    for kind in args.kinds:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="trainc-stress-") as where:
            try:
                told = KINDS[kind](args.count, random.Random(f"{kind} {args.seed}"), Path(where))
            except Exception:
                traceback.print_exc()
                told, failed = f"FAILED (repeat: --kinds {kind} --count {args.count} --seed {args.seed})", failed + 1
        print(f"{kind:<10} {told}  [{time.monotonic() - start:.0f} s]", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
