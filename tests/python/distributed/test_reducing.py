"""A compiled backward under DDP hands its gradients out while it runs, so that buckets are reduced meanwhile; what may not be
handed out early is not. Two processes, this file as a program."""

import os
import queue
import sys
import threading
import time
import warnings

import pytest
import ranks
import torch
from torch import nn

DDP = nn.parallel.DistributedDataParallel
DELAY, LAYERS = 0.15, 4  # seconds that a bucket takes on the network, and a stage of the backward


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64, bias=False) for _ in range(LAYERS)])
        self.enter = nn.Linear(6, 64)

    def forward(self, x):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean()


class Network:
    """One line: gloo's all-reduces, each `DELAY` seconds later than gloo itself is through, one after the other."""

    def __init__(self, log):
        self.log, self._queue = log, queue.Queue()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def close(self):
        """A thread that is in PyTorch's code when the interpreter ends would end the process."""
        self._queue.put(None)
        self._thread.join()

    def hook(self, group, bucket):
        self.log.append("bucket")
        done = torch.futures.Future()
        self._queue.put((bucket.buffer(), done))
        return done

    def _work(self):
        while (given := self._queue.get()) is not None:
            buffer, done = given
            torch.distributed.all_reduce(buffer.div_(ranks.RANKS))
            time.sleep(DELAY)
            done.set_result(buffer)


def seeded(rank, step):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * rank + step))


def trained(rank, staged, steps=3, prepare=lambda model: None):
    """Weights after some steps; what happened in the last one, in its order, and the seconds of its backward."""
    import trainc
    from trainc.torch.joint import stages
    from trainc.torch.run import executable

    log, slow = [], []
    results, may_be_staged = executable.InParts.results, stages.may_be_staged

    def logged(self, places):
        found = results(self, places)
        if slow:
            time.sleep(DELAY * (1 if staged else LAYERS))  # as if the steps took that long
        log.append("stage")
        return found

    network = Network(log)
    executable.InParts.results = logged
    if not staged:
        stages.may_be_staged = lambda *_: False
    try:
        torch.manual_seed(0)
        model = DDP(Deep(), bucket_cap_mb=64 * 64 * 4 / 2**20)
        prepare(model)
        hook = lambda group, bucket: network.hook(group, bucket)  # noqa: E731
        hook.__module__ = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"  # counts as one of PyTorch's
        model.register_comm_hook(None, _annotated(hook))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = trainc.compile(model, optimizer)
        for step in range(steps):
            optimizer.zero_grad()
            loss = model(seeded(rank, step))
            log.clear()
            slow.extend([True] * (step == steps - 1))
            start = time.monotonic()
            loss.backward()
            seconds = time.monotonic() - start
            optimizer.step()
    finally:
        network.close()
        executable.InParts.results, stages.may_be_staged = results, may_be_staged
    return ranks.digest(model.parameters()), log, seconds


def _annotated(hook):
    def checked(group: object, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return hook(group, bucket)

    checked.__module__ = hook.__module__
    return checked


def accumulated_hook(model):
    """The program's own code where a gradient is accumulated."""
    model.module.enter.weight.register_post_accumulate_grad_hook(lambda p: None)


def in_backward(rank):
    """Optimizers that step where a gradient is accumulated: weights, beside eager's."""
    import trainc

    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net = Deep()
        for p in net.parameters():
            own = torch.optim.SGD([p], lr=0.1)

            def stepped(p, own=own):
                own.step()
                p.grad = None

            p.register_post_accumulate_grad_hook(stepped)
        model = trainc.compile(net) if compiled else net
        for step in range(3):
            model(seeded(0, step)).backward()
        found.append([p.detach().clone() for p in net.parameters()])
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(*found, strict=True))


def changed_in_backward(rank):
    """A weight that the backward has yet to read is changed while it runs, past the hooks that are looked for."""
    import trainc
    from trainc.torch.run import executable

    torch.manual_seed(0)
    model = DDP(Deep(), bucket_cap_mb=64 * 64 * 4 / 2**20)
    trainc.compile(model)
    model(seeded(rank, 0)).backward()
    loss, results = model(seeded(rank, 1)), executable.InParts.results

    def changing(self, places):
        found = results(self, places)
        with torch.no_grad():
            model.module.layers[0].weight.mul_(2)
        return found

    executable.InParts.results = changing
    try:
        loss.backward()
    except trainc.UserError as error:
        return str(error)
    finally:
        executable.InParts.results = results
    return ""


def main(rank, folder):
    warnings.simplefilter("ignore")
    ranks.join_group(rank, folder)
    found = {
        "staged": trained(rank, True),
        "whole": trained(rank, False),
        "hooked": trained(rank, True, prepare=accumulated_hook),
        "in backward": in_backward(rank),
    }
    found["changed"] = changed_in_backward(rank)
    ranks.told(rank, folder, found)
    ranks.leave_group()
    sys.stdout.flush()
    # Backwards that ended in an error leave threads of gloo's with Python objects, which the interpreter's end may meet.
    os._exit(0)


@pytest.fixture(scope="module")
def found():
    return ranks.Ranks(__file__, timeout=100).check()


def test_buckets_are_reduced_while_the_backward_runs(found):
    for rank in found:
        order = rank["staged"][1]
        assert order.count("stage") >= LAYERS and order.count("bucket") >= LAYERS
        assert order.index("bucket") < order.index("stage") + 2  # the first right after its stage
        assert order[-1] == "bucket" and order[-2] == "stage"  # the last after the last
        assert rank["whole"][1].count("stage") == 1 and rank["whole"][1][0] == "stage"


def test_reducing_hides_behind_the_backward(found):
    """A stage and a bucket take `DELAY` each. One after the other, all buckets wait for the end."""
    for rank in found:
        assert rank["staged"][2] < (LAYERS + 2.5) * DELAY
        assert rank["whole"][2] > 2 * LAYERS * DELAY


def test_stages_change_no_bit(found):
    digests = {rank[how][0] for rank in found for how in ("staged", "whole", "hooked")}
    assert len(digests) == 1


def test_a_hook_of_the_programs_own_ends_it(found):
    for rank in found:
        assert rank["hooked"][1].count("stage") == 1
        assert rank["in backward"]


def test_what_is_still_to_be_read_may_not_change(found):
    for rank in found:
        assert "changed in place while the backward ran" in rank["changed"]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
