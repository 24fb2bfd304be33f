"""Parts a4 and a5: every kind of kernel (tests/python/op_cases.py) against eager on the same device."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import common
from common import REHEARSE, ROOT, WORK, Answer, Place

# The CPU's own fused attention; and what eager gives otherwise on a GPU than on a CPU, for which these cases were written: saved
# statistics of BatchNorm in evaluation, the weight of a loss that is not reduced, NaN's gradient of hardswish, statistics of
# LayerNorm in bf16, integer products (it has none).
NOT_THERE = (
    "flash/", "flash_backward/", "batch_norm/False", "batch_norm_backward/False rank 2", "nll_loss2d/0 ",
    "hardswish_backward/special", "native_layer_norm/bf16", "mm/i64",
)  # fmt: skip
# They make tensors of their own, on the CPU.
ON_THE_CPU = ("empty", "empty_strided", "index_copy", "scatter.src")
MORE_ULPS, MORE_SLACK = 8, 4  # beyond a case's own bound: CUDA's functions are a few units from exact, and so are eager's
WATCHED = 480  # seconds of part a5, all tools together


def cases() -> list:
    """Those that draw no random numbers; for a rehearsal, a few of all kinds."""
    from op_cases import CASES

    there = [case for case in CASES if not case.name.startswith(NOT_THERE) and case.name not in ON_THE_CPU]
    drawn = [case for case in there if case.masks is None]
    if not REHEARSE:
        return drawn
    few = ("exp", "sum/", "mean/dtype", "amax", "mm", "cumsum", "gather", "add.Tensor", "var.dim")
    picked = [next((case for case in drawn if case.name.startswith(word)), None) for word in few]
    return [case for case in picked if case is not None][: 4 if REHEARSE == "short" else None]


def check(case, place: Place, eager_here: bool) -> None:
    """AssertionError where the compiled case is not eager's. `eager_here`: eager runs on the CPU."""
    import torch
    from op_checks import assert_near, eager, leaves, traced

    from trainc import _core
    from trainc.base.options import CompileOptions
    from trainc.torch.graph import wire
    from trainc.torch.run.executable import CoreExecutable

    text = wire.graph_json(place.taken(traced(case).graph), case.name, place.where)
    on = place.where.target()["device"]
    plan = CoreExecutable(_core.compile(text, case.name, CompileOptions.of(place.where).for_compiler(), None, None, on),
                          device=place.where)  # fmt: skip
    inputs = case.tensors()
    if eager_here or REHEARSE:
        wanted = eager(case, inputs)
    else:
        with torch.device("cuda"):
            torch.manual_seed(7)
            wanted = leaves(case.fn(*[place.to(x) for x in inputs]))
    got = plan([place.to(x) for x in inputs])
    place.wait()
    assert len(got) == len(wanted), f"{len(got)} results, eager has {len(wanted)}"
    for i, (g, w) in enumerate(zip(got, wanted, strict=True)):
        assert g.dtype == w.dtype, f"result {i} is {g.dtype}, eager's is {w.dtype}"
        assert_near(g.cpu(), w.cpu(), case.ulps + MORE_ULPS, case.slack + MORE_SLACK, f"{case.name}: result {i}")


def work(answer: Answer, part: str, of: str, record: str) -> None:
    """Cases part, part + of, ...: each a line of `record` before it begins and after it, so that whoever starts this again after
    the device was lost goes on behind the one that lost it."""
    from trainc.base.errors import UserError

    file = Path(record)
    begun = {json.loads(line)["case"] for line in file.read_text().splitlines()} if file.exists() else set()
    place = Place()
    common.dump_kernels()
    import torch

    torch.backends.cudnn.allow_tf32 = False  # eager's convolutions are in TF32 otherwise
    with file.open("a", buffering=1) as stream:
        for case in cases()[int(part) :: int(of)]:
            if case.name in begun:
                continue
            stream.write(json.dumps({"case": case.name}) + "\n")
            try:
                check(case, place, eager_here=False)
            except UserError as error:
                stream.write(json.dumps({"case": case.name, "error": common.told(error)}) + "\n")
                if "Restart the process" in str(error):
                    sys.exit(3)
            except Exception as error:
                stream.write(json.dumps({"case": case.name, "error": common.told(error)}) + "\n")
                if "CUDA error" in str(error):  # PyTorch's words for a lost device
                    sys.exit(3)
            else:
                stream.write(json.dumps({"case": case.name, "ok": True}) + "\n")


def one(answer: Answer, *names: str) -> None:
    from op_cases import CASES

    place = Place()
    common.dump_kernels()
    for case in CASES:
        if case.name in names:
            check(case, place, eager_here=True)
            answer.add(**{case.name: "as eager"})


def table(answer: Answer) -> None:
    workers = 1 if REHEARSE else max(1, min(12, (os.cpu_count() or 2) * 3 // 4))
    folder = WORK / "table"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    records = [folder / f"{i}.jsonl" for i in range(workers)]
    running: dict[int, subprocess.Popen] = {}
    restarts = [0] * workers

    def begin(i: int) -> None:
        with (folder / f"{i}.log").open("ab") as log:
            command = [sys.executable, __file__, "work", str(i), str(workers), str(records[i])]
            running[i] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    for i in range(workers):
        begin(i)
    told = time.monotonic()
    while running:
        time.sleep(0.2)
        for i, process in list(running.items()):
            if (status := process.poll()) is None:
                continue
            del running[i]
            restarts[i] += 1
            if status != 0 and restarts[i] < 30:
                begin(i)  # behind the case at which it ended
        if time.monotonic() - told > 5 or not running:
            told = time.monotonic()
            note(answer, records, restarts, workers)
    if answer.facts["failed"]:
        sys.exit(1)


def note(answer: Answer, records: list[Path], restarts: list[int], workers: int) -> None:
    ended: dict[str, dict] = {}
    for record in records:
        for line in record.read_text().splitlines() if record.exists() else []:
            row = json.loads(line)
            ended[row["case"]] = row
    ended_in = {"what": "the process ended in it", "lines": []}
    failed = {name: row.get("error", ended_in) for name, row in ended.items() if "ok" not in row}
    done = len(ended) - len(failed)
    answer.add(cases=len(cases()), passed=done, failed=sorted(failed), restarts=sum(restarts) - workers,
               errors={name: error["what"][:600] for name, error in list(failed.items())[:40]},
               line=f"{done} of {len(cases())} cases as eager; failed: {', '.join(sorted(failed)[:8])}")  # fmt: skip
    if failed:
        name = next(iter(failed))
        answer.add(error={**failed[name], "what": f"{name}: {failed[name]['what']}"}, again=[__file__, "one", name])


def sanitize(answer: Answer) -> None:
    """A case of each operation under memcheck, some with shared memory under racecheck and synccheck."""
    watcher = shutil.which("compute-sanitizer")
    if not watcher:
        return answer.add(line="compute-sanitizer is not here")
    each: dict[str, str] = {}  # by operation
    for case in cases():
        each.setdefault(case.name.split("/")[0].split(".")[0], case.name)
    barriers = [each[word] for word in ("sum", "mean", "var", "amax", "cumsum", "mm", "_softmax") if word in each]
    end = time.monotonic() + WATCHED - 120
    bad = []
    for tool, names in (("memcheck", list(each.values())), ("racecheck", barriers), ("synccheck", barriers)):
        left = end - time.monotonic()
        if left < 30:
            answer.add(**{tool: "no time left"})
            continue
        log = WORK / f"{tool}.log"
        with log.open("w") as stream:
            command = [watcher, "--tool", tool, "--error-exitcode", "9", sys.executable, __file__, "one", *names]
            try:
                status = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, timeout=left, cwd=ROOT).returncode
            except subprocess.TimeoutExpired:
                status = -1
        text = log.read_text(errors="replace").splitlines()
        passed = sum(": \"as eager\"" in line for line in text)
        answer.add(**{tool: f"exit status {status}, {passed} of {len(names)} cases"})
        findings = [line for line in text if line.startswith("=========")]
        if status not in (0, -1) or any("ERROR SUMMARY" in line and " 0 errors" not in line for line in findings):
            bad.append((tool, findings[:40] or text[-30:]))
    answer.add(line="; ".join(f"{tool}: {answer.facts[tool]}" for tool in ("memcheck", "racecheck", "synccheck")))
    if bad:
        answer.add(error={"what": f"compute-sanitizer --tool {bad[0][0]}", "lines": bad[0][1]})
        sys.exit(1)


if __name__ == "__main__":
    common.main({"table": table, "work": work, "one": one, "sanitize": sanitize})
