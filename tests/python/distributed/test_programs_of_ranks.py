"""Programs that use DistributedDataParallel and fully_shard in ways that could go wrong without a word: accumulation, unused and
frozen parameters, several models, uneven data, hooks, buffers, optimizers whose state is sharded. Each trains eagerly and
compiled, to the same losses and weights. Part of `make test-distributed`; this file is the ranks' program, too."""

import contextlib
import copy
import os
import sys
import warnings

import pytest
import ranks
import torch
from torch import nn

DDP = nn.parallel.DistributedDataParallel
STEPS = 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).tanh())


class Net(nn.Module):
    """`skip`: a block that this call leaves out."""

    def __init__(self, block=Block, width=16):
        super().__init__()
        self.enter, self.blocks = nn.Linear(6, width), nn.ModuleList([block(width) for _ in range(3)])
        self.statistics, self.leave = nn.BatchNorm1d(width, affine=False), nn.Linear(width, 3)

    def forward(self, x, skip=None):
        x = self.statistics(self.enter(x))
        for i, block in enumerate(self.blocks):
            x = x if i == skip else block(x)
        return self.leave(x)


def data(rank, step, rows=5):
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(100 * rank + step))


class Program:
    """What the cases have in common: models made the same way, compiled or not, and the numbers that are compared."""

    def __init__(self, rank, compiled):
        self.rank, self.compiled, self.found = rank, compiled, []

    def made(self, wrap, net=None, optimizer=torch.optim.SGD, compile=True, **options):
        import trainc

        torch.manual_seed(0)
        model = wrap(net() if net else Net())
        optimizer = optimizer(model.parameters(), **{"lr": 0.05, **options})
        if self.compiled and compile:
            trainc.compile(model, optimizer)
        return model, optimizer

    def step(self, model, optimizer, step, **how):
        optimizer.zero_grad()
        loss = model(data(self.rank, step), **how).square().mean()
        loss.backward()
        optimizer.step()
        self.found.append(loss.item())

    def steps(self, model, optimizer, **how):
        for step in range(STEPS):
            self.step(model, optimizer, step, **how)
        self.weights(model)

    def weights(self, model):
        for module in model.modules():
            if hasattr(module, "reshard"):
                module.reshard()
        for tensor in (*model.parameters(), *model.buffers()):
            full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
            self.found.append(full.double().abs().sum().item())


def ddp(**flags):
    return lambda model: DDP(model, **flags)


def sharded(**flags):
    def wrap(model):
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block, **flags)
        return fully_shard(model, **flags)

    return wrap


# -- of either wrapper ----------------------------------------------------------------------------------------------------------


def plain(program, wrap):
    program.steps(*program.made(wrap()))


def frozen(program, wrap):
    def net():
        model = Net()
        model.blocks[1].requires_grad_(False)
        model.blocks[2].up.requires_grad_(False)
        return model

    program.steps(*program.made(wrap(), net))


def two_forwards(program, wrap):
    model, optimizer = program.made(wrap(), lambda: without_statistics(Net()))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = (model(data(program.rank, step)) * model(data(program.rank, step + 50))).square().mean()
        loss.backward()
        optimizer.step()
        program.found.append(loss.item())
    program.weights(model)


def without_statistics(model):
    """DDP refuses buffers that change between two forwards of one backward."""
    model.statistics = nn.LayerNorm(16)
    return model


def recomputed(program, wrap):
    """Activations are made again in the backward."""
    from torch.utils.checkpoint import checkpoint

    class Again(Block):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    program.steps(*program.made(wrap(), lambda: Net(Again)))


def resumed(program, wrap):
    model, optimizer = program.made(wrap(), momentum=0.9)
    program.steps(model, optimizer)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    program.steps(model, optimizer)
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    program.steps(model, optimizer)


def hooked(program, wrap):
    """Hooks of the program's own on modules, after the model was compiled."""
    model, optimizer = program.made(wrap())
    inner = getattr(model, "module", model)
    inner.blocks[1].register_forward_hook(lambda module, given, result: result * 1.1)
    inner.blocks[0].up.register_forward_hook(lambda module, given, result: result * 0.9)
    program.steps(model, optimizer)
    seen = []
    inner.blocks[2].register_full_backward_hook(lambda module, _, given: seen.append(given[0].double().abs().sum().item()))
    program.steps(model, optimizer)
    program.found += seen


def clipped(program, wrap):
    model, optimizer = program.made(wrap(), optimizer=torch.optim.Adam, lr=1e-3)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(data(program.rank, step)).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        program.found.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm))
        optimizer.step()


def dropped(program, wrap):
    class Dropping(Block):
        def forward(self, x):
            return nn.functional.dropout(super().forward(x), 0.2, self.training)

    model, optimizer = program.made(wrap(), lambda: Net(Dropping))
    torch.manual_seed(5 + program.rank)
    program.steps(model, optimizer)


def gradient_of_input(program, wrap):
    model, optimizer = program.made(wrap())
    for step in range(STEPS):
        x = data(program.rank, step).requires_grad_()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        program.found.append(x.grad.double().abs().sum().item())


BOTH = (plain, frozen, two_forwards, recomputed, resumed, hooked, clipped, dropped, gradient_of_input)


# -- of DistributedDataParallel --------------------------------------------------------------------------------------------------


def accumulated(program):
    model, optimizer = program.made(ddp(gradient_as_bucket_view=True))
    for step in range(STEPS):
        for part in range(3):
            with model.no_sync() if part < 2 else contextlib.nullcontext():
                (model(data(program.rank, 10 * step + part)).square().mean() / 3).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    program.weights(model)


def reduced_each_time(program):
    """Without no_sync: gradients that were reduced, and are added to."""
    model, optimizer = program.made(ddp())
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        for part in range(2):
            model(data(program.rank, 10 * step + part)).square().mean().backward()
        optimizer.step()
    program.weights(model)


def unused_here_and_there(program):
    model, optimizer = program.made(ddp(find_unused_parameters=True))
    for step in range(2 * STEPS):
        program.step(model, optimizer, step, skip=(step + program.rank) % 4)
    program.weights(model)


def unused_and_static(program):
    program.steps(*program.made(ddp(static_graph=True)), skip=1)


def frozen_between(program):
    model, optimizer = program.made(ddp(find_unused_parameters=True))
    program.steps(model, optimizer)
    for parameter in model.module.blocks[1].parameters():
        parameter.requires_grad_(False).grad = None
    program.steps(model, optimizer)


def uneven(program):
    model, optimizer = program.made(ddp(), lambda: without_statistics(Net()))
    with model.join():
        for step in range(2 + 2 * program.rank):
            program.step(model, optimizer, step)
    program.weights(model)


def two_models(program):
    """One backward through both, whose buckets are of one parameter each."""
    pairs = [program.made(ddp(bucket_cap_mb=0.001), lambda width=width: Net(width=width)) for width in (16, 24)]
    for step in range(STEPS):
        for _, optimizer in pairs:
            optimizer.zero_grad()
        x = data(program.rank, step)
        loss = (pairs[0][0](x) - pairs[1][0](x)).square().mean()
        loss.backward()
        for _, optimizer in pairs:
            optimizer.step()
        program.found.append(loss.item())
    for model, _ in pairs:
        program.weights(model)


def adversaries(program):
    """One model's parameters have no gradients while the other is trained through it."""
    maker, making = program.made(ddp(), lambda: without_statistics(Net()))
    judge, judging = program.made(ddp(), lambda: nn.Sequential(nn.Linear(3, 30), nn.Tanh(), nn.Linear(30, 1)))
    for step in range(STEPS):
        fake = maker(data(program.rank, step))
        for given, wanted, optimizer in ((fake.detach(), 0, judging), (fake, 1, making)):
            for parameter in judge.parameters():
                parameter.requires_grad_(optimizer is judging)
            optimizer.zero_grad()
            loss = (judge(given) - wanted).square().mean()
            loss.backward()
            optimizer.step()
            program.found.append(loss.item())
    program.weights(maker)
    program.weights(judge)


def buffers_of_their_own(program):
    """DDP makes them the first rank's, before each forward."""
    model, optimizer = program.made(ddp())
    for round_ in range(2):
        model.module.statistics.running_mean.fill_(program.rank + round_)
        program.steps(model, optimizer)


def gradient_hooks(program):
    model, optimizer = program.made(ddp())
    model.module.enter.weight.register_hook(lambda gradient: gradient * 0.5)
    model.module.blocks[2].up.weight.register_hook(lambda gradient: gradient * 2)
    program.steps(model, optimizer)


def sharded_state(program):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    options = {"optimizer_class": torch.optim.SGD, "momentum": 0.9, "parameters_as_bucket_view": True}
    model, optimizer = program.made(ddp(), optimizer=ZeroRedundancyOptimizer, **options)
    program.steps(model, optimizer)
    optimizer.consolidate_state_dict(0)


def beside_ddp(program):
    """A forward of the inner module alone: each rank's own gradients."""
    model, optimizer = program.made(ddp())
    program.steps(model, optimizer)
    optimizer.zero_grad()
    model.module(data(program.rank, 9)).square().mean().backward()
    program.found += [p.grad.double().abs().sum().item() for p in model.parameters()]


OF_DDP = (
    accumulated, reduced_each_time, unused_here_and_there, unused_and_static, frozen_between, uneven, two_models, adversaries,
    buffers_of_their_own, gradient_hooks, sharded_state, beside_ddp,
)  # fmt: skip


# -- of fully_shard --------------------------------------------------------------------------------------------------------------


def kept_gathered(program):
    program.steps(*program.made(sharded(reshard_after_forward=False)))


def offloaded(program):
    from torch.distributed.fsdp import CPUOffloadPolicy

    program.steps(*program.made(sharded(offload_policy=CPUOffloadPolicy(pin_memory=False))))


def accumulated_in_parts(program, switch):
    """`switch(model, last)`: what is set before a part of the batch."""
    model, optimizer = program.made(sharded())
    for step in range(STEPS):
        for part in range(3):
            switch(model, part == 2)
            (model(data(program.rank, 10 * step + part)).square().mean() / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
    program.weights(model)


def accumulated_shards(program):
    accumulated_in_parts(program, lambda model, last: model.set_requires_gradient_sync(last))


def accumulated_gathered(program):
    def switch(model, last):
        model.set_is_last_backward(last)
        model.set_reshard_after_backward(last)

    accumulated_in_parts(program, switch)


def blocks_left_out(program):
    model, optimizer = program.made(sharded())
    for step in range(2 * STEPS):
        program.step(model, optimizer, step, skip=step % 4)
    program.weights(model)


def replicated_shards(program):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (ranks.RANKS, 1), mesh_dim_names=("replicas", "shards"))
    program.steps(*program.made(sharded(mesh=mesh)))


OF_FSDP = (kept_gathered, offloaded, accumulated_shards, accumulated_gathered, blocks_left_out, replicated_shards)
CASES = {
    **{f"{case.__name__}, {name}": (case, wrap) for case in BOTH for name, wrap in (("ddp", ddp), ("fsdp", sharded))},
    **{case.__name__: (case,) for case in (*OF_DDP, *OF_FSDP)},
}


def main(rank, folder):
    ranks.join_group(rank, folder)
    found = {}
    for name, (case, *wrap) in CASES.items():
        pair = []
        for compiled in (False, True):
            torch.compiler.reset()
            program = Program(rank, compiled)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                try:
                    case(program, *wrap)
                except Exception as error:
                    program.found.append(f"{type(error).__name__}: {error}")
            pair.append([program.found, [str(w.message) for w in said if "runs in PyTorch" in str(w.message)]])
        found[name] = pair
        torch.distributed.barrier()
    ranks.told(rank, folder, found)
    ranks.leave_group()


@pytest.fixture(scope="module")
def found():
    return ranks.Ranks(__file__, timeout=900).check()


@pytest.mark.skipif(not os.environ.get("TRAINC_MORE_RANKS"), reason="make test-distributed")
@pytest.mark.parametrize("case", CASES)
def test_compiled_as_eager(found, case):
    for rank in found:
        (eager, _), (compiled, said) = rank[case]
        assert len(eager) >= STEPS and not [each for each in eager if isinstance(each, str)], eager
        assert compiled == pytest.approx(eager, rel=5e-5, abs=1e-6)
        assert not said


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
