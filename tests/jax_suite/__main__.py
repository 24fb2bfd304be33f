"""JAX's own tests, each function that they jit compiled by us: `make jax-suite JAX=CHECKOUT` (docs/jax_suite.md).

    git clone --depth 1 --branch jax-v0.10.2 https://github.com/jax-ml/jax CHECKOUT      # the version that is installed
    python tests/jax_suite CHECKOUT --files lax_test nn_test --cases 3 --jobs 2
    python tests/jax_suite CHECKOUT --files lax_test --only testConvert --out /tmp/some  # tests whose name holds this
    python tests/jax_suite CHECKOUT --resume                                             # go on where it was stopped
    python tests/jax_suite                                                               # the cases that JAX's wheel holds

Every verdict is a line of OUT as soon as it is known. Exit status 1 where a result is wrong, or a process crashed or hung.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import suites  # noqa: E402

HARNESSES = "harnesses"  # needs no checkout
FILES = (
    "lax_test", "lax_numpy_test", "lax_numpy_reducers_test", "lax_numpy_operators_test", "lax_numpy_ufuncs_test",
    "lax_numpy_indexing_test", "lax_numpy_einsum_test", "lax_numpy_vectorize_test", "lax_scipy_test",
    "lax_scipy_special_functions_test", "nn_test", "lax_autodiff_test", "lax_control_flow_test", "random_lax_test",
    "scipy_stats_test", "scipy_signal_test", "image_test", "polynomial_test",
)  # fmt: skip
CLASSES = {
    "compiled": "passed; every function that the test jits was compiled",
    "in parts": "passed; some function was compiled in parts, around what is XLA's, and none was XLA's as a whole",
    "fell back": "passed; some function was XLA's as a whole, for a reason that was told",
    "no jit": "the test jits nothing (by its text: not run), or within a function that is traced already",
    "skipped": "the test skips itself",
    "fails plainly": "fails without us, too",
    "looks inside": "fails; asks the jitted function for its module or its jaxpr, which are not JAX's own",
    "wrong": "passes without us alone",
    "crash": "the process died",
    "hang": "not done in time",
}
SUITE = suites.Suite(HERE / "worker.py", "jit", CLASSES, "compiled of those that jit", ("compiled", "in parts", "fell back"))


def kind_of(reason: str) -> str:
    """A reason without the lines of the one function that it is about."""
    reason = re.sub(r"^[^:]*(:\d+)?( ?\(.*?\))?: (?=stablehlo|trainc|dtype)", "", reason)
    reason = re.sub(r" (at|of) \S+:\d+:\d+( \([^)]*\))?", "", reason.partition("\n")[0])
    return re.sub(r"^\S+:\d+\S* ", "", reason)


def main() -> int:
    what = "of JAX's repository, at the tag of the version that is installed; without one, only its wheel's cases run"
    every = (HARNESSES, *FILES)
    parser = suites.parser_of("jax_suite", __doc__, every, what, nargs="?")
    parser.add_argument("--cases", type=int, default=3, metavar="N", help="that JAX draws of each generated test (default 3)")
    parser.add_argument("--x64", action="store_true", help="with JAX_ENABLE_X64: f64 and i64 are drawn, too")
    args = parser.parse_args()
    os.environ |= {"JAX_NUM_GENERATED_CASES": str(args.cases), "JAX_ENABLE_X64": str(int(args.x64)), "JAX_PLATFORMS": "cpu"}
    if args.checkout is None:
        if args.files not in (every, [HARNESSES]):
            parser.error(f"a CHECKOUT is needed for any file but {HARNESSES}")
        args.files = [HARNESSES]
    paths = {name: (HERE if name == HARNESSES else args.checkout / "tests") / f"{name}.py" for name in args.files}
    return suites.run_and_tell(SUITE, args, paths, kind_of)


if __name__ == "__main__":
    sys.exit(main())
