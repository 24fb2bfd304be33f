"""A process that judges what it is told to: a group a line on its standard input, `begin` and a verdict a case on its output."""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("TRAINC_CACHE", "0")


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the operations print is not a verdict
    import torch

    torch.set_num_threads(1)
    import optimizers
    from judge import jsonable, judge
    from opinfos import cases

    for line in sys.stdin:
        table, name, dtype, door, most, skip = json.loads(line)
        some = optimizers.cases(name, dtype, most) if table == "optim" else cases(table, name, dtype, most)
        decide = optimizers.judge if table == "optim" else judge
        done = set(skip)
        try:
            for case in some:
                if case.name in done:
                    continue
                print(json.dumps({"begin": case.name}), file=out)
                print(jsonable(decide(case, door)), file=out)
        except Exception as error:  # the table's own generator of samples
            verdict = {
                "case": f"{table}/{name}/{dtype}/samples",
                "door": door,
                "class": "skipped",
                "reason": str(error)[:200],
            }
            print(jsonable(verdict), file=out)
        print(json.dumps({"end": True}), file=out)


if __name__ == "__main__":
    main()
