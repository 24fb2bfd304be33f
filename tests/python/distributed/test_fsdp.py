"""FSDP2 and FSDP1 on two ranks: what lies between its hooks is compiled, and trains as eager FSDP does; what is not compiled is
PyTorch's, and said once. This file is the ranks' program, too."""

import sys
import time
import warnings

import pytest
import ranks
import torch
from loss_rule import SEEDS, bf16_limit, bf16_ratio, disturb, violations
from torch import nn

STEPS = 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.calls = 0

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, width=24, layers=2):
        super().__init__()
        self.enter, self.blocks = nn.Linear(6, width), nn.ModuleList([Block(width) for _ in range(layers)])
        self.leave = nn.Linear(width, 3)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


def per_layer(model, **flags):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, **flags)
    return fully_shard(model, **flags)


def whole(model):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model)


def bf16(model):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return per_layer(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def fsdp1(model, **flags):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **flags)


def fsdp1_per_layer(model, **flags):
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    return fsdp1(model, auto_wrap_policy=ModuleWrapPolicy({Block}), **flags)


def fsdp1_original(model):
    from torch.distributed.fsdp import ShardingStrategy

    return fsdp1_per_layer(model, use_orig_params=True, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)


def fsdp1_bf16(model):
    from torch.distributed.fsdp import MixedPrecision

    return fsdp1_per_layer(model, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


WAYS = {
    "per layer": per_layer, "whole": whole, "bf16": bf16, "fsdp1": fsdp1, "fsdp1 per layer": fsdp1_per_layer,
    "fsdp1 original": fsdp1_original, "fsdp1 bf16": fsdp1_bf16,
}  # fmt: skip
COMPILED = {name: 1 if name in ("whole", "fsdp1") else 2 for name in WAYS}  # modules


def data(rank, step):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * rank + step))


def train(shard, rank, compile=lambda model, optimizer: None, seed=None):
    torch.manual_seed(0)
    model = Stack()
    if seed is not None:
        disturb(model, seed)
    model = shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    compile(model, optimizer)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(data(rank, step)).float().square().mean()
        loss.backward()
        clip = getattr(model, "clip_grad_norm_", None)  # FSDP1's own: its ranks have parts of flat parameters
        clip(1.0) if clip else nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            model(data(rank, step))
        model.train()
    for module in model.modules():
        if hasattr(module, "reshard"):  # evaluation leaves the outermost one's parameters gathered
            module.reshard()
    if hasattr(model, "summon_full_params"):
        with model.summon_full_params(model):
            return losses, ranks.digest([p.clone() for p in model.parameters()]), model
    return losses, ranks.digest([p.full_tensor() for p in model.parameters()]), model


def main(rank, folder):
    warnings.simplefilter("ignore")
    ranks.join_group(rank, folder)
    import trainc

    trainc.config.fallback = False
    found = {}
    for name, shard in WAYS.items():
        start = time.monotonic()
        losses, _, _ = train(shard, rank)
        disturbed = [train(shard, rank, seed=seed)[0] for seed in SEEDS]
        own, weights, model = train(shard, rank, trainc.compile)
        compilations = trainc.explain(model).compilations
        found[name] = {
            "eager": losses, "disturbed": disturbed, "losses": own, "weights": weights,
            "routes": sorted({(c.route, c.engine) for c in compilations}), "compiled": len(compilations),
            "trained": sum(bool(c.backward) for c in compilations),
        }  # fmt: skip
        print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    found["refused"] = {}
    for option in ({"memory": 0.5}, {"verify": True}):
        try:
            trainc.compile(whole(Stack()), **option)
        except trainc.UserError as error:
            found["refused"][next(iter(option))] = str(error)
    ranks.told(rank, folder, found)
    ranks.leave_group()


@pytest.fixture(scope="module")
def found():
    return ranks.Ranks(__file__, timeout=100).check()


@pytest.mark.parametrize("way", WAYS)
def test_what_lies_between_the_hooks_is_compiled(found, way):
    for rank in found:
        own = rank[way]
        if way.endswith("bf16"):  # a disturbance of the last bit of float32 is none there
            ratio = bf16_ratio(own["losses"], rank["per layer"]["eager"], rank["per layer"]["disturbed"], own["eager"])
            assert ratio <= bf16_limit(1)
        else:
            assert not violations(own["losses"], own["eager"], own["disturbed"])
        assert own["routes"] == [["compiled", "core"]] and own["trained"] == COMPILED[way]
    assert found[0][way]["weights"] == found[1][way]["weights"]
    assert found[0][way]["losses"] != found[1][way]["losses"]


@pytest.mark.parametrize("option", ["memory", "verify"])
def test_options_that_are_not_there(found, option):
    for rank in found:
        assert rank["refused"][option] == f"trainc.compile: {option}= is not there for sharded models: leave it out"


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
