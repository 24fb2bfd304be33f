"""Parts b and c: masks, and training steps, beside eager's."""

from __future__ import annotations

import functools
import sys

import common
from common import REHEARSE, Answer, Place, require

DOORS = ("compile", "backend", "train_step")


def masks(answer: Answer) -> None:
    import torch
    from torch import nn

    import trainc

    place = Place()
    common.dump_kernels()
    sizes = [(41, 130), (7, 33), (1,), (3, 5, 258), (64, 1024), (1 << 20,), (2, 3, 1025)]
    if REHEARSE:
        sizes = sizes[:3]
    differ = []
    count = 0
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float16):
        for size in sizes:
            for layout in ("plain", "transposed", "gaps"):
                x = torch.ones(size, dtype=dtype)
                if layout == "transposed":
                    x = x.t() if x.dim() == 2 else x.transpose(0, -1)
                elif layout == "gaps":
                    x = torch.ones(*size[:-1], 2 * size[-1], dtype=dtype)[..., ::2]
                x = place.to(x)
                model = trainc.compile(nn.Dropout(0.3).train())
                place.seed(11)
                got = [model(x), model(x)]
                after = place.drawn()
                place.seed(11)
                with place.eagerly():
                    wanted = [nn.functional.dropout(x, 0.3), nn.functional.dropout(x, 0.3)]
                count += 1
                same = all(torch.equal(g != 0, w != 0) for g, w in zip(got, wanted, strict=True))
                wanted_offset = place.drawn()
                if not same or after != wanted_offset:
                    words = f"masks {'equal' if same else 'DIFFER'}, offset {after}, eager {wanted_offset}"
                    differ.append(f"{dtype} {list(size)} {layout}: {words}")
            answer.add(masks=count, differ=differ)
    answer.add(line=f"{count - len(differ)} of {count} masks and offsets are eager's")
    require(not differ, differ[0] if differ else "")


def trained(place: Place, build, door: str, steps: int, bf16: bool, disturbance: int = 0) -> tuple[list[float], object]:
    """(losses, what trainc.explain takes); door "eager": PyTorch's own."""
    import loss_rule
    import torch

    import trainc

    case = build()
    if disturbance:
        loss_rule.disturb(case.model, disturbance)
    case.model.train().to(place.kind)
    batches = [{k: v.to(place.kind) if torch.is_tensor(v) else v for k, v in batch.items()} for batch in case.batches]
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-4)
    call = case.model
    if door == "compile":
        call, optimizer = trainc.compile(case.model, optimizer)
    elif door == "backend":
        from trainc.torch.doors.backend import backend  # its name is known where trainc was installed, which it is not here

        call = torch.compile(case.model, backend=backend)

    def body(**batch):
        with torch.autocast(place.kind, torch.bfloat16, enabled=bf16):
            loss = case.loss(call(**batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = trainc.train_step(body) if door == "train_step" else body
    place.seed(7)
    losses = []
    with place.eagerly() if door == "eager" else torch.enable_grad():
        for i in range(steps):
            losses.append(float(step(**batches[i % len(batches)])))
    return losses, step if door == "train_step" else case.model


def compare(answer: Answer, name: str, build, doors, steps: int) -> list[str]:
    """What breaks the rule, one line each."""
    import loss_rule

    from trainc.base import records

    place, broken = Place(), []
    common.dump_kernels()
    for bf16 in (False, True):
        precision = "bf16" if bf16 else "fp32"
        eager = functools.partial(trained, place, build, "eager", steps)
        wanted = eager(False)[0]
        disturbed = [eager(False, seed)[0] for seed in loss_rule.SEEDS]
        half = eager(True)[0] if bf16 else []
        for door in doors:
            found, about = trained(place, build, door, steps, bf16)
            kinds = [s["kind"] for r in records.of(about) for report in r.reports() for s in report["steps"]]
            said = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
            if bf16:
                ratio = loss_rule.bf16_ratio(found, wanted, disturbed, half)
                verdict = f"{ratio:.2f} of eager's own distance in bf16"
                if not ratio <= 2:  # of one model it is as much luck as accuracy: the rule is 1.25 over several
                    broken.append(f"{name} {precision} {door}: {verdict}: {found}")
            else:
                lines = loss_rule.violations(found, wanted, disturbed)
                verdict = lines[0] if lines else "keeps the rule"
                broken += [f"{name} {precision} {door}: {line}" for line in lines[:1]]
            row = {"losses": found, "eager": half or wanted, "steps": said, "verdict": verdict}
            answer.add(**{f"{name} {precision} {door}": row})
    answer.add(line=f"{2 * len(doors) - len(broken)} of {2 * len(doors)} runs keep the rule of losses")
    return broken


def gpt2(answer: Answer) -> None:
    import models
    import torch

    def build():
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        if REHEARSE:
            sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_head": 2}
        else:
            sizes = {"vocab_size": 5001, "n_positions": 256, "n_embd": 768, "n_head": 12}
        attention = "eager" if REHEARSE else "sdpa"
        config = GPT2Config(**sizes, n_layer=2, bos_token_id=0, eos_token_id=0, attn_implementation=attention)
        shape = (2, 16) if REHEARSE else (8, 256)
        tokens = [torch.randint(4, sizes["vocab_size"], shape) for _ in range(4)]
        return models.Case(GPT2LMHeadModel(config), [{"input_ids": ids, "labels": ids} for ids in tokens])

    doors = DOORS[:1] if REHEARSE == "short" else DOORS
    broken = compare(answer, "gpt2", build, doors, 10 if not REHEARSE else 2)
    if not REHEARSE:  # where cuBLASLt refuses every product, kernels of ours are right, and slow
        runs = {run: row["steps"] for run, row in answer.facts.items() if run.startswith("gpt2 ") and "backend" not in run}
        broken += [f"{run}: no product is the library's: {steps}" for run, steps in runs.items() if "product" not in steps]
    require(not broken, "\n".join(broken))


def model(answer: Answer, name: str) -> None:
    import models

    def build():
        case = models.build(name)
        if name in ("roberta", "vit"):  # their first forward would set it, which train_step refuses
            case.model.config.problem_type = "single_label_classification"
        return case

    broken = compare(answer, name, build, ("compile", "train_step"), 10 if not REHEARSE else 1)
    require(not broken, "\n".join(broken))


if __name__ == "__main__":
    sys.setrecursionlimit(10000)
    common.main({"masks": masks, "gpt2": gpt2, "model": model})
