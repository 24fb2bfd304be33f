"""Fine-tunes a Hugging Face GPT-2 twice from the same seed, in PyTorch alone and compiled by trainc, and compares the two.

    python examples/finetune_gpt2.py                                   # GPT-2 124M, random weights, Python's own source
    python examples/finetune_gpt2.py --model DIRECTORY --data FILE     # your own weights and text

The two lines of trainc are in `train`; the rest is what any fine-tuning script does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import numpy as np

CACHE = Path(__file__).resolve().parents[1] / "build" / "demo"


# --- text to tokens ---------------------------------------------------------------------------------------------------


def standard_library(limit: int = 3_000_000) -> str:
    """Python's own source: real text that every machine with Python has. About `limit` characters of it."""
    library = Path(sysconfig.get_path("stdlib"))
    texts, size = [], 0
    for path in sorted(library.glob("*.py")) + sorted(library.glob("[a-m]*/*.py")):
        if size < limit:
            texts.append(path.read_text(encoding="utf-8", errors="ignore"))
            size += len(texts[-1])
    return "\n".join(texts)


def byte_pairs(text: str, vocabulary: int, cached: Path):
    """A byte-pair tokenizer trained on `text`, or the one trained the last time."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if cached.exists():
        return Tokenizer.from_file(str(cached))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        text.splitlines(keepends=True),
        trainers.BpeTrainer(vocab_size=vocabulary, min_frequency=2, initial_alphabet=alphabet, show_progress=sys.stderr.isatty()),
    )
    cached.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(cached))
    return tokenizer


def vocabulary_of(model: str | None) -> int:
    from transformers import AutoConfig, GPT2Config

    return (AutoConfig.from_pretrained(model) if model else GPT2Config()).vocab_size


def token_stream(model: str | None, data: str | None, vocabulary: int | None = None) -> np.ndarray:
    """All of the text as one row of token numbers; `vocabulary` (default: the model's) is the size of a tokenizer made here."""
    text = Path(data).read_text(encoding="utf-8", errors="ignore") if data else standard_library()
    bare = model and Path(model).is_dir() and not any(Path(model, name).exists() for name in ("tokenizer.json", "vocab.json"))
    if model and not bare:
        from transformers import AutoTokenizer

        return np.asarray(AutoTokenizer.from_pretrained(model)(text)["input_ids"], dtype=np.int64)
    vocabulary = vocabulary or vocabulary_of(model)
    name = f"{Path(data).stem}-{len(text)}" if data else "stdlib-" + ".".join(map(str, sys.version_info[:3]))
    tokenizer = byte_pairs(text, vocabulary, CACHE / f"tokenizer-{name}-{vocabulary}.json")
    ids = [encoding.ids for encoding in tokenizer.encode_batch(text.splitlines(keepends=True))]
    return np.concatenate([np.asarray(row, dtype=np.int64) for row in ids if row])


def batch_of(tokens: np.ndarray, step: int, batch: int, length: int, seed: int):
    """The same batch for the same step and seed, whatever else has drawn random numbers."""
    import torch

    starts = np.random.default_rng([seed, step]).integers(0, len(tokens) - length, size=batch)
    return torch.from_numpy(np.stack([tokens[start : start + length] for start in starts]))


# --- training ---------------------------------------------------------------------------------------------------------


def build_model(model: str | None, seed: int):
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    built = AutoModelForCausalLM.from_pretrained(model) if model else GPT2LMHeadModel(GPT2Config())
    return built.train()  # dropout is on


def peak_resident_bytes() -> int:
    """The largest resident size of this process so far (the kernel's VmHWM: unlike ru_maxrss, not inherited from a parent)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def train(how: str, args: argparse.Namespace, tokens: np.ndarray) -> dict:
    import torch
    from tqdm import tqdm

    model = build_model(args.model, args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if how == "trainc":
        import trainc

        model, optimizer = trainc.compile(model, optimizer)
    reported = how == "trainc" and args.report

    torch.manual_seed(args.seed)  # dropout draws the same masks in both runs
    losses, seconds = [], []
    bar = tqdm(total=args.steps, desc=f"{how:>6}", unit="step", mininterval=1.0 if sys.stderr.isatty() else 20.0)
    with bar, trainc.profile() if reported else contextlib.nullcontext():
        for step in range(args.steps):
            ids = batch_of(tokens, step, args.batch, args.seq, args.seed)
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=args.amp):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.perf_counter() - start)
            losses.append(loss.item())
            bar.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
            bar.update()
    if reported:
        trainc.report((model, optimizer), args.report)
    return {"losses": losses, "seconds": seconds, "peak_bytes": peak_resident_bytes(), "threads": torch.get_num_threads()}


# --- the comparison ---------------------------------------------------------------------------------------------------


def run_in_a_process(how: str, args: argparse.Namespace, tokens: Path) -> dict:
    """One training run in a process of its own, so that its peak memory is its own."""
    result = tokens.with_name(f"{how}.json")
    command = [sys.executable, __file__, *args.own_words, "--run", how, "--tokens", str(tokens), "--result", str(result)]
    code = subprocess.run(command).returncode
    if code:
        raise SystemExit(f"the {how} run ended with code {code}; its message is above")
    return json.loads(result.read_text())


def steady(seconds: list[float]) -> float:
    """The median step, without the first (which compiles, and touches memory for the first time)."""
    return statistics.median(seconds[1:] or seconds)


def table(eager: dict, compiled: dict) -> str:
    rows = [("", "PyTorch", "trainc", "")]
    count = len(eager["losses"])
    for step in sorted({0, count - 1, *range(9, count, 10)}):
        a, b = eager["losses"][step], compiled["losses"][step]
        rows.append((f"loss at step {step + 1}", f"{a:.6f}", f"{b:.6f}", f"differs by {abs(a - b) / abs(a):.1e}"))
    a, b = steady(eager["seconds"]), steady(compiled["seconds"])
    rows.append(("step time (median)", f"{a:.2f} s", f"{b:.2f} s", f"speed-up {a / b:.2f}x"))
    a, b = eager["peak_bytes"], compiled["peak_bytes"]
    rows.append(("peak memory (resident)", f"{a / 1e9:.2f} GB", f"{b / 1e9:.2f} GB", f"{b / a:.0%}"))
    extra = [max(0.0, run["seconds"][0] - steady(run["seconds"])) for run in (eager, compiled)]
    rows.append(("compile time", "", f"{extra[1]:.1f} s", f"first step less a median step; PyTorch's own: {extra[0]:.1f} s"))
    return "\n".join(f"{name:<24}{eager_:>12}{compiled_:>12}   {note}" for name, eager_, compiled_, note in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="Hugging Face weights: a directory or a name (default: GPT-2 124M, random weights)")
    parser.add_argument("--data", help="a text file (default: the source of Python's standard library)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=128, help="tokens in a row")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--amp", action="store_true", help="train under bfloat16 autocast")
    parser.add_argument("--report", metavar="FILE", help="write trainc's report of the last step: report.html or trace.json")
    parser.add_argument("--run", choices=["eager", "trainc"], help=argparse.SUPPRESS)
    parser.add_argument("--tokens", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.own_words = sys.argv[1:]
    if args.steps < 1 or args.batch < 1 or args.seq < 2:
        parser.error("--steps and --batch must be at least 1, --seq at least 2")
    if args.report and not args.report.endswith((".html", ".json")):
        parser.error("--report wants the name of a page (report.html) or of a trace (trace.json)")

    if args.run:
        Path(args.result).write_text(json.dumps(train(args.run, args, np.load(args.tokens))))
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    tokens = token_stream(args.model, args.data)
    if len(tokens) <= args.seq:
        parser.error(f"the text has {len(tokens)} tokens; --seq {args.seq} needs more")
    print(
        f"{args.model or 'GPT-2 124M, random weights'}; {len(tokens):,} tokens; batch {args.batch} x {args.seq}; "
        f"{args.steps} steps; AdamW, dropout on{', bfloat16 autocast' if args.amp else ''}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokens.npy")
        np.save(path, tokens)
        eager, compiled = (run_in_a_process(how, args, path) for how in ("eager", "trainc"))
    print("\n" + table(eager, compiled))


if __name__ == "__main__":
    main()
