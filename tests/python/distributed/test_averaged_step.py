"""A train_step over DistributedDataParallel is one plan, which averages gradients as DDP does and starts each bucket as soon as
it is full; where a rank cannot, all ranks train as before, or it averages in PyTorch what the others' plans wait for. Two
processes, this file as a program."""

import json
import os
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import ranks
import torch
from torch import nn

DDP = nn.parallel.DistributedDataParallel
STEPS = 4


class Deep(nn.Module):
    """Layers, a norm with buffers, and a weight that is used twice."""

    def __init__(self, buffers=False):
        super().__init__()
        # Of a bias before a batch norm the gradient is noise, which AdamW would make as large as any.
        self.enter, self.layers = nn.Linear(6, 32, bias=not buffers), nn.ModuleList([nn.Linear(32, 32) for _ in range(2)])
        self.norm = nn.BatchNorm1d(32) if buffers else nn.LayerNorm(32)

    def forward(self, x):
        x = self.norm(self.enter(x))
        for layer in self.layers:
            x = layer(x).tanh()
        return self.layers[0](x).square().mean()


def always(value):
    return lambda rank, step: value


def data(rank, step, rows):
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(100 * rank + step))


class Run:
    """A model, its optimizer and what a case does to them. `rows`: of the data of a step."""

    def __init__(self, rank, buffers=False, **flags):
        torch.manual_seed(rank)
        self.rank, self.model = rank, DDP(Deep(buffers), bucket_cap_mb=0.003, **flags)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.body = self.plain

    def plain(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x)
        loss.backward()
        self.optimizer.step()
        return loss

    def clipped(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        self.optimizer.step()
        return loss

    def accumulated(self, x):
        self.optimizer.zero_grad()
        with self.model.no_sync():
            self.model(x * 2).backward()
        loss = self.model(x)
        loss.backward()
        self.optimizer.step()
        return loss

    def printing(self, x, told=False):
        """With `told` no plan serves it."""
        if told:
            print("a step")
        return self.plain(x)

    def now_and_then(self, x, last=True):
        """Gradients accumulate over calls."""
        with self.model.no_sync() if not last else warnings.catch_warnings():
            loss = self.model(x)
            loss.backward()
        if last:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss


def fp16(run):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    run.model.register_comm_hook(None, fp16_compress_hook)


def groups(run):
    names = dict(run.model.named_parameters())
    decayed = [p for p in names.values() if p.dim() > 1]
    others = [p for p in names.values() if p.dim() < 2]
    run.optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 1e-3}], lr=1e-2)


# name: (flags of Run, body, what is done before, rows of a rank's batch, more arguments of a step)
CASES = {
    "clipped": ({}, "clipped", groups, always(6), always({})),
    "accumulated": ({"buffers": True, "gradient_as_bucket_view": True}, "accumulated", None, always(6), always({})),
    "fp16": ({"static_graph": True}, "plain", fp16, lambda rank, step: 6 if step < 2 or rank == 0 else 3, always({})),
    # one rank, once, after the first step: the other runs its plan
    "in pytorch": ({}, "printing", None, always(6), lambda rank, step: {"told": rank == 1 and step == 2}),
    # one rank, from the first step on: both are compiled in parts
    "in parts": ({}, "printing", None, always(6), lambda rank, step: {"told": rank == 1}),
    "now and then": ({}, "now_and_then", None, always(6), lambda rank, step: {"last": step % 2 == 0}),
}
WHOLE = [name for name in CASES if name != "in parts"]


def train(rank, name, compiled):
    import trainc

    flags, body, prepare, rows, more = CASES[name]
    run = Run(rank, **flags)
    if prepare is not None:
        prepare(run)
    step = getattr(run, body)
    if compiled:
        step = trainc.train_step(step)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        losses = [step(data(rank, i, rows(rank, i)), **more(rank, i)).item() for i in range(STEPS)]
    apart = [str(each.message) for each in said if "weights differ between ranks in their last bits" in str(each.message)]
    state = [t.detach().double().flatten().tolist() for t in (*run.model.parameters(), *run.model.buffers())]
    return {"losses": losses, "state": state, "weights": ranks.digest(run.model.parameters()), "apart": len(apart)}, step


def explained(step):
    """Whether it is one plan; the plan's steps, each as (kind, operation)."""
    plans = [c.forward for c in step.compilations if c.whole]
    steps = plans[0].report()["steps"] if plans else []
    return bool(plans), [(each["kind"], each["name"]) for each in steps], str(__import__("trainc").explain(step))


def timed(rank, step, folder):
    """What a report of a timed step has of what ran beside the kernels: [start, seconds, waited], of a plan of so many seconds;
    the page's lane; events of the trace."""
    import trainc

    with trainc.profile(step):
        step(data(rank, 0, 6))
    report = trainc.report(step, f"{folder}/page{rank}.html")
    (phase,) = report.figures.phases
    with open(report.path) as file:
        lane = file.read().partition("<small>network</small>")[2].partition("</svg>")[0]
    trace = json.loads(trainc.report(step, f"{folder}/trace{rank}.json").path.read_text())
    events = [e["ph"] for e in trace["traceEvents"] if e.get("cat") == "network"]
    beside = [[each.start, each.seconds, each.waited] for each in phase.beside]
    return {"beside": beside, "end": phase.end, "marks": lane.count("<rect"), "events": events}


def raising(rank):
    """A rank that raises before its backward: the other's error, not a hang."""
    import trainc

    run = Run(rank)

    def body(x, bad=False):
        if bad:
            raise ValueError("not this one")
        return run.plain(x)

    step = trainc.train_step(body)
    step(data(rank, 0, 6))
    try:
        step(data(rank, 1, 6), bad=rank == 1)
    except Exception as error:
        return type(error).__name__
    return ""


def main(rank, folder):
    warnings.simplefilter("ignore")
    if sys.argv[3:] == ["raising"]:
        ranks.join_group(rank, folder, seconds=6)
        ranks.told(rank, folder, {"error": raising(rank)})
        os._exit(0)
    ranks.join_group(rank, folder)
    import trainc

    trainc.config.fallback = False
    found = {}
    for name in CASES:
        found[f"{name}, eager"], _ = train(rank, name, False)
        own, step = train(rank, name, True)
        whole, steps, text = explained(step)
        print(f"{name}: {time.process_time():.1f} s", flush=True)
        found[name] = {**own, "whole": whole, "steps": steps, "text": text}
    again, step = train(rank, "clipped", True)
    found["again"], found["timed"] = again["weights"], timed(rank, step, folder)
    ranks.told(rank, folder, found)
    ranks.leave_group()


@pytest.fixture(scope="module")
def found():
    return ranks.Ranks(__file__, timeout=170).check()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_it_trains_as_eager_ddp(found, name):
    for rank in found:
        for what in ("losses", "state"):
            for mine, eager in zip(rank[name][what], rank[f"{name}, eager"][what], strict=True):
                torch.testing.assert_close(torch.tensor(mine), torch.tensor(eager), rtol=2e-4, atol=2e-5)
    alone = name == "in pytorch"  # an update was PyTorch's on one rank, with other roundings
    assert (found[0][name]["weights"] == found[1][name]["weights"]) != alone
    assert [rank[name]["apart"] > 0 for rank in found] == ([False, True] if alone else [name == "now and then"] * 2)
    assert found[0][name]["losses"] != found[1][name]["losses"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_it_is_one_plan(found, name):
    for rank in found:
        assert rank[name]["whole"] == (name in WHOLE), rank[name]["text"]
    if name not in WHOLE:
        assert "print() would run once" in found[1][name]["text"] and "another rank cannot" in found[0][name]["text"]


def test_it_is_bit_equal_over_reruns(found):
    for rank in found:
        assert rank["again"] == rank["clipped"]["weights"]


def test_buckets_start_while_the_backward_runs(found):
    """All but the last have kernels between their start and their wait, and start right behind another's or a kernel."""
    for rank in found:
        kinds = [kind for kind, _ in rank["in pytorch"]["steps"]]
        starts = [i for i, kind in enumerate(kinds) if kind == "start"]
        assert len(starts) >= 3 and kinds.count("wait") == len(starts)
        behind = len(kinds) - 1 - kinds[::-1].index("kernel")
        assert starts[0] < kinds.index("wait")
        hidden = [kinds[i : kinds.index("wait", i)].count("kernel") for i in starts[:-1]]
        assert all(hidden) and starts[-1] < behind, rank["in pytorch"]["steps"]


def test_a_rank_that_raises_ends_the_others():
    found = ranks.Ranks(__file__, "raising", timeout=60).check()
    assert found[1]["error"] == "ValueError" and found[0]["error"]


@pytest.mark.parametrize(("layouts", "same"), [("aaa", True), ("aab", False), ("baa", False), ("a-a", False), ("--a", False)])
def test_all_ranks_or_none(layouts, same):
    """`-`: a rank that has no plan."""
    from trainc.torch.doors.averaged_step import agreed

    store = torch.distributed.HashStore()
    with ThreadPoolExecutor(3) as threads:
        told = [threads.submit(agreed, store, i, 3, each.strip("-"), 5.0) for i, each in enumerate(layouts)]
        assert [each.result() for each in told] == [same] * 3


def test_who_comes_late_hears_what_was_decided():
    from trainc.torch.doors.averaged_step import agreed

    for late in (0, 1):
        store = torch.distributed.HashStore()
        assert not agreed(store, 1 - late, 2, "a", 0.2)
        assert not agreed(store, late, 2, "a", 0.3)


def test_a_report_shows_what_ran_beside_the_kernels(found):
    for rank in found:
        buckets = sum(kind == "start" for kind, _ in rank["clipped"]["steps"])
        told = rank["timed"]
        assert len(told["beside"]) == told["marks"] == buckets > 1
        assert sorted(told["events"]) == ["b"] * buckets + ["e"] * buckets
        for start, seconds, waited in told["beside"]:
            assert 0 <= start and 0 < seconds and 0 <= waited <= seconds
            assert start + seconds <= told["end"]  # the update, which needs it, is the last


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
