"""A process that judges what it is told to: a group a request, a verdict a case (tests/workers.py)."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

os.environ.setdefault("TRAINC_CACHE", "0")
sys.path.append(str(Path(__file__).resolve().parents[1]))
from workers import requests  # noqa: E402


def main() -> None:
    asked = requests()
    import torch

    torch.set_num_threads(1)
    import optimizers
    from judge import judge
    from opinfos import cases

    for (table, name, dtype, door, most, skip), answer in asked:
        some = optimizers.cases(name, dtype, most) if table == "optim" else cases(table, name, dtype, most)
        decide = optimizers.judge if table == "optim" else judge
        done = set(skip)
        gc.freeze()  # each case ends with a collection, which would walk through all of PyTorch's modules: half of a case's time
        try:
            for case in some:
                if case.name not in done:
                    answer({"begin": case.name})
                    answer(decide(case, door))
        except Exception as error:  # the table's own generator of samples
            whole = f"{table}/{name}/{dtype}/samples"
            answer({"case": whole, "door": door, "class": "skipped", "reason": str(error)[:200]})


if __name__ == "__main__":
    main()
