"""A process that judges the architectures that it is told to: one a request (tests/workers.py)."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("TRAINC_CACHE", "0")
os.environ["HF_HUB_OFFLINE"] = "1"  # a configuration that wants to download something fails at once
sys.path.append(str(Path(__file__).resolve().parents[1]))
from workers import requests  # noqa: E402


def main() -> None:
    asked = requests()
    import torch
    import transformers
    from judge import judge

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    for (name, door, known, done), answer in asked:
        if name not in done:
            answer({"begin": name})
            answer(judge(name, door, known))


if __name__ == "__main__":
    main()
