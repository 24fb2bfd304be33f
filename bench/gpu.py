"""`make bench-cuda`: a training step on a GPU, side by side: eager, Inductor as it comes and with max-autotune (which uses CUDA
graphs), trainc. GPT-2 124M 16 x 1024, RoBERTa-base 64 x 512, a Llama of 1.1 billion parameters 4 x 2048, ResNet-50 128 x 224 and
ViT-base 64 x 224, under bf16 autocast and in strict fp32.

Each contestant is a process of its own and trains the same model on the same batches. Told of each: milliseconds of a step, over
all steps in a row with nothing waited for between them, by the device's events and by the wall clock, and the spread of steps
that are waited for one by one; memory at its peak, seconds until the first step was done, kernels launched a step, and of
trainc's longest kernels the share of the roofline: what the machine's measured peaks allow for the kernel's own FLOPs and bytes.

Without a GPU it says so and ends. `--rehearse` runs tiny models through all of it on the CPU, to see that the program works."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import cases  # noqa: E402

DOORS = {
    "eager": "eager", "inductor": "Inductor", "autotune": "Inductor, max-autotune", "trainc": "trainc, trainc.compile",
    "trainc-step": "trainc, train_step",
}  # fmt: skip
LONGEST, MOST = 8, 60  # kernels told of, and written down


# --- what is measured --------------------------------------------------------------------------------------------------


# a first forward would set it, which train_step refuses
ONE_LABEL = {"problem_type": "single_label_classification"}


def gpt2() -> cases.Workload:
    return cases._gpt2(16, 1024)


def roberta() -> cases.Workload:
    import torch
    from transformers import RobertaConfig, RobertaForSequenceClassification

    sizes = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
    config = RobertaConfig(**sizes, num_labels=2, **ONE_LABEL)
    words = cases._text(50257, 64, 512)

    def batch_of(step: int) -> dict:
        ids = words(step)["input_ids"].clamp(min=4)
        labels = torch.randint(0, 2, (64,), generator=torch.Generator().manual_seed(step))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}

    return cases.Workload(RobertaForSequenceClassification(config), batch_of)


def llama() -> cases.Workload:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32}
    config = LlamaConfig(vocab_size=32000, **sizes, num_key_value_heads=4, use_cache=False)
    return cases.Workload(LlamaForCausalLM(config), cases._text(32000, 4, 2048))


def resnet50() -> cases.Workload:
    from transformers import ResNetConfig, ResNetForImageClassification

    return cases.Workload(ResNetForImageClassification(ResNetConfig(num_labels=1000, **ONE_LABEL)), cases._images(128, 224, 1000))


def vit() -> cases.Workload:
    from transformers import ViTConfig, ViTForImageClassification

    return cases.Workload(ViTForImageClassification(ViTConfig(num_labels=1000, **ONE_LABEL)), cases._images(64, 224, 1000))


CASES: dict[str, tuple[str, Callable[[], cases.Workload]]] = {
    "gpt2": ("GPT-2 124M, 16 x 1024", gpt2),
    "roberta": ("RoBERTa-base classification, 64 x 512", roberta),
    "llama": ("Llama-style, 22 layers, 2048 wide, 4 x 2048", llama),
    "resnet50": ("ResNet-50, 128 x 224 x 224", resnet50),
    "vit": ("ViT-base, 64 x 224 x 224", vit),
}
TINY = {"tiny": ("for a rehearsal", cases.tiny)}


# --- one contestant, in a process of its own ---------------------------------------------------------------------------


class Turns:
    """Of contestants who run at once: they get ready beside each other (models are made, and compiled, by several cores), and
    each measures while no other does anything, which a lock on a file says: shared by those who get ready, not by who measures.
    Who is not ready in time is ended, or the others would wait for it. (A record lock: Inductor's own processes, which may live
    longer, do not inherit it.)"""

    def __init__(self, file: str | None, patience: float = 0):
        self._lock = open(file, "a+") if file else None  # noqa: SIM115 (it is held until the process ends)
        self._patience = patience

    def _wait_for(self, kind: int) -> None:
        if self._lock:
            fcntl.lockf(self._lock, kind)

    def get_ready(self) -> None:
        self._wait_for(fcntl.LOCK_SH)
        if self._lock:
            signal.setitimer(signal.ITIMER_REAL, self._patience)  # SIGALRM ends the process, whatever it is in

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._wait_for(fcntl.LOCK_UN)
        self._wait_for(fcntl.LOCK_EX)
        yield
        self._wait_for(fcntl.LOCK_UN)


def stepper(door: str, workload: cases.Workload, kind: str, bf16: bool) -> tuple[Callable, object]:
    """(a training step of a batch, what trainc.explain takes)."""
    import torch

    import trainc

    trainc.config.fallback = False  # what PyTorch would run instead is not to be measured as trainc
    model = workload.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    call, about = model, model
    if door in ("inductor", "autotune"):
        call = torch.compile(model, mode="max-autotune" if door == "autotune" else None)
    elif door == "trainc":
        call, optimizer = trainc.compile(model, optimizer)

    def step(batch: dict):
        with torch.autocast(kind, torch.bfloat16, enabled=bf16):
            loss = call(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    if door == "trainc-step":
        compiled = trainc.train_step(lambda batch: step(batch))
        return compiled, compiled
    return step, about


def contest(case: str, precision: str, door: str, steps: int, kind: str, turns: Turns) -> dict:
    """What a contestant did, as JSON can hold it."""
    turns.get_ready()
    import torch

    torch.set_float32_matmul_precision("highest")  # strict fp32
    torch.manual_seed(cases.SEED)
    with torch.device(kind):  # a billion random numbers take a CPU half a minute
        workload = {**CASES, **TINY}[case][1]()
    workload.model.train()
    wait = torch.cuda.synchronize if kind == "cuda" else lambda: None
    batches = [{key: value.to(kind) for key, value in workload.batch(i).items()} for i in range(steps + 2)]
    step, about = stepper(door, workload, kind, precision == "bf16")
    start = time.perf_counter()
    torch.manual_seed(cases.SEED)  # everyone draws the same dropout masks
    losses = [step(batches[0])]
    wait()
    first = time.perf_counter() - start
    losses.append(step(batches[1]))  # what autotunes or records graphs does so again
    wait()
    if kind == "cuda":
        torch.cuda.empty_cache()  # the others' room
    with turns.alone():
        return {"first": first, **measure(step, batches, losses, kind, door, about)}


def measure(step: Callable, batches: list[dict], losses: list, kind: str, door: str, about: object) -> dict:
    import torch

    wait = torch.cuda.synchronize if kind == "cuda" else lambda: None
    for batch in batches[:2]:  # memory is there again
        step(batch)
    wait()
    if kind == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for batch in batches[2:]:
        start = time.perf_counter()
        losses.append(step(batch))
        wait()
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if kind == "cuda" else 0
    row = in_a_row(lambda: [losses.append(step(batch)) for batch in batches[2:]], kind, len(batches) - 2)
    activities = [torch.profiler.ProfilerActivity.CUDA if kind == "cuda" else torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        step(batches[0])
        wait()
    spent: dict[str, list[float]] = {}
    for event in profiler.events():
        on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
        if on_gpu and not event.name.startswith(("Memcpy", "Memset")):
            spent.setdefault(event.name, []).append(event.device_time * 1e-6)
    return {
        "seconds": seconds, **row, "peak_bytes": peak, "losses": [loss.item() for loss in losses],
        "launches": sum(map(len, spent.values())), "kernels": kernels_of(door, about, spent), "flops": flops_of(door, about),
        "notes": notes_of(door, about),
        "spent": sorted(((name[:120], len(each), sum(each)) for name, each in spent.items()), key=lambda row: -row[2])[:MOST],
    }  # fmt: skip


def in_a_row(run: Callable, kind: str, steps: int) -> dict:
    """Seconds of a step where none is waited for but the last, by the wall clock and by the device's."""
    import torch

    if kind != "cuda":
        start = time.perf_counter()
        run()
        return {"wall": (time.perf_counter() - start) / steps}
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start = time.perf_counter()
    begin.record()
    run()
    end.record()
    queued = time.perf_counter() - start
    end.synchronize()
    wall = time.perf_counter() - start
    return {"wall": wall / steps, "events": begin.elapsed_time(end) / 1e3 / steps, "host": queued / steps}


def kernels_of(door: str, about: object, spent: dict[str, list[float]]) -> list[dict]:
    """trainc's kernels with what they must do and the time they took: [{name, launches, seconds, flops, bytes}]."""
    from trainc.base import records

    if not door.startswith("trainc"):
        return []
    found: dict[str, dict] = {}
    for report in (report for record in records.of(about) for report in record.reports()):
        for step in report["steps"]:
            if step["kind"] in ("kernel", "random"):
                row = found.setdefault(step["name"], {"name": step["name"], "launches": 0, "flops": 0, "bytes": 0})
                row["launches"] += 1
                row["flops"] += step["flops"]
                row["bytes"] += step["bytes"]
    for row in found.values():
        row["seconds"] = sum(spent.get(row["name"], []))
    return sorted(found.values(), key=lambda row: -row["seconds"])[:MOST]


def notes_of(door: str, about: object) -> list[str]:
    """What trainc's plans say of themselves: CUDA graphs, and what was not recorded."""
    from trainc.base import records

    if not door.startswith("trainc"):
        return []
    return sorted({note for record in records.of(about) for report in record.reports() for note in report["notes"]})


def flops_of(door: str, about: object) -> dict[str, int]:
    """Of trainc's step, by who computes them: {kernel, product, extern, ...}."""
    from trainc.base import records

    found: dict[str, int] = {}
    if door.startswith("trainc"):
        for step in (step for record in records.of(about) for report in record.reports() for step in report["steps"]):
            found[step["kind"]] = found.get(step["kind"], 0) + step["flops"]
    return found


def peaks(kind: str) -> dict:
    """The machine's own: FLOP/s of products in bf16 and in strict fp32, bytes/s of a copy (read and written)."""
    import torch

    torch.set_float32_matmul_precision("highest")
    wait = torch.cuda.synchronize if kind == "cuda" else lambda: None
    size = 8192 if kind == "cuda" else 256

    def best(run: Callable) -> float:
        times = []
        for _ in range(8):
            wait()
            start = time.perf_counter()
            run()
            wait()
            times.append(time.perf_counter() - start)
        return min(times)

    found = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        a = torch.randn(size, size, device=kind, dtype=dtype)
        found[name] = 2 * size**3 / best(lambda a=a: a @ a)
    a = torch.empty(1 << (30 if kind == "cuda" else 20), dtype=torch.uint8, device=kind)
    b = torch.empty_like(a)
    return found | {"bytes": 2 * a.numel() / best(lambda: b.copy_(a))}


# --- all of them -------------------------------------------------------------------------------------------------------


def child(*words: str, patience: float, lock: str | None = None) -> dict:
    """What `gpu.py --child words` printed; {"died": why} where it did not come so far."""
    command = [sys.executable, __file__, "--child", *words, "--patience", str(patience), *(["--lock", lock] if lock else [])]
    turns = 3 if lock else 1  # it waits for the others to be ready, and to have measured
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=turns * patience)
    except subprocess.TimeoutExpired:
        return {"died": f"no answer in {turns * patience:.0f} s"}
    if done.returncode == -signal.SIGALRM:
        return {"died": f"it was not ready in {patience:.0f} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"code {done.returncode}"]
        return {"died": lines[-1][:300], "lines": lines[-40:]}
    return json.loads(done.stdout.splitlines()[-1])


def of_step(row: dict) -> float:
    """By the device's events, where it has such."""
    return row.get("events") or row.get("wall") or statistics.median(row["seconds"])


def table(rows: list[dict], machine: dict) -> str:
    """`rows`: {case, precision, door, **contest()}; `machine`: {name, **peaks()}."""
    flops = f"{machine['bf16'] / 1e12:.1f} TFLOP/s bf16, {machine['fp32'] / 1e12:.1f} fp32"
    head = f"{machine['name']}: {flops}, {machine['bytes'] / 1e9:.0f} GB/s copied"
    columns = f"{'':46}{'ms a step':>10}{'wall':>8}{'host':>8}{'spread':>8}{'over eager':>12}"
    lines = [head, f"{columns}{'GB':>7}{'first, s':>10}{'launches':>10}  losses"]
    done = [row for row in rows if "died" not in row]
    eager = {(r["case"], r["precision"]): of_step(r) for r in done if r["door"] == "eager"}
    for row in rows:
        title = f"{row['case']} {row['precision']:5} {DOORS[row['door']]}"
        if "died" in row:
            lines.append(f"{title:46}did not finish: {row['died']}")
            continue
        spread = (max(row["seconds"]) - min(row["seconds"])) / statistics.median(row["seconds"])
        taken = of_step(row)
        wall, host = (f"{row[key] * 1e3:8.2f}" if key in row else " " * 8 for key in ("wall", "host"))
        base = eager.get((row["case"], row["precision"]))
        losses = f"{row['losses'][0]:.4f} .. {row['losses'][-1]:.4f}"
        lines.append(
            f"{title:46}{taken * 1e3:10.2f}{wall}{host}{spread:8.1%}{f'{base / taken:.2f}x' if base else '':>12}"
            f"{row['peak_bytes'] / 1e9:7.2f}{row['first']:10.1f}{row['launches']:10}  {losses}"
        )
        for kernel in row["kernels"][:LONGEST]:
            if kernel["seconds"]:
                floor = max(kernel["flops"] / machine[row["precision"]], kernel["bytes"] / machine["bytes"])
                share = f"{floor / kernel['seconds']:6.1%} of the roofline"
                took = f"{kernel['seconds'] * 1e3:10.3f} ms in {kernel['launches']:4} launches"
                lines.append(f"    {kernel['name']:42}{took}, {share}")
    return "\n".join(lines)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="make bench-cuda ARGS=...", description=__doc__, formatter_class=plain)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="models")
    parser.add_argument("--precisions", nargs="+", choices=["bf16", "fp32"], default=["bf16", "fp32"])
    parser.add_argument("--contestants", nargs="+", choices=DOORS, default=list(DOORS))
    parser.add_argument("--steps", type=int, default=20, help="steps timed, after two (default: 20)")
    parser.add_argument("--patience", type=float, default=1800, help="seconds that a contestant may take (default: 1800)")
    parser.add_argument("--json", type=Path, default=Path("build/bench/cuda.json"), help="where the measurements go")
    parser.add_argument("--rehearse", action="store_true", help="tiny models on the CPU: only the program is tried")
    beside = "contestants of a row that get ready at once; each is measured while no other does anything (default: 1)"
    parser.add_argument("--beside", type=int, default=1, metavar="N", help=beside)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--lock", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main() -> int:
    args = arguments()
    if args.child:
        what, *words = args.child
        kind = words[-1]
        if kind == "cpu" and os.environ.get("KIT_REHEARSE"):  # the kit's module compiles for GPUs alone
            from common import Place

            Place()
        made = peaks(kind) if what == "peaks" else contest(*words[:3], int(words[3]), kind, Turns(args.lock, args.patience))
        print(json.dumps(made))
        return 0
    from trainc import _core
    from trainc.base import config

    config.name_nvrtc()
    name, kind = "the CPU, a rehearsal", "cpu"
    if not args.rehearse:
        import torch

        try:
            name, kind = _core.device("cuda:0"), "cuda"
        except ValueError as error:
            print(f"bench-cuda: nothing was measured: {error}", file=sys.stderr)
            return 2
        if not torch.cuda.is_available():
            reason = f"there is {name}, but this build of PyTorch ({torch.__version__}) has no CUDA"
            print(f"bench-cuda: nothing was measured: {reason}", file=sys.stderr)
            return 2
    chosen = list(TINY) if args.rehearse else args.cases
    machine = {"name": name, **child("peaks", kind, patience=args.patience)}
    if "died" in machine:
        print(f"bench-cuda: nothing was measured: {machine['died']}", file=sys.stderr)
        return 1
    cases.tokens_of(600 if args.rehearse else 50257)
    if "llama" in chosen:
        cases.tokens_of(32000)
    rows: list[dict] = []
    args.json.parent.mkdir(parents=True, exist_ok=True)
    lock = args.lock or args.json.with_suffix(".lock")
    for case in chosen:
        for precision in args.precisions:
            def contest_of(door: str, case=case, precision=precision) -> None:
                print(f"{case} {precision} {DOORS[door]}", file=sys.stderr, flush=True)
                words = [case, precision, door, str(args.steps), kind]
                found = child("contest", *words, patience=args.patience, lock=str(lock) if args.beside > 1 else None)
                rows.append({"case": case, "precision": precision, "door": door, **found})
                args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))

            with ThreadPoolExecutor(args.beside) as pool:
                list(pool.map(contest_of, args.contestants))
            rows.sort(key=lambda row: (row["case"], row["precision"], args.contestants.index(row["door"])))
    print(table(rows, machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
