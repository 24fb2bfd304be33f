"""DistributedDataParallel in every spelling, on two ranks with data of their own: eager DDP's losses by the rule of
docs/numerics.md, the same bits of weights on both ranks, and compiled. The ranks run once, in this file as a program."""

import sys
import time
import warnings

import pytest
import ranks
import torch
from loss_rule import SEEDS, disturb, violations
from torch import nn
from torch.nn import functional as F

STEPS, TIMEOUT = 5, 170
DDP = nn.parallel.DistributedDataParallel


# -- models ---------------------------------------------------------------------------------------------------------------


class Convolutions(nn.Module):
    """Running statistics are buffers, which DDP makes the first rank's before each forward."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 16, 3, stride=2, bias=False)
        self.norms, self.head = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(16)]), nn.Linear(16, 5)

    def forward(self, x, labels):
        x = self.norms[0](self.first(x)).relu()
        x = self.norms[1](self.second(x)).relu()
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


class Branches(nn.Module):
    """A branch that only some calls take, and a layer that none uses."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.other, self.never = nn.Linear(6, 33), nn.Linear(33, 3), nn.Linear(6, 3), nn.Linear(2, 2)

    def forward(self, x, both):
        y = self.last(self.first(x).tanh())
        return (y + self.other(x) if both else y).square().mean()


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=199, n_positions=32, n_embd=48, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0, **dropout)
    )


def tokens(rank, step):
    ids = torch.randint(4, 199, (2, 16), generator=seeded(rank, step))
    return {"input_ids": ids, "labels": ids}


def images(rank, step):
    generator = seeded(rank, step)
    x = torch.randn(4, 3, 9, 9, generator=generator)
    return {"x": x, "labels": torch.randint(0, 5, (4,), generator=generator)}


def branches(rank, step):
    return {"x": torch.randn(5, 6, generator=seeded(rank, step)), "both": rank == 0 or step % 2 == 0}


def seeded(rank, step):
    return torch.Generator().manual_seed(1000 * rank + step)


def loss_of(output):
    return output.loss if hasattr(output, "loss") else output


UNUSED = {"find_unused_parameters": True}
MODELS = {"gpt2": (gpt2, tokens, {}), "convolutions": (Convolutions, images, {}), "branches": (Branches, branches, UNUSED)}


# -- spellings: (model, flags of DDP) -> (what is called, optimizer, parameters, owners of compilations) ----------------------


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def eager(model, flags):
    model = DDP(model, **flags)
    return model, optimizer_of(model)


def ddp_of_compiled(model, flags):
    import trainc

    return eager(trainc.compile(model), flags)


def compiled_with_optimizer(model, flags):
    import trainc

    return trainc.compile(*eager(model, flags))


def compiled_alone(model, flags):
    import trainc

    model, optimizer = eager(model, flags)
    return trainc.compile(model), optimizer


def fused(model, flags):
    import trainc

    return trainc.compile(*eager(model, flags), fuse_step=True)


def torch_compiled(model, flags):
    model, optimizer = eager(model, flags)
    return torch.compile(model, backend="trainc"), optimizer


def ddp_of_torch_compiled(model, flags):
    return eager(torch.compile(model, backend="trainc"), flags)


SPELLINGS = {
    "DDP(trainc.compile(model))": ddp_of_compiled,
    "trainc.compile(DDP(model), optimizer)": compiled_with_optimizer,
    "trainc.compile(DDP(model))": compiled_alone,
    "trainc.compile(DDP(model), optimizer, fuse_step=True)": fused,
    'torch.compile(DDP(model), backend="trainc")': torch_compiled,
    'DDP(torch.compile(model, backend="trainc"))': ddp_of_torch_compiled,
    "trainc.train_step": eager,
    "trainc.train_step over trainc.compile(DDP(model))": compiled_alone,
}


# -- loops: (model, optimizer, rank, step, data) -> loss -------------------------------------------------------------------


def plain(model, optimizer, batch):
    optimizer.zero_grad()
    loss = loss_of(model(**batch(0)))
    loss.backward()
    optimizer.step()
    return loss


def accumulated(model, optimizer, batch):
    optimizer.zero_grad()
    with no_sync_of(model)():
        loss_of(model(**batch(100))).backward()
    loss = loss_of(model(**batch(0)))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return loss


def never_reduced(model, optimizer, batch):
    with no_sync_of(model)():
        return plain(model, optimizer, batch)


def no_sync_of(model):
    return getattr(model, "_orig_mod", model).no_sync


LOOPS = {"plain": plain, "accumulated": accumulated, "never reduced": never_reduced}


def bf16_hook(model):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    def compressed(group, bucket):  # by its own name PyTorch takes it for NCCL alone
        return bf16_compress_hook(group, bucket)

    getattr(model, "_orig_mod", model).register_comm_hook(None, compressed)


def fp16_hook(model):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    getattr(model, "_orig_mod", model).register_comm_hook(None, fp16_compress_hook)


# name: (model, flags of DDP, loop, done to the wrapped model)
HOW = {
    **{name: (name, {}, "plain", None) for name in MODELS},
    "accumulated": ("convolutions", {}, "accumulated", None),
    "static graph": ("convolutions", {"static_graph": True}, "plain", None),
    "bucket views": ("convolutions", {"gradient_as_bucket_view": True}, "plain", None),
    "small buckets": ("convolutions", {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}, "plain", None),
    "fp16 hook": ("convolutions", {}, "plain", fp16_hook),
    "bf16 hook": ("convolutions", {}, "plain", bf16_hook),
    "own buffers": ("convolutions", {"broadcast_buffers": False}, "plain", None),
    "never reduced": ("convolutions", {}, "never reduced", None),  # a twin, which the test must see
}
# The three places where DDP can stand, for what is asked beside the plain loop; Dynamo itself refuses first buckets below 1 MB.
PLACES = ("DDP(trainc.compile(model))", "trainc.compile(DDP(model), optimizer)", "trainc.train_step")
DYNAMO = 'torch.compile(DDP(model), backend="trainc")'
WITH_DYNAMO = ("accumulated", "static graph", "bucket views", "fp16 hook")


def cases(twins=False):
    if twins:
        return [("never reduced", spelling) for spelling in SPELLINGS]
    places = {how: SPELLINGS if how in MODELS else [*PLACES, *([DYNAMO] * (how in WITH_DYNAMO))] for how in HOW}
    return [(how, spelling) for how, spellings in places.items() if how != "never reduced" for spelling in spellings]


# -- the ranks' program ----------------------------------------------------------------------------------------------------


def train(spelling, name, how, rank, seed=None):
    """Losses of the steps, the weights' digest at the end, and what is left to ask `explain`."""
    which, flags, loop, hook = HOW[how]
    make, data, own_flags = MODELS[which]
    torch.manual_seed(3 + rank)  # DDP makes the ranks' weights equal
    model = make()
    if seed is not None:
        disturb(model, seed)
    called, optimizer = spelling(model, {**flags, **own_flags})
    if hook is not None:
        hook(called)
    step = LOOPS[loop]
    at = [0]

    def batch(more):
        return data(rank, at[0] + more)

    if name.startswith("trainc.train_step"):
        step = step_of(called, optimizer, loop)
        run = lambda: step(*[batch(100)] * (loop == "accumulated"), batch(0))  # noqa: E731
    else:
        run = lambda: LOOPS[loop](called, optimizer, batch)  # noqa: E731
    losses = []
    for at[0] in range(STEPS):
        losses.append(run().item())
    return losses, ranks.digest(model.parameters()), (step, called, optimizer)


def step_of(model, optimizer, loop):
    import trainc

    if loop == "accumulated":

        @trainc.train_step
        def step(first, second):
            optimizer.zero_grad()
            with model.no_sync():
                loss_of(model(**first)).backward()
            loss = loss_of(model(**second))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            return loss

    elif loop == "never reduced":

        @trainc.train_step
        def step(batch):
            return never_reduced(model, optimizer, lambda _: batch)

    else:

        @trainc.train_step
        def step(batch):
            optimizer.zero_grad()
            loss = loss_of(model(**batch))
            loss.backward()
            optimizer.step()
            return loss

    return step


def routes(name, asked):
    """(route, engine) of what was compiled for the model, without the optimizer's."""
    import trainc
    from trainc.torch.doors import backend

    step, called, _ = asked
    if "torch.compile" in name:
        return sorted({(c.route, c.engine) for c in backend.compilations})
    explained = trainc.explain(step if name.startswith("trainc.train_step") else called)
    return sorted({(c.route, c.engine) for c in explained.compilations if c.optimizer is None})


def main(rank, folder):
    warnings.simplefilter("ignore")
    ranks.join_group(rank, folder)
    import trainc
    from trainc.torch.doors import backend

    trainc.config.fallback = False
    found = {}
    for how in HOW:
        losses, weights, _ = train(eager, "eager", how, rank)
        disturbed = [train(eager, "eager", how, rank, seed)[0] for seed in SEEDS]
        found[f"{how}, eager"] = {"losses": losses, "weights": weights, "disturbed": disturbed}
    for how, name in (*cases(), *cases(twins=True)):
        start = time.monotonic()
        torch.compiler.reset()
        backend.compilations.clear()
        try:
            losses, weights, asked = train(SPELLINGS[name], name, how, rank)
            found[f"{how}, {name}"] = {"losses": losses, "weights": weights, "routes": routes(name, asked)}
        except Exception as error:
            found[f"{how}, {name}"] = {"error": f"{type(error).__name__}: {error}"}
        print(f"{how}, {name}: {time.monotonic() - start:.1f} s", found[f"{how}, {name}"].get("error", ""), flush=True)
    ranks.told(rank, folder, found)
    ranks.leave_group()


@pytest.fixture(scope="module")
def found():
    return ranks.Ranks(__file__, timeout=TIMEOUT).check()


@pytest.mark.parametrize(("how", "spelling"), cases())
def test_every_spelling_trains_as_eager_ddp(found, how, spelling):
    first, second = (rank[f"{how}, {spelling}"] for rank in found)
    for rank, own in zip(found, (first, second), strict=True):
        assert "error" not in own, own
        eager = rank[f"{how}, eager"]
        assert not violations(own["losses"], eager["losses"], eager["disturbed"])
        assert own["routes"] == [["compiled" if "torch.compile" not in spelling else "dynamo", "core"]]
    assert first["weights"] == second["weights"]
    assert first["losses"] != second["losses"]  # the ranks' data are their own


@pytest.mark.parametrize(("how", "spelling"), cases(twins=True))
def test_ranks_that_part_are_seen(found, how, spelling):
    """Without the reduction each spelling trains each rank for itself: losses that eager DDP never gave, and other weights."""
    first, second = (rank[f"{how}, {spelling}"] for rank in found)
    assert "error" not in first and first["weights"] != second["weights"]
    assert violations(first["losses"], found[0]["convolutions, eager"]["losses"], found[0]["convolutions, eager"]["disturbed"])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
