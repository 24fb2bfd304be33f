"""`make bench-cuda`: a training step on a GPU. Without one it says so and ends; with one it says what is there and what
is not measured yet."""

from __future__ import annotations

import sys

from trainc import _core


def main() -> int:
    try:
        device = _core.device()
    except ValueError as error:
        print(f"bench-cuda: nothing was measured: {error}", file=sys.stderr)
        return 2
    reason = f"kernels for {device} compile and load, but capture does not take tensors on a GPU yet"
    print(f"bench-cuda: nothing was measured: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
