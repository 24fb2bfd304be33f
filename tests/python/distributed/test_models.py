"""A ResNet on two ranks with DistributedDataParallel: eager's losses by the rule of docs/numerics.md, the same bits again in a
second run, and each plan compiled by one rank alone, though each has a cache of its own. `make test-distributed` has a GPT-2 and
a Llama, fully_shard, train_step, a common cache and four ranks, too. This file is the ranks' program."""

import json
import os
import sys
import time
import warnings

import pytest
import ranks
import torch
from loss_rule import SEEDS, disturb, violations
from torch import nn
from torch.nn import functional as F

STEPS = 4
MORE = bool(os.environ.get("TRAINC_MORE_RANKS"))  # make test-distributed
ON = [2, 4] if MORE else [2]


class Basic(nn.Module):
    """Of a ResNet-18 (He et al., 2015)."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.short = nn.Sequential()
        if stride != 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        y = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(y)) + self.short(x)).relu()


class ResNet(nn.Module):
    """In `make test-distributed` of the depth of a ResNet-18."""

    def __init__(self, width=8):
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        widths = [(1, 1), (1, 1), (1, 2), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8)] if MORE else [(1, 1), (1, 2)]
        self.layers = nn.ModuleList([Basic(a * width, b * width, b // a) for a, b in widths])
        self.head = nn.Linear(widths[-1][1] * width, 10)

    def forward(self, x, labels):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=199, n_positions=32, n_embd=48, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=199, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32,
        )
    )  # fmt: skip


def tokens(generator):
    ids = torch.randint(4, 199, (2, 16), generator=generator)
    return {"input_ids": ids, "labels": ids}


def images(generator):
    return {"x": torch.randn(4, 3, 12, 12, generator=generator), "labels": torch.randint(0, 10, (4,), generator=generator)}


MODELS = {
    "gpt2": (gpt2, tokens, lambda model: model.transformer.h),
    "llama": (llama, tokens, lambda model: model.model.layers),
    "resnet": (ResNet, images, lambda model: model.layers),
}
OWN_CACHES = ("llama", "resnet")  # plans come through the group's store


def ddp(model, layers):
    return nn.parallel.DistributedDataParallel(model)


def fsdp(model, layers):
    from torch.distributed.fsdp import fully_shard

    for layer in layers:
        fully_shard(layer)
    return fully_shard(model)


WAYS = {"ddp": ddp, "fsdp": fsdp, "step": ddp}  # step: trainc.train_step
CASES = [(model, way) for model in MODELS for way in WAYS if MORE or (model, way) == ("resnet", "ddp")]


def train(which, way, rank, compiled=False, seed=None):
    """Losses, the weights' digest, and what was compiled."""
    import trainc

    make, data, layers = MODELS[which]
    torch.manual_seed(3)
    model = make()
    if seed is not None:
        disturb(model, seed)
    model = WAYS[way](model, layers(model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(batch):
        optimizer.zero_grad()
        output = model(**batch)
        loss = output.loss if hasattr(output, "loss") else output
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    if compiled and way == "step":
        step = trainc.train_step(step)
    elif compiled:
        trainc.compile(model, optimizer)
    torch.manual_seed(70 + rank)  # dropout's
    losses = [step(data(torch.Generator().manual_seed(1000 * rank + i))).item() for i in range(STEPS)]
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()
    weights = ranks.digest([p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()])
    return losses, weights, (step, optimizer) if compiled and way == "step" else (model, optimizer)


def main(rank, folder):
    warnings.simplefilter("ignore")
    ranks.join_group(rank, folder)
    import trainc
    from trainc.base import records

    trainc.config.fallback = False
    found = {}
    for which, way in CASES:
        start = time.monotonic()
        if which in OWN_CACHES:
            trainc.config.cache_dir = os.path.join(folder, f"cache.{rank}")
        losses, _, _ = train(which, way, rank)
        disturbed = [train(which, way, rank, seed=seed)[0] for seed in SEEDS]
        own, weights, parts = train(which, way, rank, compiled=True)
        compilations = [*trainc.explain(parts[0]).compilations, *records.of(parts[1])]
        plans = [executable.report()["from_cache"] for c in compilations for executable in c.executables()]
        again, same_weights, _ = train(which, way, rank, compiled=True)
        found[f"{which}, {way}"] = {
            "eager": losses, "disturbed": disturbed, "losses": own, "weights": weights, "again": [again, same_weights],
            "routes": sorted({c.route for c in compilations}), "plans": len(plans), "compiled": plans.count(False),
        }  # fmt: skip
        trainc.config.cache_dir = None
        print(f"{which}, {way}: {time.monotonic() - start:.1f} s", json.dumps(plans), flush=True)
    ranks.told(rank, folder, found)
    ranks.leave_group()


@pytest.fixture(scope="module", params=ON)
def found(request):
    return ranks.Ranks(__file__, timeout=400 * request.param if MORE else 150, ranks=request.param).check()


@pytest.mark.parametrize(("which", "way"), CASES)
def test_trains_as_eager_does(found, which, way):
    each = [rank[f"{which}, {way}"] for rank in found]
    for own in each:
        assert not violations(own["losses"], own["eager"], own["disturbed"])
        assert own["again"] == [own["losses"], own["weights"]]
        # transformers' layers under fully_shard: Dynamo's graphs
        assert own["routes"] in (["compiled"], ["dynamo"]) and own["plans"] >= (1 if way == "step" else 2)
    assert len({own["weights"] for own in each}) == 1 and each[0]["losses"] != each[1]["losses"]


@pytest.mark.parametrize(("which", "way"), CASES)
def test_one_rank_compiles_and_the_others_have_its_plans(found, which, way):
    each = [rank[f"{which}, {way}"] for rank in found]
    assert sum(own["compiled"] for own in each) <= each[0]["plans"] == each[1]["plans"]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
