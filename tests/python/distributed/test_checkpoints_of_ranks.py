"""`torch.distributed.checkpoint` of compiled models: what two ranks saved goes on on one, and with other sharding, as eager does;
and hooks that a plan cannot hold. Two processes, this file as a program, and this process as a third."""

import sys
import warnings

import pytest
import ranks
import torch
from torch import nn

STEPS = 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(9, 3)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(x).tanh()
        return self.layers[-1](x).square().mean()


def data(step):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(step))


def fsdp(model):
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


WAYS = {"ddp": nn.parallel.DistributedDataParallel, "fsdp": fsdp, "alone": lambda model: model}


def made(way, compiled, seed=0):
    import trainc

    torch.manual_seed(seed)
    model = WAYS[way](Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if compiled:
        trainc.compile(model, optimizer)
    return model, optimizer


def train(model, optimizer, begin):
    losses = []
    for step in range(begin, begin + STEPS):
        optimizer.zero_grad()
        loss = model(data(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def states(model, optimizer):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    names = ("model", "optimizer")
    return dict(zip(names, get_state_dict(model, optimizer), strict=True))


def save(where, model, optimizer):
    import torch.distributed.checkpoint as checkpoint

    checkpoint.save(states(model, optimizer), checkpoint_id=where)


def load(where, model, optimizer):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import set_state_dict

    found = states(model, optimizer)
    checkpoint.load(found, checkpoint_id=where)
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])


def backward_hooks(rank, compiled):
    """DDP's model is refused before its arguments are looked at: PyTorch's numbers, on both ranks."""
    import trainc

    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Net())
    seen = []
    model.module.layers[1].register_full_backward_hook(lambda _, __, given: seen.append(given[0].sum().item()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if compiled:
        trainc.compile(model, optimizer)
    return [*train(model, optimizer, 10 * rank), *seen]


def main(rank, folder, where):
    warnings.simplefilter("ignore")
    ranks.join_group(rank, folder)
    found = {"hooks": [backward_hooks(rank, compiled) for compiled in (False, True)]}
    for way in ("ddp", "fsdp"):
        for compiled in (False, True):
            model, optimizer = made(way, compiled)
            losses = train(model, optimizer, 0)
            save(f"{where}/{way}{compiled}", model, optimizer)
            # Into a model of other weights, which was compiled and has stepped.
            other = made("fsdp" if way == "ddp" else way, compiled, seed=1)
            train(*other, 50)
            load(f"{where}/{way}{compiled}", *other)
            found[f"{way}, {compiled}"] = [losses, train(*other, STEPS)]
    ranks.told(rank, folder, found)
    ranks.leave_group()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    where = tmp_path_factory.mktemp("checkpoints")
    return ranks.Ranks(__file__, str(where), timeout=150).check(), where


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_what_two_ranks_saved_goes_on(saved, way):
    found, where = saved
    eager, compiled = (found[0][f"{way}, {flag}"] for flag in (False, True))
    for own, wanted in zip(compiled, eager, strict=True):
        assert own == pytest.approx(wanted, rel=2e-6)
    # and on one rank, which has no group
    model, optimizer = made("alone", True, seed=2)
    train(model, optimizer, 70)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(f"{where}/{way}True", model, optimizer)
    assert train(model, optimizer, STEPS) == pytest.approx(eager[1], rel=2e-6)


def test_a_model_with_backward_hooks_under_ddp(saved):
    for rank in saved[0]:
        eager, compiled = rank["hooks"]
        assert len(eager) == 2 * STEPS and compiled == pytest.approx(eager, rel=1e-6)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
