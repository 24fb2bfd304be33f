"""How long GPT-2 124M takes to start: tracing, compiling and the signature's check, with an empty cache and with a full one.

Each start is a process of its own. "beyond steady" is the time of the first steps (until everything is compiled) less the
time of as many steady ones: it also holds what touching fresh memory costs, which eager pays too (its row shows how much).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
FIRST = 2  # steps by whose end everything is compiled


def start(door: str, args: argparse.Namespace) -> dict:
    """One start, in this process: seconds of each step and of the parts of the first ones."""
    import finetune_gpt2 as gpt2
    import torch
    from contestant import through

    model = gpt2.build_model(args.model, 0)
    model, optimizer = through(door, model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    ids = torch.randint(0, model.config.vocab_size, (args.batch, args.seq))
    seconds = []
    for _ in range(FIRST + args.steps):
        begin = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
    result = {"beyond": sum(seconds[:FIRST]) - FIRST * min(seconds[FIRST:]), "steady": min(seconds[FIRST:])}
    if door == "trainc":
        from trainc.base import records

        made = [record for owner in (model, optimizer) for record in records.of(owner)]
        plans = [plan for record in made for plan in record.executables()]
        result["tracing"] = sum(record.capture_seconds for record in made)
        result["compiling"] = sum(record.compile_seconds for record in made)
        result["plans"] = f"{sum(getattr(plan, 'from_cache', False) for plan in plans)} of {len(plans)} from the cache"
        result["signature"] = signature_seconds(model, ids)
    return result


def signature_seconds(model, ids) -> dict[str, float]:
    """CPU seconds that a call spends to see that it knows its signature, the least of many: in one mode, and alternating."""
    from trainc.torch.doors import call

    compiled = call.CompiledCall(model)
    results = {}
    for name, modes in (("same mode", [True]), ("train/eval alternate", [True, False])):
        least = float("inf")
        for i in range(400):
            model.train(modes[i % len(modes)])
            begin = time.thread_time_ns()
            found = compiled._call((), {"input_ids": ids, "labels": ids})
            hash(found.key)
            least = min(least, (time.thread_time_ns() - begin) * 1e-9) if i > 20 else least
        results[name] = least
    return results


def elsewhere(door: str, words: list[str], directory: str) -> dict:
    command = [sys.executable, __file__, *words, "--start", door]
    # Inductor's own begins empty, too: it has one start, a cold one
    caches = {"TRAINC_CACHE": "1", "TRAINC_CACHE_DIR": directory, "TORCHINDUCTOR_CACHE_DIR": os.path.join(directory, "inductor")}
    done = subprocess.run(command, env={**os.environ, **caches}, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{door}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def row(name: str, result: dict) -> str:
    parts = f"{name:<22} beyond steady {result['beyond']:6.2f} s   steady step {result['steady']:6.2f} s"
    if "tracing" in result:
        parts += f"   tracing {result['tracing']:5.2f} s   compiling {result['compiling']:5.2f} s   {result['plans']}"
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a directory of Hugging Face weights (default: GPT-2 124M from random weights)")
    parser.add_argument("--steps", type=int, default=3, help="steady steps, after the first two")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--inductor", action="store_true", help="measure torch.compile's own backend as well")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    args, words = parser.parse_args(), sys.argv[1:]
    if args.start:
        print(json.dumps(start(args.start, args)))
        return
    with tempfile.TemporaryDirectory() as directory:
        print(row("eager", elsewhere("eager", words, directory)), flush=True)
        print(row("trainc, empty cache", elsewhere("trainc", words, directory)), flush=True)
        warm = elsewhere("trainc", words, directory)
        print(row("trainc, full cache", warm), flush=True)
        if args.inductor:
            print(row("inductor", elsewhere("inductor", words, directory)), flush=True)
    for name, seconds in warm["signature"].items():
        print(f"signature, {name:<22} {seconds * 1e6:5.1f} us of CPU time a call")


if __name__ == "__main__":
    main()
