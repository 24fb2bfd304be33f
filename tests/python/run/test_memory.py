"""What a step needs, told before it runs; memory= met by computing again, to the bit, or refused with what would do."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import models
import pytest
import torch
from torch import nn

import trainc
from trainc.base import records
from trainc.base.memory import Memory, checked

MEASURED = """
    import re, sys
    import torch
    from torch import nn
    import trainc

    trainc.config.fallback = False
    trainc.config.cache = False

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(1024, 1024) for _ in range(6)])
            self.dropout = nn.Dropout(0.1)

        def forward(self, x):
            for layer in self.layers:
                x = self.dropout(torch.tanh(layer(x)))
            return x.square().mean()

    def resident(field):
        return int(re.search(field + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

    door, memory = sys.argv[1], eval(sys.argv[2])
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    if door == "compile":
        model, optimizer = trainc.compile(model, optimizer, memory=memory)

    def body(x):
        loss = model(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = trainc.train_step(body, memory=memory) if door == "step" else body
    x = torch.randn(4096, 1024)
    told = trainc.explain(step if door == "step" else model, batch=x).memory
    # What compiling a backward and an optimizer takes for a while belongs to the compiler: a small model has been through it.
    small = nn.Linear(8, 8)
    both = trainc.compile(small, torch.optim.AdamW(small.parameters()))
    both[0](torch.randn(4, 8)).sum().backward()
    both[1].step()
    before = resident("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")
    for _ in range(3):
        step(x)
    print(told.growth, resident("VmHWM") - before)
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("door", ["compile", "step"])
@pytest.mark.parametrize("memory", [None, 0.9])
def test_explain_predicts_the_peak_before_the_first_step(tmp_path, door, memory):
    script = tmp_path / "measured.py"
    script.write_text(textwrap.dedent(MEASURED))
    done = subprocess.run([sys.executable, script, door, str(memory)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told, measured = map(int, done.stdout.split())
    assert measured > 100e6
    assert abs(told - measured) < 0.05 * measured, (told, measured)


def trained(door: str, memory, steps: int = 3) -> tuple[Memory, list[float]]:
    torch.manual_seed(0)
    case = models.build("gpt2")
    model, batch = case.model, case.batches[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if door == "compile":
        model, optimizer = trainc.compile(model, optimizer, memory=memory)

    def body(kwargs):
        loss = model(**kwargs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = trainc.train_step(body, memory=memory) if door == "step" else body
    told = trainc.explain(step, batch=(batch,)) if door == "step" else trainc.explain(model, batch=batch)
    torch.manual_seed(1)
    losses = [step(batch).item() for _ in range(steps)]
    return told.memory, losses


@pytest.mark.sampled(2)
@pytest.mark.parametrize("door", ["compile", "step"])
def test_losses_are_the_same_to_the_bit_for_every_budget(strict, door):
    free, losses = trained(door, None)
    assert free.again_flops == 0
    with pytest.raises(trainc.UserError, match="cannot be met") as refused:
        trained(door, 1000)
    least = re.search(r"memory='(\d+kB)', or a smaller batch", str(refused.value))[1]
    assert checked(least) < free.total
    for memory in (least, (checked(least) + free.total) // 2):
        told, same = trained(door, memory)
        assert told.total <= checked(memory)
        assert told.again_flops > 0
        assert same == losses
    assert trained(door, free.total)[0] == free  # nothing is done again that need not be


def test_a_limit_holds_for_every_size_of_one_trace(strict, without_tiles):
    def trained(memory):
        torch.manual_seed(0)
        model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(128, 128), nn.Tanh())])
        model, results = trainc.compile(model, memory=memory), []
        for rows in (512, 384, 448, 640):
            loss = model(torch.randn(rows, 128, generator=torch.Generator().manual_seed(rows))).square().mean()
            loss.backward()
            results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
            model.zero_grad()
        return records.of(model), results

    (free, wanted), (limited, got) = trained(None), trained(0.9)
    assert [r.trace for r in limited] == ["static", "symbolic", "sizes", "sizes"]
    for mine, theirs in zip(limited, free, strict=True):
        assert mine.memory().total <= 0.9 * theirs.memory().total
        assert mine.memory().again_flops > 0 == theirs.memory().again_flops
    for mine, theirs in zip(got, wanted, strict=True):
        assert all(map(torch.equal, mine, theirs))


def test_explain_tells_what_is_computed_again(strict):
    model = trainc.compile(nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.Tanh())]), memory=0.9)
    x = torch.randn(2048, 256)
    text = str(trainc.explain(model, batch=x))
    assert re.search(r"memory of a step: at most \d.*MB beside the model's .*MB gradients.*kept for the backward", text)
    assert "computed again to meet memory=" in text


@pytest.mark.parametrize("memory", ["2 pounds", "GB", -1, 0, 1.5, True, []])
def test_what_is_no_size_is_refused(memory):
    with pytest.raises(trainc.UserError, match="is no size"):
        trainc.compile(nn.Linear(2, 2), memory=memory)


def test_sizes():
    sizes = {"4GB": 4_000_000_000, "1.5 mb": 1_500_000, "300B": 300, 5_000_000: 5_000_000, 0.6: 0.6, 1: 1.0, None: None}
    assert {given: checked(given) for given in sizes} == sizes


@pytest.mark.parametrize("limit", [0, 99, 100, 1000, 1234, 10_000_000])
@pytest.mark.parametrize("start", [1, 4, 37])
def test_the_largest_batch_is_found_in_few_steps(limit, start):
    from trainc.cli.max_batch import largest

    asked = []

    def needed(batch: int) -> int:
        asked.append(batch)
        return 90 + 10 * batch + batch // 7  # nearly a line

    best, sizes = largest(needed, {start: needed(start)}, limit)
    right = max((b for b in range(1_100_000 if limit > 9e6 else 200) if b and needed(b) <= limit), default=0)
    assert best <= right and (best == right or right - best <= 0.01 * best + 1)
    assert len(sizes) <= 12 and all(b >= 1 for b in sizes)


SCRIPT = """
import sys, torch
import trainc
from torch import nn

model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.Tanh())])
optimizer = torch.optim.AdamW(model.parameters())
def step(x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
if sys.argv[1] == "step":
    step = trainc.train_step(step)
step(torch.randn(8, 256))
print("went on")
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("door", ["compile", "step"])
def test_max_batch_of_a_script(tmp_path, door):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = [sys.executable, "-m", "trainc", "max-batch"]
    done = subprocess.run([*run, "--memory", "50MB", script, door], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "went on" not in done.stdout
    batch = int(re.search(r"The largest that fits in 50 MB is (\d+) \((.*) MB\)", done.stdout)[1])
    # 4 MB of model, gradients and state (3 MB without gradients); 1 kB a row for each tensor of a layer
    assert 3000 < batch < 12_000, done.stdout
    in_thread = "import threading\nthreading.Thread(target=step, args=[torch.randn(8, 256)]).start()\nthreading.Event().wait(100)"
    script.write_text(SCRIPT.replace("step(torch.randn(8, 256))", in_thread))
    few = subprocess.run([*run, "--memory", "3MB", script, door], capture_output=True, text=True, timeout=300)
    assert "None fits in 3 MB" in few.stdout and "went on" not in few.stdout, few.stderr
    script.write_text("print('nothing to train')")
    done = subprocess.run([*run, script, door], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "ended before it called a model in training" in done.stderr
