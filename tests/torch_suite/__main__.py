"""PyTorch's own tests of a compiler, with trainc in Inductor's place: `make torch-suite PYTORCH=CHECKOUT` (docs/torch_suite.md).

    git clone --depth 1 --branch v2.13.0 https://github.com/pytorch/pytorch CHECKOUT           # the version that is installed
    python tests/torch_suite CHECKOUT --files inductor/test_torchinductor --jobs 2
    python tests/torch_suite CHECKOUT --only test_conv --out /tmp/some                         # tests whose name holds this
    python tests/torch_suite CHECKOUT --resume                                                 # go on where it was stopped

Every verdict is a line of OUT as soon as it is known. Exit status 1 where a result is wrong, or a process crashed or hung.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import suites  # noqa: E402

FILES = (
    "inductor/test_torchinductor", "functorch/test_aotdispatch", "dynamo/test_repros", "dynamo/test_misc",
    "dynamo/test_modules", "dynamo/test_functions", "dynamo/test_autograd_function", "dynamo/test_higher_order_ops",
    "dynamo/test_activation_checkpointing", "dynamo/test_hooks", "dynamo/test_subgraphs", "dynamo/test_unspec",
    "dynamo/test_aot_autograd",
)  # fmt: skip
CLASSES = {
    "compiled": "passed; every graph of it was compiled",
    "fell back": "passed; some graph ran in PyTorch, for a reason that was told",
    "no graph": "passed; nothing came to a compiler",
    "skipped": "the test skips itself, or is expected to fail",
    "fails plainly": "fails with PyTorch's aot_eager in our place, too",
    "wrong": "passes with aot_eager alone",
    "crash": "the process died",
    "hang": "not done in time",
}
SUITE = suites.Suite(HERE / "worker.py", "backend", CLASSES, "compiled of those with a graph", ("compiled", "fell back"))


def kind_of(reason: str) -> str:
    """A reason without the graph, the lines and the names of the one test."""
    reason = re.sub(r"^graph \d+ (runs in PyTorch|is not compiled)[:,]? ?", "", reason.partition("\n")[0])
    return re.sub(r" \(?(at|of|in) \S+:\d+\S*", "", reason)


def main() -> int:
    what = "of PyTorch's repository, at the tag of the version that is installed"
    args = suites.parser_of("torch_suite", __doc__, FILES, what).parse_args()
    paths = {Path(name).name: args.checkout / "test" / f"{name}.py" for name in args.files}
    return suites.run_and_tell(SUITE, args, paths, kind_of)


if __name__ == "__main__":
    sys.exit(main())
