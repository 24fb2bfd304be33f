"""What goes wrong on one rank ends in an error on every rank, within the group's timeout: a rank that dies, that raises in the
middle of a step, that trains another model. Each case is a run of two processes, this file as a program."""

import faulthandler
import os
import signal
import sys
import time
import warnings

import pytest
import ranks
import torch
from torch import nn

GROUP, BOUND = 8, 40  # seconds: the group's timeout; after which a run counts as one that hangs
DDP = nn.parallel.DistributedDataParallel


class Net(nn.Module):
    def __init__(self, width=30):
        super().__init__()
        self.first, self.last, self.other = nn.Linear(6, width), nn.Linear(width, 3), nn.Linear(6, 3)

    def forward(self, x, how="both"):
        y = self.last(self.first(x).tanh() if how != "sigmoid" else self.first(x).sigmoid())
        return (y + self.other(x) if how in ("both", "sigmoid") else y).square().mean()


def made(**flags):
    import trainc

    torch.manual_seed(0)
    model = DDP(Net(), **flags)
    return trainc.compile(model, torch.optim.SGD(model.parameters(), lr=0.1))


def step(model, optimizer, x, *how):
    optimizer.zero_grad()
    loss = model(x, *how)
    loss.backward()
    optimizer.step()
    return loss.item()


def data(rank, step=0):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * rank + step))


# -- the cases: what each rank does --------------------------------------------------------------------------------------------


def dies_compiling(rank, folder):
    """While the other waits for its plan, whose lock in the cache the dead one had."""
    from trainc import _core

    model, optimizer = made()
    locked = os.path.join(folder, "locked")
    if rank == 1:

        def dying(*_, **__):
            open(locked, "w").close()
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)

        _core.JointGraph = dying
    while rank == 0 and not os.path.exists(locked):
        time.sleep(0.01)
    start = time.monotonic()
    try:
        loss = model(data(rank))
    finally:
        ranks.told(rank, folder, {"waited": time.monotonic() - start})
    loss.backward()


def raises_in_backward(rank, folder):
    model, optimizer = made()
    step(model, optimizer, data(rank))
    x = data(rank, 1).requires_grad_()
    if rank == 1:
        x.register_hook(_raise)
    step(model, optimizer, x)
    step(model, optimizer, data(rank))


def _raise(_):
    raise ArithmeticError("of the program's own")


# -- cases after which the group goes on: what each rank found ------------------------------------------------------------------


def another_model(rank):
    """One rank leaves a layer out: eager waits for its gradient until the group's timeout."""
    import trainc

    model, optimizer = made()
    start = time.monotonic()
    try:
        step(model, optimizer, data(rank), "both" if rank == 0 else "one")
    except trainc.UserError as error:
        return {"error": str(error), "seconds": time.monotonic() - start}
    return {"error": ""}


def trained(rank, how, steps=3, x=data, **flags):
    """Weights, and what was said, after some steps."""
    model, optimizer = made(**flags)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for i in range(steps):
            step(model, optimizer, x(rank, i), how)
    return {"weights": ranks.digest(model.parameters()), "said": [str(w.message) for w in said]}


def another_program(rank):
    """Other operations, gradients of the same parameters: allowed, and said."""
    return trained(rank, "both" if rank == 0 else "sigmoid")


def unused_allowed(rank):
    return trained(rank, "both" if rank == 0 else "one", find_unused_parameters=True)


def other_sizes(rank):
    """Batches of other lengths are no other program."""
    return trained(rank, "both", x=lambda rank, i: torch.cat([data(rank, i)] * (1 + (i + rank) % 3)))


def one_rank_alone(rank):
    """A forward that one rank does alone, before a barrier that the other is in already."""
    model, optimizer = made()
    if rank == 0:
        model(data(rank))
    torch.distributed.barrier()
    for i in range(3):
        step(model, optimizer, data(rank, i), "both")
    return {"weights": ranks.digest(model.parameters())}


def not_trained_with_trainc(rank):
    """One rank's model is PyTorch's: nobody tells its side, and nobody waits for it for ever."""
    from trainc.torch.doors import agreement

    bound, agreement.BOUND = agreement.BOUND, 1.0
    torch.manual_seed(0)
    model = DDP(Net(20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if rank == 0:
        import trainc

        trainc.compile(model, optimizer)
    for i in range(2):
        step(model, optimizer, data(rank, i))
    agreement.BOUND = bound
    return {}


class Asking(Net):
    """A value that is asked for parts a call into what is compiled and PyTorch's rest."""

    def forward(self, x, how):
        return super().forward(x * 2 if how == "ask" and x.sum().item() > 0 else x, "both")


def in_pytorch_now_and_then(rank):
    """In part, and on one rank, twice. DDP averages the gradients, and the update is one kernel on all ranks."""
    import trainc

    torch.manual_seed(0)
    model = DDP(Asking())
    _, optimizer = trainc.compile(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    with warnings.catch_warnings(record=True):
        for i in range(5):
            step(model, optimizer, data(rank, i), "ask" if rank == 1 and i in (2, 3) else "both")
    routes = sorted({c.route for c in trainc.explain(model).compilations})
    return {"weights": ranks.digest(model.parameters()), "routes": routes}


def joined(rank):
    """A rank that is through with its data first, within `join()`."""
    model, optimizer = made()
    with model.join():
        for i in range(2 + 2 * rank):
            step(model, optimizer, data(rank, i))
    return {"weights": ranks.digest(model.parameters())}


def unused_everywhere(rank):
    """A layer that no rank uses and DDP was not told of: eager's error, not gradients of zeros that decay its weights."""
    found = {}
    for name in ("eager", "trainc"):
        torch.manual_seed(0)
        model = DDP(Net())
        optimizer = torch.optim.AdamW(model.parameters())
        if name == "trainc":
            import trainc

            trainc.compile(model, optimizer)
        try:
            for i in range(3):
                step(model, optimizer, data(rank, i), "one")
            found[name] = ""
        except RuntimeError as error:
            found[name] = str(error).splitlines()[0]
    return found


class Part(nn.Module):
    """DDP is a part of it; the rest is each rank's own."""

    def __init__(self):
        super().__init__()
        self.part = DDP(Net())

    def forward(self, x):
        return self.part(x) * 2


def step_over_part(rank):
    import trainc

    found = {}
    for name in ("eager", "trainc"):
        torch.manual_seed(0)
        model = Part()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def body(x, model=model, optimizer=optimizer):
            return step(model, optimizer, x)

        body = trainc.train_step(body) if name == "trainc" else body
        found[name] = [body(data(rank, i)) for i in range(3)]
        found["weights"] = ranks.digest(model.parameters())
    return found


GO_ON = {
    case.__name__: case
    for case in (
        another_program, unused_allowed, other_sizes, one_rank_alone, not_trained_with_trainc, in_pytorch_now_and_then,
        joined, another_model, unused_everywhere, step_over_part,
    )
}  # fmt: skip


def all_that_go_on(rank, folder):
    found = {}
    for name, case in GO_ON.items():
        start = time.monotonic()
        found[name] = case(rank)
        print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
        torch.distributed.barrier()
    model, optimizer = made()
    step(model, optimizer, data(rank))
    ranks.told(rank, folder, found)
    if rank == 1:  # and now one dies between two steps
        os.kill(os.getpid(), signal.SIGKILL)
    step(model, optimizer, data(rank))


CASES = {case.__name__: case for case in (dies_compiling, raises_in_backward, all_that_go_on)}


def run(case):
    return ranks.Ranks(__file__, case, timeout=BOUND)


def ended(found):
    """Each rank failed, and none hung."""
    assert None not in found.codes, f"hung after {BOUND} s:\n" + "\n".join(found.said)
    assert 0 not in found.codes, "\n".join(found.said)
    return found


def test_a_rank_that_dies_while_it_compiles_what_the_other_waits_for():
    found = ended(run("dies_compiling"))
    assert 0.5 < found.found[0]["waited"] < 10  # until the lock was free; then it compiled itself
    assert "RuntimeError" in found.said[0]


def test_a_rank_that_raises_in_the_middle_of_a_backward():
    found = ended(run("raises_in_backward"))
    assert "of the program's own" in found.said[1]


@pytest.fixture(scope="module")
def all_ended():
    return run("all_that_go_on")


@pytest.fixture(scope="module")
def went_on(all_ended):
    assert all(all_ended.found), "\n".join(all_ended.said)
    return all_ended.found


def test_a_rank_that_dies_between_steps(all_ended):
    assert "RuntimeError" in ended(all_ended).said[0]


def test_a_rank_that_trains_another_model(went_on):
    for rank in went_on:
        found = rank["another_model"]
        assert "a gradient comes to `other.bias`, `other.weight` on rank 0 and not on rank 1" in found["error"]
        assert "find_unused_parameters=True" in found["error"] and found["seconds"] < GROUP


def test_ranks_that_do_other_operations(went_on):
    first, second = (rank["another_program"] for rank in went_on)
    assert first["weights"] == second["weights"]
    for said in (first["said"], second["said"]):
        assert sum("rank 0 does aten.tanh" in each and "rank 1 does aten.sigmoid" in each for each in said) == 1, said


NO_DIFFERENCE = (
    "unused_allowed", "other_sizes", "one_rank_alone", "not_trained_with_trainc", "in_pytorch_now_and_then", "joined",
)  # fmt: skip


@pytest.mark.parametrize("case", NO_DIFFERENCE)
def test_what_is_no_difference(went_on, case):
    first, second = (rank[case] for rank in went_on)
    assert first.get("weights") == second.get("weights")
    assert not [said for said in first.get("said", []) if "different" in said]


def test_one_rank_ran_in_pytorch(went_on):
    first, second = (rank["in_pytorch_now_and_then"]["routes"] for rank in went_on)
    assert first == ["compiled"] and second == ["compiled", "dynamo", "split"]


def test_a_step_over_a_model_of_which_ddp_is_a_part(went_on):
    first, second = (rank["step_over_part"] for rank in went_on)
    assert first["weights"] == second["weights"] and first["trainc"] != second["trainc"]
    for rank in (first, second):
        assert rank["trainc"] == pytest.approx(rank["eager"], rel=2e-6)


def test_a_layer_that_is_used_nowhere_is_eagers_error(went_on):
    for rank in went_on:
        found = rank["unused_everywhere"]
        assert "Expected to have finished reduction" in found["eager"] and found["trainc"] == found["eager"]


if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), sys.argv[2]
    faulthandler.dump_traceback_later(BOUND - 5)  # of a rank that hangs
    ranks.join_group(rank, folder, GROUP)
    CASES[sys.argv[3]](rank, folder)
