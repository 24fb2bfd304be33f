"""What goes wrong on one rank ends in an error on every rank, within the group's timeout: a rank that dies, that raises in the
middle of a step, that trains another model. Each case is a run of two processes, this file as a program."""

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
    def __init__(self):
        super().__init__()
        self.first, self.last, self.other = nn.Linear(6, 30), nn.Linear(30, 3), nn.Linear(6, 3)

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


def dies(rank, folder):
    """Between two steps."""
    model, optimizer = made()
    for i in range(4):
        if rank == 1 and i == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        step(model, optimizer, data(rank, i))


def dies_compiling(rank, folder):
    """While the other waits for its plan: the lock of the cache is the dead one's."""
    from trainc.base import cache
    from trainc.torch.run import core

    compiled = core.Core._compiled
    if rank == 1:

        def dying(*args, **kwargs):
            loaded, cache._loaded = cache._loaded, lambda *_: None

            def stopped(*_):
                open(f"{folder}/locked", "w").close()
                time.sleep(2)
                os.kill(os.getpid(), signal.SIGKILL)

            import trainc._core as built

            built.JointGraph = stopped
            return compiled(*args, **kwargs)

        core.Core._compiled = dying
    else:
        while not os.path.exists(f"{folder}/locked"):
            time.sleep(0.02)
    model, optimizer = made()
    before = time.monotonic()
    try:
        step(model, optimizer, data(rank))
    finally:
        ranks.told(rank, folder, {"seconds": time.monotonic() - before})


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


def another_model(rank, folder):
    """One rank leaves a layer out: eager waits for its gradient until the group's timeout."""
    model, optimizer = made()
    step(model, optimizer, data(rank), "both" if rank == 0 else "one")


def another_program(rank, folder):
    """Other operations, gradients of the same parameters: allowed, and said."""
    model, optimizer = made()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for i in range(3):
            step(model, optimizer, data(rank, i), "both" if rank == 0 else "sigmoid")
    ranks.told(rank, folder, {"said": [str(w.message) for w in said], "weights": ranks.digest(model.parameters())})
    ranks.leave_group()


def unused_allowed(rank, folder):
    model, optimizer = made(find_unused_parameters=True)
    for i in range(3):
        step(model, optimizer, data(rank, i), "both" if rank == 0 else "one")
    ranks.told(rank, folder, {"weights": ranks.digest(model.parameters())})
    ranks.leave_group()


def other_sizes(rank, folder):
    """Batches of other lengths are no other program."""
    model, optimizer = made()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for i in range(4):
            step(model, optimizer, torch.cat([data(rank, i)] * (1 + (i + rank) % 3)))
    ranks.told(rank, folder, {"said": [str(w.message) for w in said], "weights": ranks.digest(model.parameters())})
    ranks.leave_group()


def one_rank_alone(rank, folder):
    """A forward that one rank does alone, before a barrier that the other is in already."""
    model, optimizer = made()
    if rank == 0:
        model(data(rank))
    torch.distributed.barrier()
    for i in range(3):
        step(model, optimizer, data(rank, i))
    ranks.told(rank, folder, {"weights": ranks.digest(model.parameters())})
    ranks.leave_group()


def not_trained_with_trainc(rank, folder):
    """One rank's model is PyTorch's: nobody tells its side, and nobody waits for it for ever."""
    from trainc.torch.doors import agreement

    agreement.BOUND = 2.0
    torch.manual_seed(0)
    if rank == 0:
        model, optimizer = made()
    else:
        model = DDP(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(2):
        step(model, optimizer, data(rank, i))
    ranks.told(rank, folder, {})
    ranks.leave_group()


CASES = {
    case.__name__: case
    for case in (
        dies, dies_compiling, raises_in_backward, another_model, another_program, unused_allowed, other_sizes, one_rank_alone,
        not_trained_with_trainc,
    )
}  # fmt: skip


def run(case):
    return ranks.Ranks(__file__, case, timeout=BOUND)


def ended(found, *bad):
    """These ranks failed, and none hung."""
    assert None not in found.codes, f"hung after {BOUND} s:\n" + "\n".join(found.said)
    for rank in bad:
        assert found.codes[rank] != 0, found.said[rank]
    return found


def test_a_rank_that_dies_between_steps():
    found = ended(run("dies"), 0, 1)
    assert "Connection closed by peer" in found.said[0] or "RuntimeError" in found.said[0]


def test_a_rank_that_dies_while_it_compiles_what_the_other_waits_for():
    found = ended(run("dies_compiling"), 0, 1)
    assert found.found[0]["seconds"] < 2 + 2 * GROUP + 5  # it compiled itself, and met nobody


def test_a_rank_that_raises_in_the_middle_of_a_backward():
    found = ended(run("raises_in_backward"), 0, 1)
    assert "of the program's own" in found.said[1]


def test_a_rank_that_trains_another_model():
    found = ended(run("another_model"), 0, 1)
    for said in found.said:
        assert "a gradient comes to `other.bias`, `other.weight` on rank 0 and not on rank 1" in said
        assert "find_unused_parameters=True" in said
    assert max(found.seconds) < BOUND - 5


def test_ranks_that_do_other_operations():
    first, second = run("another_program").check()
    assert first["weights"] == second["weights"]
    for said in (first["said"], second["said"]):
        assert sum("rank 0 does aten.tanh" in each and "rank 1 does aten.sigmoid" in each for each in said) == 1, said


@pytest.mark.parametrize("case", ["unused_allowed", "other_sizes", "one_rank_alone", "not_trained_with_trainc"])
def test_what_is_no_difference(case):
    first, second = run(case).check()
    assert first.get("weights") == second.get("weights")
    assert not [said for said in first.get("said", []) if "different" in said]


if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), sys.argv[2]
    ranks.join_group(rank, folder, GROUP)
    CASES[sys.argv[3]](rank, folder)
