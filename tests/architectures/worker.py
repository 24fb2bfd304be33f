"""A process that judges the architectures that it is told to (tests/workers.py says how they talk)."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("TRAINC_CACHE", "0")
os.environ["HF_HUB_OFFLINE"] = "1"  # a configuration that wants to download something fails at once
sys.path.insert(0, str(Path(__file__).parent))


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the models print is not a verdict
    import torch
    import transformers
    from judge import judge

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    for line in sys.stdin:
        name, door, skip = json.loads(line)
        if name not in skip:
            print(json.dumps({"begin": name}), file=out)
            print(json.dumps(judge(name, door)), file=out)
        print(json.dumps({"end": True}), file=out)


if __name__ == "__main__":
    main()
