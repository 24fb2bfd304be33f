"""What of distributed training is not compiled: refused before anything is changed, or PyTorch's. (What is compiled: test_ddp.py,
test_fsdp.py.) Two processes run once, in this file as a program."""

import sys
import warnings

import pytest
import ranks
import torch
from torch import nn


def data(rank, step):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * rank + step))


def refused(make):
    """What trainc.compile or train_step says, and whether the model was left as it was."""
    import trainc

    model = make()
    before = {key: repr(value) for key, value in vars(model).items()}
    try:
        trainc.compile(model)
    except trainc.UserError as error:
        return str(error) if before == {key: repr(value) for key, value in vars(model).items()} else "the model was changed"
    return "not refused"


class Holder(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 2


def sharded_within():
    from torch.distributed.fsdp import fully_shard

    return Holder(fully_shard(nn.Linear(6, 3)))


def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(6, 8))
    return parallelize_module(model, init_device_mesh("cpu", (ranks.RANKS,)), {"0": ColwiseParallel()})


def exchanged_within(rank, sharded):
    """A tensor parallel model through torch.compile, whose graphs exchange tensors; `sharded`: by fully_shard, too, on a mesh of
    two dimensions, which the graphs are given as an object."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    found = {}
    for name in ("eager", "trainc"):
        torch.manual_seed(0)
        torch.compiler.reset()
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        names = ("replicas", "parts")
        mesh = init_device_mesh("cpu", (ranks.RANKS, 1) if sharded else (1, ranks.RANKS), mesh_dim_names=names)
        parallelize_module(model, mesh["parts"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        if sharded:
            fully_shard(model, mesh=mesh["replicas"])
        run = torch.compile(model, backend="trainc") if name == "trainc" else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            run(data(rank if sharded else 0, step)).square().mean().backward()
            optimizer.step()
        found[name] = [p.full_tensor().tolist() for p in model.parameters()]
    return found


def wrapped_later(rank):
    """A model that is compiled first and wrapped, or sharded, afterwards: PyTorch's numbers."""
    from torch.distributed.fsdp import fully_shard

    import trainc

    x, found = data(rank, 0), {}
    for name in ("eager", "trainc"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        if name == "trainc":
            model = trainc.compile(model)
            model(x), model(x)
        fully_shard(model[2])
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        found[name] = [p.full_tensor().tolist() for p in model.parameters()]
    return found


class Reducing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x):
        y = self.layer(x)
        total = y.detach().clone()
        torch.distributed.all_reduce(total)
        return (y * total).sum()


def collective_in_forward(rank, door):
    import trainc

    found = {}
    for name in ("eager", "trainc"):
        torch.manual_seed(0)
        model = Reducing()
        run = model
        if name == "trainc":
            run = trainc.compile(model) if door == "compile" else torch.compile(model, backend="trainc")
        results = []
        for step in range(3):
            loss = run(data(rank, step))
            (grad,) = torch.autograd.grad(loss, model.layer.weight)
            results += [loss.tolist(), grad.tolist()]
        found[name] = results
    return found


def step_refused(make):
    import trainc

    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def body(x):
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        for p in model.parameters():
            torch.distributed.all_reduce(p.grad)
        optimizer.step()
        return loss

    before = [p.detach().clone() for p in model.parameters()]
    try:
        trainc.train_step(body)(torch.ones(2, 6))
    except trainc.UserError as error:
        same = all(map(torch.equal, before, [p.detach() for p in model.parameters()]))
        return str(error) if same else "the model was changed"
    return "not refused"


def main(rank, folder):
    warnings.simplefilter("ignore")
    ranks.join_group(rank, folder)
    wrapper = nn.parallel.DistributedDataParallel
    found = {}
    found["refused"] = {
        "inner DDP": refused(lambda: Holder(wrapper(nn.Linear(6, 3)))),
        "FSDP": step_refused(sharded_within),
        "DTensor": refused(tensor_parallel),
        "step, all_reduce": step_refused(lambda: nn.Linear(6, 3)),
    }
    found["sharded later"] = wrapped_later(rank)
    found["tensor parallel"], found["two dimensions"] = exchanged_within(rank, False), exchanged_within(rank, True)
    for door in ("compile", "torch.compile"):
        found[f"collective, {door}"] = collective_in_forward(rank, door)
    ranks.told(rank, folder, found)
    ranks.leave_group()


@pytest.fixture(scope="module")
def found():
    """What each rank found."""
    return ranks.Ranks(__file__, timeout=100).check()


def close(got, wanted, tolerance=2e-6):
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("inner DDP", "`inner` is a DistributedDataParallel"),
        ("FSDP", "`inner` is a FSDPModule, which works beside its forward"),
        ("DTensor", "`0.weight` is a DTensor, a part of which lies on each process (tensor parallelism)"),
        ("step, all_reduce", ""),
    ],
)
def test_what_works_beside_forward_is_refused_before_anything_is_changed(found, case, says):
    for rank in found:
        assert says in rank["refused"][case]
        assert rank["refused"][case].startswith(("trainc.compile: ", "trainc.train_step: "))


@pytest.mark.parametrize(
    "case", ["sharded later", "tensor parallel", "two dimensions", "collective, compile", "collective, torch.compile"]
)
def test_pytorchs_numbers_where_a_model_exchanges_tensors(found, case):
    for rank in found:
        close(rank[case]["trainc"], rank[case]["eager"])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
