"""Two processes that train one model: the same weights on both, and PyTorch's; what is not compiled is refused before anything is
changed. The processes run once, in this file as a program, and write what they found for the tests."""

import copy
import json
import os
import socket
import subprocess
import sys
import tempfile
import warnings

import pytest
import torch
from torch import nn

RANKS, STEPS, TIMEOUT = 2, 4, 400


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        # no bias before the normalisation: its gradient is rounding alone, which Adam blows up
        self.first, self.norm, self.last = nn.Linear(6, 40, bias=False), nn.BatchNorm1d(40), nn.Linear(40, 3)
        self.other = nn.Linear(6, 3)

    def forward(self, x, both=True):
        y = self.last(torch.relu(self.norm(self.first(x))))
        return y + self.other(x) if both else y


def data(rank, step):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * rank + step))


def train(model, optimizer, rank, step_of=None, both=lambda rank, step: True):
    """The weights, momenta aside, after some steps, and the losses."""
    losses = []
    for step in range(STEPS):
        if step_of is not None:
            step_of(model, optimizer, rank, step)
            continue
        optimizer.zero_grad()
        loss = model(data(rank, step), both(rank, step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [p.detach().clone() for p in model.parameters()], losses


def accumulated(model, optimizer, rank, step):
    optimizer.zero_grad()
    with model.no_sync():
        model(data(rank, step)).square().mean().backward()
    model(data(rank, step + 50)).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


def one_on_first_only(rank, step):
    return rank == 0 or step % 2 == 0


SGD = (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
ADAM = (torch.optim.AdamW, {"lr": 0.01})
# name: (flags of DDP, optimizer, flags of compile, how to train)
WRAPPED = {
    "plain": ({}, SGD, {}, {}),
    "adam": ({}, ADAM, {}, {}),
    "fuse_step": ({}, SGD, {"fuse_step": True}, {}),
    "buckets": ({"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001}, ADAM, {}, {}),
    "static_graph": ({"static_graph": True}, SGD, {}, {}),
    "unused": ({"find_unused_parameters": True}, SGD, {}, {"both": one_on_first_only}),
    "accumulated": ({}, SGD, {}, {"step_of": accumulated}),
    "no_buffers": ({"broadcast_buffers": False}, SGD, {}, {}),
}


def ddp(flags, make, compile_flags, how, rank, inside):
    import trainc

    ddp_class = nn.parallel.DistributedDataParallel
    torch.manual_seed(rank)  # DDP itself makes the ranks' weights equal
    plain, found = Net(), {}
    for name in ("eager", "trainc"):
        model = copy.deepcopy(plain)
        if name == "trainc" and inside:
            model = trainc.compile(model)
        model = ddp_class(model, **flags)
        kind, settings = make
        optimizer = kind(model.parameters(), **settings)
        if name == "trainc" and not inside:
            assert trainc.compile(model, optimizer, **compile_flags)[0] is model
        weights, losses = train(model, optimizer, rank, **how)
        found[name] = [w.tolist() for w in weights]
        if name == "trainc":
            found["routes"] = sorted({(c.route, c.engine) for c in trainc.explain(model.module).compilations})
            found["explained"] = len(trainc.explain(model).compilations)
    return found


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


def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.manual_seed(0)
    return FullyShardedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), device_id=torch.device("cpu"))


def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(6, 8))
    return parallelize_module(model, init_device_mesh("cpu", (RANKS,)), {"0": ColwiseParallel()})


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


def main(rank, port, path):
    warnings.simplefilter("ignore")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    wrapper = nn.parallel.DistributedDataParallel
    found = {}
    for name, (flags, make, compile_flags, how) in WRAPPED.items():
        found[name] = ddp(flags, make, compile_flags, how, rank, inside=False)
        if not compile_flags:
            found[f"{name}, inside"] = ddp(flags, make, compile_flags, how, rank, inside=True)
    found["refused"] = {
        "inner DDP": refused(lambda: Holder(wrapper(nn.Linear(6, 3)))),
        "FSDP": refused(fsdp1),
        "DTensor": refused(tensor_parallel),
        "step, all_reduce": step_refused(lambda: nn.Linear(6, 3)),
    }
    found["sharded later"] = wrapped_later(rank)
    for door in ("compile", "torch.compile"):
        found[f"collective, {door}"] = collective_in_forward(rank, door)
    with open(f"{path}.{rank}", "w") as file:
        json.dump(found, file)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found():
    """What each rank found."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        path = os.path.join(folder, "found")
        ranks = [
            subprocess.Popen([sys.executable, __file__, str(rank), port, path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for rank in range(RANKS)
        ]
        try:
            said = [rank.communicate(timeout=TIMEOUT)[0].decode() for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert all(rank.returncode == 0 for rank in ranks), "\n".join(said)
        return [json.load(open(f"{path}.{rank}")) for rank in range(RANKS)]


def close(got, wanted, tolerance=2e-6):
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=tolerance, atol=tolerance)


CASES = [*WRAPPED, *(f"{name}, inside" for name, case in WRAPPED.items() if not case[2])]


@pytest.mark.parametrize("case", CASES)
def test_ddp_trains_to_the_weights_of_pytorch_on_every_rank(found, case):
    first, second = (rank[case] for rank in found)
    assert first["trainc"] == second["trainc"]  # to the bit
    for rank in (first, second):
        close(rank["trainc"], rank["eager"])
        assert [route for route, _ in rank["routes"]] == ["compiled"] and rank["explained"] > 0


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("inner DDP", "`inner` is a DistributedDataParallel"),
        ("FSDP", "is a FullyShardedDataParallel"),
        ("DTensor", "`0.weight` is a DTensor"),
        ("step, all_reduce", ""),
    ],
)
def test_what_works_beside_forward_is_refused_before_anything_is_changed(found, case, says):
    for rank in found:
        assert says in rank["refused"][case]
        assert rank["refused"][case].startswith(("trainc.compile: ", "trainc.train_step: "))


@pytest.mark.parametrize("case", ["sharded later", "collective, compile", "collective, torch.compile"])
def test_pytorchs_numbers_where_a_model_exchanges_tensors(found, case):
    for rank in found:
        close(rank[case]["trainc"], rank[case]["eager"])


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
