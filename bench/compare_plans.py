"""What a change does to plans: those of the benchmark's models, made by this tree and by another one, side by side.

    python bench/compare_plans.py --against TREE

TREE is a checkout of trainc that is built. Each case is trained for one step by either tree, in a process of its own, with
TRAINC_DUMP=loop,plan. Compared are the kernels' loop nests and the plans' buffers (offsets, live ranges) and steps; names of
kernels and lines of the model are not. A difference is shown as a unified diff; the exit status is 1 where there is one.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cases  # noqa: E402
import contestant  # noqa: E402
import numpy as np  # noqa: E402

DEMO = "demo"  # what `make demo` runs
EXAMPLE = cases.ROOT / "examples" / "finetune_gpt2.py"


def dump(name: str, bf16: bool, other: bool) -> None:
    """One step, in this process."""
    if other:
        contestant.import_from_the_other_tree()
    import torch

    import trainc

    trainc.config.fallback = False
    if name == DEMO:
        with tempfile.TemporaryDirectory() as folder:
            tokens, result = Path(folder, "tokens.npy"), Path(folder, "result.json")
            np.save(tokens, np.arange(4096))
            amp = ["--amp"] if bf16 else []
            sys.argv = [str(EXAMPLE), "--run", "trainc", "--steps", "1", "--tokens", str(tokens), "--result", str(result), *amp]
            runpy.run_path(str(EXAMPLE), run_name="__main__")
        print(Path(trainc.__file__).parents[2])
        return
    case = cases.build(name)
    model, optimizer = trainc.compile(case.model, torch.optim.AdamW(case.model.parameters(), lr=1e-4, fused=True))
    torch.manual_seed(cases.SEED)
    contestant.training_step(model, optimizer, case.batch(0), bf16)
    print(Path(trainc.__file__).parents[2])


def dumped(name: str, bf16: bool, tree: Path | None, folder: Path) -> dict[str, str]:
    """File -> text, of one tree (None: this one)."""
    folder.mkdir(parents=True)
    dumps = {"TRAINC_DUMP": "loop,plan", "TRAINC_DUMP_DIR": str(folder)}
    environment = {**os.environ, **dumps, contestant.OTHER_TREE: str(tree or "")}
    words = [sys.executable, __file__, "--dump", name, *(["--bf16"] if bf16 else []), *(["--other"] if tree else [])]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{name}, {tree or 'this tree'}:\n{done.stderr[-2000:]}")
    assert Path(done.stdout.splitlines()[-1]) == (tree or cases.ROOT), "trainc was imported from elsewhere"
    return {file.name: file.read_text() for file in sorted(folder.iterdir())}


def nest(text: str) -> str:
    """A loop nest without its name and the lines that it comes from."""
    text = re.sub(r"\s*//.*", "", text)
    return re.sub(r"^(nest|kernel) \S+", r"\1", text, flags=re.MULTILINE)


def plan(text: str) -> str:
    """A plan without remarks, names of kernels and lines of the model; its values are numbered as they come."""
    text = re.split(r"^(?:remarks|notes|refused)\b.*$", text, maxsplit=1, flags=re.MULTILINE)[0]
    text = re.sub(r"\s*//.*", "", text)
    numbers: dict[str, str] = {}
    text = re.sub(r"\b(t|saved|out)(\d+)\b", lambda value: numbers.setdefault(value[0], f"{value[1]}{len(numbers)}"), text)
    return re.sub(r"(\d+): \S+ = kernel \S+ over", r"\1: kernel over", text)


def compared(ours: dict[str, str], theirs: dict[str, str]) -> tuple[str, list[str]]:
    """(in a line, the differences)."""
    nests = [Counter(nest(text) for file, text in each.items() if ".plan" not in file) for each in (theirs, ours)]
    plans = [{file: plan(text) for file, text in each.items() if ".plan" in file} for each in (theirs, ours)]
    lines: list[str] = []
    for file in sorted(plans[0].keys() | plans[1].keys()):
        before, after = (each.get(file, "").splitlines() for each in plans)
        lines += difflib.unified_diff(before, after, f"{file}, other", f"{file}, this", lineterm="", n=0)
    gone, new = nests[0] - nests[1], nests[1] - nests[0]
    for before, after in zip(gone.elements(), new.elements(), strict=False):
        lines += difflib.unified_diff(before.splitlines(), after.splitlines(), "nest, other", "nest, this", lineterm="", n=2)
    same = sum((nests[0] & nests[1]).values())
    changed = [file for file in plans[0].keys() | plans[1].keys() if plans[0].get(file) != plans[1].get(file)]
    told = f"{same} nests equal, {gone.total()} only in the other, {new.total()} only here; "
    return told + (f"plans differ: {', '.join(sorted(changed))}" if changed else f"{len(plans[1])} plans equal"), lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="TREE", help="the other checkout")
    parser.add_argument("--cases", nargs="+", default=[*cases.CASES, DEMO], metavar="CASE", help=", ".join([*cases.CASES, DEMO]))
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--lines", type=int, default=40, help="of each difference that are shown (40)")
    parser.add_argument("--dump", help=argparse.SUPPRESS)
    parser.add_argument("--bf16", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--other", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.dump:
        dump(args.dump, args.bf16, args.other)
        return
    if args.against is None or not list(args.against.glob("python/trainc/_core*.so")):
        parser.error("--against wants a checkout of trainc that is built: `make build` there")
    differ = False
    for name in args.cases:
        for precision in args.precisions:
            with tempfile.TemporaryDirectory() as folder:
                of = lambda tree, place: dumped(name, precision == "bf16", tree, Path(folder, place))  # noqa: B023, E731
                told, lines = compared(of(None, "this"), of(args.against.resolve(), "other"))
            print(f"{name} {precision}: {told}", flush=True)
            differ |= bool(lines)
            print("\n".join(f"    {line}" for line in lines[: args.lines]), end="\n" if lines else "")
    sys.exit(int(differ))


if __name__ == "__main__":
    main()
